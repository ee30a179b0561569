// Generation requests of every dialect: JSON to engine requests, engine events to JSON or SSE.
//
// Parsing is pure but for the model's text front end; running blocks the connection's thread until the answer is complete or the client left.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/api/http.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/model/model.h"

namespace carrel {

enum class Dialect { kChat, kCompletion, kInfer };

/// Who asks: from the authenticated key; a request can only narrow it.
struct Caller {
  std::string tenant, key_id, namespace_id;
  Digest namespace_secret{};
};

struct GenerateCall {
  Dialect dialect = Dialect::kChat;
  std::string model;                  // as asked for
  std::vector<Request> requests;      // prompts × n_choices, prompt-major
  size_t n_choices = 1;               // of each prompt
  std::vector<std::string> echoes;    // completions with echo: text of each prompt, by request
  bool stream = false, include_usage = false, logprobs = false;
  std::vector<std::string> ignored;   // unknown fields
  std::function<Status()> permit;     // asked while the answer runs: a revoked key ends it
};

/// Limits and defaults that the configuration gives.
struct GenerateDefaults {
  int64_t timeout_ms = 60'000, queue_timeout_ms = 60'000;
  bool strict = false;
};

/// kInvalidArgument names the field; kNotFound for another model's name.
Result<GenerateCall> parse_generate(Dialect dialect, const std::string& body, const Model& model, const Caller& caller, const GenerateDefaults& defaults,
                                    Env* env, const std::string& request_id);

/// What happened, for log, metrics and usage accounts; summed over the choices; what choices share, their prompt, counts once.
struct GenerateOutcome {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  Match match;  // summed over the prompts
  int64_t queue_ns = 0, ttft_ns = 0, total_ns = 0;
  std::string finish;  // of the first choice
  Error error;
  bool failed = false;
  bool refused = false;  // not even queued
};

/// Submits and answers. on_done is called once, when the outcome is known (after the last byte of a stream).
void run_generate(std::shared_ptr<GenerateCall> call, Engine& engine, Env* env, const HttpRequest& http, HttpResponse& out,
                  std::function<void(const GenerateOutcome&)> on_done);

struct ChatTokens {
  std::vector<int32_t> tokens;
  std::vector<int64_t> boundaries;  // Request::boundaries
};

/// Tokens of a chat, through the model's template; kUnsupported when there is none.
Result<ChatTokens> chat_tokens(const Model& model, const std::string& messages_json, const std::string& tools_json, bool add_generation_prompt,
                                         const std::string& extra_json, int64_t now_ms);

/// The request that is longer than the model's context, if one is.
const Request* find_overflow(const GenerateCall& call, const Model& model);

/// Names what was ignored in x-carrel-ignored.
void tell_ignored(const std::vector<std::string>& names, HttpResponse& out);

}  // namespace carrel
