#include "engine/shadow.h"

namespace carrel {

size_t ShadowQueue::push(ShadowSample sample) {
  if (sample.tokens.size() > kMostTokens) return 1;
  size_t lost = 0;
  for (; !samples_.empty() && (samples_.size() >= kMostSamples || n_tokens_ + sample.tokens.size() > kMostTokens); lost++) (void)pop();
  n_tokens_ += sample.tokens.size();
  samples_.push_back(std::move(sample));
  return lost;
}

std::optional<ShadowSample> ShadowQueue::pop() {
  if (samples_.empty()) return std::nullopt;
  ShadowSample out = std::move(samples_.front());
  samples_.pop_front();
  n_tokens_ -= out.tokens.size();
  return out;
}

}  // namespace carrel
