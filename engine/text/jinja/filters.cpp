// The filters and tests that templates may name.
#include <algorithm>
#include <cmath>
#include <map>

#include "engine/text/jinja/interp.h"
#include "engine/text/jinja/parser.h"

namespace carrel::jinja {
namespace {

constexpr Origin kT = Origin::kTemplate;

Value call_method(Interp& in, const Value& v, std::string_view name, const Args& a) { return in.call(find_method(in, v, name), a); }
Value as_text(Interp& in, const Value& v) { return v.is_string() ? v : in.text(in.print(v)); }

Value length(Interp& in, const Value& v, const Args&) {
  if (v.is_undefined()) return Value::integer(0);
  if (v.is_string()) return Value::integer(static_cast<int64_t>(v.str().text.n_chars));
  if (v.is(Kind::kDict)) return Value::integer(static_cast<int64_t>(v.dict().items.size()));
  if (v.is_sequence()) return Value::integer(static_cast<int64_t>(v.seq().items.size()));
  in.step();
  raise("object of type '" + std::string(type_name(v)) + "' has no len()");
}

Value trim_filter(Interp& in, const Value& v, const Args& a) {
  const Value text = as_text(in, v);
  const Value* chars = a.get(0, "chars");
  const TextBody* set = chars != nullptr && chars->is_string() ? &chars->str().text : nullptr;
  return in.text(trim(text.str().text, set, true, true));
}

Value string_filter(Interp& in, const Value& v, const Args&) { return as_text(in, v); }

Value default_filter(Interp&, const Value& v, const Args& a) {
  const Value* preset = a.get(0, "default_value");
  const Value* falsy = a.get(1, "boolean");
  const bool use = v.is_undefined() || (falsy != nullptr && falsy->truthy() && !v.truthy());
  if (!use) return v;
  return preset != nullptr ? *preset : Value::string("", kT);
}

/// a.b.0 as a path, for attribute= arguments.
Value along(Interp& in, const Value& v, const Value& path) {
  if (path.is_intlike()) return in.item(v, path);
  Value at = v;
  std::string_view rest = path.bytes();
  while (true) {
    const size_t dot = rest.find('.');
    const std::string part(rest.substr(0, dot));
    const bool number = !part.empty() && part.size() < 10 && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    at = in.item(at, number ? Value::integer(atol(part.c_str())) : Value::string(part, kT));
    if (dot == std::string_view::npos) return at;
    rest.remove_prefix(dot + 1);
  }
}

Value join_filter(Interp& in, const Value& v, const Args& a) {
  const Value* sep = a.get(0, "d");
  const Value* attribute = a.get(1, "attribute");
  const TextBody between = sep != nullptr ? in.print(*sep) : TextBody{};
  TextBuilder out;
  bool first = true;
  for (const Value& x : in.items_of(v)) {
    if (!std::exchange(first, false)) out.append(between);
    out.append(in.print(attribute != nullptr ? along(in, x, *attribute) : x));
    in.step();
    if (out.size() > in.limits().max_output_bytes) raise(Code::kExhausted, "join makes too large a text");
  }
  return in.text(out.take());
}

template <const char* Name>
Value text_method(Interp& in, const Value& v, const Args& a) { return call_method(in, as_text(in, v), Name, a); }
constexpr char kUpper[] = "upper", kLower[] = "lower", kCapitalize[] = "capitalize", kTitle[] = "title", kReplace[] = "replace";

Value items_filter(Interp& in, const Value& v, const Args&) {
  if (v.is_undefined()) return Value::list({});
  if (!v.is(Kind::kDict)) raise("Can only get item pairs from a mapping.");
  return Value::list(in.items_of(call_method(in, v, "items", {})));
}

Value safe(Interp& in, const Value& v, const Args&) {
  TextBody t = in.print(v);
  return in.text(std::move(t), true);
}

Value escape(Interp& in, const Value& v, const Args&) {
  if (v.is_string() && v.str().safe) return v;
  return in.text(escape_html(in.print(v)), true);
}
Value force_escape(Interp& in, const Value& v, const Args&) { return in.text(escape_html(in.print(v)), true); }

/// What sort compares: text without case unless asked.
Value sort_key(Interp& in, const Value& v, bool case_sensitive) { return v.is_string() && !case_sensitive ? call_method(in, v, "lower", {}) : v; }

std::vector<Value> sorted(Interp& in, std::vector<Value> items, const std::function<Value(const Value&)>& key, bool reverse) {
  std::vector<std::pair<Value, size_t>> keys;
  for (size_t i = 0; i < items.size(); i++) keys.emplace_back(key(items[i]), i);
  std::stable_sort(keys.begin(), keys.end(), [&](const auto& a, const auto& b) {
    in.step();
    return reverse ? in.compare(b.first, a.first) < 0 : in.compare(a.first, b.first) < 0;
  });
  std::vector<Value> out;
  for (const auto& [k, i] : keys) out.push_back(items[i]);
  return out;
}

bool flag(const Args& a, size_t i, std::string_view name, bool preset = false) {
  const Value* v = a.get(i, name);
  return v == nullptr ? preset : v->truthy();
}

Value sort(Interp& in, const Value& v, const Args& a) {
  const bool cased = flag(a, 1, "case_sensitive");
  const Value* attribute = a.get(2, "attribute");
  return Value::list(sorted(in, in.items_of(v), [&](const Value& x) { return sort_key(in, attribute != nullptr ? along(in, x, *attribute) : x, cased); }, flag(a, 0, "reverse")));
}

Value dictsort(Interp& in, const Value& v, const Args& a) {
  if (!v.is(Kind::kDict)) raise("dictsort takes a dict");
  const bool cased = flag(a, 0, "case_sensitive");
  const Value* by = a.get(1, "by");
  const size_t at = by != nullptr && by->is_string() && by->bytes() == "value" ? 1 : 0;
  return Value::list(sorted(in, in.items_of(call_method(in, v, "items", {})), [&](const Value& pair) { return sort_key(in, pair.seq().items[at], cased); }, flag(a, 2, "reverse")));
}

Value list_filter(Interp& in, const Value& v, const Args&) { return Value::list(in.items_of(v)); }

/// A generator filled now; what goes wrong half way shows when it is walked.
Value generate(Interp& in, const Value& v, const std::function<void(const Value&, std::vector<Value>&)>& each) {
  auto g = std::make_shared<Generator>();
  try {
    for (const Value& x : in.items_of(v)) {
      in.step();
      each(x, g->items);
    }
  } catch (Raise& r) {
    if (r.error.code != Code::kUnsupported) throw;  // limits and the template's own errors are not put off
    g->error = r.error.message;
  }
  for (const Value& x : g->items) g->depth = std::max(g->depth, x.depth() + 1);
  return Value::object(Kind::kGenerator, std::move(g));
}

Args rest_of(const Args& a, size_t from) {
  Args out;
  for (size_t i = from; i < a.pos.size(); i++) out.pos.push_back(a.pos[i]);
  out.named = a.named;
  return out;
}

/// select, reject, selectattr, rejectattr: a test by name, or truth.
template <bool Attribute, bool Keep>
Value select(Interp& in, const Value& v, const Args& a) {
  const size_t at = Attribute ? 1 : 0;
  TestFn test = nullptr;
  if (a.pos.size() > at) {
    const std::string name = a.pos[at].is_string() ? a.pos[at].bytes() : "";
    test = find_test(name);
    if (test == nullptr) raise("no test named '" + name + "'");
  }
  if (Attribute && a.pos.empty()) raise("missing parameter for attribute name");
  const Args rest = rest_of(a, at + 1);
  return generate(in, v, [&](const Value& x, std::vector<Value>& out) {
    const Value subject = Attribute ? along(in, x, a.pos[0]) : x;
    if ((test != nullptr ? test(in, subject, rest) : subject.truthy()) == Keep) out.push_back(x);
  });
}

Value map(Interp& in, const Value& v, const Args& a) {
  const auto named = [&](std::string_view name) -> const Value* {
    for (const auto& [n, x] : a.named)
      if (n == name) return &x;
    return nullptr;
  };
  if (const Value* attribute = named("attribute")) {
    const Value* preset = named("default");
    return generate(in, v, [&](const Value& x, std::vector<Value>& out) {
      Value got = along(in, x, *attribute);
      out.push_back(got.is_undefined() && preset != nullptr ? *preset : got);
    });
  }
  if (a.pos.empty() || !a.pos[0].is_string()) raise("map requires a filter argument");
  const FilterFn filter = find_filter(a.pos[0].bytes());
  if (filter == nullptr) raise("no filter named '" + a.pos[0].bytes() + "'");
  const Args rest = rest_of(a, 1);
  return generate(in, v, [&](const Value& x, std::vector<Value>& out) { out.push_back(filter(in, x, rest)); });
}

Value unique(Interp& in, const Value& v, const Args& a) {
  const bool cased = flag(a, 0, "case_sensitive");
  const Value* attribute = a.get(1, "attribute");
  std::vector<Value> seen;
  return generate(in, v, [&](const Value& x, std::vector<Value>& out) {
    const Value key = sort_key(in, attribute != nullptr ? along(in, x, *attribute) : x, cased);
    for (const Value& s : seen)
      if (in.same(s, key)) return;
    seen.push_back(key);
    out.push_back(x);
  });
}

template <bool Max>
Value extreme(Interp& in, const Value& v, const Args& a) {
  const std::vector<Value> items = in.items_of(v);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const bool cased = flag(a, 0, "case_sensitive");
  const Value* attribute = a.get(1, "attribute");
  const auto key = [&](const Value& x) { return sort_key(in, attribute != nullptr ? along(in, x, *attribute) : x, cased); };
  size_t best = 0;
  for (size_t i = 1; i < items.size(); i++) {
    const int c = in.compare(key(items[i]), key(items[best]));
    if (Max ? c > 0 : c < 0) best = i;
  }
  return items[best];
}

Value sum(Interp& in, const Value& v, const Args& a) {
  const Value* attribute = a.get(0, "attribute");
  const Value* start = a.get(1, "start");
  Value total = start != nullptr ? *start : Value::integer(0);
  for (const Value& x : in.items_of(v)) total = in.binary(Op::kAdd, total, attribute != nullptr && !attribute->is_none() ? along(in, x, *attribute) : x);
  return total;
}

Value first(Interp& in, const Value& v, const Args&) {
  const auto items = in.items_of(v);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}
Value last(Interp& in, const Value& v, const Args&) {
  const auto items = in.items_of(v);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value reverse(Interp& in, const Value& v, const Args&) {
  std::vector<Value> items = in.items_of(v);
  std::reverse(items.begin(), items.end());
  if (!v.is_string()) {
    auto g = std::make_shared<Generator>();
    g->items = std::move(items);
    for (const Value& x : g->items) g->depth = std::max(g->depth, x.depth() + 1);
    return Value::object(Kind::kGenerator, std::move(g));
  }
  TextBuilder out;
  for (const Value& c : items) out.append(c.str().text);
  return in.text(out.take());
}

Value indent(Interp& in, const Value& v, const Args& a) {
  const Value text = as_text(in, v);
  const Value* width = a.get(0, "width");
  const bool first_too = flag(a, 1, "first"), blank_too = flag(a, 2, "blank");
  TextBody by;
  if (width != nullptr && width->is_string()) by = width->str().text;
  else {
    TextBuilder b;
    b.append(std::string(static_cast<size_t>(std::clamp<int64_t>(width != nullptr ? width->as_int() : 4, 0, 1000)), ' '), kT);
    by = b.take();
  }
  const TextBody& t = text.str().text;
  TextBuilder out;
  bool first_line = true;
  for (size_t at = 0; at <= t.bytes.size();) {
    const size_t end = std::min(t.bytes.find('\n', at), t.bytes.size());
    if (!first_line) out.append("\n", at > 0 ? origin_at(t, at - 1) : kT);
    if (first_line ? first_too : (blank_too || end > at)) out.append(by);
    out.append(t, at, end);
    in.step(1 + by.bytes.size() / 16);
    first_line = false;
    if (end == t.bytes.size()) break;
    at = end + 1;
  }
  return in.text(out.take(), text.str().safe);
}

Value to_int(Interp& in, const Value& v, const Args& a) {
  const Value* preset = a.get(0, "default");
  const Value fallback = preset != nullptr ? *preset : Value::integer(0);
  if (v.is_intlike()) return Value::integer(v.as_int());
  if (v.is(Kind::kFloat)) return std::isfinite(v.as_double()) && std::fabs(v.as_double()) < 9e18 ? Value::integer(static_cast<int64_t>(v.as_double())) : fallback;
  if (!v.is_string()) return fallback;
  in.step();
  const std::string s = trim(v.str().text, nullptr, true, true).bytes;
  char* end = nullptr;
  errno = 0;
  const long long n = strtoll(s.c_str(), &end, 10);
  if (!s.empty() && *end == '\0' && errno == 0) return Value::integer(n);
  const double d = strtod(s.c_str(), &end);
  return !s.empty() && *end == '\0' && std::fabs(d) < 9e18 ? Value::integer(static_cast<int64_t>(d)) : fallback;
}

Value to_float(Interp& in, const Value& v, const Args& a) {
  const Value* preset = a.get(0, "default");
  if (v.is_number()) return Value::real(v.as_double());
  if (v.is_string()) {
    in.step();
    const std::string s = trim(v.str().text, nullptr, true, true).bytes;
    char* end = nullptr;
    const double d = strtod(s.c_str(), &end);
    if (!s.empty() && *end == '\0') return Value::real(d);
  }
  return preset != nullptr ? *preset : Value::real(0);
}

Value abs_filter(Interp&, const Value& v, const Args&) {
  if (!v.is_number()) raise("bad operand type for abs()");
  if (v.is(Kind::kFloat)) return Value::real(std::fabs(v.as_double()));
  if (v.as_int() == INT64_MIN) raise("an integer goes beyond 64 bits");
  return Value::integer(std::llabs(v.as_int()));
}

Value round_filter(Interp&, const Value& v, const Args& a) {
  if (!v.is_number()) raise("round takes a number");
  const Value* precision = a.get(0, "precision");
  const Value* method = a.get(1, "method");
  const double scale = std::pow(10.0, precision != nullptr ? static_cast<double>(precision->as_int()) : 0);
  const std::string how = method != nullptr && method->is_string() ? method->bytes() : "common";
  const double x = v.as_double() * scale;
  return Value::real((how == "ceil" ? std::ceil(x) : how == "floor" ? std::floor(x) : std::nearbyint(x)) / scale);
}

Value tojson(Interp& in, const Value& v, const Args& a) {
  const auto named = [&](std::string_view name) { return a.get(SIZE_MAX, name); };
  JsonStyle style;
  const Value* indent_by = !a.pos.empty() ? &a.pos[0] : named("indent");
  if (indent_by != nullptr && indent_by->is_intlike()) {
    style.indent = static_cast<int>(std::clamp<int64_t>(indent_by->as_int(), 0, 64));
    style.item_separator = ",";
  }
  if (const Value* x = named("ensure_ascii")) style.ascii = x->truthy();
  if (const Value* x = named("sort_keys")) style.sort_keys = x->truthy();
  if (const Value* x = named("separators"); x != nullptr && x->is_sequence()) {
    if (x->seq().items.size() != 2 || !x->seq().items[0].is_string() || !x->seq().items[1].is_string()) raise("separators must be two strings");
    style.item_separator = x->seq().items[0].bytes();
    style.key_separator = x->seq().items[1].bytes();
  }
  return in.text(to_json(in, v, style));
}

Value wordcount(Interp& in, const Value& v, const Args&) { return length(in, call_method(in, as_text(in, v), "split", {}), {}); }

Value batch(Interp& in, const Value& v, const Args& a) {
  const int64_t n = a.need(0, "linecount").as_int();
  const Value* fill = a.get(1, "fill_with");
  if (n < 1) raise("batch takes a count above 0");
  std::vector<Value> rows, row;
  for (const Value& x : in.items_of(v)) {
    row.push_back(x);
    if (static_cast<int64_t>(row.size()) == n) rows.push_back(Value::list(std::exchange(row, {})));
  }
  if (!row.empty()) {
    while (fill != nullptr && static_cast<int64_t>(row.size()) < std::min<int64_t>(n, 10000)) row.push_back(*fill);
    rows.push_back(Value::list(std::move(row)));
  }
  return generate(in, Value::list(std::move(rows)), [](const Value& x, std::vector<Value>& out) { out.push_back(x); });
}

Value slice_filter(Interp& in, const Value& v, const Args& a) {
  const int64_t n = a.need(0, "slices").as_int();
  const Value* fill = a.get(1, "fill_with");
  if (n < 1 || n > 10000) raise("slice takes a count from 1 to 10000");
  const std::vector<Value> items = in.items_of(v);
  const size_t per = items.size() / static_cast<size_t>(n), more = items.size() % static_cast<size_t>(n);
  std::vector<Value> rows;
  size_t at = 0;
  for (size_t i = 0; i < static_cast<size_t>(n); i++) {
    const size_t end = at + per + (i < more);
    std::vector<Value> row(items.begin() + static_cast<std::ptrdiff_t>(at), items.begin() + static_cast<std::ptrdiff_t>(end));
    if (fill != nullptr && i >= more) row.push_back(*fill);
    rows.push_back(Value::list(std::move(row)));
    at = end;
  }
  return generate(in, Value::list(std::move(rows)), [](const Value& x, std::vector<Value>& out) { out.push_back(x); });
}

Value groupby(Interp& in, const Value& v, const Args& a) {
  const Value& attribute = a.need(0, "attribute");
  const Value* preset = a.get(1, "default");
  const auto key = [&](const Value& x) {
    Value k = along(in, x, attribute);
    return k.is_undefined() && preset != nullptr ? *preset : k;
  };
  std::vector<Value> out;
  Value current;
  std::vector<Value> members;
  for (const Value& x : sorted(in, in.items_of(v), [&](const Value& y) { return sort_key(in, key(y), false); }, false)) {
    const Value k = key(x);
    if (!members.empty() && !in.same(sort_key(in, k, false), sort_key(in, current, false))) out.push_back(Value::tuple({current, Value::list(std::exchange(members, {}))}));
    if (members.empty()) current = k;
    members.push_back(x);
  }
  if (!members.empty()) out.push_back(Value::tuple({current, Value::list(std::move(members))}));
  return Value::list(std::move(out));
}

Value attr(Interp& in, const Value& v, const Args& a) { return in.attribute(v, in.print(a.need(0, "name")).bytes); }

// ---- tests

bool iterable(const Value& v) { return v.is_undefined() || v.is_string() || v.is_sequence() || v.is(Kind::kDict) || v.is(Kind::kGenerator); }
int64_t whole(const Value& v) {
  if (!v.is_number()) raise("not a number");
  return v.is(Kind::kFloat) ? static_cast<int64_t>(v.as_double()) : v.as_int();
}

using Filters = std::map<std::string_view, FilterFn>;
using Tests = std::map<std::string_view, TestFn>;

}  // namespace

FilterFn find_filter(std::string_view name) {
  static const Filters kTable{{"length", length}, {"count", length}, {"trim", trim_filter}, {"string", string_filter}, {"default", default_filter}, {"d", default_filter},
                              {"join", join_filter}, {"upper", text_method<kUpper>}, {"lower", text_method<kLower>}, {"capitalize", text_method<kCapitalize>}, {"title", text_method<kTitle>},
                              {"replace", text_method<kReplace>}, {"items", items_filter}, {"safe", safe}, {"escape", escape}, {"e", escape}, {"forceescape", force_escape},
                              {"sort", sort}, {"dictsort", dictsort}, {"list", list_filter}, {"select", select<false, true>}, {"reject", select<false, false>},
                              {"selectattr", select<true, true>}, {"rejectattr", select<true, false>}, {"map", map}, {"unique", unique}, {"min", extreme<false>}, {"max", extreme<true>},
                              {"sum", sum}, {"first", first}, {"last", last}, {"reverse", reverse}, {"indent", indent}, {"int", to_int}, {"float", to_float}, {"abs", abs_filter},
                              {"round", round_filter}, {"tojson", tojson}, {"wordcount", wordcount}, {"batch", batch}, {"slice", slice_filter}, {"groupby", groupby}, {"attr", attr}};
  const auto at = kTable.find(name);
  return at == kTable.end() ? nullptr : at->second;
}

TestFn find_test(std::string_view name) {
  static const Tests kTable{
      {"defined", [](Interp&, const Value& v, const Args&) { return !v.is_undefined(); }},
      {"undefined", [](Interp&, const Value& v, const Args&) { return v.is_undefined(); }},
      {"none", [](Interp&, const Value& v, const Args&) { return v.is_none(); }},
      {"boolean", [](Interp&, const Value& v, const Args&) { return v.is(Kind::kBool); }},
      {"true", [](Interp&, const Value& v, const Args&) { return v.is(Kind::kBool) && v.as_bool(); }},
      {"false", [](Interp&, const Value& v, const Args&) { return v.is(Kind::kBool) && !v.as_bool(); }},
      {"integer", [](Interp&, const Value& v, const Args&) { return v.is(Kind::kInt) || v.is(Kind::kBigInt); }},
      {"float", [](Interp&, const Value& v, const Args&) { return v.is(Kind::kFloat); }},
      {"number", [](Interp&, const Value& v, const Args&) { return v.is_number() || v.is(Kind::kBigInt); }},
      {"string", [](Interp&, const Value& v, const Args&) { return v.is_string(); }},
      {"mapping", [](Interp&, const Value& v, const Args&) { return v.is(Kind::kDict); }},
      {"iterable", [](Interp&, const Value& v, const Args&) { return iterable(v); }},
      {"sequence", [](Interp&, const Value& v, const Args&) { return iterable(v) && !v.is(Kind::kGenerator) && !v.is(Kind::kView); }},
      {"callable", [](Interp&, const Value& v, const Args&) { return v.is(Kind::kCallable) || v.is(Kind::kLoop); }},
      {"sameas", [](Interp& in, const Value& v, const Args& a) { return v.kind() == a.need(0, "other").kind() && (v.body() ? v.body() == a.pos[0].body() : in.same(v, a.pos[0])); }},
      {"odd", [](Interp&, const Value& v, const Args&) { return whole(v) % 2 != 0; }},
      {"even", [](Interp&, const Value& v, const Args&) { return whole(v) % 2 == 0; }},
      {"divisibleby", [](Interp&, const Value& v, const Args& a) {
         const int64_t by = whole(a.need(0, "num"));
         if (by == 0) raise("integer division or modulo by zero");
         return whole(v) % by == 0;
       }},
      {"lower", [](Interp& in, const Value& v, const Args&) { return call_method(in, as_text(in, v), "islower", {}).truthy(); }},
      {"upper", [](Interp& in, const Value& v, const Args&) { return call_method(in, as_text(in, v), "isupper", {}).truthy(); }},
      {"in", [](Interp& in, const Value& v, const Args& a) { return in.contains(a.need(0, "seq"), v); }},
      {"eq", [](Interp& in, const Value& v, const Args& a) { return in.same(v, a.need(0, "other")); }},
      {"equalto", [](Interp& in, const Value& v, const Args& a) { return in.same(v, a.need(0, "other")); }},
      {"==", [](Interp& in, const Value& v, const Args& a) { return in.same(v, a.need(0, "other")); }},
      {"ne", [](Interp& in, const Value& v, const Args& a) { return !in.same(v, a.need(0, "other")); }},
      {"!=", [](Interp& in, const Value& v, const Args& a) { return !in.same(v, a.need(0, "other")); }},
      {"lt", [](Interp& in, const Value& v, const Args& a) { return in.compare(v, a.need(0, "other")) < 0; }},
      {"lessthan", [](Interp& in, const Value& v, const Args& a) { return in.compare(v, a.need(0, "other")) < 0; }},
      {"<", [](Interp& in, const Value& v, const Args& a) { return in.compare(v, a.need(0, "other")) < 0; }},
      {"le", [](Interp& in, const Value& v, const Args& a) { return in.compare(v, a.need(0, "other")) <= 0; }},
      {"<=", [](Interp& in, const Value& v, const Args& a) { return in.compare(v, a.need(0, "other")) <= 0; }},
      {"gt", [](Interp& in, const Value& v, const Args& a) { return in.compare(v, a.need(0, "other")) > 0; }},
      {"greaterthan", [](Interp& in, const Value& v, const Args& a) { return in.compare(v, a.need(0, "other")) > 0; }},
      {">", [](Interp& in, const Value& v, const Args& a) { return in.compare(v, a.need(0, "other")) > 0; }},
      {"ge", [](Interp& in, const Value& v, const Args& a) { return in.compare(v, a.need(0, "other")) >= 0; }},
      {">=", [](Interp& in, const Value& v, const Args& a) { return in.compare(v, a.need(0, "other")) >= 0; }},
      {"filter", [](Interp&, const Value& v, const Args&) { return v.is_string() && find_filter(v.bytes()) != nullptr; }},
      {"test", [](Interp&, const Value& v, const Args&) { return v.is_string() && find_test(v.bytes()) != nullptr; }},
      {"escaped", [](Interp&, const Value& v, const Args&) { return v.is_string() && v.str().safe; }},
  };
  const auto at = kTable.find(name);
  return at == kTable.end() ? nullptr : at->second;
}

}  // namespace carrel::jinja
