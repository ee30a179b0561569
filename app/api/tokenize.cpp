#include "app/api/tokenize.h"

#include "app/api/fields.h"
#include "app/api/messages.h"

namespace carrel {

Result<TextAnswer> tokenize_body(const std::string& body, const Model& model, Env* env, bool strict) {
  CARREL_ASSIGN(const Json object, parse_body(body));
  Fields f(object);
  CARREL_TRY(check_model(f.text("model", model.name()), model));
  std::vector<int32_t> tokens;
  if (const Json* messages = f.find("messages"); messages != nullptr) {
    CARREL_ASSIGN(ChatTokens chat, read_chat(f, model, env));
    tokens = std::move(chat.tokens);
  } else {
    const Json* text = f.find("text");
    if (text == nullptr || !text->is_string()) return fail(Code::kInvalidArgument, "must be a string (or give messages)", "text");
    const bool add = f.flag("add_special", false), parse = f.flag("parse_special", false);
    CARREL_ASSIGN(tokens, model.tokenizer().encode(text->get<std::string>(), {.add_special = add, .parse_special = parse}));
  }
  CARREL_TRY(f.status());
  CARREL_ASSIGN(auto ignored, ignored_fields(f, strict));
  return TextAnswer{dump(Json{{"tokens", tokens}, {"count", tokens.size()}, {"model", model.name()}}) + "\n", std::move(ignored)};
}

Result<TextAnswer> detokenize_body(const std::string& body, const Model& model, bool strict) {
  CARREL_ASSIGN(const Json object, parse_body(body));
  Fields f(object);
  CARREL_TRY(check_model(f.text("model", model.name()), model));
  const Json* tokens = f.find("tokens");
  if (tokens == nullptr || !tokens->is_array()) return fail(Code::kInvalidArgument, "must be an array of token ids", "tokens");
  const int vocab = model.graph().vocab;
  std::vector<int32_t> ids;
  for (const Json& t : *tokens) {
    if (!t.is_number_integer() || t.get<int64_t>() < 0 || t.get<int64_t>() >= vocab)
      return fail(Code::kInvalidArgument, "must hold token ids from 0 to " + std::to_string(vocab - 1), "tokens");
    ids.push_back(t.get<int32_t>());
  }
  const bool skip = f.flag("skip_special", false);
  CARREL_TRY(f.status());
  CARREL_ASSIGN(auto ignored, ignored_fields(f, strict));
  return TextAnswer{dump(Json{{"text", model.tokenizer().decode(ids, skip)}, {"model", model.name()}}) + "\n", std::move(ignored)};
}

}  // namespace carrel
