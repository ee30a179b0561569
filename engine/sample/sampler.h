// Logits to a token: penalties, bias, temperature, truncation, a draw whose randomness is a function of (seed, position) alone, so that a request's
// answer does not depend on its neighbours. Log probabilities are those of the model (before penalties and temperature).
//
// Threads: pure; the scratch belongs to the Sampler object, one thread at a time. Errors: kInternal "numeric error" when logits hold NaN.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"

namespace carrel {

struct SamplingParams {
  float temperature = 1.0f;  // 0 = greedy
  int top_k = 0;             // 0 = off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // over prompt and answer
  float presence_penalty = 0.0f;    // over the answer
  float frequency_penalty = 0.0f;   // over the answer
  std::vector<std::pair<int32_t, float>> logit_bias;
  uint64_t seed = 0;
  int n_logprobs = -1;  // -1: none; 0: the chosen token only; n: with the n best
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

struct Sampled {
  int32_t id = 0;
  float logprob = 0;                // valid when logprobs were asked for
  std::vector<TokenLogprob> top;  // n_logprobs best, descending, ties to the lower id
};

class Sampler {
 public:
  /// position: index of the new token in the sequence; prompt and answer: what stands before it.
  Result<Sampled> sample(std::span<const float> logits, const SamplingParams& params, std::span<const int32_t> prompt, std::span<const int32_t> answer,
                         int64_t position);

 private:
  std::vector<float> adjusted_;
  std::vector<std::pair<float, int32_t>> heap_;
  std::vector<int32_t> counts_, touched_;
};

/// Log probability of each id under softmax(logits); float64 sums in index order.
std::vector<float> logprobs_of(std::span<const float> logits, std::span<const int32_t> ids);

/// Philox 4x32-10 (Salmon et al., SC 2011), counter = (position, 0), key = seed: a uniform number in [0, 1).
double philox_uniform(uint64_t seed, uint64_t position);

/// Refuses values outside their range, naming the field as the API spells it.
Status check(const SamplingParams& params, int vocab);

}  // namespace carrel
