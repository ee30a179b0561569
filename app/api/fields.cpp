#include "app/api/fields.h"

#include <cmath>
#include <vector>

namespace carrel {

namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxContainers = 20'000;
constexpr int64_t kMaxSearch = 1 << 24;

/// Refuses what would cost more than its bytes are worth, before anything is built: nesting, empty containers by the million, and members, which an object that keeps their order
/// finds by walking, so that n of them cost n²/2 comparisons. Text that is not JSON passes; the parser refuses it.
Status check_shape(std::string_view body) {
  std::vector<int64_t> n_members;
  int64_t search = 0;
  size_t n_containers = 0;
  for (size_t i = 0; i < body.size(); i++) {
    switch (body[i]) {
      case '"':
        for (i++; i < body.size() && body[i] != '"'; i++)
          if (body[i] == '\\') i++;
        break;
      case '{':
      case '[':
        if (n_members.size() == kMaxDepth) return fail(Code::kInvalidArgument, "the request body is nested deeper than 64 levels");
        if (++n_containers > kMaxContainers)
          return fail(Code::kInvalidArgument, "the request body has more than " + std::to_string(kMaxContainers) + " objects and lists");
        n_members.push_back(0);
        break;
      case '}':
      case ']':
        if (!n_members.empty()) n_members.pop_back();
        break;
      case ':':
        if (n_members.empty()) break;
        search += n_members.back()++;
        if (search > kMaxSearch) return fail(Code::kInvalidArgument, "the request body has objects of too many members");
        break;
      default: break;
    }
  }
  return {};
}

}  // namespace

Result<Json> parse_body(const std::string& body) {
  CARREL_TRY(check_shape(body));
  Json j = Json::parse(body, nullptr, false);
  if (j.is_discarded()) return fail(Code::kInvalidArgument, "the request body is not valid JSON (or not UTF-8)");
  if (!j.is_object()) return fail(Code::kInvalidArgument, "the request body must be a JSON object");
  return j;
}

bool has_text(const Json& object, const char* name, std::string_view value) {
  if (!object.is_object()) return false;
  const auto at = object.find(name);
  return at != object.end() && at->is_string() && at->get_ref<const std::string&>() == value;
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
