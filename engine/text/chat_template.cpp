#include "engine/text/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace carrel {
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kMaxBoundaryMessages = 64;  // prefixes are rendered once each; beyond this the cost would grow with the square

/// Text parts as one string, for templates that want a string.
Json joined(const Json& content) {
  std::string text;
  for (const Json& part : content) {
    if (part.is_string()) text += part.get<std::string>();
    if (part.is_object() && part.contains("text") && part["text"].is_string()) text += part["text"].get<std::string>();
  }
  return text;
}

/// What a server owes its template: no null keys, reasoning under both names, arguments of tool calls as objects, content never null.
Json normalized(const Json& message, bool takes_parts) {
  Json m = Json::object();
  for (const auto& [key, value] : message.items())
    if (!value.is_null()) m[key] = value;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (!m.contains(name)) continue;
    const Json text = m[name];
    if (!m.contains("reasoning_content")) m["reasoning_content"] = text;
    if (!m.contains("thinking")) m["thinking"] = text;
    break;
  }
  if (!m.contains("content")) m["content"] = "";
  if (m["content"].is_array() && !takes_parts) m["content"] = joined(m["content"]);
  if (m.contains("tool_calls") && m["tool_calls"].is_array())
    for (Json& call : m["tool_calls"]) {
      if (!call.is_object() || !call.contains("function") || !call["function"].is_object() || !call["function"].contains("arguments") || !call["function"]["arguments"].is_string()) continue;
      Json parsed = Json::parse(call["function"]["arguments"].get<std::string>(), nullptr, false);
      if (parsed.is_object()) call["function"]["arguments"] = std::move(parsed);
    }
  return m;
}

size_t common_prefix(const std::string& a, const std::string& b) { return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin()).first - a.begin()); }

RenderedChat with_parts(const jinja::TextBody& body) {
  RenderedChat out;
  size_t at = 0;
  for (const jinja::Run& run : body.runs) {
    out.parts.push_back({body.bytes.substr(at, run.end - at), run.origin == jinja::Origin::kTemplate});
    at = run.end;
  }
  return out;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(const std::string& source, const std::string& bos_token, const std::string& eos_token) {
  CARREL_ASSIGN(jinja::Template parsed, jinja::Template::parse(source));
  ChatTemplate t(std::move(parsed), bos_token, eos_token);
  // A template that shows the text of a list of parts can take lists; others get the parts joined.
  const Json probe{{"messages", Json::array({{{"role", "user"}, {"content", Json::array({{{"type", "text"}, {"text", "carrel-probe"}}})}}})}, {"add_generation_prompt", true}};
  const auto shown = t.render_json(probe.dump(), 0);
  t.takes_parts_ = shown && shown->bytes.find("carrel-probe") != std::string::npos && shown->bytes.find("'type'") == std::string::npos && shown->bytes.find("\"type\"") == std::string::npos;
  return t;
}

Result<jinja::TextBody> ChatTemplate::render_json(const std::string& variables, int64_t now_ms) const {
  CARREL_ASSIGN(const jinja::Value values, jinja::value_from_json(variables));
  auto items = values.dict().items;
  const auto set = [&](const char* name, const std::string& text) {
    if (!text.empty()) items.emplace_back(jinja::Value::string(name, jinja::Origin::kTemplate), jinja::Value::string(text, jinja::Origin::kTemplate));
  };
  set("bos_token", bos_);
  set("eos_token", eos_);
  jinja::RenderLimits limits;
  limits.allow_list_changes = true;
  return template_.render_marked(jinja::make_dict(std::move(items)), limits, {.unix_ms = now_ms});
}

Result<RenderedChat> ChatTemplate::render(const ChatRequest& request) const {
  const Json messages = Json::parse(request.messages_json, nullptr, false);
  if (!messages.is_array() || messages.empty()) return fail(Code::kInvalidArgument, "must be a list of at least one message", "messages");
  Json variables = Json::object();
  if (!request.extra_json.empty()) {
    variables = Json::parse(request.extra_json, nullptr, false);
    if (!variables.is_object()) return fail(Code::kInvalidArgument, "must be an object", "chat_template_kwargs");
    for (const char* name : {"bos_token", "eos_token"}) variables.erase(name);  // control tokens come from the model, never from a request
  }
  Json list = Json::array();
  for (const Json& m : messages) {
    if (!m.is_object()) return fail(Code::kInvalidArgument, "must hold objects", "messages");
    list.push_back(normalized(m, takes_parts_));
  }
  variables["tools"] = request.tools_json.empty() ? Json(nullptr) : Json::parse(request.tools_json, nullptr, false);
  if (variables["tools"].is_discarded()) return fail(Code::kInvalidArgument, "is not JSON", "tools");
  if (!variables.contains("documents")) variables["documents"] = nullptr;
  variables["messages"] = list;
  variables["add_generation_prompt"] = request.add_generation_prompt;
  const auto text_of = [](const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); };
  CARREL_ASSIGN(const jinja::TextBody whole, render_json(text_of(variables), request.now_ms));
  RenderedChat out = with_parts(whole);
  if (list.size() > kMaxBoundaryMessages) return out;
  variables["add_generation_prompt"] = false;
  for (size_t n = 1; n <= list.size(); n++) {
    variables["messages"] = Json(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(n));
    const auto prefix = render_json(text_of(variables), request.now_ms);
    if (!prefix) continue;  // a template may refuse a conversation that stops here
    const size_t end = common_prefix(prefix->bytes, whole.bytes);
    if (end > 0 && (out.message_boundaries.empty() || end > out.message_boundaries.back())) out.message_boundaries.push_back(end);
  }
  return out;
}

}  // namespace carrel
