// Expressions: names, access, calls, operators, comparison, printing.
#include <algorithm>
#include <cmath>

#include "engine/text/jinja/interp.h"
#include "engine/text/jinja/parser.h"

namespace carrel::jinja {
namespace {

[[noreturn]] void raise_undefined(const Value& v) {
  const std::string what = v.body() ? static_cast<const Str&>(*v.body()).text.bytes : "";
  raise(what.empty() ? "a value is undefined" : what);
}

int64_t floor_div(int64_t a, int64_t b) { return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0); }

Value arithmetic(Op op, const Value& a, const Value& b) {
  if (a.is_intlike() && b.is_intlike() && op != Op::kDiv && op != Op::kPow) {
    const int64_t x = a.as_int(), y = b.as_int();
    int64_t r = 0;
    bool overflow = false;
    switch (op) {
      case Op::kAdd: overflow = __builtin_add_overflow(x, y, &r); break;
      case Op::kSub: overflow = __builtin_sub_overflow(x, y, &r); break;
      case Op::kMul: overflow = __builtin_mul_overflow(x, y, &r); break;
      default:
        if (y == 0) raise("integer division or modulo by zero");
        if (y == -1) overflow = op == Op::kFloorDiv && __builtin_sub_overflow(int64_t{0}, x, &r);
        else r = op == Op::kFloorDiv ? floor_div(x, y) : x - floor_div(x, y) * y;
    }
    if (overflow) raise("an integer goes beyond 64 bits");
    return Value::integer(r);
  }
  const double x = a.as_double(), y = b.as_double();
  switch (op) {
    case Op::kAdd: return Value::real(x + y);
    case Op::kSub: return Value::real(x - y);
    case Op::kMul: return Value::real(x * y);
    case Op::kPow: {
      const double p = std::pow(x, y);
      if (a.is_intlike() && b.is_intlike() && b.as_int() >= 0) {
        if (std::fabs(p) >= 9e15) raise("an integer goes beyond what is calculated here");
        return Value::integer(static_cast<int64_t>(p));
      }
      return Value::real(p);
    }
    default: break;
  }
  if (y == 0) raise("division by zero");
  if (op == Op::kDiv) return Value::real(x / y);
  const double q = std::floor(x / y);
  return Value::real(op == Op::kFloorDiv ? q : x - q * y);
}

}  // namespace

Value Interp::eval(const Expr& e) {
  const Depth depth(*this);
  step();
  switch (e.kind) {
    case ExprKind::kConst: return e.constant;
    case ExprKind::kName: return lookup(e.name);
    case ExprKind::kList:
    case ExprKind::kTuple: {
      std::vector<Value> items;
      for (const ExprPtr& k : e.kids) items.push_back(eval(*k));
      Value v = e.kind == ExprKind::kList ? Value::list(std::move(items)) : Value::tuple(std::move(items));
      if (v.depth() > 400) raise(Code::kExhausted, "a value nests too deeply");
      return v;
    }
    case ExprKind::kDict: {
      std::vector<std::pair<Value, Value>> items;
      for (size_t i = 0; i + 1 < e.kids.size(); i += 2) items.emplace_back(eval(*e.kids[i]), eval(*e.kids[i + 1]));
      Value v = make_dict(std::move(items));
      if (v.depth() > 400) raise(Code::kExhausted, "a value nests too deeply");
      return v;
    }
    case ExprKind::kAttr: return attribute(eval(*e.kids[0]), e.text);
    case ExprKind::kItem: {
      const Value v = eval(*e.kids[0]);
      return item(v, eval(*e.kids[1]));
    }
    case ExprKind::kSlice: return eval_slice(e);
    case ExprKind::kCall: return eval_call(e);
    case ExprKind::kFilter: return eval_filter(e);
    case ExprKind::kTest: {
      if (e.test == nullptr) raise("no test named '" + e.text + "'");
      const Value v = eval(*e.kids[0]);
      return Value::boolean(e.test(*this, v, arguments(e)));
    }
    case ExprKind::kUnary: {
      const Value v = eval(*e.kids[0]);
      if (v.is_undefined()) raise_undefined(v);
      if (!v.is_number()) raise("bad operand type for unary operator: '" + std::string(type_name(v)) + "'");
      if (e.op == Op::kPos) return v.is(Kind::kFloat) ? v : Value::integer(v.as_int());
      return v.is(Kind::kFloat) ? Value::real(-v.as_double()) : arithmetic(Op::kSub, Value::integer(0), v);
    }
    case ExprKind::kBinary: {
      const Value a = eval(*e.kids[0]);
      return binary(e.op, a, eval(*e.kids[1]));
    }
    case ExprKind::kNot: return Value::boolean(!eval(*e.kids[0]).truthy());
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value v;
      for (const ExprPtr& k : e.kids) {
        v = eval(*k);
        if (v.truthy() == (e.kind == ExprKind::kOr)) break;
      }
      return v;
    }
    case ExprKind::kCompare: return Value::boolean(eval_compare(e));
    case ExprKind::kConcat: {
      TextBuilder b;
      std::vector<Value> parts;
      for (const ExprPtr& k : e.kids) parts.push_back(eval(*k));
      for (const Value& v : parts) {
        const TextBody t = print(v);
        step(t.bytes.size() / 16);
        b.append(t);
        if (b.size() > limits_.max_output_bytes) raise(Code::kExhausted, "the template makes too large a text");
      }
      return text(b.take());
    }
    case ExprKind::kCond:
      if (eval(*e.kids[0]).truthy()) return eval(*e.kids[1]);
      return e.kids[2] ? eval(*e.kids[2]) : Value::undefined("the inline if-expression has no else and its condition is false");
  }
  return {};
}

Value Interp::lookup(uint32_t name) {
  for (const Scope* s = scope_.get(); s != nullptr; s = s->parent.get()) {
    const auto at = s->vars.find(name);
    if (at != s->vars.end()) return at->second;
  }
  const std::string& spelled = program_.names[name];
  if (variables_.is(Kind::kDict))
    if (const Value* v = variables_.dict().find(std::string_view(spelled))) return *v;
  return global(spelled);
}

Value Interp::global(const std::string& name) {
  if (name == "namespace")
    return make_callable(name, [](Interp&, const Args& a) {
      auto ns = std::make_shared<Namespace>();
      if (!a.pos.empty() && a.pos[0].is(Kind::kDict))
        for (const auto& [k, v] : a.pos[0].dict().items) ns->attributes.emplace_back(k.is_string() ? k.bytes() : "", v);
      for (const auto& [n, v] : a.named) ns->attributes.emplace_back(n, v);
      return Value::object(Kind::kNamespace, std::move(ns));
    });
  if (name == "dict")
    return make_callable(name, [](Interp&, const Args& a) {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& [n, v] : a.named) items.emplace_back(Value::string(n, Origin::kTemplate), v);
      return make_dict(std::move(items));
    });
  if (name == "raise_exception")
    return make_callable(name, [](Interp& in, const Args& a) -> Value { raise(Code::kInvalidArgument, in.print(a.need(0, "message")).bytes); });
  if (name == "strftime_now")
    return make_callable(name, [](Interp& in, const Args& a) {
      const std::string format = in.print(a.need(0, "format")).bytes;
      const time_t t = static_cast<time_t>(in.clock().unix_ms / 1000 + int64_t{in.clock().utc_offset_min} * 60);
      tm parts{};
      gmtime_r(&t, &parts);
      char buffer[256];
      const size_t n = format.size() > 100 ? 0 : strftime(buffer, sizeof buffer, format.c_str(), &parts);
      return Value::string(std::string_view(buffer, n), Origin::kTemplate);
    });
  if (name == "range")
    return make_callable(name, [](Interp& in, const Args& a) {
      int64_t from = 0, to = 0, by = 1;
      for (const Value& v : a.pos)
        if (!v.is_intlike()) raise("range() takes integers");
      if (a.pos.empty() || a.pos.size() > 3) raise("range() takes one to three integers");
      if (a.pos.size() == 1) to = a.pos[0].as_int();
      else from = a.pos[0].as_int(), to = a.pos[1].as_int();
      if (a.pos.size() == 3) by = a.pos[2].as_int();
      if (by == 0) raise("range() arg 3 must not be zero");
      if ((by > 0 && to > from && static_cast<double>(to) - static_cast<double>(from) > 1e5 * static_cast<double>(by)) ||
          (by < 0 && from > to && static_cast<double>(from) - static_cast<double>(to) > -1e5 * static_cast<double>(by)))
        raise(Code::kExhausted, "range() is longer than 100000");
      auto seq = std::make_shared<Seq>();
      seq->depth = 1;
      seq->label = "range(" + std::to_string(from) + ", " + std::to_string(to) + (by != 1 ? ", " + std::to_string(by) : "") + ")";
      for (int64_t i = from; by > 0 ? i < to : i > to; i += by) in.step(), seq->items.push_back(Value::integer(i));
      return Value::object(Kind::kRange, std::move(seq));
    });
  return Value::undefined("'" + name + "' is undefined");
}

Args Interp::arguments(const Expr& e) {
  Args a;
  for (size_t i = 1; i < e.kids.size(); i++) a.pos.push_back(eval(*e.kids[i]));
  for (const auto& [name, expr] : e.named) a.named.emplace_back(name, eval(*expr));
  return a;
}

Value Interp::eval_call(const Expr& e) {
  const Value f = eval(*e.kids[0]);
  return call(f, arguments(e));
}

Value Interp::call(const Value& f, const Args& args) {
  const Depth depth(*this);
  step();
  if (f.is(Kind::kLoop)) {
    auto& loop = static_cast<LoopState&>(*f.body());
    if (!loop.recurse) raise("the loop is not recursive");
    const auto recurse = loop.recurse;
    return recurse(*this, args.need(0, "iterable"));
  }
  if (f.is_undefined()) raise_undefined(f);
  if (!f.is(Kind::kCallable)) raise("'" + std::string(type_name(f)) + "' object is not callable");
  const auto held = f.body();  // the callee may overwrite the variable it was called through
  return static_cast<const Callable&>(*held).call(*this, args);
}

Value Interp::eval_filter(const Expr& e) {
  if (e.filter == nullptr) raise("no filter named '" + e.text + "'");
  const Value input = e.kids[0] ? eval(*e.kids[0]) : (filter_input_ != nullptr ? *filter_input_ : Value());
  return e.filter(*this, input, arguments(e));
}

bool Interp::eval_compare(const Expr& e) {
  Value left = eval(*e.kids[0]);
  for (size_t i = 0; i < e.ops.size(); i++) {
    Value right = eval(*e.kids[i + 1]);
    bool ok = false;
    switch (e.ops[i]) {
      case Op::kEq: ok = same(left, right); break;
      case Op::kNe: ok = !same(left, right); break;
      case Op::kIn: ok = contains(right, left); break;
      case Op::kNotIn: ok = !contains(right, left); break;
      case Op::kLt: ok = compare(left, right) < 0; break;
      case Op::kLe: ok = compare(left, right) <= 0; break;
      case Op::kGt: ok = compare(left, right) > 0; break;
      default: ok = compare(left, right) >= 0;
    }
    if (!ok) return false;
    left = std::move(right);
  }
  return true;
}

bool Interp::same(const Value& a, const Value& b) {
  uint64_t work = limits_.max_steps - steps_ + 1;
  const uint64_t before = work;
  const bool result = equal(a, b, work);
  step(before - work);
  return result;
}

bool Interp::contains(const Value& container, const Value& x) {
  if (container.is_undefined()) return false;
  if (container.is_string()) {
    if (!x.is_string()) raise("'in <string>' requires string as left operand, not " + std::string(type_name(x)));
    step(1 + container.bytes().size() / 16);
    return container.bytes().find(x.bytes()) != std::string::npos;
  }
  if (container.is(Kind::kDict)) return container.dict().find(x) != nullptr;
  if (!container.is_sequence() && !container.is(Kind::kGenerator)) raise("argument of type '" + std::string(type_name(container)) + "' is not iterable");
  for (const Value& v : items_of(container))
    if (same(v, x)) return true;
  return false;
}

int Interp::compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_intlike() && b.is_intlike()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
    return a.as_double() < b.as_double() ? -1 : a.as_double() > b.as_double();
  }
  if (a.is_string() && b.is_string()) {
    step(1 + std::min(a.bytes().size(), b.bytes().size()) / 16);
    return a.bytes().compare(b.bytes());
  }
  if (a.kind() == b.kind() && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    const auto &x = a.seq().items, &y = b.seq().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); i++) {
      const Depth depth(*this);
      step();
      if (!same(x[i], y[i])) return compare(x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  if (a.is_undefined()) raise_undefined(a);
  if (b.is_undefined()) raise_undefined(b);
  raise("'<' not supported between instances of '" + std::string(type_name(a)) + "' and '" + type_name(b) + "'");
}

Value Interp::binary(Op op, const Value& a, const Value& b) {
  if (a.is_undefined()) raise_undefined(a);
  if (b.is_undefined()) raise_undefined(b);
  if (a.is_number() && b.is_number()) return arithmetic(op, a, b);
  if (op == Op::kAdd && a.is_string() && b.is_string()) {
    const bool safe = a.str().safe || b.str().safe;
    TextBuilder out;
    out.append(safe && !a.str().safe ? escape_html(a.str().text) : a.str().text);
    out.append(safe && !b.str().safe ? escape_html(b.str().text) : b.str().text);
    return text(out.take(), safe);
  }
  if (op == Op::kAdd && a.kind() == b.kind() && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    std::vector<Value> items = a.seq().items;
    items.insert(items.end(), b.seq().items.begin(), b.seq().items.end());
    step(items.size());
    return a.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
  }
  if (op == Op::kMul && (a.is_intlike() || b.is_intlike())) {
    const Value &what = a.is_intlike() ? b : a, &times = a.is_intlike() ? a : b;
    const int64_t n = std::max<int64_t>(0, times.as_int());
    if (what.is_string()) {
      if (static_cast<double>(n) * static_cast<double>(what.bytes().size()) > static_cast<double>(limits_.max_output_bytes)) raise(Code::kExhausted, "the template makes too large a text");
      TextBuilder out;
      for (int64_t i = 0; i < n && !what.bytes().empty(); i++) step(), out.append(what.str().text);
      return text(out.take(), what.str().safe);
    }
    if (what.is(Kind::kList) || what.is(Kind::kTuple)) {
      std::vector<Value> items;
      for (int64_t i = 0; i < n && !what.seq().items.empty(); i++) {
        step(what.seq().items.size());
        items.insert(items.end(), what.seq().items.begin(), what.seq().items.end());
      }
      return what.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
    }
  }
  if (op == Op::kMod && a.is_string()) {
    Args args;
    if (b.is(Kind::kTuple)) args.pos = b.seq().items;
    else args.pos.push_back(b);
    return call(find_method(*this, a, "%"), args);
  }
  raise("unsupported operand type(s): '" + std::string(type_name(a)) + "' and '" + type_name(b) + "'");
}

std::vector<Value> Interp::items_of(const Value& v) {
  if (v.is_undefined()) return {};
  if (v.is_sequence()) {
    step(v.seq().items.size());
    return v.seq().items;
  }
  if (v.is(Kind::kDict)) {
    std::vector<Value> keys;
    for (const auto& [k, x] : v.dict().items) step(), keys.push_back(k);
    return keys;
  }
  if (v.is_string()) {
    std::vector<Value> chars;
    const TextBody& t = v.str().text;
    for (size_t i = 0; i < t.bytes.size();) {
      const size_t n = char_bytes(t.bytes, i);
      TextBuilder b;
      b.append(t, i, i + n);
      step();
      chars.push_back(Value::string(b.take()));
      i += n;
    }
    return chars;
  }
  if (v.is(Kind::kGenerator)) {
    auto& g = static_cast<Generator&>(*v.body());
    std::vector<Value> rest(g.items.begin() + static_cast<std::ptrdiff_t>(std::min(g.next, g.items.size())), g.items.end());
    g.next = g.items.size();
    step(rest.size());
    if (g.error) raise(*g.error);
    return rest;
  }
  raise("'" + std::string(type_name(v)) + "' object is not iterable");
}

Value Interp::attribute(const Value& v, std::string_view name) {
  if (v.is_undefined()) raise_undefined(v);
  if (v.is(Kind::kNamespace)) {
    for (const auto& [n, x] : static_cast<const Namespace&>(*v.body()).attributes)
      if (n == name) return x;
    return Value::undefined("'namespace' has no attribute '" + std::string(name) + "'");
  }
  if (v.is(Kind::kLoop)) {
    const auto& loop = static_cast<const LoopState&>(*v.body());
    const int64_t at = static_cast<int64_t>(loop.at), n = static_cast<int64_t>(loop.items.size());
    if (name == "index") return Value::integer(at + 1);
    if (name == "index0") return Value::integer(at);
    if (name == "revindex") return Value::integer(n - at);
    if (name == "revindex0") return Value::integer(n - at - 1);
    if (name == "first") return Value::boolean(at == 0);
    if (name == "last") return Value::boolean(at + 1 == n);
    if (name == "length") return Value::integer(n);
    if (name == "depth") return Value::integer(loop.level + 1);
    if (name == "depth0") return Value::integer(loop.level);
    if (name == "previtem") return at > 0 ? loop.items[loop.at - 1] : Value::undefined("there is no previous item");
    if (name == "nextitem") return at + 1 < n ? loop.items[loop.at + 1] : Value::undefined("there is no next item");
    if (name == "cycle")
      return make_callable("cycle", [at](Interp&, const Args& a) {
        if (a.pos.empty()) raise("no items for cycling given");
        return a.pos[static_cast<size_t>(at) % a.pos.size()];
      });
  }
  Value method = find_method(*this, v, name);
  if (!method.is_undefined()) return method;
  if (v.is(Kind::kDict))
    if (const Value* x = v.dict().find(name)) return *x;
  return Value::undefined("'" + std::string(type_name(v)) + " object' has no attribute '" + std::string(name) + "'");
}

Value Interp::item(const Value& v, const Value& key) {
  if (v.is_undefined()) raise_undefined(v);
  if (v.is(Kind::kDict)) {
    if (const Value* x = v.dict().find(key)) return *x;
    if (key.is_string()) return find_method(*this, v, key.bytes()).is_undefined() ? Value::undefined("'dict object' has no attribute '" + key.bytes() + "'") : find_method(*this, v, key.bytes());
    return Value::undefined("the dict has no such key");
  }
  if (key.is_intlike() && (v.is(Kind::kList) || v.is(Kind::kTuple) || v.is(Kind::kRange) || v.is_string())) {
    const int64_t n = static_cast<int64_t>(v.is_string() ? v.str().text.n_chars : v.seq().items.size());
    const int64_t i = key.as_int() < 0 ? key.as_int() + n : key.as_int();
    if (i < 0 || i >= n) return Value::undefined("the index is out of range");
    if (!v.is_string()) return v.seq().items[static_cast<size_t>(i)];
    const size_t begin = byte_of_char(v.str().text, static_cast<size_t>(i));
    TextBuilder b;
    b.append(v.str().text, begin, begin + char_bytes(v.bytes(), begin));
    return text(b.take());
  }
  if (key.is_string()) return attribute(v, key.bytes());
  return Value::undefined("'" + std::string(type_name(v)) + " object' has no such element");
}

Value Interp::eval_slice(const Expr& e) {
  const Value v = eval(*e.kids[0]);
  const auto part = [&](size_t i) { return e.kids.size() > i && e.kids[i] ? eval(*e.kids[i]) : Value::none(); };
  const Value from = part(1), to = part(2), by = part(3);
  return slice(v, from, to, by);
}

Value Interp::slice(const Value& v, const Value& from, const Value& to, const Value& by) {
  if (v.is_undefined()) raise_undefined(v);
  const bool is_text = v.is_string();
  if (!is_text && !v.is(Kind::kList) && !v.is(Kind::kTuple) && !v.is(Kind::kRange)) raise("'" + std::string(type_name(v)) + "' object is not subscriptable by a slice");
  for (const Value* x : {&from, &to, &by})
    if (!x->is_none() && !x->is_intlike()) raise("slice indices must be integers or None");
  const int64_t n = static_cast<int64_t>(is_text ? v.str().text.n_chars : v.seq().items.size());
  const int64_t step_by = by.is_none() ? 1 : by.as_int();
  if (step_by == 0) raise("slice step cannot be zero");
  const auto clamp = [&](const Value& x, int64_t preset) {
    if (x.is_none()) return preset;
    int64_t i = x.as_int();
    if (i < 0) i = std::max<int64_t>(i + n, step_by > 0 ? 0 : -1);
    return std::min(i, step_by > 0 ? n : n - 1);
  };
  const int64_t begin = clamp(from, step_by > 0 ? 0 : n - 1), end = clamp(to, step_by > 0 ? n : -1);
  std::vector<size_t> picks;
  for (int64_t i = begin; step_by > 0 ? i < end : i > end; i += step_by) {
    step();
    picks.push_back(static_cast<size_t>(i));
    if ((step_by > 0 && i > INT64_MAX - step_by) || (step_by < 0 && i < INT64_MIN - step_by)) break;
  }
  if (!is_text) {
    std::vector<Value> items;
    for (const size_t i : picks) items.push_back(v.seq().items[i]);
    return v.is(Kind::kTuple) ? Value::tuple(std::move(items)) : Value::list(std::move(items));
  }
  TextBuilder b;
  if (step_by == 1 && !picks.empty()) {
    b.append(v.str().text, byte_of_char(v.str().text, picks.front()), byte_of_char(v.str().text, picks.back() + 1));
  } else {
    std::vector<size_t> offsets;
    for (size_t i = 0; i < v.bytes().size(); i += char_bytes(v.bytes(), i)) offsets.push_back(i);
    for (const size_t i : picks) b.append(v.str().text, offsets[i], offsets[i] + char_bytes(v.bytes(), offsets[i]));
  }
  return text(b.take(), v.str().safe);
}

}  // namespace carrel::jinja
