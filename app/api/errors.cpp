#include "app/api/errors.h"

#include <nlohmann/json.hpp>

namespace carrel {

ApiErrorClass api_error_class(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return {400, "invalid_request_error"};
    case Code::kUnsupported: return {400, "invalid_request_error"};
    case Code::kNotFound: return {404, "not_found_error"};
    case Code::kAlreadyExists: return {409, "invalid_request_error"};
    case Code::kDenied: return {403, "permission_error"};
    case Code::kExhausted: return {503, "overloaded_error"};
    case Code::kUnavailable: return {503, "overloaded_error"};
    case Code::kDeadline: return {504, "timeout_error"};
    case Code::kCancelled: return {499, "cancelled"};
    case Code::kCorrupt:
    case Code::kIo:
    case Code::kInternal: break;
  }
  return {500, "server_error"};
}

std::string error_body(const char* type, const std::string& message, const std::string& code, const std::string& param, const std::string& request_id) {
  nlohmann::ordered_json e{{"message", message}, {"type", type}, {"code", code}};
  e["param"] = param.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(param);
  e["request_id"] = request_id;
  return nlohmann::ordered_json{{"error", std::move(e)}}.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void set_error(HttpResponse& out, int status, const char* type, const std::string& message, const std::string& code, const std::string& param,
               const std::string& request_id) {
  out.status = status;
  out.content_type = "application/json";
  out.stream = nullptr;
  out.body = error_body(type, message, code, param, request_id);
  if (status == 503 || status == 429) out.headers.emplace_back("Retry-After", "1");
}

void set_error(HttpResponse& out, const Error& error, const std::string& request_id) {
  const ApiErrorClass c = api_error_class(error.code);
  std::string code = error.where == "context_length" ? "context_length_exceeded" : to_string(error.code);
  const bool about_request = c.status == 400;
  set_error(out, c.status, c.type, error.text(), code, about_request ? error.where : "", request_id);
}

}  // namespace carrel
