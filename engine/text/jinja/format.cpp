// str.format and the % operator. Template bytes and argument bytes keep their origin.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>

#include "engine/text/jinja/interp.h"

namespace carrel::jinja {
namespace {

constexpr int64_t kMaxWidth = 10'000;

struct Spec {
  std::string fill = " ";
  char align = '\0';
  char sign = '-';
  bool alternate = false;
  bool comma = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

int64_t digits(Interp& in, std::string_view s, size_t& i) {
  int64_t n = 0;
  for (; i < s.size() && s[i] >= '0' && s[i] <= '9'; ++i) n = std::min<int64_t>(n * 10 + (s[i] - '0'), kMaxWidth + 1);
  if (n > kMaxWidth) in.raise(Code::kExhausted, "a width or precision in a format is too large");
  return n;
}

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

Spec parse_spec(Interp& in, std::string_view s) {
  Spec spec;
  size_t i = 0;
  const size_t first = s.empty() ? 0 : char_bytes(s, 0);
  if (first > 0 && first < s.size() && is_align(s[first])) {
    spec.fill = std::string(s.substr(0, first));
    spec.align = s[first];
    i = first + 1;
  } else if (!s.empty() && is_align(s[0])) {
    spec.align = s[0];
    i = 1;
  }
  if (i < s.size() && (s[i] == '+' || s[i] == '-' || s[i] == ' ')) spec.sign = s[i++];
  if (i < s.size() && s[i] == '#') {
    spec.alternate = true;
    ++i;
  }
  if (i < s.size() && s[i] == '0') {
    if (spec.align == '\0') {
      spec.fill = "0";
      spec.align = '=';
    }
    ++i;
  }
  spec.width = digits(in, s, i);
  if (i < s.size() && (s[i] == ',' || s[i] == '_')) spec.comma = s[i++] == ',';
  if (i < s.size() && s[i] == '.') spec.precision = digits(in, s, ++i);
  if (i < s.size()) spec.type = s[i++];
  if (i != s.size()) in.bad("invalid format specifier '" + std::string(s) + "'");
  return spec;
}

std::string in_base(uint64_t n, unsigned base, bool upper) {
  std::string out;
  do {
    out.insert(out.begin(), (upper ? "0123456789ABCDEF" : "0123456789abcdef")[n % base]);
    n /= base;
  } while (n > 0);
  return out;
}

/// The digits of a number without its sign.
std::string magnitude(Interp& in, const Value& v, const Spec& spec) {
  const char type = spec.type;
  if (v.is_intlike() && (type == '\0' || std::string_view("dnxXob").find(type) != std::string_view::npos)) {
    const int64_t i = v.as_int();
    const uint64_t m = i < 0 ? 0 - static_cast<uint64_t>(i) : static_cast<uint64_t>(i);
    if (type == 'x' || type == 'X') return (spec.alternate ? (type == 'x' ? "0x" : "0X") : "") + in_base(m, 16, type == 'X');
    if (type == 'o') return (spec.alternate ? "0o" : "") + in_base(m, 8, false);
    if (type == 'b') return (spec.alternate ? "0b" : "") + in_base(m, 2, false);
    return std::to_string(m);
  }
  const double d = std::fabs(v.as_double());
  if (type == '\0' && spec.precision < 0) return float_repr(d);
  const char c = type == '\0' ? 'g' : type == 'n' ? 'g' : type == '%' ? 'f' : type;
  if (std::string_view("eEfFgG").find(c) == std::string_view::npos) in.bad(std::string("unknown format code '") + type + "'");
  const char format[] = {'%', '.', '*', c, '\0'};
  std::string out(static_cast<size_t>(kMaxWidth) + 400, '\0');
  const int n = std::snprintf(out.data(), out.size(), format, static_cast<int>(spec.precision < 0 ? 6 : spec.precision), type == '%' ? d * 100 : d);
  out.resize(static_cast<size_t>(std::max(n, 0)));
  return type == '%' ? out + '%' : out;
}

void add_commas(std::string& m) {
  size_t whole = 0;
  while (whole < m.size() && m[whole] >= '0' && m[whole] <= '9') ++whole;
  for (size_t i = whole; i > 3; i -= 3) m.insert(i - 3, ",");
}

void pad(TextBuilder& b, const Spec& spec, const TextBody& sign, const TextBody& body, char preset_align) {
  const int64_t missing = std::max<int64_t>(spec.width - static_cast<int64_t>(sign.n_chars + body.n_chars), 0);
  const char align = spec.align == '\0' ? preset_align : spec.align;
  const int64_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0, between = align == '=' ? missing : 0;
  const auto fill = [&](int64_t n) {
    for (; n > 0; --n) b.append(spec.fill, Origin::kTemplate);
  };
  fill(before);
  b.append(sign);
  fill(between);
  b.append(body);
  fill(missing - before - between);
}

TextBody plain(const std::string& s) {
  TextBuilder b;
  b.append(s, Origin::kTemplate);
  return b.take();
}

void put_number(Interp& in, TextBuilder& b, const Value& v, const Spec& spec) {
  std::string m = magnitude(in, v, spec);
  if (spec.comma) add_commas(m);
  const bool negative = v.is(Kind::kFloat) ? std::signbit(v.as_double()) : v.as_int() < 0;
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  pad(b, spec, plain(sign), plain(m), '>');
}

void put_text(Interp& in, TextBuilder& b, const Value& v, const Spec& spec) {
  Value s = in.to_str(v);
  if (spec.precision >= 0) s = in.slice_text(s, 0, byte_of_char(s.str().text, static_cast<size_t>(spec.precision)));
  pad(b, spec, {}, s.str().text, '<');
}

void put(Interp& in, TextBuilder& b, const Value& v, const Spec& spec) {
  in.step(1 + static_cast<uint64_t>(spec.width + std::max<int64_t>(spec.precision, 0)) / 16);
  if (spec.type == 's' && !v.is_string()) in.bad(std::string("unknown format code 's' for object of type '") + type_name(v) + "'");
  if (v.is_number() && !(v.is(Kind::kBool) && spec.type == '\0')) return put_number(in, b, v, spec);
  if (spec.type != '\0' && spec.type != 's') in.bad(std::string("unknown format code '") + spec.type + "' for object of type '" + type_name(v) + "'");
  put_text(in, b, v, spec);
}

/// "0", "name", "", with .attribute and [item] after it.
Value field(Interp& in, std::string_view name, const Args& args, int64_t& automatic) {
  size_t i = std::min(name.find_first_of(".["), name.size());
  const std::string head(name.substr(0, i));
  Value v;
  if (head.find_first_not_of("0123456789") == std::string::npos) {
    size_t at = 0;
    const int64_t n = head.empty() ? automatic++ : digits(in, head, at);
    if (static_cast<size_t>(n) >= args.positional.size()) in.bad("Replacement index " + std::to_string(n) + " out of range for positional args tuple");
    v = args.positional[static_cast<size_t>(n)];
  } else {
    const auto it = std::find_if(args.named.begin(), args.named.end(), [&](const auto& a) { return a.first == head; });
    if (it == args.named.end()) in.bad("format has no argument '" + head + "'");
    v = it->second;
  }
  while (i < name.size()) {
    const bool bracket = name[i] == '[';
    const size_t end = bracket ? name.find(']', i) : std::min(name.find_first_of(".[", i + 1), name.size());
    if (end == std::string_view::npos) in.bad("a field of a format is not closed");
    const std::string part(name.substr(i + 1, end - i - 1));
    const bool number = bracket && !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    v = !bracket ? in.attribute(v, part) : in.item(v, number ? Value::integer(std::stoll(part)) : in.text(part));
    i = end + bracket;
  }
  return v;
}

}  // namespace

Value format_braces(Interp& in, const Value& self, const Args& args) {
  const TextBody& t = self.str().text;
  const std::string_view s = t.bytes;
  TextBuilder b;
  int64_t automatic = 0;
  for (size_t i = 0; i < s.size();) {
    if (b.size() > in.limits().max_output_bytes) in.raise(Code::kExhausted, "a formatted text is too long");
    const size_t brace = std::min(s.find_first_of("{}", i), s.size());
    b.append(t, i, brace);
    i = brace;
    if (i >= s.size()) break;
    if (i + 1 < s.size() && s[i + 1] == s[i]) {
      b.append(t, i, i + 1);
      i += 2;
      continue;
    }
    const size_t end = s[i] == '{' ? s.find('}', i) : std::string_view::npos;
    if (end == std::string_view::npos) in.bad("a single '{' or '}' in a format");
    std::string_view inner = s.substr(i + 1, end - i - 1);
    const size_t colon = std::min(inner.find(':'), inner.size());
    const std::string_view spec = colon < inner.size() ? inner.substr(colon + 1) : std::string_view();
    std::string_view name = inner.substr(0, colon);
    char conversion = '\0';
    if (name.size() >= 2 && name[name.size() - 2] == '!') {
      conversion = name.back();
      name.remove_suffix(2);
    }
    Value v = field(in, name, args, automatic);
    if (conversion == 'r') v = in.text(in.repr(v), Origin::kInput);
    if (conversion == 's') v = in.to_str(v);
    put(in, b, v, parse_spec(in, spec));
    i = end + 1;
  }
  return in.make(b, self.str().safe);
}

Value format_percent(Interp& in, const Value& self, const Value& args) {
  const TextBody& t = self.str().text;
  const std::string_view s = t.bytes;
  const std::vector<Value> list = args.is(Kind::kTuple) ? args.seq().items : std::vector<Value>{args};
  size_t used = 0;
  bool by_name = false;
  TextBuilder b;
  for (size_t i = 0; i < s.size();) {
    if (b.size() > in.limits().max_output_bytes) in.raise(Code::kExhausted, "a formatted text is too long");
    const size_t mark = std::min(s.find('%', i), s.size());
    b.append(t, i, mark);
    i = mark + 1;
    if (mark >= s.size()) break;
    if (i < s.size() && s[i] == '%') {
      b.append(t, i, i + 1);
      ++i;
      continue;
    }
    std::optional<Value> v;
    if (i < s.size() && s[i] == '(') {
      const size_t close = s.find(')', i);
      if (close == std::string_view::npos || !args.is(Kind::kDict)) in.bad("format requires a mapping");
      const Value* found = args.dict().find(s.substr(i + 1, close - i - 1));
      if (found == nullptr) in.bad("the mapping of a format has no such key");
      v = *found;
      by_name = true;
      i = close + 1;
    }
    Spec spec;
    spec.align = '>';
    for (; i < s.size() && std::string_view("-+ 0#").find(s[i]) != std::string_view::npos; ++i) {
      if (s[i] == '-') spec.align = '<';
      if (s[i] == '+' || s[i] == ' ') spec.sign = s[i];
      if (s[i] == '#') spec.alternate = true;
      if (s[i] == '0' && spec.align == '>') {
        spec.fill = "0";
        spec.align = '=';
      }
    }
    spec.width = digits(in, s, i);
    if (i < s.size() && s[i] == '.') spec.precision = digits(in, s, ++i);
    if (i >= s.size()) in.bad("incomplete format");
    const char type = s[i++];
    if (!v) {
      if (used >= list.size()) in.bad("not enough arguments for format string");
      v = list[used++];
    }
    if (type == 's' || type == 'r') {
      put_text(in, b, type == 'r' ? in.text(in.repr(*v), Origin::kInput) : *v, spec);
      continue;
    }
    if (!v->is_number()) in.bad(std::string("%") + type + " format: a number is required, not " + type_name(*v));
    spec.type = type == 'i' || type == 'u' ? 'd' : type;
    if (spec.type == 'd' && v->is(Kind::kFloat)) {
      if (std::fabs(v->as_double()) >= 9e18) in.bad("a number beyond 64 bits");
      v = Value::integer(static_cast<int64_t>(v->as_double()));
    }
    put_number(in, b, *v, spec);
  }
  if (!by_name && used < list.size() && !args.is(Kind::kDict) && !args.is(Kind::kList)) in.bad("not all arguments converted during string formatting");
  return in.make(b, self.str().safe);
}

}  // namespace carrel::jinja
