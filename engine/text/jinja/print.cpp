// Values as text: str() and repr() of Python, json.dumps, HTML escapes, white space.
#include <algorithm>
#include <cmath>

#include "engine/text/jinja/interp.h"

namespace carrel::jinja {
namespace {

constexpr Origin kT = Origin::kTemplate;

/// A Python string literal; what is inside keeps its origin.
void repr_text(const TextBody& t, TextBuilder& out) {
  const bool single = t.bytes.find('\'') != std::string::npos && t.bytes.find('"') == std::string::npos;
  const char quote = single ? '"' : '\'';
  out.append(std::string_view(&quote, 1), kT);
  for (size_t i = 0; i < t.bytes.size();) {
    const size_t n = char_bytes(t.bytes, i);
    const char32_t c = decode_char(t.bytes, i);
    char escaped[16] = {};
    if (c == static_cast<char32_t>(quote) || c == '\\') snprintf(escaped, sizeof escaped, "\\%c", static_cast<char>(c));
    else if (c == '\n') snprintf(escaped, sizeof escaped, "\\n");
    else if (c == '\r') snprintf(escaped, sizeof escaped, "\\r");
    else if (c == '\t') snprintf(escaped, sizeof escaped, "\\t");
    else if (c < 0x20 || c == 0x7F || (c < 0x100 && !is_printable(c))) snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(c));
    else if (c < 0x10000 && !is_printable(c)) snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
    else if (!is_printable(c)) snprintf(escaped, sizeof escaped, "\\U%08x", static_cast<unsigned>(c));
    if (escaped[0] != 0) out.append(escaped, origin_at(t, i));
    else out.append(t, i, i + n);
    i += n;
  }
  out.append(std::string_view(&quote, 1), kT);
}

void json_text(const TextBody& t, bool ascii, TextBuilder& out) {
  out.append("\"", kT);
  for (size_t i = 0; i < t.bytes.size();) {
    const size_t n = char_bytes(t.bytes, i);
    const char32_t c = decode_char(t.bytes, i);
    char escaped[16] = {};
    if (c == '"' || c == '\\') snprintf(escaped, sizeof escaped, "\\%c", static_cast<char>(c));
    else if (c == '\n') snprintf(escaped, sizeof escaped, "\\n");
    else if (c == '\r') snprintf(escaped, sizeof escaped, "\\r");
    else if (c == '\t') snprintf(escaped, sizeof escaped, "\\t");
    else if (c == '\b') snprintf(escaped, sizeof escaped, "\\b");
    else if (c == '\f') snprintf(escaped, sizeof escaped, "\\f");
    else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000)) snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
    else if (ascii && c >= 0x10000) snprintf(escaped, sizeof escaped, "\\u%04x\\u%04x", static_cast<unsigned>(0xD800 + ((c - 0x10000) >> 10)), static_cast<unsigned>(0xDC00 + ((c - 0x10000) & 0x3FF)));
    if (escaped[0] != 0) out.append(escaped, origin_at(t, i));
    else out.append(t, i, i + n);
    i += n;
  }
  out.append("\"", kT);
}

class Json {
 public:
  Json(Interp& in, const JsonStyle& style) : in_(in), style_(style) {}

  void write(const Value& v, int level, TextBuilder& out) {
    in_.step();
    if (out.size() > in_.limits().max_output_bytes) raise(Code::kExhausted, "tojson makes too large a text");
    switch (v.kind()) {
      case Kind::kNone: return out.append("null", kT);
      case Kind::kBool: return out.append(v.as_bool() ? "true" : "false", kT);
      case Kind::kInt: return out.append(std::to_string(v.as_int()), kT);
      case Kind::kBigInt: return out.append(static_cast<const Str&>(*v.body()).text.bytes, kT);
      case Kind::kFloat: return out.append(std::isnan(v.as_double()) ? "NaN" : std::isinf(v.as_double()) ? (v.as_double() > 0 ? "Infinity" : "-Infinity") : float_repr(v.as_double()), kT);
      case Kind::kString: return json_text(v.str().text, style_.ascii, out);
      case Kind::kList:
      case Kind::kTuple: {
        const auto& items = v.seq().items;
        out.append("[", kT);
        for (size_t i = 0; i < items.size(); i++) {
          separate(i, level + 1, out);
          write(items[i], level + 1, out);
        }
        return close(items.empty(), level, "]", out);
      }
      case Kind::kDict: {
        auto items = v.dict().items;
        in_.step(items.size());
        if (style_.sort_keys) std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) { return in_.compare(a.first, b.first) < 0; });
        out.append("{", kT);
        for (size_t i = 0; i < items.size(); i++) {
          separate(i, level + 1, out);
          key(items[i].first, out);
          out.append(style_.key_separator, kT);
          write(items[i].second, level + 1, out);
        }
        return close(items.empty(), level, "}", out);
      }
      default: raise("Object of type " + std::string(type_name(v)) + " is not JSON serializable");
    }
  }

 private:
  void key(const Value& k, TextBuilder& out) {
    if (k.is_string()) return json_text(k.str().text, style_.ascii, out);
    TextBuilder b;
    write(k, 0, b);
    const TextBody t = b.take();
    out.append("\"", kT);
    out.append(t);
    out.append("\"", kT);
  }
  void separate(size_t i, int level, TextBuilder& out) {
    if (i > 0) out.append(style_.item_separator, kT);
    if (style_.indent >= 0) out.append("\n" + std::string(static_cast<size_t>(style_.indent * level), ' '), kT);
  }
  void close(bool empty, int level, const char* bracket, TextBuilder& out) {
    if (style_.indent >= 0 && !empty) out.append("\n" + std::string(static_cast<size_t>(style_.indent * level), ' '), kT);
    out.append(bracket, kT);
  }

  Interp& in_;
  const JsonStyle& style_;
};

}  // namespace

TextBody to_json(Interp& in, const Value& v, const JsonStyle& style) {
  TextBuilder out;
  Json(in, style).write(v, 0, out);
  return out.take();
}

TextBody Interp::print(const Value& v) {
  if (v.is_string()) return v.str().text;
  if (v.is_undefined()) return {};
  return repr(v);
}

TextBody Interp::repr(const Value& v, uint32_t depth) {
  step();
  TextBuilder out;
  const auto sequence = [&](const std::vector<Value>& items) {
    for (size_t i = 0; i < items.size(); i++) {
      if (i > 0) out.append(", ", kT);
      out.append(repr(items[i], depth + 1));
      if (out.size() > limits_.max_output_bytes) raise(Code::kExhausted, "a printed value is too large");
    }
  };
  switch (v.kind()) {
    case Kind::kUndefined: out.append("Undefined", kT); break;
    case Kind::kNone: out.append("None", kT); break;
    case Kind::kBool: out.append(v.as_bool() ? "True" : "False", kT); break;
    case Kind::kInt: out.append(std::to_string(v.as_int()), kT); break;
    case Kind::kBigInt: out.append(static_cast<const Str&>(*v.body()).text.bytes, kT); break;
    case Kind::kFloat: out.append(float_repr(v.as_double()), kT); break;
    case Kind::kString: repr_text(v.str().text, out); break;
    case Kind::kRange: out.append(v.seq().label, kT); break;
    case Kind::kView:
      out.append(v.seq().label + "([", kT);
      sequence(v.seq().items);
      out.append("])", kT);
      break;
    case Kind::kList:
      out.append("[", kT);
      sequence(v.seq().items);
      out.append("]", kT);
      break;
    case Kind::kTuple:
      out.append("(", kT);
      sequence(v.seq().items);
      out.append(v.seq().items.size() == 1 ? ",)" : ")", kT);
      break;
    case Kind::kDict: {
      out.append("{", kT);
      bool first = true;
      for (const auto& [k, x] : v.dict().items) {
        if (!std::exchange(first, false)) out.append(", ", kT);
        out.append(repr(k, depth + 1));
        out.append(": ", kT);
        out.append(repr(x, depth + 1));
        if (out.size() > limits_.max_output_bytes) raise(Code::kExhausted, "a printed value is too large");
      }
      out.append("}", kT);
      break;
    }
    case Kind::kNamespace: out.append("<Namespace>", kT); break;
    case Kind::kGenerator: out.append("<generator object>", kT); break;
    case Kind::kCallable: out.append("<" + static_cast<const Callable&>(*v.body()).name + ">", kT); break;
    case Kind::kLoop: out.append("<LoopContext>", kT); break;
  }
  return out.take();
}

TextBody escape_html(const TextBody& t) {
  TextBuilder out;
  for (size_t i = 0; i < t.bytes.size(); i++) {
    const char* with = nullptr;
    switch (t.bytes[i]) {
      case '&': with = "&amp;"; break;
      case '<': with = "&lt;"; break;
      case '>': with = "&gt;"; break;
      case '"': with = "&#34;"; break;
      case '\'': with = "&#39;"; break;
      default: break;
    }
    if (with != nullptr) out.append(with, origin_at(t, i));
    else out.append(t, i, i + 1);
  }
  TextBody body = out.take();
  body.n_chars = count_chars(body.bytes);  // characters may have been appended byte by byte
  return body;
}

TextBody trim(const TextBody& t, const TextBody* chars, bool left, bool right) {
  const auto drop = [&](size_t at, size_t n) {
    return chars == nullptr ? is_space(decode_char(t.bytes, at)) : chars->bytes.find(t.bytes.substr(at, n)) != std::string::npos;
  };
  size_t begin = 0, end = t.bytes.size();
  while (left && begin < end && drop(begin, char_bytes(t.bytes, begin))) begin += char_bytes(t.bytes, begin);
  while (right && end > begin) {
    size_t at = end - 1;
    while (at > begin && (static_cast<unsigned char>(t.bytes[at]) & 0xC0) == 0x80) at--;
    if (!drop(at, end - at)) break;
    end = at;
  }
  TextBuilder out;
  out.append(t, begin, end);
  return out.take();
}

}  // namespace carrel::jinja
