// The interpreter: one object per render, on one thread. Internal to this folder.
//
// Errors inside a render are thrown as RenderError and caught in Template::render; none leaves this folder. Everything a template can
// do costs steps; strings, nesting and output have limits (RenderLimits).
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/template.h"

namespace carrel::jinja {

struct RenderError {
  Error error;
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  /// The i-th argument or the one called `name`; null when neither is there.
  const Value* find(size_t i, std::string_view name) const;
};

using MethodFn = Value (*)(Interp&, const Value& self, const Args&);

struct Callable final : Object {
  std::string name;
  std::function<Value(Interp&, const Args&)> call;
};

/// Variables of one block. A macro keeps the scope it stands in.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<uint32_t, Value>> variables;
  bool kept = false;  // a macro was made here

  void set(uint32_t id, Value v);
};

struct LoopState final : Object {
  std::vector<Value> items;
  size_t index = 0;
  size_t level = 0;              // nesting of a recursive loop
  const Stmt* stmt = nullptr;    // of a running recursive loop
  std::shared_ptr<Scope> outer;  // where that loop stands; released when the loop ends
  Value last_changed;
  bool has_changed = false;
};

class Interp {
 public:
  Interp(const Program& program, const RenderLimits& limits, const Clock& clock);
  ~Interp();
  Interp(const Interp&) = delete;
  Interp& operator=(const Interp&) = delete;

  TextBody run(const Value& variables);

  // Errors and limits.
  [[noreturn]] void bad(std::string what) const;
  [[noreturn]] void raise(Code code, std::string what) const;
  void step(uint64_t n = 1);
  uint64_t steps_left() const { return steps_left_; }
  const RenderLimits& limits() const { return limits_; }
  const Clock& clock() const { return clock_; }
  /// Counts nested evaluations while it lives.
  struct Level {
    explicit Level(Interp& in);
    ~Level() { --in_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    Interp& in_;
  };

  // Making values, within the limits.
  Value make(TextBuilder& b, bool safe = false);
  Value text(std::string_view s, Origin origin = Origin::kTemplate);
  Value slice_text(const Value& s, size_t begin, size_t end);
  Value list(std::vector<Value> items);
  Value tuple(std::vector<Value> items);
  Value dict(std::vector<std::pair<Value, Value>> items);
  Value generator(std::vector<Value> items, std::optional<std::string> error = {});
  Value callable(std::string name, std::function<Value(Interp&, const Args&)> fn, uint32_t depth = 1);
  Value make_namespace(std::vector<std::pair<std::string, Value>> attributes);

  // Python's operations.
  void append_str(TextBuilder& b, const Value& v);  // str(v)
  Value to_str(const Value& v);
  std::string repr(const Value& v);
  std::vector<Value> iterate(const Value& v);
  size_t length(const Value& v);
  bool equals(const Value& a, const Value& b);
  int compare(const Value& a, const Value& b);  // ordering: -1, 0, 1
  bool contains(const Value& container, const Value& item);
  /// The value under a key of a dict, or null.
  const Value* look_up(const Value& dict, const Value& key);
  Value binary(Op op, const Value& a, const Value& b);
  Value attribute(const Value& v, const std::string& name);
  Value item(const Value& v, const Value& key);
  Value call(const Value& f, const Args& args);
  Value call_method(const Value& self, const std::string& name, const Args& args);
  Value apply_filter(const std::string& name, const Value& input, const Args& args);
  bool apply_test(const std::string& name, const Value& input, const Args& args);
  /// "a.b.0" as the attribute argument of filters reads it.
  Value attribute_path(const Value& v, const Value& path);
  Value escape(const Value& v);

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  using ScopePtr = std::shared_ptr<Scope>;

  // statements (interp.cpp)
  Flow exec(const Block& block);
  Flow exec(const Stmt& s);
  Flow exec_scoped(const Block& block);
  void exec_for(const Stmt& s);
  void run_for(const Stmt& s, const Value& iterable, size_t level);
  std::vector<Value> filtered(const Stmt& s, std::vector<Value> items);
  void assign(const Target& target, const Value& v);
  Value capture(const Block& block);
  Value make_macro(const MacroDef& def);
  Value call_macro(const MacroDef& def, const ScopePtr& where, const Args& args);
  void bind(const MacroDef& def, const Args& args);
  void call_block(const Stmt& s);
  void with_block(const Stmt& s);
  Value recurse(const std::shared_ptr<LoopState>& loop, const Args& args);

  // expressions (eval.cpp)
  Value eval(const Expr& e);
  Value eval_name(uint32_t id);
  Value eval_call(const Expr& e, const Value* caller);
  Value eval_slice(const Expr& e);
  Value eval_compare(const Expr& e);
  Value eval_filter(const Expr& e, const Value& input);
  Value eval_chain(const Expr& e, const Value& input);
  Value eval_dict(const Expr& e);
  Value eval_cond(const Expr& e);
  Value eval_concat(const Expr& e);
  std::vector<Value> eval_all(const std::vector<ExprPtr>& kids, size_t from);
  Args arguments(const Expr& e);
  Value negate(const Value& v, bool minus);
  Value loop_attribute(const Value& loop, const std::string& name);

  void set_globals(const Value& variables);
  void check_size(size_t n_bytes) const;
  Value checked(Value v);

  const Program& program_;
  RenderLimits limits_;
  Clock clock_;
  uint64_t steps_left_;
  uint32_t depth_ = 0;
  uint32_t line_ = 1;
  TextBuilder* out_ = nullptr;
  ScopePtr scope_;
  std::vector<Value> globals_;  // by name id
  std::vector<bool> is_global_;
  // Broken up at the end, since they may form cycles.
  std::vector<ScopePtr> kept_scopes_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

/// JSON as json.dumps writes it.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(Interp& in, const Value& v, const JsonStyle& style);

MethodFn find_method(const Value& self, std::string_view name);
/// A method that changes its object, which the sandbox refuses.
bool is_unsafe_method(const Value& self, std::string_view name);
/// The global functions, by name.
std::vector<std::pair<std::string, Value>> make_globals(Interp& in);

// str.format and the % operator (format.cpp)
Value format_braces(Interp& in, const Value& self, const Args& args);
Value format_percent(Interp& in, const Value& self, const Value& args);

// Strings (strings.cpp), shared by filters and methods.
enum class Side : uint8_t { kBoth, kLeft, kRight };
Value strip(Interp& in, const Value& s, const Value* chars, Side side);
Value replace(Interp& in, const Value& s, const Value& from, const Value& to, int64_t max);
Value map_case(Interp& in, const Value& s, bool upper);
Value capitalize(Interp& in, const Value& s);
/// What starts a word: any non-letter before it (str.title), or blanks and brackets only (the filter).
Value title(Interp& in, const Value& s, bool filter_rule);
Value join(Interp& in, const Value& separator, const std::vector<Value>& items);
int64_t int_arg(Interp& in, const Value* v, int64_t preset);
const Value& string_arg(Interp& in, const Value* v, std::string_view what);

}  // namespace carrel::jinja
