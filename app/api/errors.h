// One error shape for the OpenAI dialect and our own routes, made from an Error.
#pragma once
#include <string>

#include "app/api/http.h"
#include "base/error.h"

namespace carrel {

/// What the API says for a code: one table for status, `type` and whether a retry helps.
struct ApiErrorClass {
  int status;
  const char* type;
};
ApiErrorClass api_error_class(Code code);

/// {"error":{"message","type","code","param","request_id"}}; param: the request field, or null.
std::string error_body(const char* type, const std::string& message, const std::string& code, const std::string& param, const std::string& request_id);
void set_error(HttpResponse& out, int status, const char* type, const std::string& message, const std::string& code, const std::string& param,
               const std::string& request_id);
/// Body and status of an Error; a request field where the error names one.
std::string error_body(const Error& error, const std::string& request_id);
void set_error(HttpResponse& out, const Error& error, const std::string& request_id);

/// 400 context_length_exceeded, with n_prompt and n_ctx as fields of the error. param: where the prompt came from.
void set_overflow(HttpResponse& out, int64_t n_prompt, int64_t n_answer, int64_t n_ctx, const std::string& param, const std::string& request_id);

}  // namespace carrel
