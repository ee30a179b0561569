// What every route that takes a chat or a model's name checks alike. For the .cpp files of this folder; pure but for the model's text front end.
#pragma once
#include <cstdint>
#include <vector>

#include "app/api/fields.h"
#include "app/api/generate.h"
#include "base/env.h"
#include "engine/model/model.h"

namespace carrel {

/// Tokens of the request's "messages" through the model's template; with "add_generation_prompt" and "chat_template_kwargs". kInvalidArgument names the field.
Result<ChatTokens> read_chat(Fields& f, const Model& model, Env* env);

/// One user message.
Result<ChatTokens> user_tokens(const Model& model, const Json& content, Env* env);

/// kNotFound when a name is given that is not the model's.
Status check_model(const std::string& asked, const Model& model);

/// The fields that nobody read; kInvalidArgument for the first of them when that is not allowed.
Result<std::vector<std::string>> ignored_fields(const Fields& f, bool strict);

}  // namespace carrel
