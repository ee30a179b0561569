// The tests after `is`. Tables are constant; see parser.h for find_test.
#include <algorithm>

#include "engine/text/jinja/interp.h"
#include "engine/text/jinja/parser.h"

namespace carrel::jinja {
namespace {

const Value& operand(Interp& in, const Args& args) {
  if (args.positional.empty()) in.bad("the test needs an argument");
  return args.positional[0];
}

int64_t whole(Interp& in, const Value& v) {
  if (!v.is_intlike()) in.bad(std::string("the test needs an integer, not '") + type_name(v) + "'");
  return v.as_int();
}

/// v modulo d, as Python has it.
double rest(Interp& in, const Value& v, int64_t d) {
  if (d == -1 && v.is_intlike()) return 0;
  if (!v.is_number()) in.bad(std::string("the test needs a number, not '") + type_name(v) + "'");
  return in.binary(Op::kMod, v, Value::integer(d)).as_double();
}

/// islower or isupper: at least one cased character and none of the other case.
bool all_case(Interp& in, const Value& v, bool upper) {
  const std::string& s = v.is_string() ? v.bytes() : in.repr(v);
  bool any = false;
  in.step(s.size() / 8);
  for (size_t i = 0; i < s.size(); i += char_bytes(s, i)) {
    const char32_t c = decode_char(s, i);
    if (upper ? is_lower(c) : is_upper(c)) return false;
    any = any || (upper ? is_upper(c) : is_lower(c));
  }
  return any;
}

bool is_iterable(const Value& v) {
  return v.is_string() || v.is_sequence() || v.is(Kind::kDict) || v.is_undefined() || v.is(Kind::kGenerator) || v.is(Kind::kLoop);
}

bool is_sequence(const Value& v) { return v.is_string() || v.is_sequence() || v.is(Kind::kDict) || v.is_undefined(); }

struct Entry {
  std::string_view name;
  TestFn fn;
};

constexpr TestFn kEqFn = [](Interp& in, const Value& v, const Args& a) { return in.equals(v, operand(in, a)); };
constexpr TestFn kNeFn = [](Interp& in, const Value& v, const Args& a) { return !in.equals(v, operand(in, a)); };
constexpr TestFn kLtFn = [](Interp& in, const Value& v, const Args& a) { return in.compare(v, operand(in, a)) < 0; };
constexpr TestFn kLeFn = [](Interp& in, const Value& v, const Args& a) { return in.compare(v, operand(in, a)) <= 0; };
constexpr TestFn kGtFn = [](Interp& in, const Value& v, const Args& a) { return in.compare(v, operand(in, a)) > 0; };
constexpr TestFn kGeFn = [](Interp& in, const Value& v, const Args& a) { return in.compare(v, operand(in, a)) >= 0; };

constexpr Entry kTests[] = {
    {"defined", [](Interp&, const Value& v, const Args&) { return !v.is_undefined(); }},
    {"undefined", [](Interp&, const Value& v, const Args&) { return v.is_undefined(); }},
    {"none", [](Interp&, const Value& v, const Args&) { return v.is_none(); }},
    {"string", [](Interp&, const Value& v, const Args&) { return v.is_string(); }},
    {"number", [](Interp&, const Value& v, const Args&) { return v.is_number() || v.is(Kind::kBigInt); }},
    {"boolean", [](Interp&, const Value& v, const Args&) { return v.is(Kind::kBool); }},
    {"integer", [](Interp&, const Value& v, const Args&) { return v.is(Kind::kInt) || v.is(Kind::kBigInt); }},
    {"float", [](Interp&, const Value& v, const Args&) { return v.is(Kind::kFloat); }},
    {"true", [](Interp&, const Value& v, const Args&) { return v.is(Kind::kBool) && v.as_bool(); }},
    {"false", [](Interp&, const Value& v, const Args&) { return v.is(Kind::kBool) && !v.as_bool(); }},
    {"mapping", [](Interp&, const Value& v, const Args&) { return v.is(Kind::kDict); }},
    {"iterable", [](Interp&, const Value& v, const Args&) { return is_iterable(v); }},
    {"sequence", [](Interp&, const Value& v, const Args&) { return is_sequence(v); }},
    {"callable", [](Interp&, const Value& v, const Args&) { return v.is(Kind::kCallable) || v.is(Kind::kLoop); }},
    {"odd", [](Interp& in, const Value& v, const Args&) { return rest(in, v, 2) == 1; }},
    {"even", [](Interp& in, const Value& v, const Args&) { return rest(in, v, 2) == 0; }},
    {"divisibleby",
     [](Interp& in, const Value& v, const Args& a) {
       return rest(in, v, whole(in, operand(in, a))) == 0;
     }},
    {"lower", [](Interp& in, const Value& v, const Args&) { return all_case(in, v, false); }},
    {"upper", [](Interp& in, const Value& v, const Args&) { return all_case(in, v, true); }},
    {"escaped", [](Interp&, const Value& v, const Args&) { return v.is_string() && v.str().safe; }},
    {"in", [](Interp& in, const Value& v, const Args& a) { return in.contains(operand(in, a), v); }},
    {"sameas",
     [](Interp& in, const Value& v, const Args& a) {
       const Value& o = operand(in, a);
       return v.kind() == o.kind() && (v.body() ? v.body() == o.body() : in.equals(v, o));
     }},
    {"filter", [](Interp& in, const Value& v, const Args&) { return v.is_string() && find_filter(in.to_str(v).bytes()) != nullptr; }},
    {"test", [](Interp& in, const Value& v, const Args&) { return v.is_string() && find_test(in.to_str(v).bytes()) != nullptr; }},
    {"eq", kEqFn}, {"==", kEqFn}, {"equalto", kEqFn}, {"ne", kNeFn}, {"!=", kNeFn},
    {"lt", kLtFn}, {"<", kLtFn}, {"lessthan", kLtFn}, {"le", kLeFn}, {"<=", kLeFn},
    {"gt", kGtFn}, {">", kGtFn}, {"greaterthan", kGtFn}, {"ge", kGeFn}, {">=", kGeFn},
};

}  // namespace

TestFn find_test(std::string_view name) {
  const auto* e = std::find_if(std::begin(kTests), std::end(kTests), [&](const Entry& t) { return t.name == name; });
  return e == std::end(kTests) ? nullptr : e->fn;
}

}  // namespace carrel::jinja
