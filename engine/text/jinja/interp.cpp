// Statements, scopes, macros and limits. See interp.h.
#include "engine/text/jinja/interp.h"

#include <algorithm>

#include "engine/text/jinja/lexer.h"

namespace carrel::jinja {
namespace {

constexpr uint32_t kMaxValueDepth = 200;
constexpr uint64_t kObjectSteps = 50;  // what a scope or a namespace that lives to the end costs

}  // namespace

const Value* Args::find(size_t i, std::string_view name) const {
  if (i < positional.size()) return &positional[i];
  for (const auto& [n, v] : named) {
    if (n == name) return &v;
  }
  return nullptr;
}

void Scope::set(uint32_t id, Value v) {
  for (auto& [k, old] : variables) {
    if (k != id) continue;
    old = std::move(v);
    return;
  }
  variables.emplace_back(id, std::move(v));
}

Interp::Interp(const Program& program, const RenderLimits& limits, const Clock& clock)
    : program_(program), limits_(limits), clock_(clock), steps_left_(limits.max_steps), scope_(std::make_shared<Scope>()) {}

Interp::~Interp() {
  for (const auto& s : kept_scopes_) s->variables.clear();
  for (const auto& n : namespaces_) n->attributes.clear();
}

void Interp::raise(Code code, std::string what) const { throw RenderError{Error{code, std::move(what), at_line(line_)}}; }
void Interp::bad(std::string what) const { raise(Code::kUnsupported, std::move(what)); }

void Interp::step(uint64_t n) {
  if (n > steps_left_) {
    steps_left_ = 0;
    raise(Code::kExhausted, "the template takes more than " + std::to_string(limits_.max_steps) + " steps; shorten the conversation or check the template");
  }
  steps_left_ -= n;
}

Interp::Level::Level(Interp& in) : in_(in) {
  if (++in.depth_ <= in.limits_.max_depth) return;
  --in.depth_;
  in.raise(Code::kExhausted, "the template nests more than " + std::to_string(in.limits_.max_depth) + " levels deep; a macro may call itself without end");
}

void Interp::check_size(size_t n_bytes) const {
  if (n_bytes > limits_.max_output_bytes) {
    raise(Code::kExhausted, "the template makes a text of more than " + std::to_string(limits_.max_output_bytes) + " bytes");
  }
}

Value Interp::checked(Value v) {
  if (v.depth() > kMaxValueDepth) raise(Code::kExhausted, "the template nests values more than " + std::to_string(kMaxValueDepth) + " levels deep");
  return v;
}

Value Interp::make(TextBuilder& b, bool safe) {
  check_size(b.size());
  step(b.size() / 16);
  return Value::string(b.take(), safe);
}

Value Interp::text(std::string_view s, Origin origin) {
  TextBuilder b;
  b.append(s, origin);
  return make(b);
}

Value Interp::slice_text(const Value& s, size_t begin, size_t end) {
  TextBuilder b;
  b.append(s.str().text, begin, end);
  return make(b, s.str().safe);
}

Value Interp::list(std::vector<Value> items) {
  step(items.size());
  return checked(Value::list(std::move(items)));
}

Value Interp::tuple(std::vector<Value> items) {
  step(items.size());
  return checked(Value::tuple(std::move(items)));
}

Value Interp::dict(std::vector<std::pair<Value, Value>> items) {
  step(items.size() * 2);
  return checked(make_dict(std::move(items)));
}

Value Interp::generator(std::vector<Value> items, std::optional<std::string> error) {
  step(items.size());
  auto g = std::make_shared<Generator>();
  for (const Value& v : items) g->depth = std::max(g->depth, v.depth());
  ++g->depth;
  g->items = std::move(items);
  g->error = std::move(error);
  return checked(Value::object(Kind::kGenerator, std::move(g)));
}

Value Interp::callable(std::string name, std::function<Value(Interp&, const Args&)> fn, uint32_t depth) {
  auto c = std::make_shared<Callable>();
  c->name = std::move(name);
  c->call = std::move(fn);
  c->depth = depth;
  return checked(Value::object(Kind::kCallable, std::move(c)));
}

Value Interp::make_namespace(std::vector<std::pair<std::string, Value>> attributes) {
  step(kObjectSteps);
  auto n = std::make_shared<Namespace>();
  n->attributes = std::move(attributes);
  namespaces_.push_back(n);
  return Value::object(Kind::kNamespace, std::move(n));
}

void Interp::set_globals(const Value& variables) {
  globals_.resize(program_.names.size());
  is_global_.resize(program_.names.size());
  const auto put = [&](std::string_view name, const Value& v) {
    const auto it = std::find(program_.names.begin(), program_.names.end(), name);
    if (it == program_.names.end()) return;
    const auto at = static_cast<size_t>(it - program_.names.begin());
    globals_[at] = v;
    is_global_[at] = true;
  };
  for (const auto& [name, v] : make_globals(*this)) put(name, v);
  if (!variables.is(Kind::kDict)) bad("the variables of a template must be an object");
  for (const auto& [k, v] : variables.dict().items) {
    if (k.is_string()) put(k.bytes(), v);
  }
}

TextBody Interp::run(const Value& variables) {
  set_globals(variables);
  TextBuilder out;
  out_ = &out;
  exec(program_.body);
  return out.take();
}

Interp::Flow Interp::exec(const Block& block) {
  for (const auto& s : block) {
    if (const Flow f = exec(*s); f != Flow::kNext) return f;
  }
  return Flow::kNext;
}

Interp::Flow Interp::exec_scoped(const Block& block) {
  const ScopePtr outer = scope_;
  scope_ = std::make_shared<Scope>();
  scope_->parent = outer;
  const Flow f = exec(block);
  scope_ = outer;
  return f;
}

Interp::Flow Interp::exec(const Stmt& s) {
  const Level level(*this);
  step();
  line_ = s.line;
  switch (s.kind) {
    case StmtKind::kText:
      step(s.text.size() / 16);
      out_->append(s.text, Origin::kTemplate);
      break;
    case StmtKind::kPrint:
      append_str(*out_, eval(*s.expr));
      break;
    case StmtKind::kIf: {
      const Block* chosen = &s.orelse;
      for (const Branch& b : s.branches) {
        if (!eval(*b.test).truthy()) continue;
        chosen = &b.body;
        break;
      }
      return exec(*chosen);
    }
    case StmtKind::kFor: exec_for(s); break;
    case StmtKind::kSet: assign(s.target, eval(*s.expr)); break;
    case StmtKind::kSetBlock: {
      Value v = capture(s.body);
      assign(s.target, s.expr ? eval_chain(*s.expr, v) : v);
      break;
    }
    case StmtKind::kMacro: scope_->set(s.macro.id, make_macro(s.macro)); break;
    case StmtKind::kCallBlock: call_block(s); break;
    case StmtKind::kFilterBlock: append_str(*out_, eval_chain(*s.expr, capture(s.body))); break;
    case StmtKind::kWith: with_block(s); break;
    case StmtKind::kScope: return exec_scoped(s.body);
    case StmtKind::kBreak: return Flow::kBreak;
    case StmtKind::kContinue: return Flow::kContinue;
  }
  check_size(out_->size());
  return Flow::kNext;
}

/// What the block prints, as a string.
Value Interp::capture(const Block& block) {
  TextBuilder inner;
  TextBuilder* const outer = std::exchange(out_, &inner);
  exec_scoped(block);
  out_ = outer;
  return make(inner);
}

void Interp::with_block(const Stmt& s) {
  const ScopePtr outer = scope_;
  auto inner = std::make_shared<Scope>();
  inner->parent = outer;
  std::vector<Value> values;
  for (const auto& a : s.assigns) values.push_back(eval(*a.second));
  scope_ = inner;
  for (size_t i = 0; i < values.size(); ++i) assign(s.assigns[i].first, values[i]);
  exec(s.body);
  scope_ = outer;
}

void Interp::call_block(const Stmt& s) {
  const Value caller = make_macro(s.macro);
  append_str(*out_, eval_call(*s.expr, &caller));
}

void Interp::exec_for(const Stmt& s) { run_for(s, eval(*s.expr), 0); }

std::vector<Value> Interp::filtered(const Stmt& s, std::vector<Value> items) {
  if (!s.test) return items;
  std::vector<Value> out;
  const ScopePtr outer = scope_;
  for (Value& v : items) {
    scope_ = std::make_shared<Scope>();
    scope_->parent = outer;
    assign(s.target, v);
    if (eval(*s.test).truthy()) out.push_back(std::move(v));
  }
  scope_ = outer;
  return out;
}

namespace {

/// A loop that ends, also by an error, lets go of its scope and of what loop.changed remembers: that may be the loop itself.
struct LoopEnd {
  LoopState& loop;
  ~LoopEnd() {
    loop.outer.reset();
    loop.last_changed = Value();
  }
};

}  // namespace

void Interp::run_for(const Stmt& s, const Value& iterable, size_t level) {
  auto loop = std::make_shared<LoopState>();
  loop->items = filtered(s, iterate(iterable));
  loop->level = level;
  loop->depth = iterable.depth() + 1;
  const LoopEnd end{*loop};
  const ScopePtr outer = scope_;
  if (s.recursive) {
    loop->stmt = &s;
    loop->outer = outer;
  }
  if (loop->items.empty()) {
    exec_scoped(s.orelse);
    return;
  }
  const Value handle = checked(Value::object(Kind::kLoop, loop));
  for (size_t i = 0; i < loop->items.size(); ++i) {
    step();
    loop->index = i;
    scope_ = std::make_shared<Scope>();
    scope_->parent = outer;
    scope_->set(program_.id_loop, handle);
    assign(s.target, loop->items[i]);
    if (exec(s.body) == Flow::kBreak) break;
  }
  scope_ = outer;
}

/// loop(items) inside a recursive loop.
Value Interp::recurse(const std::shared_ptr<LoopState>& loop, const Args& args) {
  if (loop->stmt == nullptr || loop->outer == nullptr) bad("this loop is not recursive; mark it with 'recursive'");
  if (args.positional.size() != 1) bad("a recursive loop takes one argument");
  TextBuilder inner;
  TextBuilder* const out = std::exchange(out_, &inner);
  const ScopePtr here = std::exchange(scope_, loop->outer);
  run_for(*loop->stmt, args.positional[0], loop->level + 1);
  scope_ = here;
  out_ = out;
  return make(inner);
}

void Interp::assign(const Target& t, const Value& v) {
  if (t.is_tuple) {
    const std::vector<Value> items = iterate(v);
    if (items.size() != t.items.size()) {
      bad("cannot unpack " + std::to_string(items.size()) + " values into " + std::to_string(t.items.size()) + " names");
    }
    for (size_t i = 0; i < items.size(); ++i) assign(t.items[i], items[i]);
    return;
  }
  if (t.attr.empty()) {
    scope_->set(t.name, v);
    return;
  }
  const Value target = eval_name(t.name);
  if (!target.is(Kind::kNamespace)) bad("cannot set an attribute of '" + program_.names[t.name] + "': it is not a namespace");
  auto& attributes = static_cast<Namespace&>(*target.body()).attributes;
  for (auto& [k, old] : attributes) {
    if (k != t.attr) continue;
    old = v;
    return;
  }
  attributes.emplace_back(t.attr, v);
}

Value Interp::make_macro(const MacroDef& def) {
  if (!scope_->kept) {
    step(kObjectSteps);
    scope_->kept = true;
    kept_scopes_.push_back(scope_);
  }
  return callable(def.name, [&def, where = scope_](Interp& in, const Args& args) { return in.call_macro(def, where, args); });
}

Value Interp::call_macro(const MacroDef& def, const ScopePtr& where, const Args& args) {
  const Level level(*this);
  step(4);
  const uint32_t line = line_;
  const ScopePtr caller_scope = scope_;
  scope_ = std::make_shared<Scope>();
  scope_->parent = where;
  bind(def, args);
  TextBuilder inner;
  TextBuilder* const outer = std::exchange(out_, &inner);
  exec(def.body);
  out_ = outer;
  scope_ = caller_scope;
  line_ = line;
  return make(inner);
}

/// Arguments to parameters, as Jinja's Macro does.
void Interp::bind(const MacroDef& def, const Args& args) {
  std::vector<bool> used(args.named.size());
  for (size_t i = 0; i < def.params.size(); ++i) {
    const Param& p = def.params[i];
    const Value* given = i < args.positional.size() ? &args.positional[i] : nullptr;
    for (size_t k = 0; k < args.named.size(); ++k) {
      if (args.named[k].first != p.name) continue;
      if (given != nullptr) bad("macro '" + def.name + "' got two values for '" + p.name + "'");
      given = &args.named[k].second;
      used[k] = true;
    }
    if (given != nullptr) {
      scope_->set(p.id, *given);
    } else {
      scope_->set(p.id, p.preset ? eval(*p.preset) : Value::undefined("parameter '" + p.name + "' was not provided"));
    }
  }
  if (def.uses_caller) scope_->set(program_.id_caller, Value::undefined("No caller defined"));
  std::vector<std::pair<Value, Value>> rest;
  for (size_t k = 0; k < args.named.size(); ++k) {
    if (used[k]) continue;
    if (args.named[k].first == "caller" && def.uses_caller) {
      scope_->set(program_.id_caller, args.named[k].second);
      continue;
    }
    if (!def.uses_kwargs) bad("macro '" + def.name + "' takes no keyword argument '" + args.named[k].first + "'");
    rest.emplace_back(text(args.named[k].first), args.named[k].second);
  }
  if (def.uses_kwargs) scope_->set(program_.id_kwargs, dict(std::move(rest)));
  const size_t n = def.params.size();
  if (args.positional.size() > n && !def.uses_varargs) {
    bad("macro '" + def.name + "' takes not more than " + std::to_string(n) + " argument(s)");
  }
  if (def.uses_varargs) {
    const auto from = args.positional.begin() + static_cast<ptrdiff_t>(std::min(n, args.positional.size()));
    scope_->set(program_.id_varargs, tuple({from, args.positional.end()}));
  }
}

}  // namespace carrel::jinja
