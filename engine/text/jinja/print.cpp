// str(), repr() and json.dumps of values, as Python writes them. See interp.h.
#include <cmath>
#include <cstdio>
#include <list>

#include "engine/text/jinja/interp.h"

namespace carrel::jinja {
namespace {

std::string hex(const char* format, uint32_t c) {
  char buf[16];
  std::snprintf(buf, sizeof buf, format, c);
  return buf;
}

std::string repr_string(const std::string& s) {
  const char quote = s.find('\'') != std::string::npos && s.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0, n = 0; i < s.size(); i += n) {
    n = char_bytes(s, i);
    const char32_t c = decode_char(s, i);
    if (c == U'\\' || c == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == U'\n') {
      out += "\\n";
    } else if (c == U'\r') {
      out += "\\r";
    } else if (c == U'\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out.append(s, i, n);
    } else {
      out += hex(c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", static_cast<uint32_t>(c));
    }
  }
  return out + quote;
}

void check_text(Interp& in, const std::string& s) {
  if (s.size() > in.limits().max_output_bytes) in.raise(Code::kExhausted, "a printed value is too long");
}

class JsonWriter {
 public:
  JsonWriter(Interp& in, const JsonStyle& style) : in_(in), style_(style) {}

  std::string write(const Value& v) {
    value(v, 0);
    return std::move(out_);
  }

 private:
  void value(const Value& v, size_t level) {
    const Interp::Level guard(in_);
    in_.step();
    check_text(in_, out_);
    switch (v.kind()) {
      case Kind::kNone: out_ += "null"; break;
      case Kind::kBool: out_ += v.as_bool() ? "true" : "false"; break;
      case Kind::kInt: out_ += std::to_string(v.as_int()); break;
      case Kind::kBigInt: out_ += v.bytes(); break;
      case Kind::kFloat: out_ += number(v.as_double()); break;
      case Kind::kString: string(v.bytes()); break;
      case Kind::kList:
      case Kind::kTuple: array(v.seq().items, level); break;
      case Kind::kDict: object(v.dict(), level); break;
      default: in_.bad(std::string("Object of type ") + type_name(v) + " is not JSON serializable");
    }
  }

  static std::string number(double d) { return std::isnan(d) ? "NaN" : std::isinf(d) ? (d < 0 ? "-Infinity" : "Infinity") : float_repr(d); }

  void string(const std::string& s) {
    in_.step(s.size() / 16);
    out_ += '"';
    for (size_t i = 0, n = 0; i < s.size(); i += n) {
      n = char_bytes(s, i);
      const char32_t c = decode_char(s, i);
      constexpr std::string_view kFrom = "\"\\\b\f\n\r\t", kTo = "\"\\bfnrt";
      if (const size_t k = c < 0x80 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos; k != std::string_view::npos) {
        out_ += '\\';
        out_ += kTo[k];
      } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F && c < 0x10000)) {
        out_ += hex("\\u%04x", static_cast<uint32_t>(c));
      } else if (style_.ensure_ascii && c >= 0x10000) {
        out_ += hex("\\u%04x", static_cast<uint32_t>(0xD800 + ((c - 0x10000) >> 10)));
        out_ += hex("\\u%04x", static_cast<uint32_t>(0xDC00 + ((c - 0x10000) & 0x3FF)));
      } else {
        out_.append(s, i, n);
      }
    }
    out_ += '"';
  }

  void line(size_t level) {
    if (!style_.indent) return;
    out_ += '\n';
    in_.step(1 + level * style_.indent->size() / 16);
    for (size_t i = 0; i < level; ++i) out_ += *style_.indent;
  }

  void array(const std::vector<Value>& items, size_t level) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      line(level + 1);
      value(items[i], level + 1);
    }
    if (!items.empty()) line(level);
    out_ += ']';
  }

  void key(const Value& k) {
    switch (k.kind()) {
      case Kind::kString: return string(k.bytes());
      case Kind::kNone: return string("null");
      case Kind::kBool: return string(k.as_bool() ? "true" : "false");
      case Kind::kInt: return string(std::to_string(k.as_int()));
      case Kind::kBigInt: return string(k.bytes());
      case Kind::kFloat: return string(number(k.as_double()));
      default: in_.bad(std::string("keys must be str, int, float, bool or None, not ") + type_name(k));
    }
  }

  void object(const Dict& d, size_t level) {
    std::list<const std::pair<Value, Value>*> order;
    for (const auto& kv : d.items) order.push_back(&kv);
    if (style_.sort_keys) {
      order.sort([&](const auto* a, const auto* b) { return in_.compare(a->first, b->first) < 0; });
    }
    out_ += '{';
    bool first = true;
    for (const auto* kv : order) {
      if (!std::exchange(first, false)) out_ += style_.item_separator;
      line(level + 1);
      key(kv->first);
      out_ += style_.key_separator;
      value(kv->second, level + 1);
    }
    if (!order.empty()) line(level);
    out_ += '}';
  }

  Interp& in_;
  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

std::string to_json(Interp& in, const Value& v, const JsonStyle& style) { return JsonWriter(in, style).write(v); }

std::string Interp::repr(const Value& v) {
  const Level level(*this);
  step();
  const auto items_of = [&](const std::vector<Value>& items) {
    std::string out;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += ", ";
      out += repr(items[i]);
      check_text(*this, out);
    }
    return out;
  };
  switch (v.kind()) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "None";
    case Kind::kBool: return v.as_bool() ? "True" : "False";
    case Kind::kInt: return std::to_string(v.as_int());
    case Kind::kBigInt: return v.bytes();
    case Kind::kFloat: return float_repr(v.as_double());
    case Kind::kString:
      step(v.bytes().size() / 16);
      return v.str().safe ? "Markup(" + repr_string(v.bytes()) + ")" : repr_string(v.bytes());
    case Kind::kList: return "[" + items_of(v.seq().items) + "]";
    case Kind::kTuple: return "(" + items_of(v.seq().items) + (v.seq().items.size() == 1 ? ",)" : ")");
    case Kind::kView: return v.seq().label + "([" + items_of(v.seq().items) + "])";
    case Kind::kRange: return v.seq().label;
    case Kind::kDict: {
      std::string out = "{";
      for (const auto& [k, item] : v.dict().items) {
        if (out.size() > 1) out += ", ";
        out += repr(k) + ": " + repr(item);
        check_text(*this, out);
      }
      return out + "}";
    }
    default: return std::string("<") + type_name(v) + ">";
  }
}

void Interp::append_str(TextBuilder& b, const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined: return;
    case Kind::kString:
      step(v.bytes().size() / 16);
      b.append(v.str().text);
      return;
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat: b.append(repr(v), Origin::kTemplate); return;
    default: b.append(repr(v), Origin::kInput);  // holds whatever the request put in
  }
}

Value Interp::to_str(const Value& v) {
  if (v.is_string()) return v;
  TextBuilder b;
  append_str(b, v);
  return make(b);
}

Value Interp::escape(const Value& v) {
  const Value s = to_str(v);
  if (s.str().safe) return s;
  TextBuilder b;
  const TextBody& t = s.str().text;
  size_t done = 0;
  for (size_t i = 0; i < t.bytes.size(); ++i) {
    const char c = t.bytes[i];
    const char* to = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '\'' ? "&#39;" : c == '"' ? "&#34;" : nullptr;
    if (to == nullptr) continue;
    b.append(t, done, i);
    b.append(to, origin_at(t, i));
    done = i + 1;
  }
  b.append(t, done, t.bytes.size());
  return make(b, true);
}

}  // namespace carrel::jinja
