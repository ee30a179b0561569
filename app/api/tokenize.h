// /v1/tokenize and /v1/detokenize: a request body to the body of its answer. Pure but for the model's text front end; any thread.
#pragma once
#include <string>

#include "base/env.h"
#include "base/error.h"
#include "engine/model/model.h"

namespace carrel {

/// {"text"} or {"messages"} to {"tokens", "count", "model"}. kInvalidArgument names the field.
Result<std::string> tokenize_body(const std::string& body, const Model& model, Env* env);

/// {"tokens"} to {"text", "model"}.
Result<std::string> detokenize_body(const std::string& body, const Model& model);

}  // namespace carrel
