// Statements: blocks, loops, assignment, macros.
#include "engine/text/jinja/interp.h"

#include <algorithm>

namespace carrel::jinja {

void raise(Code code, std::string message) { throw Raise{Error{code, std::move(message), {}}}; }

const Value* Args::get(size_t i, std::string_view name) const {
  if (i < pos.size()) return &pos[i];
  for (const auto& [n, v] : named)
    if (n == name) return &v;
  return nullptr;
}

const Value& Args::need(size_t i, std::string_view name) const {
  const Value* v = get(i, name);
  if (v == nullptr) raise("an argument (" + std::string(name) + ") is missing");
  return *v;
}

Value make_callable(std::string name, std::function<Value(Interp&, const Args&)> f) {
  auto c = std::make_shared<Callable>();
  c->name = std::move(name);
  c->call = std::move(f);
  return Value::object(Kind::kCallable, std::move(c));
}

/// A scope of its own for as long as the guard lives.
struct ScopeGuard {
  ScopeGuard(Interp& in, std::shared_ptr<Scope> parent) : in_(in), before_(in.scope_) {
    in_.scope_ = std::make_shared<Scope>();
    in_.scope_->parent = std::move(parent);
  }
  ~ScopeGuard() { in_.scope_ = before_; }
  Interp& in_;
  std::shared_ptr<Scope> before_;
};

Interp::Interp(const Program& program, const Value& variables, const RenderLimits& limits, const Clock& clock)
    : program_(program), variables_(variables), limits_(limits), clock_(clock) {}

TextBody Interp::run() {
  block(program_.body);
  return out_.back().take();
}

void Interp::step(uint64_t n) {
  steps_ += n;
  if (steps_ > limits_.max_steps) raise(Code::kExhausted, "the template takes more than " + std::to_string(limits_.max_steps) + " steps");
}

Value Interp::text(TextBody body, bool safe) {
  if (body.bytes.size() > limits_.max_output_bytes) raise(Code::kExhausted, "the template makes a text larger than " + std::to_string(limits_.max_output_bytes) + " bytes");
  step(body.bytes.size() / 16);
  return Value::string(std::move(body), safe);
}

void Interp::emit(const TextBody& t) {
  step(1 + t.bytes.size() / 16);
  out_.back().append(t);
  if (out_.back().size() > limits_.max_output_bytes) raise(Code::kExhausted, "the output is larger than " + std::to_string(limits_.max_output_bytes) + " bytes");
}

void Interp::emit(std::string_view t, Origin origin) {
  step(1 + t.size() / 16);
  out_.back().append(t, origin);
  if (out_.back().size() > limits_.max_output_bytes) raise(Code::kExhausted, "the output is larger than " + std::to_string(limits_.max_output_bytes) + " bytes");
}

Value Interp::capture(const std::function<void()>& body) {
  out_.emplace_back();
  const size_t level = out_.size();
  body();
  out_.resize(level);  // a body never leaves builders of its own behind
  TextBody t = out_.back().take();
  out_.pop_back();
  return text(std::move(t));
}

Interp::Flow Interp::block(const Block& statements) {
  for (const auto& s : statements)
    if (const Flow f = statement(*s); f != Flow::kNext) return f;
  return Flow::kNext;
}

Interp::Flow Interp::statement(const Stmt& s) {
  const Depth depth(*this);
  step();
  switch (s.kind) {
    case StmtKind::kText: emit(s.text, Origin::kTemplate); return Flow::kNext;
    case StmtKind::kPrint: emit(print(eval(*s.expr))); return Flow::kNext;
    case StmtKind::kIf:
      for (const Branch& b : s.branches)
        if (eval(*b.test).truthy()) return block(b.body);
      return block(s.orelse);
    case StmtKind::kFor: for_loop(s); return Flow::kNext;
    case StmtKind::kSet: assign(s.target, eval(*s.expr)); return Flow::kNext;
    case StmtKind::kSetBlock: {
      Value v = capture([&] {
        const ScopeGuard guard(*this, scope_);
        block(s.body);
      });
      if (s.expr) {
        const Value* before = std::exchange(filter_input_, &v);
        Value filtered = eval(*s.expr);
        filter_input_ = before;
        v = std::move(filtered);
      }
      assign(s.target, v);
      return Flow::kNext;
    }
    case StmtKind::kMacro: scope_->vars[s.macro.id] = macro(s.macro); return Flow::kNext;
    case StmtKind::kCallBlock: call_block(s); return Flow::kNext;
    case StmtKind::kFilterBlock: {
      const Value v = capture([&] {
        const ScopeGuard guard(*this, scope_);
        block(s.body);
      });
      const Value* before = std::exchange(filter_input_, &v);
      emit(print(eval(*s.expr)));
      filter_input_ = before;
      return Flow::kNext;
    }
    case StmtKind::kWith: {
      std::vector<Value> values;
      for (const auto& [target, expr] : s.assigns) values.push_back(eval(*expr));
      const ScopeGuard guard(*this, scope_);
      for (size_t i = 0; i < values.size(); i++) assign(s.assigns[i].first, values[i]);
      return block(s.body);
    }
    case StmtKind::kScope: {
      const ScopeGuard guard(*this, scope_);
      return block(s.body);
    }
    case StmtKind::kBreak: return Flow::kBreak;
    case StmtKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

void Interp::for_loop(const Stmt& s) { run_loop(s, eval(*s.expr), 0); }

void Interp::run_loop(const Stmt& s, const Value& over, uint32_t level) {
  auto state = std::make_shared<LoopState>();
  state->level = level;
  const std::shared_ptr<Scope> home = scope_;
  for (const Value& v : items_of(over)) {
    step();
    if (s.test) {  // only what passes is counted
      const ScopeGuard guard(*this, home);
      assign(s.target, v);
      if (!eval(*s.test).truthy()) continue;
    }
    state->items.push_back(v);
  }
  if (state->items.empty()) {
    block(s.orelse);
    return;
  }
  if (s.recursive)
    state->recurse = [&s, home, level](Interp& in, const Value& inner) {
      return in.capture([&] {
        const ScopeGuard guard(in, home);
        in.run_loop(s, inner, level + 1);
      });
    };
  const Value loop = Value::object(Kind::kLoop, state);
  for (; state->at < state->items.size(); state->at++) {
    const ScopeGuard guard(*this, home);
    scope_->vars[program_.id_loop] = loop;
    assign(s.target, state->items[state->at]);
    if (block(s.body) == Flow::kBreak) break;
  }
  state->recurse = nullptr;  // it may hold the loop itself
}

void Interp::assign(const Target& target, const Value& value) {
  if (target.is_tuple) {
    const std::vector<Value> items = items_of(value);
    if (items.size() != target.items.size()) raise("cannot unpack " + std::to_string(items.size()) + " values into " + std::to_string(target.items.size()) + " names");
    for (size_t i = 0; i < items.size(); i++) assign(target.items[i], items[i]);
    return;
  }
  if (target.attr.empty()) {
    scope_->vars[target.name] = value;
    return;
  }
  const Value holder = lookup(target.name);
  if (!holder.is(Kind::kNamespace)) raise("cannot assign attribute on non-namespace object");
  if (value.depth() > 400) raise(Code::kExhausted, "a value nests too deeply");
  auto& attributes = static_cast<Namespace&>(*holder.body()).attributes;
  for (auto& [name, v] : attributes)
    if (name == target.attr) {
      v = value;
      return;
    }
  attributes.emplace_back(target.attr, value);
}

Value Interp::macro(const MacroDef& def) {
  // A macro does not keep its own scope alive through itself: the scope is held weakly, and strongly while it is on the stack of a call.
  std::weak_ptr<Scope> home = scope_;
  return make_callable(def.name, [&def, home](Interp& in, const Args& args) {
    const std::shared_ptr<Scope> held = home.lock();
    return in.call_macro(def, held ? held : in.scope_, args);
  });
}

Value Interp::call_macro(const MacroDef& def, const std::shared_ptr<Scope>& home, const Args& args) {
  const Depth depth(*this);
  const ScopeGuard guard(*this, home);
  std::vector<std::pair<std::string, Value>> rest;
  std::vector<bool> given(def.params.size(), false);
  for (const auto& [name, v] : args.named) {
    const auto at = std::find_if(def.params.begin(), def.params.end(), [n = &name](const Param& p) { return p.name == *n; });
    if (at != def.params.end()) {
      const size_t i = static_cast<size_t>(at - def.params.begin());
      if (i < args.pos.size()) raise("macro " + def.name + " got multiple values for argument " + name);
      scope_->vars[at->id] = v;
      given[i] = true;
    } else if (name == "caller" && def.uses_caller) {
      scope_->vars[program_.id_caller] = v;
    } else if (def.uses_kwargs) {
      rest.emplace_back(name, v);
    } else {
      raise("macro " + def.name + " takes no keyword argument " + name);
    }
  }
  for (size_t i = 0; i < def.params.size(); i++) {
    const Param& p = def.params[i];
    if (i < args.pos.size()) scope_->vars[p.id] = args.pos[i];
    else if (!given[i]) scope_->vars[p.id] = p.preset ? eval(*p.preset) : Value::undefined("parameter " + p.name + " was not provided");
  }
  if (args.pos.size() > def.params.size() && !def.uses_varargs) raise("macro " + def.name + " takes not more than " + std::to_string(def.params.size()) + " arguments");
  if (def.uses_varargs) {
    std::vector<Value> extra;
    for (size_t i = def.params.size(); i < args.pos.size(); i++) extra.push_back(args.pos[i]);
    scope_->vars[program_.id_varargs] = Value::tuple(std::move(extra));
  }
  if (def.uses_kwargs) {
    std::vector<std::pair<Value, Value>> items;
    for (auto& [n, v] : rest) items.emplace_back(Value::string(n, Origin::kTemplate), v);
    scope_->vars[program_.id_kwargs] = make_dict(std::move(items));
  }
  const Value result = capture([&] { block(def.body); });
  scope_->vars.clear();  // names that refer back to the scope would keep it alive
  return result;
}

void Interp::call_block(const Stmt& s) {
  const Expr& e = *s.expr;
  if (e.kind != ExprKind::kCall) raise("{% call %} needs a call");
  const std::shared_ptr<Scope> home = scope_;
  Args args = arguments(e);
  args.named.emplace_back("caller", make_callable("caller", [def = &s.macro, home](Interp& in, const Args& a) { return in.call_macro(*def, home, a); }));
  emit(print(call(eval(*e.kids[0]), args)));
}

}  // namespace carrel::jinja
