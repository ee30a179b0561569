// The interpreter of one render: scopes, limits, output. Internal to this folder; made, used and dropped by Template::render on one thread.
//
// Inside the folder a failed evaluation is thrown as Raise and caught in template.cpp: the walk is deeply recursive and almost every step can fail.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/template.h"

namespace carrel::jinja {

struct Raise {
  Error error;
};
[[noreturn]] void raise(Code code, std::string message);
[[noreturn]] inline void raise(std::string message) { raise(Code::kUnsupported, std::move(message)); }

struct Args {
  std::vector<Value> pos;
  std::vector<std::pair<std::string, Value>> named;

  /// Positional argument i, or the named one, or null.
  const Value* get(size_t i, std::string_view name) const;
  const Value& need(size_t i, std::string_view name) const;
};

struct Callable final : Object {
  std::string name;
  std::function<Value(Interp&, const Args&)> call;
};

/// Variables of a block; lookups go outward. Macros keep the scope they stand in alive.
struct Scope {
  std::unordered_map<uint32_t, Value> vars;
  std::shared_ptr<Scope> parent;
};

struct LoopState final : Object {
  std::vector<Value> items;
  size_t at = 0;
  uint32_t level = 0;
  std::function<Value(Interp&, const Value&)> recurse;  // loop(...) of a recursive for
};

class Interp {
 public:
  Interp(const Program& program, const Value& variables, const RenderLimits& limits, const Clock& clock);
  TextBody run();

  // For the builtins.
  void step(uint64_t n = 1);
  const RenderLimits& limits() const { return limits_; }
  const Clock& clock() const { return clock_; }
  Value call(const Value& f, const Args& args);
  Value attribute(const Value& v, std::string_view name);
  Value item(const Value& v, const Value& key);
  /// The items a `for` walks over; a generator is used up.
  std::vector<Value> items_of(const Value& v);
  Value text(TextBody body, bool safe = false);
  bool same(const Value& a, const Value& b);
  bool contains(const Value& container, const Value& x);
  int compare(const Value& a, const Value& b);  // <0, 0, >0; an error for what Python does not order
  Value binary(Op op, const Value& a, const Value& b);
  /// str(): what {{ }} prints.
  TextBody print(const Value& v);
  TextBody repr(const Value& v, uint32_t depth = 0);

 private:
  struct Depth {
    explicit Depth(Interp& i) : i_(i) {
      if (++i_.depth_ > i_.limits_.max_depth) raise(Code::kExhausted, "the template nests deeper than " + std::to_string(i_.limits_.max_depth) + " evaluations");
    }
    ~Depth() { --i_.depth_; }
    Interp& i_;
  };
  enum class Flow { kNext, kBreak, kContinue };

  Flow block(const Block& statements);
  Flow statement(const Stmt& s);
  void for_loop(const Stmt& s);
  void run_loop(const Stmt& s, const Value& over, uint32_t level);
  void assign(const Target& target, const Value& value);
  Value macro(const MacroDef& def);
  Value call_macro(const MacroDef& def, const std::shared_ptr<Scope>& home, const Args& args);
  void call_block(const Stmt& s);
  Value capture(const std::function<void()>& body);
  void emit(const TextBody& t);
  void emit(std::string_view t, Origin origin);

  Value eval(const Expr& e);
  Value eval_call(const Expr& e);
  Value eval_filter(const Expr& e);
  Value eval_slice(const Expr& e);
  bool eval_compare(const Expr& e);
  Args arguments(const Expr& e);
  Value lookup(uint32_t name);
  Value global(const std::string& name);
  Value slice(const Value& v, const Value& from, const Value& to, const Value& by);

  const Program& program_;
  const Value& variables_;
  const RenderLimits limits_;
  const Clock clock_;
  std::shared_ptr<Scope> scope_ = std::make_shared<Scope>();
  std::vector<TextBuilder> out_{1};
  uint64_t steps_ = 0;
  uint32_t depth_ = 0;
  const Value* filter_input_ = nullptr;  // of {% filter %}
  friend struct ScopeGuard;
};

/// Methods of strings, dicts and lists; undefined when there is none of that name.
Value find_method(Interp& in, const Value& self, std::string_view name);
/// Arguments of Python's json.dumps; indent < 0: one line.
struct JsonStyle {
  int indent = -1;
  bool ascii = false, sort_keys = false;
  std::string item_separator = ", ", key_separator = ": ";
};
TextBody to_json(Interp& in, const Value& v, const JsonStyle& style);
/// The text escaped for HTML.
TextBody escape_html(const TextBody& t);
TextBody trim(const TextBody& t, const TextBody* chars, bool left, bool right);
Value make_callable(std::string name, std::function<Value(Interp&, const Args&)> f);

}  // namespace carrel::jinja
