// /v1/tokenize and /v1/detokenize: a request body to the body of its answer. Pure but for the model's text front end; any thread.
#pragma once
#include <string>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "engine/model/model.h"

namespace carrel {

struct TextAnswer {
  std::string body;
  std::vector<std::string> ignored;  // unknown fields
};

/// {"text"} or {"messages"} to {"tokens", "count", "model"}; messages give exactly the tokens of the same chat. kInvalidArgument names the field; strict: an
/// unknown one too. kNotFound for another model's name.
Result<TextAnswer> tokenize_body(const std::string& body, const Model& model, Env* env, bool strict);

/// {"tokens"} to {"text", "model"}.
Result<TextAnswer> detokenize_body(const std::string& body, const Model& model, bool strict);

}  // namespace carrel
