// Methods of strings, dicts and lists. What changes an object is refused, except list.append and list.pop when the limits allow them.
#include <algorithm>

#include "engine/text/jinja/interp.h"

namespace carrel::jinja {
namespace {

struct Method {
  std::string_view name;
  MethodFn fn;
};

const Value kNone = Value::none();

/// As std::string::rfind; what it compares may be a user's, so each comparison costs what it may read.
size_t find_last(Interp& in, std::string_view text, std::string_view what) {
  if (what.size() > text.size()) return std::string::npos;
  for (size_t at = text.size() - what.size() + 1; at-- > 0;) {
    const auto same = static_cast<size_t>(std::mismatch(what.begin(), what.end(), text.begin() + static_cast<ptrdiff_t>(at)).first - what.begin());
    in.step((at % 16 == 0) + same / 16);
    if (same == what.size()) return at;
  }
  return std::string::npos;
}

Value split_blank(Interp& in, const Value& self, int64_t max) {
  const std::string& s = self.bytes();
  std::vector<Value> out;
  size_t i = 0;
  const auto blank = [&] { return is_space(decode_char(s, i)); };
  while (true) {
    while (i < s.size() && blank()) i += char_bytes(s, i);
    if (i >= s.size()) break;
    const size_t begin = i;
    if (max >= 0 && static_cast<int64_t>(out.size()) == max) {
      out.push_back(in.slice_text(self, begin, s.size()));
      break;
    }
    while (i < s.size() && !blank()) i += char_bytes(s, i);
    out.push_back(in.slice_text(self, begin, i));
  }
  return in.list(std::move(out));
}

Value split(Interp& in, const Value& self, const Args& a) {
  const Value* separator = a.find(0, "sep");
  const int64_t max = int_arg(in, a.find(1, "maxsplit"), -1);
  in.step(self.bytes().size() / 8);
  if (separator == nullptr || separator->is_none()) return split_blank(in, self, max);
  const std::string& sep = string_arg(in, separator, "split").bytes();
  if (sep.empty()) in.bad("empty separator");
  std::vector<Value> out;
  size_t at = 0;
  while (max < 0 || static_cast<int64_t>(out.size()) < max) {
    const size_t hit = find_bytes(self.bytes(), sep, at);
    if (hit == std::string::npos) break;
    in.step(2);
    out.push_back(in.slice_text(self, at, hit));
    at = hit + sep.size();
  }
  out.push_back(in.slice_text(self, at, self.bytes().size()));
  return in.list(std::move(out));
}

Value rsplit(Interp& in, const Value& self, const Args& a) {
  const Value* separator = a.find(0, "sep");
  const int64_t max = int_arg(in, a.find(1, "maxsplit"), -1);
  if (max < 0) return split(in, self, a);
  const std::string& sep = string_arg(in, separator, "rsplit with a limit").bytes();
  if (sep.empty()) in.bad("empty separator");
  std::vector<Value> out;
  size_t end = self.bytes().size();
  while (static_cast<int64_t>(out.size()) < max && end >= sep.size()) {
    const size_t hit = find_last(in, std::string_view(self.bytes()).substr(0, end), sep);
    if (hit == std::string::npos) break;
    in.step(2);
    out.push_back(in.slice_text(self, hit + sep.size(), end));
    end = hit;
  }
  out.push_back(in.slice_text(self, 0, end));
  std::reverse(out.begin(), out.end());
  return in.list(std::move(out));
}

Value splitlines(Interp& in, const Value& self, const Args& a) {
  const Value* keep = a.find(0, "keepends");
  const std::string& s = self.bytes();
  in.step(s.size() / 4);
  std::vector<Value> out;
  size_t begin = 0;
  for (size_t i = 0; i < s.size();) {
    const char32_t c = decode_char(s, i);
    const size_t at = i;
    i += char_bytes(s, i);
    if (!((c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029)) continue;
    if (c == '\r' && i < s.size() && s[i] == '\n') ++i;
    out.push_back(in.slice_text(self, begin, keep != nullptr && keep->truthy() ? i : at));
    begin = i;
  }
  if (begin < s.size()) out.push_back(in.slice_text(self, begin, s.size()));
  return in.list(std::move(out));
}

template <bool kStart>
Value affix(Interp& in, const Value& self, const Args& a) {
  const Value* what = a.find(0, "prefix");
  const auto fits = [&](const Value& v) {
    const std::string& w = string_arg(in, &v, "startswith or endswith").bytes();
    in.step(1 + w.size() / 64);
    return kStart ? self.bytes().starts_with(w) : self.bytes().ends_with(w);
  };
  if (what != nullptr && what->is(Kind::kTuple)) return Value::boolean(std::any_of(what->seq().items.begin(), what->seq().items.end(), fits));
  return Value::boolean(fits(string_arg(in, what, "startswith or endswith")));
}

template <bool kStart>
Value remove_affix(Interp& in, const Value& self, const Args& a) {
  const std::string& w = string_arg(in, a.find(0, "prefix"), "removeprefix or removesuffix").bytes();
  in.step(w.size() / 64);
  if (!(kStart ? self.bytes().starts_with(w) : self.bytes().ends_with(w))) return self;
  const size_t n = self.bytes().size();
  return kStart ? in.slice_text(self, w.size(), n) : in.slice_text(self, 0, n - w.size());
}

template <Side kSide>
Value strip_method(Interp& in, const Value& self, const Args& a) {
  return strip(in, self, a.find(0, "chars"), kSide);
}

template <bool kReverse, bool kMust>
Value find_text(Interp& in, const Value& self, const Args& a) {
  const std::string& what = string_arg(in, a.find(0, "sub"), "find").bytes();
  in.step(self.bytes().size() / 16);
  const size_t from = byte_of_char(self.str().text, static_cast<size_t>(std::max<int64_t>(int_arg(in, a.find(1, "start"), 0), 0)));
  const size_t at = kReverse ? find_last(in, self.bytes(), what) : find_bytes(self.bytes(), what, from);
  if (at != std::string::npos && at >= from) return Value::integer(static_cast<int64_t>(count_chars(std::string_view(self.bytes()).substr(0, at))));
  if (kMust) in.bad("substring not found");
  return Value::integer(-1);
}

Value count_text(Interp& in, const Value& self, const Args& a) {
  const std::string& what = string_arg(in, a.find(0, "sub"), "count").bytes();
  in.step(self.bytes().size() / 16);
  if (what.empty()) return Value::integer(static_cast<int64_t>(self.str().text.n_chars) + 1);
  int64_t n = 0;
  for (size_t at = find_bytes(self.bytes(), what); at != std::string::npos; at = find_bytes(self.bytes(), what, at + what.size())) ++n;
  return Value::integer(n);
}

Value replace_method(Interp& in, const Value& self, const Args& a) {
  const Value &from = string_arg(in, a.find(0, "old"), "replace"), &to = string_arg(in, a.find(1, "new"), "replace");
  return replace(in, self, from, to, int_arg(in, a.find(2, "count"), -1));
}

Value join_method(Interp& in, const Value& self, const Args& a) {
  const Value* what = a.find(0, "iterable");
  if (what == nullptr) in.bad("join needs a list");
  const std::vector<Value> items = in.iterate(*what);
  for (const Value& v : items) {
    if (!v.is_string()) in.bad(std::string("sequence item: expected str instance, ") + type_name(v) + " found");
  }
  return join(in, self, items);
}

template <bool (*kClass)(char32_t)>
Value all_of(Interp& in, const Value& self, const Args&) {
  const std::string& s = self.bytes();
  in.step(s.size() / 8);
  bool all = !s.empty();
  for (size_t i = 0; i < s.size() && all; i += char_bytes(s, i)) all = kClass(decode_char(s, i));
  return Value::boolean(all);
}
bool is_alnum(char32_t c) { return is_alpha(c) || is_numeric(c) || is_digit(c); }

template <bool kUpper>
Value cased(Interp& in, const Value& self, const Args&) {
  return Value::boolean(in.apply_test(kUpper ? "upper" : "lower", self, {}));
}

template <bool kReverse>
Value partition(Interp& in, const Value& self, const Args& a) {
  const std::string& sep = string_arg(in, a.find(0, "sep"), "partition").bytes();
  if (sep.empty()) in.bad("empty separator");
  const size_t n = self.bytes().size(), at = kReverse ? find_last(in, self.bytes(), sep) : find_bytes(self.bytes(), sep);
  in.step(n / 16);
  const Value empty = in.text("");
  if (at == std::string::npos) return kReverse ? in.tuple({empty, empty, self}) : in.tuple({self, empty, empty});
  return in.tuple({in.slice_text(self, 0, at), in.slice_text(self, at, at + sep.size()), in.slice_text(self, at + sep.size(), n)});
}

/// ljust (pad after), rjust (pad before).
template <bool kBefore>
Value justify(Interp& in, const Value& self, const Args& a) {
  const int64_t pad = int_arg(in, a.find(0, "width"), 0) - static_cast<int64_t>(self.str().text.n_chars);
  const Value* given = a.find(1, "fillchar");
  const Value fill = in.binary(Op::kMul, given != nullptr ? string_arg(in, given, "the fill") : in.text(" "), Value::integer(pad));
  return kBefore ? in.binary(Op::kAdd, fill, self) : in.binary(Op::kAdd, self, fill);
}

/// Padding on both sides; an odd blank goes left where the width is odd.
Value center(Interp& in, const Value& self, const Args& a) {
  const int64_t width = int_arg(in, a.find(0, "width"), 0), pad = width - static_cast<int64_t>(self.str().text.n_chars);
  if (pad <= 0) return self;
  const Value* given = a.find(1, "fillchar");
  const Value fill = given != nullptr ? string_arg(in, given, "the fill") : in.text(" ");
  const int64_t left = pad / 2 + (pad & width & 1);
  const Value before = in.binary(Op::kMul, fill, Value::integer(left)), after = in.binary(Op::kMul, fill, Value::integer(pad - left));
  return in.binary(Op::kAdd, in.binary(Op::kAdd, before, self), after);
}

/// Zeros before the digits, after a sign.
Value zfill(Interp& in, const Value& self, const Args& a) {
  const int64_t pad = int_arg(in, a.find(0, "width"), 0) - static_cast<int64_t>(self.str().text.n_chars);
  const size_t sign = self.bytes().starts_with('-') || self.bytes().starts_with('+') ? 1 : 0;
  const Value zeros = in.binary(Op::kMul, in.text("0"), Value::integer(pad));
  return in.binary(Op::kAdd, in.binary(Op::kAdd, in.slice_text(self, 0, sign), zeros), in.slice_text(self, sign, self.bytes().size()));
}

constexpr Method kStringMethods[] = {
    {"casefold", [](Interp& in, const Value& s, const Args&) { return map_case(in, s, false); }},
    {"center", center},
    {"zfill", zfill},
    {"capitalize", [](Interp& in, const Value& s, const Args&) { return capitalize(in, s); }},
    {"count", count_text},
    {"endswith", affix<false>},
    {"find", find_text<false, false>},
    {"format", format_braces},
    {"index", find_text<false, true>},
    {"isalnum", all_of<is_alnum>},
    {"isalpha", all_of<is_alpha>},
    {"isdecimal", all_of<is_decimal>},
    {"isdigit", all_of<is_digit>},
    {"islower", cased<false>},
    {"isnumeric", all_of<is_numeric>},
    {"isspace", all_of<is_space>},
    {"isupper", cased<true>},
    {"join", join_method},
    {"ljust", justify<false>},
    {"lower", [](Interp& in, const Value& s, const Args&) { return map_case(in, s, false); }},
    {"lstrip", strip_method<Side::kLeft>},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"replace", replace_method},
    {"rfind", find_text<true, false>},
    {"rindex", find_text<true, true>},
    {"rjust", justify<true>},
    {"rpartition", partition<true>},
    {"rsplit", rsplit},
    {"rstrip", strip_method<Side::kRight>},
    {"split", split},
    {"splitlines", splitlines},
    {"startswith", affix<true>},
    {"strip", strip_method<Side::kBoth>},
    {"title", [](Interp& in, const Value& s, const Args&) { return title(in, s, false); }},
    {"upper", [](Interp& in, const Value& s, const Args&) { return map_case(in, s, true); }},
};

Value get(Interp& in, const Value& self, const Args& a) {
  if (a.positional.empty()) in.bad("get expected at least 1 argument");
  if (const Value* found = in.look_up(self, a.positional[0])) return *found;
  const Value* preset = a.find(1, "default");
  return preset != nullptr ? *preset : kNone;
}

/// 0: keys, 1: values, 2: items.
template <int kPart>
Value view(Interp& in, const Value& self, const Args&) {
  constexpr const char* kLabels[] = {"dict_keys", "dict_values", "dict_items"};
  auto seq = std::make_shared<Seq>();
  seq->label = kLabels[kPart];
  seq->depth = self.depth() + 1;
  in.step(self.dict().items.size());
  for (const auto& [k, v] : self.dict().items) seq->items.push_back(kPart == 0 ? k : kPart == 1 ? v : in.tuple({k, v}));
  return Value::object(Kind::kView, std::move(seq));
}

Value copy_dict(Interp& in, const Value& self, const Args&) { return in.dict(self.dict().items); }

constexpr Method kDictMethods[] = {{"copy", copy_dict}, {"get", get}, {"items", view<2>}, {"keys", view<0>}, {"values", view<1>}};
constexpr std::string_view kUnsafeDict[] = {"clear", "pop", "popitem", "setdefault", "update"};

Value list_index(Interp& in, const Value& self, const Args& a) {
  if (a.positional.empty()) in.bad("index needs a value");
  const auto& items = self.seq().items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (in.equals(items[i], a.positional[0])) return Value::integer(static_cast<int64_t>(i));
  }
  in.bad("the value is not in the list");
}

Value list_count(Interp& in, const Value& self, const Args& a) {
  if (a.positional.empty()) in.bad("count needs a value");
  const auto& items = self.seq().items;
  return Value::integer(std::count_if(items.begin(), items.end(), [&](const Value& v) { return in.equals(v, a.positional[0]); }));
}

Value list_copy(Interp& in, const Value& self, const Args&) { return in.list(self.seq().items); }

Seq& changeable(Interp& in, const Value& self, const char* what) {
  auto& seq = static_cast<Seq&>(*self.body());
  if (!in.limits().allow_list_changes || seq.frozen) in.bad(std::string("access to attribute '") + what + "' of 'list' object is unsafe");
  return seq;
}

/// True when nothing inside can change any more: only such values may enter a list, so that lists never form a cycle.
bool immutable(Interp& in, const Value& v) {
  in.step();
  switch (v.kind()) {
    case Kind::kNamespace:
    case Kind::kGenerator:
    case Kind::kCallable:
    case Kind::kLoop: return false;
    case Kind::kList:
      if (!static_cast<const Seq&>(*v.body()).frozen) return false;
      [[fallthrough]];
    case Kind::kTuple:
    case Kind::kView: return std::all_of(v.seq().items.begin(), v.seq().items.end(), [&](const Value& x) { return immutable(in, x); });
    case Kind::kDict: return std::all_of(v.dict().items.begin(), v.dict().items.end(), [&](const auto& kv) { return immutable(in, kv.second); });
    default: return true;
  }
}

Value append(Interp& in, const Value& self, const Args& a) {
  Seq& seq = changeable(in, self, "append");
  if (a.positional.size() != 1) in.bad("append takes one argument");
  if (!immutable(in, a.positional[0])) in.bad("append takes no list that the template made itself");
  in.step(4);
  seq.items.push_back(a.positional[0]);
  seq.depth = std::max(seq.depth, a.positional[0].depth() + 1);
  return kNone;
}

Value pop(Interp& in, const Value& self, const Args& a) {
  Seq& seq = changeable(in, self, "pop");
  const auto n = static_cast<int64_t>(seq.items.size());
  int64_t i = int_arg(in, a.find(0, "index"), -1);
  if (i < 0) i += n;
  if (i < 0 || i >= n) in.bad("pop index out of range");
  in.step(seq.items.size() / 16);
  Value out = seq.items[static_cast<size_t>(i)];
  seq.items.erase(seq.items.begin() + i);
  return out;
}

constexpr Method kListMethods[] = {{"append", append}, {"copy", list_copy}, {"count", list_count}, {"index", list_index}, {"pop", pop}};
constexpr Method kTupleMethods[] = {{"count", list_count}, {"index", list_index}};
constexpr std::string_view kUnsafeList[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};

template <size_t N>
MethodFn look_up(const Method (&table)[N], std::string_view name) {
  const auto* m = std::find_if(std::begin(table), std::end(table), [&](const Method& x) { return x.name == name; });
  return m == std::end(table) ? nullptr : m->fn;
}

}  // namespace

MethodFn find_method(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::kString: return look_up(kStringMethods, name);
    case Kind::kDict: return look_up(kDictMethods, name);
    case Kind::kList: return look_up(kListMethods, name);
    case Kind::kTuple:
    case Kind::kRange: return look_up(kTupleMethods, name);
    default: return nullptr;
  }
}

bool is_unsafe_method(const Value& self, std::string_view name) {
  if (self.is(Kind::kDict)) return std::find(std::begin(kUnsafeDict), std::end(kUnsafeDict), name) != std::end(kUnsafeDict);
  if (self.is(Kind::kList)) return std::find(std::begin(kUnsafeList), std::end(kUnsafeList), name) != std::end(kUnsafeList);
  return false;
}

}  // namespace carrel::jinja
