#include "app/api/errors.h"

#include "app/api/fields.h"
#include "base/log.h"

namespace carrel {
namespace {

Json error_object(const char* type, const std::string& message, const std::string& code, const std::string& param, const std::string& request_id) {
  return {{"message", message}, {"type", type}, {"code", code}, {"param", param.empty() ? Json(nullptr) : Json(param)}, {"request_id", request_id}};
}

std::string wrapped(Json error) { return dump(Json{{"error", std::move(error)}}) + "\n"; }

void set_body(HttpResponse& out, int status, std::string body) {
  out.status = status;
  out.content_type = "application/json";
  out.stream = nullptr;
  out.body = std::move(body);
  if (status == 503 || status == 429) out.headers.emplace_back("Retry-After", "1");
}

}  // namespace

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
  return wrapped(error_object(type, message, code, param, request_id));
}

void set_error(HttpResponse& out, int status, const char* type, const std::string& message, const std::string& code, const std::string& param,
               const std::string& request_id) {
  set_body(out, status, error_body(type, message, code, param, request_id));
}

std::string error_body(const Error& error, const std::string& request_id) {
  const ApiErrorClass c = api_error_class(error.code);
  const bool no_model = error.code == Code::kNotFound && error.where == "model";
  const bool about_request = c.status == 400 || no_model;
  // Where a fault of the machine sits (a file, a device) is for the administrator's log, not for a tenant.
  const bool inside = error.where.starts_with('/');
  if (inside) spdlog::error("request {}: {}", request_id, error.text());
  return error_body(c.type, inside ? error.message : error.text(), no_model ? "model_not_found" : std::string(to_string(error.code)), about_request ? error.where : "", request_id);
}

void set_error(HttpResponse& out, const Error& error, const std::string& request_id) {
  set_body(out, api_error_class(error.code).status, error_body(error, request_id));
}

void set_overflow(HttpResponse& out, int64_t n_prompt, int64_t n_answer, int64_t n_ctx, const std::string& param, const std::string& request_id) {
  const std::string message = "prompt of " + std::to_string(n_prompt) + " tokens and answer of up to " + std::to_string(n_answer) + " exceed the context of " +
                              std::to_string(n_ctx) + " tokens; shorten the prompt or lower max_tokens";
  Json e = error_object("invalid_request_error", message, "context_length_exceeded", param, request_id);
  e["n_prompt"] = n_prompt;
  e["n_ctx"] = n_ctx;
  set_body(out, 400, wrapped(std::move(e)));
}

}  // namespace carrel
