// Typed access to the fields of a JSON request: what is absent, wrong or unknown is said by name. For the .cpp files of this folder.
#pragma once
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace carrel {

using Json = nlohmann::ordered_json;

/// An object; kInvalidArgument for anything else, for nesting deeper than 64, for objects of thousands of members, and for text that is not UTF-8.
Result<Json> parse_body(const std::string& body);

/// Text for JSON whatever the bytes are.
inline std::string dump(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Whether `object` is one and has the text `value` under `name`.
bool has_text(const Json& object, const char* name, std::string_view value);

/// One object's fields; the first error sticks and is asked for at the end.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  /// null counts as absent, as the official clients send it.
  const Json* find(const std::string& name);
  double number(const std::string& name, double fallback);
  int64_t integer(const std::string& name, int64_t fallback, int64_t low, int64_t high);
  bool flag(const std::string& name, bool fallback);
  std::string text(const std::string& name, const std::string& fallback);
  bool has(const std::string& name) { return find(name) != nullptr; }
  void wrong(const std::string& name, const std::string& what);
  /// Fields known to the dialect that change nothing here.
  void allow(std::initializer_list<const char*> names) { for (const char* n : names) seen_.insert(n); }

  Status status() const { return error_ ? Status(std::unexpected(*error_)) : Status{}; }
  std::vector<std::string> unknown() const;

 private:
  const Json& object_;
  std::set<std::string> seen_;
  std::optional<Error> error_;
};

}  // namespace carrel
