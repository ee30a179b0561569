#include <algorithm>
#include <optional>

#include "app/api/errors.h"
#include "app/api/fields.h"
#include "app/api/generate.h"
#include "app/api/match_json.h"

namespace carrel {
namespace {

constexpr int64_t kPollMs = 50;        // how soon a client that left is noticed while nothing is sampled
constexpr int64_t kKeepAliveMs = 2000;  // an SSE comment when nothing else is sent

/// One choice of the answer while it grows.
struct Choice {
  std::unique_ptr<Stream> stream;
  int64_t n_offset = 0;            // characters of the tokens that were told in chunks
  std::string text;                // collected (not streamed)
  std::vector<TokenInfo> tokens;   // for logprobs
  std::optional<Finish> finish;
};

const char* finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kDeadline: return "deadline";
    case FinishReason::kError: return "error";
  }
  return "error";
}

class Answer {
 public:
  Answer(std::shared_ptr<GenerateCall> call, const Model& model, Env* env)
      : call_(std::move(call)), model_(model), id_((chat() ? "chatcmpl-" : "cmpl-") + call_->requests.front().id), created_(env->wall_ms() / 1000) {}

  std::vector<Choice> choices;

  bool chat() const { return call_->dialect == Dialect::kChat; }
  const GenerateCall& call() const { return *call_; }

  GenerateOutcome outcome() const {
    GenerateOutcome o;
    for (size_t i = 0; i < choices.size(); i++) {
      const auto& f = choices[i].finish;
      if (!f) continue;
      o.prompt_tokens += i % call_->n_choices == 0 ? f->usage.prompt_tokens : 0;  // several choices share one prompt
      o.cached_tokens += i % call_->n_choices == 0 ? f->usage.cached_tokens : 0;
      o.completion_tokens += f->usage.completion_tokens;
      o.total_ns = std::max(o.total_ns, f->usage.total_ns);
      if (i % call_->n_choices == 0) {
        const Match& m = f->usage.match;
        o.match.nominal += m.nominal;
        o.match.effective += m.effective;
        o.match.restored += m.restored;
        o.match.vetoes.insert(o.match.vetoes.end(), m.vetoes.begin(), m.vetoes.end());
      }
      if (i == 0) {
        o.queue_ns = f->usage.queue_ns;
        o.ttft_ns = f->usage.ttft_ns;
        o.finish = finish_name(f->reason);
      }
      if (!o.failed && (f->reason == FinishReason::kError || f->reason == FinishReason::kDeadline)) o.failed = true, o.error = f->error;
    }
    return o;
  }

  Json usage() const {
    const GenerateOutcome o = outcome();
    return {{"prompt_tokens", o.prompt_tokens},
            {"completion_tokens", o.completion_tokens},
            {"total_tokens", o.prompt_tokens + o.completion_tokens},
            {"prompt_tokens_details", {{"cached_tokens", o.cached_tokens}}},
            {"completion_tokens_details", {{"reasoning_tokens", 0}, {"accepted_prediction_tokens", 0}, {"rejected_prediction_tokens", 0}}},
            {"carrel", match_json(o.match)}};
  }

  Json head(const char* object) const { return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_.name()}, {"system_fingerprint", model_.numerics_id().substr(0, 16)}}; }

  std::string whole() const {
    if (call_->dialect == Dialect::kInfer) {
      Json j{{"output", choices[0].text}, {"finish_reason", finish_name(choices[0].finish->reason)}, {"model", model_.name()}, {"usage", usage()}};
      return dump(j) + "\n";
    }
    Json j = head(chat() ? "chat.completion" : "text_completion");
    Json list = Json::array();
    for (size_t i = 0; i < choices.size(); i++) {
      const Choice& c = choices[i];
      Json one{{"index", i}};
      const std::string text = (call_->echoes.empty() ? "" : call_->echoes[i]) + c.text;
      if (chat()) one["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
      else one["text"] = text;
      int64_t offset = 0;
      one["logprobs"] = call_->logprobs ? logprobs(c.tokens, offset) : Json(nullptr);
      one["finish_reason"] = finish_name(c.finish->reason);
      list.push_back(std::move(one));
    }
    j["choices"] = std::move(list);
    j["usage"] = usage();
    return dump(j) + "\n";
  }

  /// One SSE chunk; delta empty and no reason: the opening chunk of a chat.
  std::string chunk(size_t index, const std::string& text, const std::vector<TokenInfo>& tokens, const char* reason, bool opening) {
    if (call_->dialect == Dialect::kInfer) {
      Json j{{"output", text}, {"finish_reason", reason != nullptr ? Json(reason) : Json(nullptr)}};
      return "data: " + dump(j) + "\n\n";
    }
    Json j = head(chat() ? "chat.completion.chunk" : "text_completion");
    Json one{{"index", index}};
    if (chat()) {
      Json delta = Json::object();
      if (opening) delta["role"] = "assistant";
      if (opening || reason == nullptr || !text.empty()) delta["content"] = text;
      one["delta"] = std::move(delta);
    } else {
      one["text"] = text;
    }
    one["logprobs"] = call_->logprobs && !tokens.empty() ? logprobs(tokens, choices[index].n_offset) : Json(nullptr);
    one["finish_reason"] = reason != nullptr ? Json(reason) : Json(nullptr);
    j["choices"] = Json::array({std::move(one)});
    if (call_->include_usage) j["usage"] = nullptr;
    return "data: " + dump(j) + "\n\n";
  }

  std::string usage_chunk() const {
    Json j = call_->dialect == Dialect::kInfer ? Json::object() : head(chat() ? "chat.completion.chunk" : "text_completion");
    if (call_->dialect != Dialect::kInfer) j["choices"] = Json::array();
    j["usage"] = usage();
    return "data: " + dump(j) + "\n\n";
  }

 private:
  std::string token_text(int32_t id) const { return std::string(model_.tokenizer().token_bytes(id)); }

  /// offset: characters before these tokens; moved behind them.
  Json logprobs(const std::vector<TokenInfo>& tokens, int64_t& offset) const {
    const auto bytes = [](const std::string& s) {
      Json b = Json::array();
      for (const char c : s) b.push_back(static_cast<unsigned char>(c));
      return b;
    };
    if (chat()) {
      Json content = Json::array();
      for (const TokenInfo& t : tokens) {
        Json top = Json::array();
        for (const TokenLogprob& o : t.top) top.push_back({{"token", token_text(o.id)}, {"logprob", o.logprob}, {"bytes", bytes(token_text(o.id))}});
        content.push_back({{"token", t.bytes}, {"logprob", t.logprob}, {"bytes", bytes(t.bytes)}, {"top_logprobs", std::move(top)}});
      }
      return {{"content", std::move(content)}, {"refusal", nullptr}};
    }
    Json j{{"tokens", Json::array()}, {"token_logprobs", Json::array()}, {"top_logprobs", Json::array()}, {"text_offset", Json::array()}};
    for (const TokenInfo& t : tokens) {
      j["tokens"].push_back(t.bytes);
      j["token_logprobs"].push_back(t.logprob);
      Json top = Json::object();
      for (const TokenLogprob& o : t.top) top[token_text(o.id)] = o.logprob;
      j["top_logprobs"].push_back(std::move(top));
      j["text_offset"].push_back(offset);
      offset += std::count_if(t.bytes.begin(), t.bytes.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
    }
    return j;
  }

  std::shared_ptr<GenerateCall> call_;
  const Model& model_;
  std::string id_;
  int64_t created_;
};

/// Waits for the next event of any unfinished choice, at most kPollMs.
std::optional<std::pair<size_t, Event>> next_event(Env* env, std::vector<Choice>& choices) {
  const auto open = [](const Choice& c) { return !c.finish; };
  const bool single = std::count_if(choices.begin(), choices.end(), open) == 1;
  for (int64_t waited = 0; waited < kPollMs; waited += 2) {
    for (size_t i = 0; i < choices.size(); i++) {
      if (choices[i].finish) continue;
      if (auto e = choices[i].stream->next(single ? kPollMs : 0)) return std::pair{i, std::move(*e)};
      if (single) return std::nullopt;
    }
    env->sleep_ms(2);
  }
  return std::nullopt;
}

bool all_finished(const std::vector<Choice>& choices) {
  return std::all_of(choices.begin(), choices.end(), [](const Choice& c) { return c.finish.has_value(); });
}

void cancel_all(std::vector<Choice>& choices) {
  for (Choice& c : choices) c.stream->cancel();
}

/// Cancelled though nobody here asked for it: the server stops, and what there is of the answer is none.
void fail_if_cut(const std::vector<Choice>& choices, GenerateOutcome& o) {
  const bool cut = std::any_of(choices.begin(), choices.end(), [](const Choice& c) { return c.finish && c.finish->reason == FinishReason::kCancelled; });
  if (!cut || o.failed) return;
  o.failed = true;
  o.error = Error{Code::kUnavailable, "the server is shutting down and ended this answer; retry elsewhere or later", ""};
}

/// The right to go on, asked at most every 100 ms.
class Permit {
 public:
  explicit Permit(const GenerateCall& call) : call_(call) {}
  bool holds(int64_t now_ns) {
    if (refused_ || !call_.permit || now_ns - asked_ns_ < 100'000'000) return !refused_;
    asked_ns_ = now_ns;
    refused_ = !call_.permit().has_value();
    return !refused_;
  }
  bool refused() const { return refused_; }

 private:
  const GenerateCall& call_;
  int64_t asked_ns_ = 0;
  bool refused_ = false;
};

void collect(Answer& answer, Env* env, const HttpRequest& http, HttpResponse& out, const std::function<void(const GenerateOutcome&)>& on_done) {
  bool gone = false;
  Permit permit(answer.call());
  while (!all_finished(answer.choices)) {
    auto next = next_event(env, answer.choices);
    if (!permit.holds(env->mono_ns())) cancel_all(answer.choices);
    // Asked after each event too: a model that decodes quickly leaves no pause in which to ask.
    if (!gone && http.client_gone()) gone = true, cancel_all(answer.choices);
    if (!next) continue;
    Choice& c = answer.choices[next->first];
    if (Delta* d = std::get_if<Delta>(&next->second)) {
      c.text += d->text;
      if (answer.call().logprobs) std::move(d->tokens.begin(), d->tokens.end(), std::back_inserter(c.tokens));
    } else {
      c.finish = std::get<Finish>(std::move(next->second));
    }
  }
  GenerateOutcome o = answer.outcome();
  if (!gone && !permit.refused()) fail_if_cut(answer.choices, o);
  if (permit.refused()) set_error(out, 401, "authentication_error", "the key ended while the request ran", "invalid_api_key", "", http.id);
  else if (o.failed) set_error(out, o.error, http.id);
  else if (gone) set_error(out, 499, "cancelled", "the client left", "cancelled", "", http.id);
  else out.body = answer.whole();
  on_done(o);
}

class StreamWriter {
 public:
  StreamWriter(std::shared_ptr<Answer> answer, Env* env, std::string request_id) : answer_(std::move(answer)), env_(env), request_id_(std::move(request_id)) {}

  GenerateOutcome run(const Send& send) {
    auto& choices = answer_->choices;
    std::vector<std::vector<TokenInfo>> pending(choices.size());
    const bool chat = answer_->chat();
    for (size_t i = 0; i < choices.size(); i++) {
      if (chat) put(send, answer_->chunk(i, "", {}, nullptr, true));
      else if (!answer_->call().echoes.empty()) put(send, answer_->chunk(i, answer_->call().echoes[i], {}, nullptr, false));
    }
    Permit permit(answer_->call());
    while (!all_finished(choices)) {
      auto next = next_event(env_, choices);
      if (!permit.holds(env_->mono_ns())) cancel_all(choices);
      if (!next) {
        keep_alive(send);
        continue;
      }
      const size_t i = next->first;
      if (Delta* d = std::get_if<Delta>(&next->second)) {
        if (answer_->call().logprobs) std::move(d->tokens.begin(), d->tokens.end(), std::back_inserter(pending[i]));
        if (d->text.empty()) continue;
        put(send, answer_->chunk(i, d->text, pending[i], nullptr, false));
        pending[i].clear();
      } else {
        choices[i].finish = std::get<Finish>(std::move(next->second));
        const Finish& f = *choices[i].finish;
        if (f.reason == FinishReason::kStop || f.reason == FinishReason::kLength) put(send, answer_->chunk(i, "", pending[i], finish_name(f.reason), false));
      }
    }
    GenerateOutcome o = answer_->outcome();
    if (!gone_ && !permit.refused()) fail_if_cut(choices, o);
    // After the first byte an error is an event, and no [DONE] follows it.
    if (permit.refused()) {
      put(send, "event: error\ndata: " + error_body("authentication_error", "the key ended while the request ran", "invalid_api_key", "", request_id_) + "\n");
    } else if (o.failed) {
      put(send, "event: error\ndata: " + error_body(o.error, request_id_) + "\n");
    } else if (!gone_) {
      if (answer_->call().include_usage || answer_->call().dialect == Dialect::kInfer) put(send, answer_->usage_chunk());
      put(send, "data: [DONE]\n\n");
    }
    return o;
  }

 private:
  void put(const Send& send, const std::string& bytes) {
    if (gone_) return;
    last_ns_ = env_->mono_ns();
    if (!send(bytes)) leave();
  }
  void keep_alive(const Send& send) {
    if (gone_) return;
    if (env_->mono_ns() - last_ns_ > kKeepAliveMs * 1'000'000) put(send, ": still working\n\n");
    else if (!send("")) leave();
  }
  void leave() {
    gone_ = true;
    cancel_all(answer_->choices);
  }

  std::shared_ptr<Answer> answer_;
  Env* env_;
  std::string request_id_;
  int64_t last_ns_ = 0;
  bool gone_ = false;
};

}  // namespace

const Request* find_overflow(const GenerateCall& call, const Model& model) {
  const auto too_long = [&](const Request& r) { return static_cast<int64_t>(r.prompt.size()) + r.max_new_tokens > model.graph().max_positions; };
  const auto at = std::find_if(call.requests.begin(), call.requests.end(), too_long);
  return at == call.requests.end() ? nullptr : &*at;
}

void tell_ignored(const std::vector<std::string>& ignored, HttpResponse& out) {
  std::string names;
  for (const std::string& n : ignored) names += (names.empty() ? "" : ", ") + n;
  if (!names.empty()) out.headers.emplace_back("x-carrel-ignored", names);
}

void run_generate(std::shared_ptr<GenerateCall> call, Engine& engine, Env* env, const HttpRequest& http, HttpResponse& out,
                  std::function<void(const GenerateOutcome&)> on_done) {
  tell_ignored(call->ignored, out);
  auto answer = std::make_shared<Answer>(call, engine.model(), env);
  for (const Request& r : call->requests) {
    auto stream = engine.submit(r);
    if (!stream) {
      set_error(out, stream.error(), http.id);
      GenerateOutcome o;
      o.failed = o.refused = true;
      o.error = stream.error();
      cancel_all(answer->choices);
      return on_done(o);
    }
    Choice choice;
    choice.stream = std::move(*stream);
    answer->choices.push_back(std::move(choice));
  }
  if (!call->stream) return collect(*answer, env, http, out, on_done);
  out.content_type = "text/event-stream";
  out.headers.emplace_back("Cache-Control", "no-store");
  out.stream = [answer, env, id = http.id, on_done = std::move(on_done)](const Send& send) { on_done(StreamWriter(answer, env, id).run(send)); };
}

}  // namespace carrel
