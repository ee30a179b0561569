// Expressions: lookup, calls, comparison, slices. See interp.h.
#include <algorithm>

#include "engine/text/jinja/interp.h"
#include "engine/text/jinja/parser.h"

namespace carrel::jinja {

Value Interp::eval_name(uint32_t id) {
  for (const Scope* s = scope_.get(); s != nullptr; s = s->parent.get()) {
    step();
    for (const auto& [k, v] : s->variables) {
      if (k == id) return v;
    }
  }
  if (is_global_[id]) return globals_[id];
  return Value::undefined("'" + program_.names[id] + "' is undefined");
}

std::vector<Value> Interp::eval_all(const std::vector<ExprPtr>& kids, size_t from) {
  std::vector<Value> out;
  out.reserve(kids.size());
  for (size_t i = from; i < kids.size(); ++i) out.push_back(eval(*kids[i]));
  return out;
}

Args Interp::arguments(const Expr& e) {
  Args args;
  args.positional = eval_all(e.kids, 1);
  for (const auto& [name, value] : e.named) args.named.emplace_back(name, eval(*value));
  return args;
}

Value Interp::eval(const Expr& e) {
  const Level level(*this);
  step();
  switch (e.kind) {
    case ExprKind::kConst: return e.constant;
    case ExprKind::kName: return eval_name(e.name);
    case ExprKind::kList: return list(eval_all(e.kids, 0));
    case ExprKind::kTuple: return tuple(eval_all(e.kids, 0));
    case ExprKind::kDict: return eval_dict(e);
    case ExprKind::kAttr: return attribute(eval(*e.kids[0]), e.text);
    case ExprKind::kItem: {
      const Value v = eval(*e.kids[0]);
      return item(v, eval(*e.kids[1]));
    }
    case ExprKind::kSlice: return eval_slice(e);
    case ExprKind::kCall: return eval_call(e, nullptr);
    case ExprKind::kFilter: return eval_filter(e, eval(*e.kids[0]));
    case ExprKind::kTest: {
      if (e.test == nullptr) bad("unknown test '" + e.text + "'");
      const Value v = eval(*e.kids[0]);
      return Value::boolean(e.test(*this, v, arguments(e)));
    }
    case ExprKind::kUnary: return negate(eval(*e.kids[0]), e.op == Op::kNeg);
    case ExprKind::kBinary: {
      const Value a = eval(*e.kids[0]);
      return binary(e.op, a, eval(*e.kids[1]));
    }
    case ExprKind::kNot: return Value::boolean(!eval(*e.kids[0]).truthy());
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value v = eval(*e.kids[0]);
      for (size_t i = 1; i < e.kids.size() && v.truthy() == (e.kind == ExprKind::kAnd); ++i) v = eval(*e.kids[i]);
      return v;
    }
    case ExprKind::kCompare: return eval_compare(e);
    case ExprKind::kConcat: return eval_concat(e);
    case ExprKind::kCond: return eval_cond(e);
  }
  return {};
}

Value Interp::eval_cond(const Expr& e) {
  if (eval(*e.kids[0]).truthy()) return eval(*e.kids[1]);
  if (e.kids[2]) return eval(*e.kids[2]);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
}

Value Interp::eval_concat(const Expr& e) {
  TextBuilder b;
  for (const auto& k : e.kids) {
    append_str(b, eval(*k));
    check_size(b.size());
  }
  return make(b);
}

Value Interp::eval_dict(const Expr& e) {
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i + 1 < e.kids.size(); i += 2) {
    Value key = eval(*e.kids[i]);
    const Kind k = key.kind();
    if (k == Kind::kList || k == Kind::kDict) bad(std::string("a ") + type_name(key) + " cannot be a key of a dict");
    items.emplace_back(std::move(key), eval(*e.kids[i + 1]));
  }
  return dict(std::move(items));
}

Value Interp::eval_filter(const Expr& e, const Value& input) {
  if (e.filter == nullptr) bad("unknown filter '" + e.text + "'");
  return e.filter(*this, input, arguments(e));
}

/// A chain that stands without an input, as in {% filter a|b %} and {% set x | a | b %}.
Value Interp::eval_chain(const Expr& e, const Value& input) {
  const Level level(*this);
  if (e.kind != ExprKind::kFilter) bad("a block takes filters only");
  return eval_filter(e, e.kids[0] ? eval_chain(*e.kids[0], input) : input);
}

Value Interp::eval_compare(const Expr& e) {
  Value left = eval(*e.kids[0]);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    Value right = eval(*e.kids[i + 1]);
    bool ok = false;
    switch (e.ops[i]) {
      case Op::kEq: ok = equals(left, right); break;
      case Op::kNe: ok = !equals(left, right); break;
      case Op::kLt: ok = compare(left, right) < 0; break;
      case Op::kLe: ok = compare(left, right) <= 0; break;
      case Op::kGt: ok = compare(left, right) > 0; break;
      case Op::kGe: ok = compare(left, right) >= 0; break;
      case Op::kIn: ok = contains(right, left); break;
      default: ok = !contains(right, left); break;
    }
    if (!ok) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interp::eval_call(const Expr& e, const Value* caller) {
  const Expr& f = *e.kids[0];
  const bool method = f.kind == ExprKind::kAttr;
  const Value self = eval(method ? *f.kids[0] : f);
  Args args = arguments(e);
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  return method ? call_method(self, f.text, args) : call(self, args);
}

Value Interp::call(const Value& f, const Args& args) {
  const Level level(*this);
  step();
  if (f.is(Kind::kCallable)) return static_cast<const Callable&>(*f.body()).call(*this, args);
  if (f.is(Kind::kLoop)) return recurse(std::static_pointer_cast<LoopState>(f.body()), args);
  if (f.is_undefined()) bad(f.body() ? f.bytes() : "an undefined value cannot be called");
  bad(std::string("'") + type_name(f) + "' object is not callable");
}

Value Interp::call_method(const Value& self, const std::string& name, const Args& args) {
  if (const MethodFn m = find_method(self, name)) {
    step();
    return m(*this, self, args);
  }
  return call(attribute(self, name), args);
}

Value Interp::attribute(const Value& v, const std::string& name) {
  step(name.size() / 16);
  switch (v.kind()) {
    case Kind::kUndefined:
      bad(v.body() ? v.bytes() : "the value is undefined");
    case Kind::kNamespace:
      for (const auto& [k, a] : static_cast<const Namespace&>(*v.body()).attributes) {
        if (k == name) return a;
      }
      return Value::undefined("the namespace has no attribute '" + name + "'");
    case Kind::kLoop:
      return loop_attribute(v, name);
    case Kind::kCallable:
      if (name == "name") return text(static_cast<const Callable&>(*v.body()).name);
      break;
    default:
      break;
  }
  if (is_unsafe_method(v, name) && find_method(v, name) == nullptr) {
    bad("access to attribute '" + name + "' of '" + type_name(v) + "' object is unsafe");
  }
  if (const MethodFn m = find_method(v, name)) {
    return callable(name, [m, v](Interp& in, const Args& args) { return m(in, v, args); }, v.depth() + 1);
  }
  if (v.is(Kind::kDict)) {
    if (const Value* found = v.dict().find(std::string_view(name))) return *found;
  }
  return Value::undefined((v.is_none() ? std::string("'None'") : std::string("'") + type_name(v) + " object'") + " has no attribute '" + name + "'");
}

Value Interp::loop_attribute(const Value& loop, const std::string& name) {
  const auto state = std::static_pointer_cast<LoopState>(loop.body());
  const auto n = static_cast<int64_t>(state->items.size());
  const auto i = static_cast<int64_t>(state->index);
  if (name == "index") return Value::integer(i + 1);
  if (name == "index0") return Value::integer(i);
  if (name == "revindex") return Value::integer(n - i);
  if (name == "revindex0") return Value::integer(n - i - 1);
  if (name == "first") return Value::boolean(i == 0);
  if (name == "last") return Value::boolean(i + 1 == n);
  if (name == "length") return Value::integer(n);
  if (name == "depth") return Value::integer(static_cast<int64_t>(state->level) + 1);
  if (name == "depth0") return Value::integer(static_cast<int64_t>(state->level));
  if (name == "previtem") return i > 0 ? state->items[state->index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem") return i + 1 < n ? state->items[state->index + 1] : Value::undefined("there is no next item");
  if (name == "cycle") {
    return callable(name, [i](Interp& in, const Args& args) {
      if (args.positional.empty()) in.bad("loop.cycle needs something to cycle through");
      return args.positional[static_cast<size_t>(i) % args.positional.size()];
    });
  }
  if (name == "changed") {
    return callable(name, [state](Interp& in, const Args& args) {
      Value now = in.tuple(args.positional);
      const bool changed = !state->has_changed || !in.equals(now, state->last_changed);
      state->has_changed = true;
      state->last_changed = std::move(now);
      return Value::boolean(changed);
    }, loop.depth() + 1);
  }
  return Value::undefined("the loop has no attribute '" + name + "'");
}

Value Interp::item(const Value& v, const Value& key) {
  if (v.is_undefined()) bad(v.body() ? v.bytes() : "the value is undefined");
  if (v.is(Kind::kDict)) {
    if (const Value* found = look_up(v, key)) return *found;
  }
  if (key.is_intlike() && (v.is_string() || (v.is_sequence() && !v.is(Kind::kView)))) {
    const auto n = static_cast<int64_t>(v.is_string() ? v.str().text.n_chars : v.seq().items.size());
    const int64_t i = key.as_int() < 0 ? key.as_int() + n : key.as_int();
    if (i >= 0 && i < n) {
      if (!v.is_string()) return v.seq().items[static_cast<size_t>(i)];
      const size_t at = byte_of_char(v.str().text, static_cast<size_t>(i));
      step(at / 16);
      return slice_text(v, at, at + char_bytes(v.bytes(), at));
    }
  }
  if (key.is_string()) return attribute(v, key.bytes());
  return Value::undefined(std::string("'") + type_name(v) + " object' has no element " + repr(key));
}

Value Interp::eval_slice(const Expr& e) {
  const Value v = eval(*e.kids[0]);
  const auto bound = [&](size_t i) -> std::optional<int64_t> {
    if (!e.kids[i]) return std::nullopt;
    const Value b = eval(*e.kids[i]);
    if (b.is_none()) return std::nullopt;
    if (!b.is_intlike()) bad("the bounds of a slice must be integers");
    return b.as_int();
  };
  const auto start = bound(1), stop = bound(2);
  const int64_t stride = bound(3).value_or(1);
  if (stride == 0) bad("the step of a slice cannot be zero");
  if (v.is_undefined()) bad(v.body() ? v.bytes() : "the value is undefined");
  if (!v.is_string() && !(v.is_sequence() && !v.is(Kind::kView))) return Value::undefined(std::string("a ") + type_name(v) + " cannot be sliced");
  const auto n = static_cast<int64_t>(v.is_string() ? v.str().text.n_chars : v.seq().items.size());
  const int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? n : n - 1;
  const auto clamp = [&](std::optional<int64_t> b, int64_t preset) {
    if (!b) return preset;
    return std::clamp(*b < 0 ? std::max(*b, -n - 1) + n : *b, low, high);
  };
  const int64_t from = clamp(start, stride > 0 ? low : high), to = clamp(stop, stride > 0 ? high : low);
  if (v.is_string() && stride == 1) {
    step(v.bytes().size() / 16);
    return slice_text(v, byte_of_char(v.str().text, static_cast<size_t>(from)), byte_of_char(v.str().text, static_cast<size_t>(std::max(from, to))));
  }
  const std::vector<Value> items = v.is_string() ? iterate(v) : v.seq().items;
  step(items.size());
  std::vector<Value> out;
  const int64_t stride_now = std::clamp<int64_t>(stride, -n - 1, n + 1);
  for (int64_t i = from; stride > 0 ? i < to : i > to; i += stride_now) out.push_back(items[static_cast<size_t>(i)]);
  if (v.is_string()) return join(*this, text(""), out);
  return v.is(Kind::kTuple) ? tuple(std::move(out)) : list(std::move(out));
}

Value Interp::apply_filter(const std::string& name, const Value& input, const Args& args) {
  const FilterFn f = find_filter(name);
  if (f == nullptr) bad("unknown filter '" + name + "'");
  step();
  return f(*this, input, args);
}

bool Interp::apply_test(const std::string& name, const Value& input, const Args& args) {
  const TestFn t = find_test(name);
  if (t == nullptr) bad("unknown test '" + name + "'");
  step();
  return t(*this, input, args);
}

}  // namespace carrel::jinja
