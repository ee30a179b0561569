// Python's operators on values: arithmetic, order, membership, walking. See interp.h.
#include <algorithm>
#include <cmath>

#include "engine/text/jinja/interp.h"

namespace carrel::jinja {
namespace {

constexpr const char* kOpText[] = {"+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "-", "+"};

const char* spell(Op op) { return kOpText[static_cast<size_t>(op)]; }

int64_t floor_div(int64_t a, int64_t b) { return a / b - ((a % b != 0) && ((a < 0) != (b < 0))); }

double floor_mod(double a, double b) {
  const double m = std::fmod(a, b);
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}

Value int_op(Interp& in, Op op, int64_t a, int64_t b) {
  int64_t r = 0;
  bool over = false;
  switch (op) {
    case Op::kAdd: over = __builtin_add_overflow(a, b, &r); break;
    case Op::kSub: over = __builtin_sub_overflow(a, b, &r); break;
    case Op::kMul: over = __builtin_mul_overflow(a, b, &r); break;
    default:
      if (b == 0) in.bad("division by zero");
      if (op == Op::kDiv) return Value::real(static_cast<double>(a) / static_cast<double>(b));
      over = b == -1 && a == INT64_MIN;
      if (!over) r = op == Op::kMod ? a - floor_div(a, b) * b : floor_div(a, b);
  }
  if (over) in.bad("an integer beyond 64 bits");
  return Value::integer(r);
}

Value power(Interp& in, const Value& a, const Value& b) {
  if (!a.is_intlike() || !b.is_intlike() || b.as_int() < 0) return Value::real(std::pow(a.as_double(), b.as_double()));
  int64_t r = 1, base = a.as_int();
  for (int64_t n = b.as_int(); n > 0; n >>= 1) {
    if ((n & 1) != 0 && __builtin_mul_overflow(r, base, &r)) in.bad("an integer beyond 64 bits");
    if (n > 1 && __builtin_mul_overflow(base, base, &base)) in.bad("an integer beyond 64 bits");
  }
  return Value::integer(r);
}

Value number_op(Interp& in, Op op, const Value& a, const Value& b) {
  if (op == Op::kPow) return power(in, a, b);
  if (a.is_intlike() && b.is_intlike()) return int_op(in, op, a.as_int(), b.as_int());
  const double x = a.as_double(), y = b.as_double();
  switch (op) {
    case Op::kAdd: return Value::real(x + y);
    case Op::kSub: return Value::real(x - y);
    case Op::kMul: return Value::real(x * y);
    default: break;
  }
  if (y == 0) in.bad("division by zero");
  if (op == Op::kDiv) return Value::real(x / y);
  return Value::real(op == Op::kMod ? floor_mod(x, y) : std::floor(x / y));
}

Value add_strings(Interp& in, const Value& a, const Value& b) {
  const bool safe = a.str().safe || b.str().safe;
  TextBuilder t;
  t.append((safe && !a.str().safe ? in.escape(a) : a).str().text);
  t.append((safe && !b.str().safe ? in.escape(b) : b).str().text);
  return in.make(t, safe);
}

Value repeat(Interp& in, const Value& v, int64_t times) {
  const uint64_t n = times > 0 ? static_cast<uint64_t>(times) : 0;
  if (v.is_string()) {
    if (n > 0 && v.bytes().size() > in.limits().max_output_bytes / n) in.raise(Code::kExhausted, "a repeated text is too long");
    in.step(n + n * v.bytes().size() / 16);
    TextBuilder t;
    for (uint64_t i = 0; i < n; ++i) t.append(v.str().text);
    return in.make(t, v.str().safe);
  }
  const std::vector<Value>& items = v.seq().items;
  if (n > 0 && items.size() > in.steps_left() / n) in.step(in.steps_left() + 1);
  in.step(n * items.size() * 4);
  std::vector<Value> out;
  for (uint64_t i = 0; i < n && !items.empty(); ++i) out.insert(out.end(), items.begin(), items.end());
  return v.is(Kind::kTuple) ? in.tuple(std::move(out)) : in.list(std::move(out));
}

bool is_list_or_tuple(const Value& v) { return v.is(Kind::kList) || v.is(Kind::kTuple); }

}  // namespace

Value Interp::binary(Op op, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b}) {
    if (v->is_undefined()) bad(v->body() ? v->bytes() : "the value is undefined");
  }
  if (a.is_number() && b.is_number()) return number_op(*this, op, a, b);
  if (op == Op::kAdd && a.is_string() && b.is_string()) return add_strings(*this, a, b);
  if (op == Op::kAdd && is_list_or_tuple(a) && a.kind() == b.kind()) {
    std::vector<Value> out = a.seq().items;
    out.insert(out.end(), b.seq().items.begin(), b.seq().items.end());
    step(out.size() * 3);
    return a.is(Kind::kTuple) ? tuple(std::move(out)) : list(std::move(out));
  }
  if (op == Op::kMul && b.is_intlike() && (a.is_string() || is_list_or_tuple(a))) return repeat(*this, a, b.as_int());
  if (op == Op::kMul && a.is_intlike() && (b.is_string() || is_list_or_tuple(b))) return repeat(*this, b, a.as_int());
  if (op == Op::kMod && a.is_string()) return format_percent(*this, a, b);
  if (op == Op::kAdd && a.is_string()) bad(std::string("can only concatenate str (not \"") + type_name(b) + "\") to str");
  bad(std::string("unsupported operand type(s) for ") + spell(op) + ": '" + type_name(a) + "' and '" + type_name(b) + "'");
}

Value Interp::negate(const Value& v, bool minus) {
  if (v.is_undefined()) bad(v.body() ? v.bytes() : "the value is undefined");
  if (!v.is_number()) bad(std::string("bad operand type for unary ") + (minus ? "-" : "+") + ": '" + type_name(v) + "'");
  if (v.is(Kind::kFloat)) return Value::real(minus ? -v.as_double() : v.as_double());
  return minus ? int_op(*this, Op::kSub, 0, v.as_int()) : Value::integer(v.as_int());
}

bool Interp::equals(const Value& a, const Value& b) {
  step();
  uint64_t work = steps_left_;
  const bool same = equal(a, b, work);
  if (work == 0) step(steps_left_ + 1);  // the answer may be wrong
  step(steps_left_ - work);
  return same;
}

int Interp::compare(const Value& a, const Value& b) {
  const Level level(*this);
  step();
  for (const Value* v : {&a, &b}) {
    if (v->is_undefined()) bad(v->body() ? v->bytes() : "the value is undefined");
  }
  if (a.is_intlike() && b.is_intlike()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
  if (a.is_number() && b.is_number()) {
    if (std::isnan(a.as_double()) || std::isnan(b.as_double())) bad("nan has no order");
    return a.as_double() < b.as_double() ? -1 : a.as_double() > b.as_double();
  }
  if (a.is_string() && b.is_string()) {
    step(std::min(a.bytes().size(), b.bytes().size()) / 64);
    const int c = a.bytes().compare(b.bytes());  // UTF-8 keeps the order of code points
    return c < 0 ? -1 : c > 0;
  }
  if (is_list_or_tuple(a) && a.kind() == b.kind()) {
    const auto &x = a.seq().items, &y = b.seq().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equals(x[i], y[i])) return compare(x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  bad(std::string("no order between '") + type_name(a) + "' and '" + type_name(b) + "'");
}

const Value* Interp::look_up(const Value& dict, const Value& key) {
  step(key.is_string() ? key.bytes().size() / 16 : dict.dict().items.size() / 4);
  return dict.dict().find(key);
}

bool Interp::contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kUndefined: return false;
    case Kind::kString:
      if (!item.is_string()) bad(std::string("'in <string>' requires a string as left operand, not ") + type_name(item));
      step((container.bytes().size() + item.bytes().size()) / 16);
      return find_bytes(container.bytes(), item.bytes()) != std::string::npos;
    case Kind::kDict: return look_up(container, item) != nullptr;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
    case Kind::kRange:
    case Kind::kGenerator: {
      const std::vector<Value> items = iterate(container);
      return std::any_of(items.begin(), items.end(), [&](const Value& v) { return equals(v, item); });
    }
    default: bad(std::string("argument of type '") + type_name(container) + "' is not iterable");
  }
}

std::vector<Value> Interp::iterate(const Value& v) {
  std::vector<Value> out;
  switch (v.kind()) {
    case Kind::kUndefined: return out;
    case Kind::kString:
      step(v.str().text.n_chars * 8);
      for (size_t i = 0, n = 0; i < v.bytes().size(); i += n) {
        n = char_bytes(v.bytes(), i);
        TextBuilder b;
        b.append(v.str().text, i, i + n);
        out.push_back(make(b));
      }
      return out;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
    case Kind::kRange:
      step(v.seq().items.size());
      return v.seq().items;
    case Kind::kDict:
      step(v.dict().items.size());
      for (const auto& kv : v.dict().items) out.push_back(kv.first);
      return out;
    case Kind::kGenerator: {
      auto& g = static_cast<Generator&>(*v.body());
      step(g.items.size() - g.next);
      out.assign(g.items.begin() + static_cast<ptrdiff_t>(g.next), g.items.end());
      g.next = g.items.size();
      if (g.error) bad(*g.error);
      return out;
    }
    default: bad(std::string("'") + type_name(v) + "' object is not iterable");
  }
}

size_t Interp::length(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined: return 0;
    case Kind::kString: return v.str().text.n_chars;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
    case Kind::kRange: return v.seq().items.size();
    case Kind::kDict: return v.dict().items.size();
    case Kind::kLoop: return static_cast<const LoopState&>(*v.body()).items.size();
    default: bad(std::string("object of type '") + type_name(v) + "' has no len()");
  }
}

Value Interp::attribute_path(const Value& v, const Value& path) {
  if (path.is_intlike()) return item(v, path);
  if (!path.is_string()) bad("the attribute of a filter must be a text or a number");
  Value now = v;
  const std::string& p = path.bytes();
  for (size_t at = 0; at <= p.size();) {
    const size_t dot = std::min(p.find('.', at), p.size());
    const std::string part = p.substr(at, dot - at);
    const bool digits = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    now = item(now, digits ? Value::integer(std::stoll(part)) : text(part));
    at = dot + 1;
  }
  return now;
}

}  // namespace carrel::jinja
