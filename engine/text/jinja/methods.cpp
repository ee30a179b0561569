// Methods of strings, dicts and lists, as templates call them.
#include <algorithm>
#include <cmath>
#include <map>

#include "engine/text/jinja/interp.h"

namespace carrel::jinja {
namespace {

using Method = Value (*)(Interp&, const Value& self, const Args&);

const TextBody& text_arg(const Args& a, size_t i, std::string_view name) {
  const Value& v = a.need(i, name);
  if (!v.is_string()) raise("must be str, not " + std::string(type_name(v)));
  return v.str().text;
}

Value piece(Interp& in, const TextBody& t, size_t begin, size_t end) {
  TextBuilder b;
  b.append(t, begin, end);
  in.step();
  return Value::string(b.take());
}

int64_t int_arg(const Args& a, size_t i, std::string_view name, int64_t preset) {
  const Value* v = a.get(i, name);
  if (v == nullptr || v->is_none()) return preset;
  if (!v->is_intlike()) raise("'" + std::string(type_name(*v)) + "' object cannot be interpreted as an integer");
  return v->as_int();
}

std::vector<Value> split_space(Interp& in, const TextBody& t, int64_t max) {
  std::vector<Value> out;
  size_t at = 0;
  const auto skip = [&] {
    while (at < t.bytes.size() && is_space(decode_char(t.bytes, at))) at += char_bytes(t.bytes, at);
  };
  for (skip(); at < t.bytes.size(); skip()) {
    if (max >= 0 && static_cast<int64_t>(out.size()) >= max) {
      const TextBody rest = trim(t, nullptr, false, true);
      out.push_back(piece(in, t, at, std::max(at, rest.bytes.size())));
      return out;
    }
    const size_t begin = at;
    while (at < t.bytes.size() && !is_space(decode_char(t.bytes, at))) at += char_bytes(t.bytes, at);
    out.push_back(piece(in, t, begin, at));
  }
  return out;
}

Value split(Interp& in, const Value& self, const Args& a) {
  const TextBody& t = self.str().text;
  const Value* sep = a.get(0, "sep");
  const int64_t max = int_arg(a, 1, "maxsplit", -1);
  if (sep == nullptr || sep->is_none()) return Value::list(split_space(in, t, max));
  const std::string& s = text_arg(a, 0, "sep").bytes;
  if (s.empty()) raise("empty separator");
  std::vector<Value> out;
  size_t at = 0;
  for (size_t hit; (max < 0 || static_cast<int64_t>(out.size()) < max) && (hit = t.bytes.find(s, at)) != std::string::npos; at = hit + s.size()) out.push_back(piece(in, t, at, hit));
  out.push_back(piece(in, t, at, t.bytes.size()));
  return Value::list(std::move(out));
}

Value rsplit(Interp& in, const Value& self, const Args& a) {
  const TextBody& t = self.str().text;
  const int64_t max = int_arg(a, 1, "maxsplit", -1);
  const Value* sep = a.get(0, "sep");
  if (max < 0 || sep == nullptr || sep->is_none()) return split(in, self, a);
  const std::string& s = text_arg(a, 0, "sep").bytes;
  if (s.empty()) raise("empty separator");
  std::vector<Value> out;
  size_t end = t.bytes.size();
  while (static_cast<int64_t>(out.size()) < max && end >= s.size()) {
    const size_t hit = t.bytes.rfind(s, end - s.size());
    if (hit == std::string::npos) break;
    out.push_back(piece(in, t, hit + s.size(), end));
    end = hit;
  }
  out.push_back(piece(in, t, 0, end));
  std::reverse(out.begin(), out.end());
  return Value::list(std::move(out));
}

template <bool Left, bool Right>
Value strip(Interp& in, const Value& self, const Args& a) {
  const Value* chars = a.get(0, "chars");
  const TextBody* set = chars == nullptr || chars->is_none() ? nullptr : &text_arg(a, 0, "chars");
  return in.text(trim(self.str().text, set, Left, Right));
}

template <bool Start>
Value starts_or_ends(Interp&, const Value& self, const Args& a) {
  const auto one = [&](const Value& v) {
    if (!v.is_string()) raise("first arg must be str or a tuple of str");
    return Start ? self.bytes().starts_with(v.bytes()) : self.bytes().ends_with(v.bytes());
  };
  const Value& v = a.need(0, "prefix");
  if (!v.is(Kind::kTuple)) return Value::boolean(one(v));
  return Value::boolean(std::any_of(v.seq().items.begin(), v.seq().items.end(), one));
}

Value replace(Interp& in, const Value& self, const Args& a) {
  const TextBody &t = self.str().text, &from = text_arg(a, 0, "old"), &to = text_arg(a, 1, "new");
  int64_t left = int_arg(a, 2, "count", -1);
  TextBuilder out;
  if (from.bytes.empty()) {
    for (size_t i = 0; i < t.bytes.size() && left != 0; left--) {
      const size_t n = char_bytes(t.bytes, i);
      out.append(to);
      out.append(t, i, i + n);
      in.step(1 + to.bytes.size() / 16);
      i += n;
    }
    if (left != 0) out.append(to);
    return in.text(out.take());
  }
  size_t at = 0;
  for (size_t hit; left != 0 && (hit = t.bytes.find(from.bytes, at)) != std::string::npos; at = hit + from.bytes.size(), left--) {
    out.append(t, at, hit);
    out.append(to);
    in.step(1 + to.bytes.size() / 16);
    if (out.size() > in.limits().max_output_bytes) raise(Code::kExhausted, "replace makes too large a text");
  }
  out.append(t, at, t.bytes.size());
  return in.text(out.take());
}

Value map_case(Interp& in, const TextBody& t, const std::function<int(char32_t before, bool first)>& how) {
  TextBuilder out;
  char32_t before = ' ';
  for (size_t i = 0; i < t.bytes.size();) {
    const size_t n = char_bytes(t.bytes, i);
    const char32_t c = decode_char(t.bytes, i);
    const int h = how(before, i == 0);
    out.append(h > 0 ? upper_char(c) : h < 0 ? lower_char(c) : t.bytes.substr(i, n), origin_at(t, i));
    before = c;
    i += n;
  }
  return in.text(out.take());
}

Value upper(Interp& in, const Value& s, const Args&) { return map_case(in, s.str().text, [](char32_t, bool) { return 1; }); }
Value lower(Interp& in, const Value& s, const Args&) { return map_case(in, s.str().text, [](char32_t, bool) { return -1; }); }
Value capitalize(Interp& in, const Value& s, const Args&) { return map_case(in, s.str().text, [](char32_t, bool first) { return first ? 1 : -1; }); }
Value title(Interp& in, const Value& s, const Args&) { return map_case(in, s.str().text, [](char32_t before, bool) { return is_alpha(before) ? -1 : 1; }); }

template <bool Raise>
Value find(Interp&, const Value& self, const Args& a) {
  const size_t hit = self.bytes().find(text_arg(a, 0, "sub").bytes);
  if (hit == std::string::npos) {
    if (Raise) raise("substring not found");
    return Value::integer(-1);
  }
  return Value::integer(static_cast<int64_t>(count_chars(std::string_view(self.bytes()).substr(0, hit))));
}

Value rfind(Interp&, const Value& self, const Args& a) {
  const size_t hit = self.bytes().rfind(text_arg(a, 0, "sub").bytes);
  return Value::integer(hit == std::string::npos ? -1 : static_cast<int64_t>(count_chars(std::string_view(self.bytes()).substr(0, hit))));
}

Value count_text(Interp&, const Value& self, const Args& a) {
  const std::string& s = text_arg(a, 0, "sub").bytes;
  if (s.empty()) return Value::integer(static_cast<int64_t>(self.str().text.n_chars) + 1);
  int64_t n = 0;
  for (size_t at = 0; (at = self.bytes().find(s, at)) != std::string::npos; at += s.size()) n++;
  return Value::integer(n);
}

Value join(Interp& in, const Value& self, const Args& a) {
  TextBuilder out;
  bool first = true;
  for (const Value& v : in.items_of(a.need(0, "iterable"))) {
    if (!v.is_string()) raise("sequence item: expected str instance, " + std::string(type_name(v)) + " found");
    if (!std::exchange(first, false)) out.append(self.str().text);
    out.append(v.str().text);
    in.step(1 + v.bytes().size() / 16);
  }
  return in.text(out.take());
}

template <bool (*Class)(char32_t)>
Value all_of(Interp&, const Value& self, const Args&) {
  const std::string& s = self.bytes();
  bool ok = !s.empty();
  for (size_t i = 0; i < s.size() && ok; i += char_bytes(s, i)) ok = Class(decode_char(s, i));
  return Value::boolean(ok);
}

bool alnum(char32_t c) { return is_alpha(c) || is_numeric(c); }

Value is_case(const std::string& s, bool (*good)(char32_t), bool (*bad)(char32_t)) {
  bool some = false;
  for (size_t i = 0; i < s.size(); i += char_bytes(s, i)) {
    if (bad(decode_char(s, i))) return Value::boolean(false);
    some = some || good(decode_char(s, i));
  }
  return Value::boolean(some);
}
Value islower(Interp&, const Value& s, const Args&) { return is_case(s.bytes(), is_lower, is_upper); }
Value isupper(Interp&, const Value& s, const Args&) { return is_case(s.bytes(), is_upper, is_lower); }

Value splitlines(Interp& in, const Value& self, const Args& a) {
  const TextBody& t = self.str().text;
  const Value* keep = a.get(0, "keepends");
  std::vector<Value> out;
  for (size_t at = 0; at < t.bytes.size();) {
    size_t end = t.bytes.find_first_of("\n\r", at);
    size_t next = end == std::string::npos ? t.bytes.size() : end + (t.bytes.compare(end, 2, "\r\n") == 0 ? 2 : 1);
    if (end == std::string::npos) end = t.bytes.size();
    out.push_back(piece(in, t, at, keep != nullptr && keep->truthy() ? next : end));
    at = next;
  }
  return Value::list(std::move(out));
}

template <bool Prefix>
Value remove_affix(Interp& in, const Value& self, const Args& a) {
  const TextBody& t = self.str().text;
  const std::string& s = text_arg(a, 0, "affix").bytes;
  if (Prefix) return piece(in, t, t.bytes.starts_with(s) ? s.size() : 0, t.bytes.size());
  return piece(in, t, 0, t.bytes.ends_with(s) ? t.bytes.size() - s.size() : t.bytes.size());
}

/// One value through a format spec of Python's mini language: [[fill]align][sign][0][width][,][.precision][type].
TextBody formatted(Interp& in, const Value& v, const std::string& spec) {
  if (spec.empty()) return in.print(v);
  size_t i = 0;
  char fill = ' ', align = 0;
  if (spec.size() > 1 && std::string("<>^=").find(spec[1]) != std::string::npos) fill = spec[0], align = spec[1], i = 2;
  else if (std::string("<>^=").find(spec[0]) != std::string::npos) align = spec[0], i = 1;
  bool plus = false, comma = false;
  if (i < spec.size() && (spec[i] == '+' || spec[i] == '-')) plus = spec[i++] == '+';
  if (i < spec.size() && spec[i] == '0') fill = '0', align = align != 0 ? align : '=', i++;
  size_t width = 0, precision = std::string::npos;
  for (; i < spec.size() && isdigit(static_cast<unsigned char>(spec[i])); i++) width = std::min<size_t>(width * 10 + static_cast<size_t>(spec[i] - '0'), 100000);
  if (i < spec.size() && spec[i] == ',') comma = true, i++;
  if (i < spec.size() && spec[i] == '.') {
    precision = 0;
    for (i++; i < spec.size() && isdigit(static_cast<unsigned char>(spec[i])); i++) precision = std::min<size_t>(precision * 10 + static_cast<size_t>(spec[i] - '0'), 100);
  }
  const char type = i < spec.size() ? spec[i] : 0;
  TextBuilder body;
  if (v.is_number() && (type == 'f' || type == 'e' || type == 'g' || type == '%' || (v.is(Kind::kFloat) && precision != std::string::npos))) {
    char number[512];
    const double x = type == '%' ? v.as_double() * 100 : v.as_double();
    const int digits = precision == std::string::npos ? 6 : static_cast<int>(precision);
    snprintf(number, sizeof number, type == 'e' ? "%.*e" : (type == 'g' || type == 0) ? "%.*g" : "%.*f", digits, x);
    body.append(std::string(plus && x >= 0 ? "+" : "") + number + (type == '%' ? "%" : ""), Origin::kTemplate);
  } else if (v.is_intlike() && (type == 0 || type == 'd' || type == 'x' || type == 'X' || type == 'b' || type == 'o')) {
    const int64_t x = v.as_int();
    uint64_t m = x < 0 ? 0 - static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
    const uint64_t base = type == 'b' ? 2 : type == 'o' ? 8 : (type == 'x' || type == 'X') ? 16 : 10;
    std::string digits;
    int n = 0;
    do {
      if (comma && n > 0 && n % 3 == 0) digits += ',';
      digits += (type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[m % base];
      m /= base, n++;
    } while (m != 0);
    std::reverse(digits.begin(), digits.end());
    body.append(std::string(x < 0 ? "-" : plus ? "+" : "") + digits, Origin::kTemplate);
  } else if (v.is_string() && (type == 0 || type == 's')) {
    body.append(v.str().text, 0, precision == std::string::npos ? v.bytes().size() : byte_of_char(v.str().text, precision));
  } else {
    body.append(in.print(v));
  }
  TextBody t = body.take();
  if (t.n_chars >= width) return t;
  const size_t pad = width - t.n_chars;
  const char where = align != 0 ? align : v.is_number() ? '>' : '<';
  TextBuilder out;
  const size_t before = where == '<' ? 0 : where == '^' ? pad / 2 : pad;
  const bool sign = where == '=' && !t.bytes.empty() && (t.bytes[0] == '-' || t.bytes[0] == '+');
  if (sign) out.append(t, 0, 1);
  out.append(std::string(before, fill), Origin::kTemplate);
  out.append(t, sign ? 1 : 0, t.bytes.size());
  out.append(std::string(pad - before, fill), Origin::kTemplate);
  return out.take();
}

/// str.format: {} {0} {name} {0.a} {0[b]} with conversions and specs.
Value format(Interp& in, const Value& self, const Args& a) {
  const TextBody& t = self.str().text;
  TextBuilder out;
  size_t automatic = 0;
  for (size_t i = 0; i < t.bytes.size();) {
    const char c = t.bytes[i];
    if ((c == '{' || c == '}') && i + 1 < t.bytes.size() && t.bytes[i + 1] == c) {
      out.append(t, i, i + 1);
      i += 2;
      continue;
    }
    if (c == '}') raise("Single '}' encountered in format string");
    if (c != '{') {
      const size_t n = std::min(t.bytes.find_first_of("{}", i), t.bytes.size());
      out.append(t, i, n);
      i = n;
      continue;
    }
    const size_t end = t.bytes.find('}', i);
    if (end == std::string::npos) raise("expected '}' before end of string");
    std::string field = t.bytes.substr(i + 1, end - i - 1), spec;
    if (const size_t colon = field.find(':'); colon != std::string::npos) spec = field.substr(colon + 1), field.resize(colon);
    char conversion = 0;
    if (field.size() > 1 && field[field.size() - 2] == '!') conversion = field.back(), field.resize(field.size() - 2);
    const size_t dot = std::min(field.find_first_of(".["), field.size());
    const std::string head = field.substr(0, dot);
    const Value* found = nullptr;
    if (head.empty()) found = a.get(automatic++, "");
    else if (std::all_of(head.begin(), head.end(), [](char d) { return isdigit(static_cast<unsigned char>(d)); })) found = a.get(static_cast<size_t>(std::min(atol(head.c_str()), 1000000L)), "");
    else found = a.get(SIZE_MAX, head);
    if (found == nullptr) raise("Replacement index or name '" + head + "' out of range");
    Value v = *found;
    for (size_t at = dot; at < field.size();) {
      if (field[at] == '.') {
        const size_t stop = std::min(field.find_first_of(".[", at + 1), field.size());
        v = in.attribute(v, field.substr(at + 1, stop - at - 1));
        at = stop;
      } else {
        const size_t stop = field.find(']', at);
        if (stop == std::string::npos) raise("expected ']' in format string");
        const std::string key = field.substr(at + 1, stop - at - 1);
        const bool number = !key.empty() && std::all_of(key.begin(), key.end(), [](char d) { return isdigit(static_cast<unsigned char>(d)); });
        v = in.item(v, number ? Value::integer(atol(key.c_str())) : Value::string(key, Origin::kTemplate));
        at = stop + 1;
      }
    }
    out.append(conversion == 'r' ? in.repr(v) : formatted(in, v, spec));
    in.step();
    i = end + 1;
  }
  return in.text(out.take());
}

/// The % operator: %s %d %i %f %.2f %x %r %%.
Value percent(Interp& in, const Value& self, const Args& a) {
  const TextBody& t = self.str().text;
  TextBuilder out;
  size_t used = 0;
  for (size_t i = 0; i < t.bytes.size();) {
    if (t.bytes[i] != '%') {
      const size_t n = std::min(t.bytes.find('%', i), t.bytes.size());
      out.append(t, i, n);
      i = n;
      continue;
    }
    size_t at = i + 1;
    while (at < t.bytes.size() && std::string("-+ 0123456789.").find(t.bytes[at]) != std::string::npos) at++;
    if (at >= t.bytes.size()) raise("incomplete format");
    std::string spec = t.bytes.substr(i + 1, at - i - 1);
    const char type = t.bytes[at];
    i = at + 1;
    if (type == '%') {
      out.append("%", Origin::kTemplate);
      continue;
    }
    if (used >= a.pos.size()) raise("not enough arguments for format string");
    const Value& v = a.pos[used++];
    if (type == 'r') {
      out.append(in.repr(v));
    } else if (type == 's') {
      const TextBody printed = in.print(v);
      out.append(formatted(in, in.text(printed), spec.starts_with('-') ? "<" + spec.substr(1) : spec.empty() ? spec : ">" + spec));
    } else {
      if (!v.is_number()) raise("a number is required for %" + std::string(1, type));
      const bool integer = type == 'd' || type == 'i' || type == 'u';
      out.append(formatted(in, integer ? Value::integer(static_cast<int64_t>(v.as_double())) : v, spec + (integer ? 'd' : type)));
    }
  }
  if (used < a.pos.size() && !a.pos.empty() && !a.pos[0].is(Kind::kDict)) raise("not all arguments converted during string formatting");
  return in.text(out.take());
}

Value view(const Dict& d, const char* label, bool keys, bool values) {
  auto seq = std::make_shared<Seq>();
  seq->label = label;
  seq->depth = d.depth + 1;
  for (const auto& [k, v] : d.items) seq->items.push_back(keys && values ? Value::tuple({k, v}) : keys ? k : v);
  return Value::object(Kind::kView, std::move(seq));
}

Value dict_items(Interp& in, const Value& d, const Args&) { return in.step(d.dict().items.size()), view(d.dict(), "dict_items", true, true); }
Value dict_keys(Interp& in, const Value& d, const Args&) { return in.step(d.dict().items.size()), view(d.dict(), "dict_keys", true, false); }
Value dict_values(Interp& in, const Value& d, const Args&) { return in.step(d.dict().items.size()), view(d.dict(), "dict_values", false, true); }
Value dict_get(Interp&, const Value& d, const Args& a) {
  if (const Value* v = d.dict().find(a.need(0, "key"))) return *v;
  const Value* preset = a.get(1, "default");
  return preset != nullptr ? *preset : Value::none();
}
Value dict_copy(Interp& in, const Value& d, const Args&) { return in.step(d.dict().items.size()), make_dict(d.dict().items); }

[[noreturn]] Value refused(Interp&, const Value&, const Args&) { raise("the sandbox does not let a template change this object"); }

Value list_append(Interp& in, const Value& l, const Args& a) {
  auto& seq = static_cast<Seq&>(*l.body());
  if (!in.limits().allow_list_changes || seq.frozen) raise("the sandbox does not let a template change a list");
  const Value& v = a.need(0, "object");
  if (v.body() == l.body() || v.depth() > 300) raise("a list cannot hold itself, nor nest this deeply");
  in.step();
  seq.items.push_back(v);
  seq.depth = std::max(seq.depth, v.depth() + 1);
  return Value::none();
}

Value list_pop(Interp& in, const Value& l, const Args& a) {
  auto& seq = static_cast<Seq&>(*l.body());
  if (!in.limits().allow_list_changes || seq.frozen) raise("the sandbox does not let a template change a list");
  const int64_t n = static_cast<int64_t>(seq.items.size()), i = int_arg(a, 0, "index", -1);
  const int64_t at = i < 0 ? i + n : i;
  if (at < 0 || at >= n) raise("pop index out of range");
  Value v = seq.items[static_cast<size_t>(at)];
  seq.items.erase(seq.items.begin() + at);
  return v;
}

Value list_index(Interp& in, const Value& l, const Args& a) {
  for (size_t i = 0; i < l.seq().items.size(); i++)
    if (in.same(l.seq().items[i], a.need(0, "value"))) return Value::integer(static_cast<int64_t>(i));
  raise("the value is not in the list");
}

Value list_count(Interp& in, const Value& l, const Args& a) {
  int64_t n = 0;
  for (const Value& v : l.seq().items) n += in.same(v, a.need(0, "value"));
  return Value::integer(n);
}

using Table = std::map<std::string_view, Method>;
const Table& text_methods() {
  static const Table t{{"split", split}, {"rsplit", rsplit}, {"strip", strip<true, true>}, {"lstrip", strip<true, false>}, {"rstrip", strip<false, true>},
                       {"startswith", starts_or_ends<true>}, {"endswith", starts_or_ends<false>}, {"replace", replace}, {"upper", upper}, {"lower", lower},
                       {"capitalize", capitalize}, {"title", title}, {"find", find<false>}, {"index", find<true>}, {"rfind", rfind}, {"count", count_text}, {"join", join},
                       {"isdigit", all_of<is_digit>}, {"isdecimal", all_of<is_decimal>}, {"isnumeric", all_of<is_numeric>}, {"isalpha", all_of<is_alpha>}, {"isalnum", all_of<alnum>},
                       {"isspace", all_of<is_space>}, {"islower", islower}, {"isupper", isupper}, {"splitlines", splitlines}, {"removeprefix", remove_affix<true>},
                       {"removesuffix", remove_affix<false>}, {"format", format}, {"%", percent}};
  return t;
}
const Table& dict_methods() {
  static const Table t{{"items", dict_items}, {"keys", dict_keys}, {"values", dict_values}, {"get", dict_get}, {"copy", dict_copy},
                       {"update", refused}, {"pop", refused}, {"clear", refused}, {"setdefault", refused}, {"popitem", refused}};
  return t;
}
const Table& list_methods() {
  static const Table t{{"append", list_append}, {"pop", list_pop}, {"index", list_index}, {"count", list_count}, {"extend", refused}, {"insert", refused}, {"remove", refused},
                       {"sort", refused}, {"reverse", refused}, {"clear", refused}};
  return t;
}
const Table& tuple_methods() {
  static const Table t{{"index", list_index}, {"count", list_count}};
  return t;
}

}  // namespace

Value find_method(Interp&, const Value& self, std::string_view name) {
  const Table* table = self.is_string() ? &text_methods() : self.is(Kind::kDict) ? &dict_methods() : self.is(Kind::kList) ? &list_methods() : self.is(Kind::kTuple) ? &tuple_methods() : nullptr;
  if (table == nullptr) return {};
  const auto at = table->find(name);
  if (at == table->end()) return {};
  return make_callable(std::string(name), [method = at->second, self](Interp& in, const Args& a) { return method(in, self, a); });
}

}  // namespace carrel::jinja
