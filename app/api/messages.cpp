#include "app/api/messages.h"

#include <algorithm>

namespace carrel {
namespace {

Status check_messages(const Json* messages) {
  if (messages == nullptr || !messages->is_array() || messages->empty()) return fail(Code::kInvalidArgument, "must be an array of at least one message", "messages");
  for (size_t i = 0; i < messages->size(); i++) {
    const Json& m = (*messages)[i];
    const std::string where = "messages[" + std::to_string(i) + "]";
    if (!m.is_object() || !m.contains("role") || !m["role"].is_string()) return fail(Code::kInvalidArgument, "must be an object with a role", where);
    static constexpr const char* kRoles[] = {"system", "developer", "user", "assistant", "tool"};
    if (std::none_of(std::begin(kRoles), std::end(kRoles), [&](const char* r) { return m["role"] == r; }))
      return fail(Code::kInvalidArgument, "must be system, developer, user, assistant or tool", where + ".role");
    const Json content = m.contains("content") ? m["content"] : Json(nullptr);
    if (content.is_array()) {
      for (const Json& part : content)
        if (!has_text(part, "type", "text") || !part.contains("text") || !part["text"].is_string())
          return fail(Code::kInvalidArgument, "may hold parts of type text only", where + ".content");
    } else if (!content.is_string() && !(content.is_null() && m["role"] == "assistant")) {
      return fail(Code::kInvalidArgument, "must be a string or an array of text parts", where + ".content");
    }
  }
  return {};
}

/// Tokens before each of the byte offsets, rising. Where a tokenizer changes the text's length they may be off by a few: what is kept there is
/// then kept a little beside the end of the message, no more.
std::vector<int64_t> token_positions(const Tokenizer& tokenizer, std::span<const int32_t> tokens, std::span<const size_t> offsets) {
  std::vector<int64_t> out;
  size_t n_bytes = 0, t = 0;
  for (const size_t offset : offsets) {
    for (; t < tokens.size() && n_bytes + tokenizer.token_bytes(tokens[t]).size() <= offset; t++) n_bytes += tokenizer.token_bytes(tokens[t]).size();
    out.push_back(static_cast<int64_t>(t));
  }
  return out;
}

}  // namespace

Result<ChatTokens> chat_tokens(const Model& model, const std::string& messages_json, const std::string& tools_json, bool add_generation_prompt,
                                         const std::string& extra_json, int64_t now_ms) {
  const ChatTemplate* chat = model.chat_template();
  if (chat == nullptr)
    return fail(Code::kUnsupported, "the model " + model.name() + " has no chat template; name one with model.chat_template, or use /v1/completions", "messages");
  ChatRequest request;
  request.messages_json = messages_json;
  request.tools_json = tools_json;
  request.extra_json = extra_json;
  request.add_generation_prompt = add_generation_prompt;
  request.now_ms = now_ms;
  auto rendered = chat->render(request);
  if (!rendered) return fail(Code::kInvalidArgument, "the chat template refuses them: " + rendered.error().message, "messages");
  std::vector<TextPart> parts;
  for (const auto& part : rendered->parts) parts.push_back({part.text, part.from_template});
  ChatTokens out;
  CARREL_ASSIGN(out.tokens, model.tokenizer().encode_parts(parts));
  out.boundaries = token_positions(model.tokenizer(), out.tokens, rendered->message_boundaries);
  return out;
}

Result<ChatTokens> read_chat(Fields& f, const Model& model, Env* env) {
  const Json* messages = f.find("messages");
  CARREL_TRY(check_messages(messages));
  Json normal = *messages;
  for (Json& m : normal)
    if (m["role"] == "developer") m["role"] = "system";  // the newer name of the same
  const Json* extra = f.find("chat_template_kwargs");
  if (extra != nullptr && !extra->is_object()) return fail(Code::kInvalidArgument, "must be an object", "chat_template_kwargs");
  return chat_tokens(model, dump(normal), "", f.flag("add_generation_prompt", true), extra != nullptr ? dump(*extra) : "", env->wall_ms());
}

Result<ChatTokens> user_tokens(const Model& model, const Json& content, Env* env) {
  return chat_tokens(model, dump(Json::array({{{"role", "user"}, {"content", content}}})), "", true, "", env->wall_ms());
}

Status check_model(const std::string& asked, const Model& model) {
  if (asked == model.name()) return {};
  return fail(Code::kNotFound, "there is no model \"" + asked.substr(0, 80) + "\"; this server has " + model.name(), "model");
}

Result<std::vector<std::string>> ignored_fields(const Fields& f, bool strict) {
  auto unknown = f.unknown();
  if (strict && !unknown.empty()) return fail(Code::kInvalidArgument, "is not a known field", unknown.front());
  return unknown;
}

}  // namespace carrel
