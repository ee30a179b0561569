#include "app/api/fields.h"

#include <cmath>

namespace carrel {

Result<Json> parse_body(const std::string& body) {
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < body.size(); i++) {
    const char c = body[i];
    if (in_text) {
      if (c == '\\') i++;
      else if (c == '"') in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      if (++depth > 64) return fail(Code::kInvalidArgument, "the request body is nested deeper than 64 levels");
    } else if (c == '}' || c == ']') {
      depth--;
    }
  }
  Json j = Json::parse(body, nullptr, false);
  if (j.is_discarded()) return fail(Code::kInvalidArgument, "the request body is not valid JSON (or not UTF-8)");
  if (!j.is_object()) return fail(Code::kInvalidArgument, "the request body must be a JSON object");
  return j;
}

void Fields::wrong(const std::string& name, const std::string& what) {
  if (!error_) error_ = Error{Code::kInvalidArgument, what, name};
}

const Json* Fields::find(const std::string& name) {
  seen_.insert(name);
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

double Fields::number(const std::string& name, double fallback) {
  const Json* j = find(name);
  if (j == nullptr) return fallback;
  if (!j->is_number() || !std::isfinite(j->get<double>())) return wrong(name, "must be a number"), fallback;
  return j->get<double>();
}

int64_t Fields::integer(const std::string& name, int64_t fallback, int64_t low, int64_t high) {
  const Json* j = find(name);
  if (j == nullptr) return fallback;
  const bool whole = j->is_number_integer() || (j->is_number_float() && std::floor(j->get<double>()) == j->get<double>() && std::fabs(j->get<double>()) < 9e15);
  const bool huge = j->is_number_unsigned() && j->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t n = whole && !huge ? j->get<int64_t>() : 0;
  if (!whole || huge || n < low || n > high) return wrong(name, "must be an integer from " + std::to_string(low) + " to " + std::to_string(high)), fallback;
  return n;
}

bool Fields::flag(const std::string& name, bool fallback) {
  const Json* j = find(name);
  if (j == nullptr) return fallback;
  if (!j->is_boolean()) return wrong(name, "must be true or false"), fallback;
  return j->get<bool>();
}

std::string Fields::text(const std::string& name, const std::string& fallback) {
  const Json* j = find(name);
  if (j == nullptr) return fallback;
  if (!j->is_string()) return wrong(name, "must be a string"), fallback;
  return j->get<std::string>();
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> out;
  for (const auto& [name, value] : object_.items())
    if (!seen_.contains(name)) out.push_back(name);
  return out;
}

}  // namespace carrel
