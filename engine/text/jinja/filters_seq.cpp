// Filters on sequences and mappings. The lazy ones of Jinja give generators (filled when made).
#include <algorithm>
#include <list>

#include "engine/text/jinja/filters.h"

namespace carrel::jinja {
namespace {

/// Fills a generator; what fails in the middle is reported when the walk gets there. Limits end the render at once.
template <class F>
Value lazily(Interp& in, const Value& v, F each) {
  std::vector<Value> out;
  if (!v.truthy()) return in.generator({});  // as in the original, where none is an empty sequence here
  try {
    for (const Value& x : in.iterate(v)) each(x, out);
  } catch (const RenderError& e) {
    if (e.error.code != Code::kUnsupported) throw;
    return in.generator(std::move(out), e.error.message);
  }
  return in.generator(std::move(out));
}

/// What sort and its relatives compare: lower case, unless asked otherwise.
Value fold(Interp& in, const Value& v, bool case_sensitive) { return v.is_string() && !case_sensitive ? map_case(in, v, false) : v; }

bool flag(const Value* v) { return v != nullptr && v->truthy(); }

struct Keyed {
  std::vector<Value> keys;
  Value item;
};

/// Stable. The sort of a list, since it stays within bounds whatever order the values have.
Value sort_items(Interp& in, std::list<Keyed> all, bool reverse) {
  all.sort([&](const Keyed& a, const Keyed& b) {
    const Keyed &x = reverse ? b : a, &y = reverse ? a : b;
    for (size_t i = 0; i < x.keys.size(); ++i) {
      if (const int c = in.compare(x.keys[i], y.keys[i]); c != 0) return c < 0;
    }
    return false;
  });
  std::vector<Value> out;
  for (Keyed& k : all) out.push_back(std::move(k.item));
  return in.list(std::move(out));
}

Value sort_filter(Interp& in, const Value& v, const Args& a) {
  const bool sensitive = flag(a.find(1, "case_sensitive"));
  const Value* attribute = a.find(2, "attribute");
  std::list<Keyed> all;
  for (const Value& x : in.iterate(v)) {
    Keyed k;
    k.item = x;
    if (attribute == nullptr || attribute->is_none()) {
      k.keys.push_back(fold(in, x, sensitive));
    } else if (attribute->is_string()) {
      const std::string& names = attribute->bytes();
      for (size_t at = 0; at <= names.size();) {
        const size_t comma = std::min(names.find(',', at), names.size());
        k.keys.push_back(fold(in, in.attribute_path(x, in.text(names.substr(at, comma - at))), sensitive));
        at = comma + 1;
      }
    } else {
      k.keys.push_back(fold(in, in.attribute_path(x, *attribute), sensitive));
    }
    all.push_back(std::move(k));
  }
  return sort_items(in, std::move(all), flag(a.find(0, "reverse")));
}

Value dictsort(Interp& in, const Value& v, const Args& a) {
  if (!v.is(Kind::kDict)) in.bad(std::string("dictsort needs a mapping, not '") + type_name(v) + "'");
  const Value* by = a.find(1, "by");
  const std::string what = by != nullptr && by->is_string() ? by->bytes() : "key";
  if (what != "key" && what != "value") in.bad("dictsort sorts by 'key' or 'value'");
  std::list<Keyed> all;
  for (const auto& [k, x] : v.dict().items) all.push_back({{fold(in, what == "key" ? k : x, flag(a.find(0, "case_sensitive")))}, in.tuple({k, x})});
  return sort_items(in, std::move(all), flag(a.find(2, "reverse")));
}

Value items_filter(Interp& in, const Value& v, const Args&) {
  if (v.is_undefined()) return in.generator({});
  if (!v.is(Kind::kDict)) return in.generator({}, "Can only get item pairs from a mapping.");
  std::vector<Value> out;
  for (const auto& [k, x] : v.dict().items) out.push_back(in.tuple({k, x}));
  return in.generator(std::move(out));
}

Value first(Interp& in, const Value& v, const Args&) {
  if (v.is(Kind::kGenerator)) {
    auto& g = static_cast<Generator&>(*v.body());
    if (g.next < g.items.size()) return g.items[g.next++];
  }
  const auto items = in.iterate(v);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last(Interp& in, const Value& v, const Args&) {
  if (v.is(Kind::kGenerator)) in.bad("'generator' object is not reversible");
  const auto items = in.iterate(v);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value join_filter(Interp& in, const Value& v, const Args& a) {
  const Value *separator = a.find(0, "d"), *attribute = a.find(1, "attribute");
  std::vector<Value> items = in.iterate(v);
  if (attribute != nullptr && !attribute->is_none()) {
    for (Value& x : items) x = in.attribute_path(x, *attribute);
  }
  return join(in, separator != nullptr ? in.to_str(*separator) : in.text(""), items);
}

Value length_filter(Interp& in, const Value& v, const Args&) { return Value::integer(static_cast<int64_t>(in.length(v))); }
Value list_filter(Interp& in, const Value& v, const Args&) { return in.list(in.iterate(v)); }

Value reverse_filter(Interp& in, const Value& v, const Args&) {
  auto items = in.iterate(v);
  std::reverse(items.begin(), items.end());
  if (v.is_string()) return join(in, in.text(""), items);
  return in.generator(std::move(items));
}

Args rest(const Args& a, size_t from) {
  Args out;
  for (size_t i = from; i < a.positional.size(); ++i) out.positional.push_back(a.positional[i]);
  out.named = a.named;
  return out;
}

Value map_filter(Interp& in, const Value& v, const Args& a) {
  if (a.positional.empty()) {
    const Value *attribute = a.find(0, "attribute"), *preset = a.find(1, "default");
    if (attribute == nullptr) in.bad("map requires a filter argument");
    return lazily(in, v, [&](const Value& x, std::vector<Value>& out) {
      Value found = in.attribute_path(x, *attribute);
      out.push_back(found.is_undefined() && preset != nullptr ? *preset : std::move(found));
    });
  }
  const std::string name = string_arg(in, &a.positional[0], "map").bytes();
  const Args args = rest(a, 1);
  return lazily(in, v, [&](const Value& x, std::vector<Value>& out) { out.push_back(in.apply_filter(name, x, args)); });
}

/// select, reject, selectattr, rejectattr.
Value choose(Interp& in, const Value& v, const Args& a, bool by_attribute, bool keep) {
  if (by_attribute && a.positional.empty()) in.bad("selectattr and rejectattr need an attribute");
  const size_t at = by_attribute ? 1 : 0;
  const bool has_test = a.positional.size() > at;
  const std::string test = has_test ? string_arg(in, &a.positional[at], "select").bytes() : "";
  const Args args = has_test ? rest(a, at + 1) : Args{};
  return lazily(in, v, [&](const Value& x, std::vector<Value>& out) {
    const Value subject = by_attribute ? in.attribute_path(x, a.positional[0]) : x;
    const bool yes = has_test ? in.apply_test(test, subject, args) : subject.truthy();
    if (yes == keep) out.push_back(x);
  });
}

Value unique(Interp& in, const Value& v, const Args& a) {
  const Value* attribute = a.find(1, "attribute");
  const bool sensitive = flag(a.find(0, "case_sensitive"));
  std::vector<Value> seen;
  return lazily(in, v, [&](const Value& x, std::vector<Value>& out) {
    Value key = fold(in, attribute != nullptr && !attribute->is_none() ? in.attribute_path(x, *attribute) : x, sensitive);
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& s) { return in.equals(s, key); })) return;
    seen.push_back(std::move(key));
    out.push_back(x);
  });
}

Value extreme(Interp& in, const Value& v, const Args& a, bool smallest) {
  const Value* attribute = a.find(1, "attribute");
  const bool sensitive = flag(a.find(0, "case_sensitive"));
  const auto items = in.iterate(v);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const auto key = [&](const Value& x) { return fold(in, attribute != nullptr && !attribute->is_none() ? in.attribute_path(x, *attribute) : x, sensitive); };
  size_t best = 0;
  Value best_key = key(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    Value k = key(items[i]);
    const int c = in.compare(k, best_key);
    if (smallest ? c >= 0 : c <= 0) continue;
    best = i;
    best_key = std::move(k);
  }
  return items[best];
}

Value sum(Interp& in, const Value& v, const Args& a) {
  const Value *attribute = a.find(0, "attribute"), *start = a.find(1, "start");
  Value total = start != nullptr ? *start : Value::integer(0);
  for (const Value& x : in.iterate(v)) total = in.binary(Op::kAdd, total, attribute != nullptr && !attribute->is_none() ? in.attribute_path(x, *attribute) : x);
  return total;
}

Value batch(Interp& in, const Value& v, const Args& a) {
  const int64_t n = int_arg(in, a.find(0, "linecount"), 0);
  const Value* fill = a.find(1, "fill_with");
  if (n < 1) in.bad("batch needs a positive number of items");
  std::vector<Value> out, row;
  for (const Value& x : in.iterate(v)) {
    row.push_back(x);
    if (static_cast<int64_t>(row.size()) == n) out.push_back(in.list(std::exchange(row, {})));
  }
  while (!row.empty() && fill != nullptr && !fill->is_none() && static_cast<int64_t>(row.size()) < n) {
    in.step();
    row.push_back(*fill);
  }
  if (!row.empty()) out.push_back(in.list(std::move(row)));
  return in.generator(std::move(out));
}

Value slice(Interp& in, const Value& v, const Args& a) {
  const int64_t n = int_arg(in, a.find(0, "slices"), 0);
  const Value* fill = a.find(1, "fill_with");
  if (n < 1) in.bad("slice needs a positive number of slices");
  const auto items = in.iterate(v);
  const auto count = static_cast<int64_t>(items.size());
  std::vector<Value> out;
  int64_t at = 0;
  for (int64_t i = 0; i < n; ++i) {
    in.step(8);
    const int64_t size = count / n + (i < count % n);
    std::vector<Value> part(items.begin() + at, items.begin() + at + size);
    if (fill != nullptr && !fill->is_none() && i >= count % n && count % n != 0) part.push_back(*fill);
    at += size;
    out.push_back(in.list(std::move(part)));
  }
  return in.generator(std::move(out));
}

Value groupby(Interp& in, const Value& v, const Args& a) {
  const Value *attribute = a.find(0, "attribute"), *preset = a.find(1, "default");
  if (attribute == nullptr) in.bad("groupby needs an attribute");
  const bool sensitive = flag(a.find(2, "case_sensitive"));
  std::list<Keyed> all;
  for (const Value& x : in.iterate(v)) {
    Value key = in.attribute_path(x, *attribute);
    if (key.is_undefined() && preset != nullptr) key = *preset;
    all.push_back({{fold(in, key, sensitive)}, in.tuple({key, x})});
  }
  std::vector<Value> out, members;
  Value key;
  for (const Value& pair : in.iterate(sort_items(in, std::move(all), false))) {
    const auto& kv = pair.seq().items;
    if (!members.empty() && !in.equals(fold(in, key, sensitive), fold(in, kv[0], sensitive))) out.push_back(in.tuple({key, in.list(std::exchange(members, {}))}));
    if (members.empty()) key = kv[0];
    members.push_back(kv[1]);
  }
  if (!members.empty()) out.push_back(in.tuple({key, in.list(std::move(members))}));
  return in.list(std::move(out));
}

constexpr FilterEntry kFilters[] = {
    {"batch", batch}, {"count", length_filter}, {"dictsort", dictsort}, {"first", first}, {"groupby", groupby}, {"items", items_filter},
    {"join", join_filter}, {"last", last}, {"length", length_filter}, {"list", list_filter}, {"map", map_filter},
    {"max", [](Interp& in, const Value& v, const Args& a) { return extreme(in, v, a, false); }},
    {"min", [](Interp& in, const Value& v, const Args& a) { return extreme(in, v, a, true); }},
    {"reject", [](Interp& in, const Value& v, const Args& a) { return choose(in, v, a, false, false); }},
    {"rejectattr", [](Interp& in, const Value& v, const Args& a) { return choose(in, v, a, true, false); }},
    {"reverse", reverse_filter},
    {"select", [](Interp& in, const Value& v, const Args& a) { return choose(in, v, a, false, true); }},
    {"selectattr", [](Interp& in, const Value& v, const Args& a) { return choose(in, v, a, true, true); }},
    {"slice", slice}, {"sort", sort_filter}, {"sum", sum}, {"unique", unique},
};

}  // namespace

FilterFn find_sequence_filter(std::string_view name) {
  const auto* e = std::find_if(std::begin(kFilters), std::end(kFilters), [&](const FilterEntry& f) { return f.name == name; });
  return e == std::end(kFilters) ? nullptr : e->fn;
}

}  // namespace carrel::jinja
