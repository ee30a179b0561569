// See chat_template.h. All work on JSON is done on the interpreter's own values.
#include "engine/text/chat_template.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace carrel {
namespace {

using jinja::Kind;
using jinja::Origin;
using jinja::Value;
using Pairs = std::vector<std::pair<Value, Value>>;

// Boundaries are found by rendering shorter conversations, the longest first, until so many bytes were made.
constexpr size_t kMaxBoundaryBytes = size_t{4} << 20;
constexpr size_t kMaxBoundaries = 64;
// The template often spells a control token around the role, as in '<|' + role + '|>': these words are no user's text.
constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function", "ipython", "model", "documents"};

jinja::RenderLimits limits() {
  jinja::RenderLimits l;
  l.allow_list_changes = true;
  return l;
}

Value input(std::string_view s) { return Value::string(s, Origin::kInput); }

const Value* find(const Value& v, std::string_view key) { return v.is(Kind::kDict) ? v.dict().find(key) : nullptr; }

void put(Pairs& pairs, std::string_view key, Value v) {
  for (auto& [k, old] : pairs) {
    if (!k.is_string() || k.bytes() != key) continue;
    old = std::move(v);
    return;
  }
  pairs.emplace_back(input(key), std::move(v));
}

/// A list as values from a request are: no template may change it.
Value frozen(std::vector<Value> items) {
  Value v = Value::list(std::move(items));
  static_cast<jinja::Seq&>(*v.body()).frozen = true;
  return v;
}

Value text_part(const Value& text) { return jinja::make_dict({{input("type"), input("text")}, {input("text"), text}}); }

/// The texts of content parts one after the other; undefined when there is something else in the list.
Value joined_parts(const Value& list) {
  jinja::TextBuilder b;
  for (const Value& part : list.seq().items) {
    const Value* text = find(part, "text");
    if (part.is_string()) {
      b.append(part.str().text);
    } else if (text != nullptr && text->is_string()) {
      b.append(text->str().text);
    } else {
      return {};
    }
  }
  return Value::string(b.take());
}

/// The first of the names under which reasoning is sent.
Value reasoning_of(const Pairs& message) {
  for (const std::string_view name : {"reasoning_content", "thinking", "reasoning"}) {
    for (const auto& [k, v] : message) {
      if (k.is_string() && k.bytes() == name) return v;
    }
  }
  return {};
}

bool has(const Pairs& pairs, std::string_view key) {
  return std::any_of(pairs.begin(), pairs.end(), [&](const auto& kv) { return kv.first.is_string() && kv.first.bytes() == key; });
}

std::vector<RenderedPart> parts_of(const jinja::TextBody& text) {
  std::vector<RenderedPart> parts;
  size_t at = 0;
  for (const jinja::Run& run : text.runs) {
    parts.push_back({text.bytes.substr(at, run.end - at), run.origin == Origin::kTemplate});
    at = run.end;
  }
  return parts;
}

/// Length of what both begin with, in whole characters.
size_t common_prefix(std::string_view a, std::string_view b) {
  size_t n = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  while (n > 0 && n < a.size() && (static_cast<unsigned char>(a[n]) & 0xC0) == 0x80) --n;
  return n;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(const std::string& source, const std::string& bos_token, const std::string& eos_token) {
  CARREL_ASSIGN(jinja::Template t, jinja::Template::parse(source));
  ChatTemplate out(std::move(t));
  out.bos_token_ = bos_token;
  out.eos_token_ = eos_token;
  out.probe();
  return out;
}

/// Renders small conversations to learn which forms of content and arguments the template understands.
void ChatTemplate::probe() {
  const auto shown = [&](const char* messages) -> std::string {
    const auto m = jinja::value_from_json(messages);
    if (!m) return "";
    const auto vars = variables(*m, {});
    if (!vars) return "";
    return template_.render(*vars, limits(), {}).value_or("");
  };
  const std::string list = shown(R"([{"role":"user","content":[{"type":"text","text":"qzprobe"}]}])");
  const std::string plain = shown(R"([{"role":"user","content":"qzprobe"}])");
  habits_.takes_lists = list.find("qzprobe") != std::string::npos && list.find("'qzprobe'") == std::string::npos &&
                        list.find("\"qzprobe\"") == std::string::npos;
  habits_.needs_lists = habits_.takes_lists && plain.find("qzprobe") == std::string::npos;
  const std::string head = R"([{"role":"user","content":"u"},{"role":"assistant","content":"","tool_calls":[{"id":"callprobe","type":"function","function":{"name":"f","arguments":)";
  const std::string tail = R"(}}]},{"role":"tool","tool_call_id":"callprobe","name":"f","content":"r"}])";
  const std::string object = shown((head + R"({"qzkey":"qzprobe"})" + tail).c_str());
  const std::string string = shown((head + R"("{\"qzkey\":\"qzprobe\"}")" + tail).c_str());
  const bool fits = object.find("qzprobe") != std::string::npos && object.find("'qzprobe'}") == std::string::npos;
  habits_.object_arguments = fits || string.find("qzprobe") == std::string::npos;
}

Value ChatTemplate::normal_content(const Value& content) const {
  if (content.is(Kind::kList) && !habits_.takes_lists) {
    const Value joined = joined_parts(content);
    return joined.is_undefined() ? content : joined;
  }
  if (content.is_string() && habits_.needs_lists) return frozen({text_part(content)});
  return content;
}

Value ChatTemplate::normal_calls(const Value& calls) const {
  if (!calls.is(Kind::kList)) return calls;
  std::vector<Value> out;
  for (const Value& call : calls.seq().items) {
    const Value* function = find(call, "function");
    const Value* arguments = function != nullptr ? find(*function, "arguments") : nullptr;
    if (arguments == nullptr || !arguments->is_string() || !habits_.object_arguments) {
      out.push_back(call);
      continue;
    }
    const bool empty = arguments->bytes().empty();
    const auto parsed = jinja::value_from_json(empty ? std::string_view("{}") : std::string_view(arguments->bytes()), 64);
    Pairs f = function->dict().items, c = call.dict().items;
    if (parsed && parsed->is(Kind::kDict)) put(f, "arguments", *parsed);
    put(c, "function", jinja::make_dict(std::move(f)));
    out.push_back(jinja::make_dict(std::move(c)));
  }
  return frozen(std::move(out));
}

Value ChatTemplate::normal_message(const Value& message) const {
  if (!message.is(Kind::kDict)) return message;
  Pairs out;
  bool null_content = !message.dict().find(std::string_view("content"));
  for (const auto& [k, v] : message.dict().items) {
    const std::string& key = k.bytes();
    null_content = null_content || (key == "content" && v.is_none());
    if (key == "content") {
      out.emplace_back(k, v.is_none() ? input("") : normal_content(v));
    } else if (v.is_none()) {
      continue;
    } else if (key == "role" && v.is_string() && std::find(std::begin(kRoles), std::end(kRoles), v.bytes()) != std::end(kRoles)) {
      out.emplace_back(k, Value::string(v.bytes(), Origin::kTemplate));
    } else {
      out.emplace_back(k, key == "tool_calls" ? normal_calls(v) : v);
    }
  }
  if (null_content && !has(out, "content")) put(out, "content", input(""));
  if (const Value reasoning = reasoning_of(out); !reasoning.is_undefined()) {
    put(out, "reasoning_content", reasoning);
    if (!has(out, "thinking")) put(out, "thinking", reasoning);
  }
  return jinja::make_dict(std::move(out));
}

Value ChatTemplate::normal_messages(const Value& messages) const {
  std::vector<Value> out;
  for (const Value& m : messages.seq().items) out.push_back(normal_message(m));
  return frozen(std::move(out));
}

/// The variables of one render; `messages` is already normal.
Result<Value> ChatTemplate::variables(const Value& messages, const ChatRequest& request) const {
  Pairs vars;
  put(vars, "documents", Value::none());
  if (!request.extra_json.empty()) {
    CARREL_ASSIGN(const Value extra, jinja::value_from_json(request.extra_json));
    if (!extra.is(Kind::kDict)) return fail(Code::kInvalidArgument, "the further variables of a chat template must be an object");
    for (const auto& [k, v] : extra.dict().items) put(vars, k.bytes(), v);
  }
  Value tools = Value::none();
  if (!request.tools_json.empty()) {
    CARREL_ASSIGN(tools, jinja::value_from_json(request.tools_json));
    if (tools.is(Kind::kList) && tools.seq().items.empty()) tools = Value::none();
  }
  put(vars, "messages", messages);
  put(vars, "tools", tools);
  put(vars, "add_generation_prompt", Value::boolean(request.add_generation_prompt));
  put(vars, "bos_token", Value::string(bos_token_, Origin::kTemplate));
  put(vars, "eos_token", Value::string(eos_token_, Origin::kTemplate));
  return jinja::make_dict(std::move(vars));
}

Result<RenderedChat> ChatTemplate::render(const ChatRequest& request) const {
  CARREL_ASSIGN(const Value given, jinja::value_from_json(request.messages_json));
  if (!given.is(Kind::kList)) return fail(Code::kInvalidArgument, "the messages must be a list", "messages");
  if (given.seq().items.empty()) return fail(Code::kInvalidArgument, "the conversation has no message; send at least one", "messages");
  const Value messages = normal_messages(given);
  const jinja::Clock clock{request.now_ms, 0};
  CARREL_ASSIGN(const Value vars, variables(messages, request));
  CARREL_ASSIGN(const jinja::TextBody text, template_.render_marked(vars, limits(), clock));

  RenderedChat out;
  out.parts = parts_of(text);
  const auto& all = messages.seq().items;
  Pairs shorter = vars.dict().items;
  put(shorter, "add_generation_prompt", Value::boolean(false));
  size_t n_bytes = 0;
  const size_t least = all.size() > kMaxBoundaries ? all.size() - kMaxBoundaries : 0;
  for (size_t n = all.size(); n > 0 && n_bytes + text.bytes.size() <= kMaxBoundaryBytes; n = n == least + 1 && least > 0 ? 1 : n - 1) {
    put(shorter, "messages", frozen({all.begin(), all.begin() + static_cast<ptrdiff_t>(n)}));
    const auto prefix = template_.render(jinja::make_dict(shorter), limits(), clock);
    n_bytes += text.bytes.size();
    if (!prefix) continue;
    const size_t end = common_prefix(text.bytes, *prefix);
    if (end > 0) out.message_boundaries.push_back(end);
  }
  std::sort(out.message_boundaries.begin(), out.message_boundaries.end());
  out.message_boundaries.erase(std::unique(out.message_boundaries.begin(), out.message_boundaries.end()), out.message_boundaries.end());
  return out;
}

}  // namespace carrel
