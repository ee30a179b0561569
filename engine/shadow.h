// Samples of answered hits that wait to be computed again: the tokens, and hashes of the first logit rows that the hit gave.
//
// Bounded; the oldest sample makes room. Holds tokens of tenants, so that a purge must reach it (Engine asks for the namespace's generation
// before it keeps, and before it uses one). Threads: the step thread's.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"

namespace carrel {

struct ShadowSample {
  std::string request_id;
  std::string namespace_id;
  Digest namespace_secret{};
  uint64_t generation = 0;      // of the namespace when it was taken
  std::vector<int32_t> tokens;  // the prompt, then the answer up to the token before the last hashed row
  size_t n_prompt = 0;
  int64_t point = 0;         // tokens that the hit skipped
  std::vector<Digest> rows;  // SHA-256 of the logits after the prompt, after its first answered token, …
};

class ShadowQueue {
 public:
  static constexpr size_t kMostRows = 4;  // of a sample
  static constexpr size_t kMostSamples = 64;
  static constexpr size_t kMostTokens = 1 << 20;  // of all samples

  /// Takes a sample; what it pushes out, or is too long itself, is lost: returns how many.
  size_t push(ShadowSample sample);
  std::optional<ShadowSample> pop();
  /// Forgets those that `stale` says; returns how many.
  template <class F>
  size_t drop(const F& stale) {
    size_t n = 0;
    for (auto at = samples_.begin(); at != samples_.end();) {
      if (!stale(*at)) {
        ++at;
        continue;
      }
      n_tokens_ -= at->tokens.size();
      at = samples_.erase(at);
      n++;
    }
    return n;
  }
  size_t size() const { return samples_.size(); }
  bool empty() const { return samples_.empty(); }

 private:
  std::deque<ShadowSample> samples_;
  size_t n_tokens_ = 0;
};

}  // namespace carrel
