// What a float32 reference gave for a real checkpoint (layout golden/real, see the README there), read into plain values; and the check
// against it. Private to this folder. Threads: the caller's, plus the teams of the models that it loads.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/golden_run.h"

namespace carrel {

struct RealLogit {
  int32_t id = 0;
  double logit = 0;
};

struct RealStage {
  std::string value;  // name of the value in our graph
  double rms = 0;
  std::vector<double> first;  // its first elements, at the last position
};

struct RealPrompt {
  std::string id;
  std::string text;           // as the model sees it, control tokens written out
  std::string messages_json;  // of a chat: `text` is what the template must give; else empty
  bool add_generation_prompt = false;
  std::vector<int32_t> ids;
  std::vector<double> logprobs;  // of ids[1..], given what stands before
  double logprob_mean = 0;
  std::vector<RealLogit> top;  // at the last position, best first
  double log_sum = 0;          // of exp over the logits there
  std::vector<int32_t> greedy;
  std::vector<double> margins;                             // best minus second before each greedy token
  std::vector<std::pair<int, std::vector<RealLogit>>> at;  // positions and their best
  std::vector<RealStage> trace;                            // may be empty
};

struct RealVectors {
  std::string model_sha256;
  std::vector<RealPrompt> prompts;
};

/// What the fast path may differ by, from the float32 reference or from `exact` (which is held to that within kRealBound).
struct RealLimits {
  double mean_kl_long = 0, mean_kl = 0;  // KL(exact || fast), mean over positions: the prompt `long`, any prompt
  double logprob_long = 0, logprob = 0;  // |mean log probability - that of the reference|
  double top20_mean = 0;                 // largest difference among the 20 best logits, mean over positions
  double greedy_margin = 0;              // greedy tokens are equal up to the first margin below this
  double argmax_long = 0;                // share of positions with the same best token, at least
};

/// Logits and log probabilities of `reference` and `exact`, absolute.
constexpr double kRealBound = 0.001;

bool is_real_layout(Env* env, const std::string& dir);
Result<RealVectors> read_real_vectors(Env* env, const std::string& dir);
/// limits.json (`where` names it in errors), member `real`, by the name of the folder, else `default`.
Result<RealLimits> read_real_limits(const std::string& json, const std::string& where, const std::string& name);

/// Checks one folder; the limits are used by `fast`. An error means that the check could not run.
Status check_real(Env* env, const std::string& dir, const RealLimits& limits, const GoldenOptions& options, GoldenFile& out);

}  // namespace carrel
