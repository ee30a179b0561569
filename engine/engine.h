// The façade of the engine room: requests in, events out. Everything above speaks to a model through this header.
//
// One step thread owns model, state and batch; submit, cancel and stats may be called from any thread. A request's answer is a function of (model, prompt,
// sampling parameters, seed): neighbours, chunking, threads, hit or miss do not enter.
// Errors at submit: kInvalidArgument (can never run, with the numbers), kExhausted (queue full), kUnavailable (draining). Later ones arrive in Finish.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "engine/sample/sampler.h"
#include "engine/schedule/fair_queue.h"
#include "engine/state/state_manager.h"

namespace carrel {

class Model;

struct Request {
  std::string id;  // request id: log, events
  std::vector<int32_t> prompt;
  std::string tenant;          // fairness
  std::string namespace_id;    // reuse stays inside it
  Digest namespace_secret{};
  SamplingParams sampling;
  int64_t max_new_tokens = 0;
  std::vector<std::string> stop;
  bool ignore_end = false;       // go on at the model's end tokens
  bool skip_special = true;      // control tokens give no text
  bool reuse = true, store = true;
  std::vector<int64_t> boundaries;  // positions in the prompt where a message ends, ascending (AdmitRequest)
  Priority priority = Priority::kOnline;
  int64_t queue_timeout_ms = 0;  // 0: none
  int64_t timeout_ms = 0;        // from submit; 0: none
};

struct TokenInfo {
  int32_t id = 0;
  std::string bytes;  // of this token alone
  float logprob = 0;
  std::vector<TokenLogprob> top;
};

/// Text that may be sent now and the tokens sampled since the last event; the text of a token may come later than the token (split characters, possible
/// stop strings) or never (the stop string itself).
struct Delta {
  std::string text;
  std::vector<TokenInfo> tokens;
};

enum class FinishReason { kStop, kLength, kCancelled, kDeadline, kError };

struct EngineUsage {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;  // cached: whose computation was skipped
  Match match;
  int64_t queue_ns = 0, ttft_ns = 0, total_ns = 0;  // from submit
};

struct Finish {
  FinishReason reason = FinishReason::kStop;
  std::string stop;  // the stop string that ended it, if one did
  Error error;       // kError, kDeadline
  EngineUsage usage;
};

using Event = std::variant<Delta, Finish>;

/// The reader's end of one request. One reader thread. Dropping it cancels the request.
class Stream {
 public:
  ~Stream();
  /// The next event, or nothing when timeout_ms passed. After Finish nothing more comes.
  std::optional<Event> next(int64_t timeout_ms);
  void cancel();

  struct Shared;  // both ends' half; opaque

 private:
  friend class Engine;
  std::shared_ptr<Shared> shared_;
};

struct EngineConfig {
  int max_batch_size = 32;     // sequences that advance in one step
  int max_num_seqs = 256;      // running sequences
  int prefill_chunk = 512;     // token rows of one step
  size_t max_queue_depth = 512;
  double shadow_verify_rate = 0;  // share of hits that are computed again when nothing else waits
};

/// Rows of logits of one step, at most: one for each sequence, some more for one that is computed again.
int max_output_rows(const EngineConfig& config);

struct EngineStats {
  size_t queued = 0, running = 0;
  uint64_t steps = 0, prefill_tokens = 0, decode_tokens = 0, finished = 0, cancelled = 0, failed = 0, refused = 0, preempted = 0;
  uint64_t graph_plans = 0, graph_replans = 0, graph_refused = 0;  // GraphRunner::Counts
  /// Sampled hits: kept for later, computed again, of these with another result, given up (purged, pushed out, no space).
  uint64_t shadow_sampled = 0, shadow_verified = 0, shadow_mismatches = 0, shadow_dropped = 0;
  int64_t step_ns = 0;          // time spent in steps
  int64_t heartbeat_age_ns = 0; // since the step thread last came round
  bool draining = false;
  StateStats state;
};

class Engine {
 public:
  /// model, state and env are borrowed and outlive the engine.
  Engine(const EngineConfig& config, Model* model, StateManager* state, Env* env);
  ~Engine();

  Result<std::unique_ptr<Stream>> submit(Request request);
  EngineStats stats() const;
  const Model& model() const;
  StateManager& state();
  /// For drills: while it is on, a changed layout or epoch does not lead to new plans, so that steps are refused as stale and their requests
  /// end with that error.
  void hold_plans_for_test(bool on);
  /// Takes no more requests; returns when the running ones ended or the time is up (then they are cancelled).
  void drain(int64_t timeout_ms);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carrel
