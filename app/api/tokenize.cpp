#include "app/api/tokenize.h"

#include "app/api/fields.h"
#include "app/api/generate.h"

namespace carrel {

Result<std::string> tokenize_body(const std::string& body, const Model& model, Env* env) {
  CARREL_ASSIGN(const Json object, parse_body(body));
  Fields f(object);
  f.allow({"model"});
  std::vector<int32_t> tokens;
  if (const Json* messages = f.find("messages"); messages != nullptr) {
    CARREL_ASSIGN(tokens, chat_tokens(model, dump(*messages), "", f.flag("add_generation_prompt", true), "", env->wall_ms()));
  } else {
    const Json* text = f.find("text");
    if (text == nullptr || !text->is_string()) return fail(Code::kInvalidArgument, "must be a string (or give messages)", "text");
    const bool add = f.flag("add_special", false), parse = f.flag("parse_special", false);
    CARREL_ASSIGN(tokens, model.tokenizer().encode(text->get<std::string>(), {.add_special = add, .parse_special = parse}));
  }
  CARREL_TRY(f.status());
  return dump(Json{{"tokens", tokens}, {"count", tokens.size()}, {"model", model.name()}}) + "\n";
}

Result<std::string> detokenize_body(const std::string& body, const Model& model) {
  CARREL_ASSIGN(const Json object, parse_body(body));
  Fields f(object);
  f.allow({"model"});
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
  return dump(Json{{"text", model.tokenizer().decode(ids, skip)}, {"model", model.name()}}) + "\n";
}

}  // namespace carrel
