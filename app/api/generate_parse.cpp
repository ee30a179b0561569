#include <algorithm>
#include <charconv>
#include <cmath>

#include "app/api/fields.h"
#include "app/api/generate.h"
#include "app/api/messages.h"

namespace carrel {
namespace {

constexpr int kMaxChoices = 8;
constexpr size_t kMaxPrompts = 64;
constexpr int64_t kDefaultAnswer = 1024;

/// Fields of the dialects that we read nowhere because they change nothing here.
void allow_inert(Fields& f) { f.allow({"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"}); }

/// Features of the dialect that this version lacks: refused when asked for, accepted when switched off.
void refuse_missing(Fields& f, Dialect dialect) {
  const auto refuse = [&](const char* name, const char* what) { f.wrong(name, std::string(what) + " is not in this version"); };
  if (dialect == Dialect::kChat) {
    if (const Json* t = f.find("tools"); t != nullptr && !(t->is_array() && t->empty())) refuse("tools", "tool calling");
    if (const Json* t = f.find("tool_choice"); t != nullptr && !(t->is_string() && *t == "none")) refuse("tool_choice", "tool calling");
    f.allow({"parallel_tool_calls"});
    if (const Json* t = f.find("modalities"); t != nullptr && *t != Json::array({"text"})) refuse("modalities", "another modality than text");
    if (f.has("audio")) refuse("audio", "audio");
    if (f.has("functions")) refuse("functions", "function calling");
  } else {
    if (f.has("suffix") && !f.text("suffix", "").empty()) refuse("suffix", "insertion before a suffix");
    if (f.integer("best_of", 1, 1, INT32_MAX) != 1) refuse("best_of", "best_of above 1");
  }
  if (dialect == Dialect::kInfer) {  // its answer has no place for them
    if (f.integer("n", 1, 1, kMaxChoices) != 1) refuse("n", "more than one answer on /v1/infer");
    if (f.flag("logprobs", false)) refuse("logprobs", "logprobs on /v1/infer");
  }
  if (const Json* t = f.find("response_format"); t != nullptr && !has_text(*t, "type", "text")) refuse("response_format", "constrained output");
}

void read_stop(Fields& f, Request& r) {
  const Json* j = f.find("stop");
  if (j == nullptr) return;
  if (j->is_string()) r.stop.push_back(j->get<std::string>());
  else if (j->is_array() && j->size() <= 16 && std::all_of(j->begin(), j->end(), [](const Json& s) { return s.is_string(); }))
    for (const Json& s : *j) r.stop.push_back(s.get<std::string>());
  else return f.wrong("stop", "must be a string or an array of at most 16 strings");
  for (const std::string& s : r.stop)
    if (s.empty()) return f.wrong("stop", "must not hold an empty string");
}

void read_bias(Fields& f, SamplingParams& p, int vocab) {
  const Json* j = f.find("logit_bias");
  if (j == nullptr) return;
  if (!j->is_object() || j->size() > 1024) return f.wrong("logit_bias", "must be an object of at most 1024 token ids");
  for (const auto& [key, value] : j->items()) {
    int32_t id = -1;
    const auto [end, wrong] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (wrong != std::errc{} || end != key.data() + key.size() || id < 0 || id >= vocab || !value.is_number()) return f.wrong("logit_bias", "must map token ids below " + std::to_string(vocab) + " to numbers");
    p.logit_bias.emplace_back(id, value.get<float>());
  }
}

SamplingParams read_sampling(Fields& f, const Model& model, Env* env, Dialect dialect, bool& logprobs) {
  const GenerationDefaults& d = model.generation_defaults();
  SamplingParams p;
  p.temperature = static_cast<float>(f.number("temperature", d.temperature));
  p.top_p = static_cast<float>(f.number("top_p", d.top_p));
  p.top_k = static_cast<int>(f.integer("top_k", d.top_k, -1, 1'000'000));
  if (p.top_k < 0) p.top_k = 0;  // -1 means off in some clients
  p.min_p = static_cast<float>(f.number("min_p", 0));
  p.repetition_penalty = static_cast<float>(f.number("repetition_penalty", 1));
  p.presence_penalty = static_cast<float>(f.number("presence_penalty", 0));
  p.frequency_penalty = static_cast<float>(f.number("frequency_penalty", 0));
  read_bias(f, p, model.graph().vocab);
  if (f.has("seed")) p.seed = static_cast<uint64_t>(f.integer("seed", 0, INT64_MIN, INT64_MAX));
  else env->random(std::as_writable_bytes(std::span(&p.seed, 1)));
  if (dialect == Dialect::kCompletion) {
    logprobs = f.has("logprobs");
    if (logprobs) p.n_logprobs = static_cast<int>(f.integer("logprobs", 0, 0, 20));
  } else {
    logprobs = f.flag("logprobs", false);
    const int64_t top = f.integer("top_logprobs", 0, 0, 20);
    if (top > 0 && !logprobs) f.wrong("top_logprobs", "needs logprobs: true");
    if (logprobs) p.n_logprobs = static_cast<int>(top);
  }
  if (Status ok = check(p, model.graph().vocab); !ok) f.wrong(ok.error().where, ok.error().message);
  return p;
}

/// Narrowing of the cache by the request: {"carrel": {"reuse": false, "store": false}}, and OpenAI's `store`.
void read_cache(Fields& f, Request& r) {
  r.store = f.flag("store", true);
  const Json* j = f.find("carrel");
  if (j == nullptr) return;
  if (!j->is_object()) return f.wrong("carrel", "must be an object");
  Fields own(*j);
  r.reuse = own.flag("reuse", true);
  r.store = r.store && own.flag("store", true);
  if (!own.status()) return f.wrong("carrel." + own.status().error().where, own.status().error().message);
  for (const std::string& name : own.unknown()) f.wrong("carrel." + name, "is unknown; known are reuse and store");
}

Result<std::vector<int32_t>> text_tokens(const Model& model, const std::string& text) { return model.tokenizer().encode(text, {.add_special = true, .parse_special = false}); }

struct Prompt {
  std::vector<int32_t> tokens;
  std::string text;                 // for echo
  std::vector<int64_t> boundaries;  // of messages
};

Result<std::vector<Prompt>> read_prompts(Fields& f, const Model& model) {
  const Json* j = f.find("prompt");
  if (j == nullptr) return fail(Code::kInvalidArgument, "is required", "prompt");
  const auto is_ids = [](const Json& a) { return a.is_array() && !a.empty() && std::all_of(a.begin(), a.end(), [](const Json& x) { return x.is_number_integer(); }); };
  const auto of_ids = [&](const Json& a) -> Result<Prompt> {
    Prompt p;
    for (const Json& x : a) {
      const int64_t id = x.is_number_unsigned() && x.get<uint64_t>() > INT32_MAX ? -1 : x.get<int64_t>();
      if (id < 0 || id >= model.graph().vocab) return fail(Code::kInvalidArgument, "holds a token id outside 0.." + std::to_string(model.graph().vocab - 1), "prompt");
      p.tokens.push_back(static_cast<int32_t>(id));
    }
    p.text = model.tokenizer().decode(p.tokens, false);
    return p;
  };
  const auto of_text = [&](const Json& s) -> Result<Prompt> {
    Prompt p;
    p.text = s.get<std::string>();
    CARREL_ASSIGN(p.tokens, text_tokens(model, p.text));
    return p;
  };
  std::vector<Prompt> out;
  const auto take = [&](const Json& one) -> Status {
    CARREL_ASSIGN(Prompt p, one.is_string() ? of_text(one) : of_ids(one));
    if (p.tokens.empty()) return fail(Code::kInvalidArgument, "is empty and the model has no start token", "prompt");
    out.push_back(std::move(p));
    return {};
  };
  if (j->is_string() || is_ids(*j)) {
    CARREL_TRY(take(*j));
    return out;
  }
  if (!j->is_array() || j->empty() || j->size() > kMaxPrompts) return fail(Code::kInvalidArgument, "must be a string, token ids, or an array of 1 to 64 of them", "prompt");
  for (const Json& one : *j) {
    if (!one.is_string() && !is_ids(one)) return fail(Code::kInvalidArgument, "must be a string, token ids, or an array of them", "prompt");
    CARREL_TRY(take(one));
  }
  return out;
}

Result<std::vector<Prompt>> read_messages(Fields& f, const Model& model, Env* env) {
  CARREL_ASSIGN(ChatTokens chat, read_chat(f, model, env));
  return std::vector<Prompt>{{std::move(chat.tokens), "", std::move(chat.boundaries)}};
}

Result<std::vector<Prompt>> read_input(Fields& f, const Model& model, Env* env) {
  const Json* input = f.find("input");
  if (input == nullptr || !input->is_string()) return fail(Code::kInvalidArgument, "must be a string", "input");
  const bool raw = f.flag("raw", model.chat_template() == nullptr);
  if (raw) {
    CARREL_ASSIGN(auto tokens, text_tokens(model, input->get<std::string>()));
    if (tokens.empty()) return fail(Code::kInvalidArgument, "is empty and the model has no start token", "input");
    return std::vector<Prompt>{{std::move(tokens), "", {}}};
  }
  CARREL_ASSIGN(ChatTokens chat, user_tokens(model, *input, env));
  return std::vector<Prompt>{{std::move(chat.tokens), "", std::move(chat.boundaries)}};
}

}  // namespace

Result<GenerateCall> parse_generate(Dialect dialect, const std::string& body, const Model& model, const Caller& caller, const GenerateDefaults& defaults,
                                    Env* env, const std::string& request_id) {
  CARREL_ASSIGN(const Json object, parse_body(body));
  Fields f(object);
  GenerateCall call;
  call.dialect = dialect;
  call.model = f.text("model", dialect == Dialect::kInfer ? model.name() : "");
  if (f.status() && call.model.empty()) return fail(Code::kInvalidArgument, "is required; this server has " + model.name(), "model");
  if (f.status()) CARREL_TRY(check_model(call.model, model));

  Request r;
  r.id = request_id;
  r.tenant = caller.tenant;
  r.namespace_id = caller.namespace_id;
  r.namespace_secret = caller.namespace_secret;
  r.timeout_ms = defaults.timeout_ms;
  r.queue_timeout_ms = defaults.queue_timeout_ms;
  allow_inert(f);
  refuse_missing(f, dialect);
  r.sampling = read_sampling(f, model, env, dialect, call.logprobs);
  read_stop(f, r);
  read_cache(f, r);
  r.ignore_end = f.flag("ignore_eos", false);
  const int64_t n = f.integer("n", 1, 1, kMaxChoices);
  call.stream = f.flag("stream", false);
  if (const Json* o = f.find("stream_options"); o != nullptr) {
    if (!o->is_object()) f.wrong("stream_options", "must be an object");
    else if (!call.stream) f.wrong("stream_options", "is allowed only with stream: true");
    else {
      Fields own(*o);
      call.include_usage = own.flag("include_usage", false);
      if (!own.status()) f.wrong("stream_options." + own.status().error().where, own.status().error().message);
    }
  }
  const bool echo = dialect == Dialect::kCompletion && f.flag("echo", false);
  if (echo && call.logprobs) f.wrong("echo", "together with logprobs is not in this version");
  const bool chat = dialect == Dialect::kChat;
  int64_t max_tokens = f.integer("max_tokens", dialect == Dialect::kCompletion ? 16 : 0, 1, INT32_MAX);
  if (chat && f.has("max_completion_tokens")) max_tokens = f.integer("max_completion_tokens", 0, 1, INT32_MAX);
  CARREL_TRY(f.status());
  call.n_choices = static_cast<size_t>(n);

  CARREL_ASSIGN(auto prompts, chat ? read_messages(f, model, env) : dialect == Dialect::kInfer ? read_input(f, model, env) : read_prompts(f, model));
  CARREL_TRY(f.status());
  CARREL_ASSIGN(call.ignored, ignored_fields(f, defaults.strict));

  for (Prompt& p : prompts) {
    Request one = r;
    one.prompt = std::move(p.tokens);
    one.boundaries = std::move(p.boundaries);
    const int64_t room = model.graph().max_positions - static_cast<int64_t>(one.prompt.size());
    one.max_new_tokens = max_tokens > 0 ? max_tokens : std::clamp<int64_t>(room, 1, kDefaultAnswer);
    for (int64_t i = 0; i < n; i++) {
      call.requests.push_back(one);
      call.requests.back().sampling.seed += static_cast<uint64_t>(i);
      if (echo) call.echoes.push_back(p.text);
    }
  }
  return call;
}

}  // namespace carrel
