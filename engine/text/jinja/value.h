// Values of the template interpreter: a small model of Python's objects.
//
// A Value is a cheap handle; bodies are shared and do not change, except lists and namespaces that the running template made
// itself. Threads: values made before a render (variables, constants) may be read by many renders at once.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/text/jinja/text.h"

namespace carrel::jinja {

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kBigInt,  // an integer beyond 64 bits: prints and compares, does not calculate
  kFloat,
  kString,
  kList,
  kTuple,
  kView,   // d.items(), d.keys(), d.values()
  kRange,
  kDict,
  kNamespace,
  kGenerator,  // map, select, ...: can be walked once
  kCallable,   // macro, global function, bound method
  kLoop,       // the variable `loop`
};

/// What all shared bodies have in common. `depth` bounds nesting, so that walks and destruction cannot overflow the stack.
struct Object {
  virtual ~Object() = default;
  uint32_t depth = 0;
};

struct Str;
struct Seq;
struct Dict;
struct Namespace;
struct Generator;
struct Callable;
struct LoopState;

class Value {
 public:
  Value() = default;  // undefined, without a name
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool b);
  static Value integer(int64_t i);
  static Value real(double d);
  /// A string of one origin.
  static Value string(std::string_view s, Origin origin);
  static Value string(TextBody body, bool safe = false);
  static Value big_int(std::string digits);
  /// An undefined value that says, when used, what was missing.
  static Value undefined(std::string what);
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value object(Kind kind, std::shared_ptr<Object> body);

  Kind kind() const { return kind_; }
  bool is(Kind k) const { return kind_ == k; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  /// bool or int, as Python's int
  bool is_intlike() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_intlike() || kind_ == Kind::kFloat; }
  bool is_sequence() const { return kind_ >= Kind::kList && kind_ <= Kind::kRange; }

  bool as_bool() const { return bool_; }
  int64_t as_int() const { return kind_ == Kind::kBool ? bool_ : int_; }
  double as_double() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(as_int()); }
  const Str& str() const;
  const std::string& bytes() const;
  const Seq& seq() const;
  const Dict& dict() const;
  const std::shared_ptr<Object>& body() const { return body_; }
  /// 0 for scalars and strings, else one more than the deepest item.
  uint32_t depth() const { return body_ ? body_->depth : 0; }

  /// Python's truth value.
  bool truthy() const;

 private:
  explicit Value(Kind k) : kind_(k) {}

  Kind kind_ = Kind::kUndefined;
  union {
    bool bool_;
    int64_t int_ = 0;
    double float_;
  };
  std::shared_ptr<Object> body_;
};

struct Str final : Object {
  TextBody text;
  bool safe = false;  // markupsafe.Markup: `+` escapes what is not safe
};

/// list, tuple, dict view and range.
struct Seq final : Object {
  std::vector<Value> items;
  std::string label;    // how a view or range prints itself: "dict_items", "range(0, 3)"
  bool frozen = false;  // came from outside: a template may not change it
};

/// Keeps the order of insertion. Keys are strings, numbers, booleans, None or tuples.
struct Dict final : Object {
  std::vector<std::pair<Value, Value>> items;

  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;
  /// Replaces the value of an equal key in its place.
  void set(Value key, Value value);

 private:
  std::unordered_map<std::string, size_t> index_;  // string keys, only from a certain size on
};

struct Namespace final : Object {
  std::vector<std::pair<std::string, Value>> attributes;
};

/// Filled when made; an error in the middle shows only when the walk gets there, as with Python's lazy generators.
struct Generator final : Object {
  std::vector<Value> items;
  size_t next = 0;
  std::optional<std::string> error;
};

/// Builds a dict; knows its own nesting depth.
Value make_dict(std::vector<std::pair<Value, Value>> items);

/// Reads JSON text (UTF-8, at most max_depth levels). All strings get origin kInput; lists are frozen.
Result<Value> value_from_json(std::string_view json, int max_depth = 128);

/// Python's ==. Counts `work` down by one for every pair of values and every 64 bytes compared; answers false when it reaches 0.
bool equal(const Value& a, const Value& b, uint64_t& work);
/// repr() of a float.
std::string float_repr(double d);
/// The name of the type in Python: 'str', 'list', 'NoneType'.
const char* type_name(const Value& v);

}  // namespace carrel::jinja
