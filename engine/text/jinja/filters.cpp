// Filters on single values and the table of all filters; those on sequences are in filters_seq.cpp.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "engine/text/jinja/filters.h"

namespace carrel::jinja {
namespace {

Value abs_filter(Interp& in, const Value& v, const Args&) {
  if (v.is(Kind::kFloat)) return Value::real(std::fabs(v.as_double()));
  if (!v.is_intlike()) in.bad(std::string("bad operand type for abs(): '") + type_name(v) + "'");
  return v.as_int() < 0 ? in.binary(Op::kSub, Value::integer(0), v) : Value::integer(v.as_int());
}

Value default_filter(Interp&, const Value& v, const Args& a) {
  const Value* boolean = a.find(1, "boolean");
  if (!v.is_undefined() && (boolean == nullptr || !boolean->truthy() || v.truthy())) return v;
  const Value* other = a.find(0, "default_value");
  return other != nullptr ? *other : Value::string("", Origin::kTemplate);
}

Value safe_filter(Interp& in, const Value& v, const Args&) {
  TextBuilder b;
  in.append_str(b, v);
  return in.make(b, true);
}

Value forceescape(Interp& in, const Value& v, const Args&) {
  TextBuilder b;
  in.append_str(b, v);
  return in.escape(in.make(b));
}

Value float_filter(Interp& in, const Value& v, const Args& a) {
  if (v.is_number()) return Value::real(v.as_double());
  if (v.is_string()) {
    const std::string& s = v.bytes();
    in.step(s.size() / 4);
    char* end = nullptr;
    const double d = std::strtod(s.c_str(), &end);
    if (end != s.c_str() && std::string_view(end).find_first_not_of(" \t\r\n") == std::string_view::npos) return Value::real(d);
  }
  const Value* preset = a.find(0, "default");
  return preset != nullptr ? *preset : Value::real(0);
}

Value int_filter(Interp& in, const Value& v, const Args& a) {
  const Value* preset = a.find(0, "default");
  const Value otherwise = preset != nullptr ? *preset : Value::integer(0);
  if (v.is_intlike()) return Value::integer(v.as_int());
  if (v.is(Kind::kFloat)) return std::fabs(v.as_double()) < 9e18 ? Value::integer(static_cast<int64_t>(v.as_double())) : otherwise;
  if (!v.is_string()) return otherwise;
  const int64_t base = int_arg(in, a.find(1, "base"), 10);
  const Value stripped = strip(in, v, nullptr, Side::kBoth);
  std::string s = stripped.bytes();
  if (s.starts_with('+')) s.erase(0, 1);
  int64_t i = 0;
  const auto [stop, ec] = std::from_chars(s.data(), s.data() + s.size(), i, static_cast<int>(std::clamp<int64_t>(base, 2, 36)));
  if (ec == std::errc() && stop == s.data() + s.size()) return Value::integer(i);
  const Value as_float = float_filter(in, v, {{Value()}, {}});
  return as_float.is(Kind::kFloat) && std::fabs(as_float.as_double()) < 9e18 ? Value::integer(static_cast<int64_t>(as_float.as_double())) : otherwise;
}

Value round_filter(Interp& in, const Value& v, const Args& a) {
  if (!v.is_number()) in.bad(std::string("cannot round a '") + type_name(v) + "'");
  const int64_t precision = std::clamp<int64_t>(int_arg(in, a.find(0, "precision"), 0), -20, 20);
  const Value* method = a.find(1, "method");
  const std::string how = method != nullptr && method->is_string() ? method->bytes() : "common";
  const double d = v.as_double(), scale = std::pow(10.0, static_cast<double>(precision));
  if (how == "ceil") return Value::real(std::ceil(d * scale) / scale);
  if (how == "floor") return Value::real(std::floor(d * scale) / scale);
  if (how != "common") in.bad("round takes 'common', 'ceil' or 'floor'");
  if (precision < 0) {
    const double r = std::nearbyint(d * scale) / scale;
    return v.is_intlike() && std::fabs(r) < 9e18 ? Value::integer(static_cast<int64_t>(r)) : Value::real(r);
  }
  char buf[400];
  std::snprintf(buf, sizeof buf, "%.*f", static_cast<int>(precision), d);  // rounds the exact value, half to even
  const double r = std::strtod(buf, nullptr);
  return v.is_intlike() ? Value::integer(v.as_int()) : Value::real(r);
}

Value trim_filter(Interp& in, const Value& v, const Args& a) { return strip(in, in.to_str(v), a.find(0, "chars"), Side::kBoth); }
Value upper_filter(Interp& in, const Value& v, const Args&) { return map_case(in, in.to_str(v), true); }
Value lower_filter(Interp& in, const Value& v, const Args&) { return map_case(in, in.to_str(v), false); }
Value title_filter(Interp& in, const Value& v, const Args&) { return title(in, in.to_str(v), true); }
Value capitalize_filter(Interp& in, const Value& v, const Args&) { return capitalize(in, in.to_str(v)); }

Value replace_filter(Interp& in, const Value& v, const Args& a) {
  const Value *from = a.find(0, "old"), *to = a.find(1, "new");
  if (from == nullptr || to == nullptr) in.bad("replace needs what to replace and by what");
  return replace(in, in.to_str(v), in.to_str(*from), in.to_str(*to), int_arg(in, a.find(2, "count"), -1));
}

Value indent_filter(Interp& in, const Value& v, const Args& a) {
  const Value s = in.to_str(v);
  const Value* width = a.find(0, "width");
  const Value *first = a.find(1, "first"), *blank = a.find(2, "blank");
  Value pad;
  if (width != nullptr && width->is_string()) {
    pad = *width;
  } else {
    const int64_t n = int_arg(in, width, 4);
    pad = in.binary(Op::kMul, in.text(" "), Value::integer(n));
  }
  const TextBody& t = s.str().text;
  TextBuilder b;
  size_t at = 0;
  for (bool is_first = true; at <= t.bytes.size(); is_first = false) {
    const size_t end = std::min(t.bytes.find('\n', at), t.bytes.size());
    const bool wanted = is_first ? first != nullptr && first->truthy() : end > at || (blank != nullptr && blank->truthy());
    in.step(1 + pad.bytes().size() / 16);
    if (wanted) b.append(pad.str().text);
    b.append(t, at, std::min(end + 1, t.bytes.size()));
    if (b.size() > in.limits().max_output_bytes) in.raise(Code::kExhausted, "an indented text is too long");
    at = end + 1;
  }
  return in.make(b);
}

Value tojson_filter(Interp& in, const Value& v, const Args& a) {
  JsonStyle style;
  const Value *ascii = a.find(0, "ensure_ascii"), *indent = a.find(1, "indent"), *separators = a.find(2, "separators"), *sort = a.find(3, "sort_keys");
  style.ensure_ascii = ascii != nullptr && ascii->truthy();
  style.sort_keys = sort != nullptr && sort->truthy();
  if (indent != nullptr && !indent->is_none()) {
    style.indent = indent->is_string() ? indent->bytes() : std::string(static_cast<size_t>(std::clamp<int64_t>(int_arg(in, indent, 0), 0, 64)), ' ');
    style.item_separator = std::string(1, ',');
  }
  if (separators != nullptr && !separators->is_none()) {
    const auto pair = in.iterate(*separators);
    if (pair.size() != 2) in.bad("separators must be two texts");
    style.item_separator = string_arg(in, &pair[0], "separators").bytes();
    style.key_separator = string_arg(in, &pair[1], "separators").bytes();
  }
  return in.text(to_json(in, v, style), Origin::kInput);
}

Value wordcount(Interp& in, const Value& v, const Args&) {
  const std::string s = in.to_str(v).bytes();
  in.step(s.size() / 4);
  int64_t n = 0;
  bool inside = false;
  for (size_t i = 0; i < s.size(); i += char_bytes(s, i)) {
    const char32_t c = decode_char(s, i);
    const bool word = is_alpha(c) || is_numeric(c) || c == '_';
    n += word && !inside;
    inside = word;
  }
  return Value::integer(n);
}

Value center(Interp& in, const Value& v, const Args& a) {
  return in.call_method(in.to_str(v), "center", {{Value::integer(int_arg(in, a.find(0, "width"), 80))}, {}});
}

Value truncate(Interp& in, const Value& v, const Args& a) {
  const Value s = in.to_str(v);
  const int64_t length = int_arg(in, a.find(0, "length"), 255), leeway = int_arg(in, a.find(3, "leeway"), 5);
  const Value *kill = a.find(1, "killwords"), *end_arg = a.find(2, "end");
  const Value end = end_arg != nullptr ? in.to_str(*end_arg) : in.text("...");
  const auto n = static_cast<int64_t>(s.str().text.n_chars), n_end = static_cast<int64_t>(end.str().text.n_chars);
  if (length < n_end || leeway < 0) in.bad("truncate needs a length of at least its end mark");
  if (n <= length || n - length <= leeway) return s;
  size_t stop = byte_of_char(s.str().text, static_cast<size_t>(length - n_end));
  if (kill == nullptr || !kill->truthy()) {
    if (const size_t blank = s.bytes().substr(0, stop).rfind(' '); blank != std::string::npos) stop = blank;
  }
  return in.binary(Op::kAdd, in.slice_text(s, 0, stop), end);
}

Value urlencode(Interp& in, const Value& v, const Args&) {
  const Value s = in.to_str(v);
  in.step(s.bytes().size());
  std::string out;
  for (const char c : s.bytes()) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c != '\0' && std::string_view("_.-~/").find(c) != std::string_view::npos);
    char buf[4];
    std::snprintf(buf, sizeof buf, "%%%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
    out += plain ? std::string(1, c) : std::string(buf);
  }
  return in.text(out, Origin::kInput);
}

Value format_filter(Interp& in, const Value& v, const Args& a) {
  if (a.named.empty()) return format_percent(in, in.to_str(v), in.tuple(a.positional));
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [k, x] : a.named) items.emplace_back(in.text(k), x);
  return format_percent(in, in.to_str(v), in.dict(std::move(items)));
}

Value attr_filter(Interp& in, const Value& v, const Args& a) {
  const std::string name = string_arg(in, a.find(0, "name"), "attr").bytes();
  if (v.is(Kind::kDict) && find_method(v, name) == nullptr) return Value::undefined("'dict object' has no attribute '" + name + "'");
  return in.attribute(v, name);
}

constexpr FilterEntry kFilters[] = {
    {"abs", abs_filter}, {"attr", attr_filter}, {"capitalize", capitalize_filter}, {"center", center}, {"d", default_filter},
    {"default", default_filter}, {"e", [](Interp& in, const Value& v, const Args&) { return in.escape(v); }},
    {"escape", [](Interp& in, const Value& v, const Args&) { return in.escape(v); }}, {"float", float_filter}, {"forceescape", forceescape},
    {"format", format_filter}, {"indent", indent_filter}, {"int", int_filter}, {"lower", lower_filter}, {"replace", replace_filter},
    {"round", round_filter}, {"safe", safe_filter}, {"string", [](Interp& in, const Value& v, const Args&) { return in.to_str(v); }},
    {"title", title_filter}, {"tojson", tojson_filter}, {"trim", trim_filter}, {"truncate", truncate}, {"upper", upper_filter},
    {"urlencode", urlencode}, {"wordcount", wordcount},
};

}  // namespace

FilterFn find_filter(std::string_view name) {
  for (const FilterEntry& f : kFilters) {
    if (f.name == name) return f.fn;
  }
  return find_sequence_filter(name);
}

}  // namespace carrel::jinja
