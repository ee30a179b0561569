// Routing and experts of the vector sets (architectures reference 2.10, 3.7, 4.3, 5.3, 6.2, 7). A token's experts are added by ascending
// id; which tokens share a call never enters, because `linear` does not let it.
#include <algorithm>

#include "kernels/cpu/math.h"
#include "kernels/cpu/vector_ops.h"

namespace carrel::cpu {
namespace {

/// What experts of one token are ranked by, without their bias: s[n].
void expert_scores(const RouteArgs& args, const float* router, float* s) {
  switch (args.score) {
    case RouteScore::kSqrtSoftplus:
      for (int e = 0; e < args.n_experts; ++e) s[e] = __builtin_sqrtf(softplus_of(router[e]));
      return;
    case RouteScore::kSigmoid:
      for (int e = 0; e < args.n_experts; ++e) s[e] = sigmoid_of(router[e]);
      return;
    case RouteScore::kSoftmaxOfChosen:
      std::copy(router, router + args.n_experts, s);
      return;
    case RouteScore::kSoftmax:
      break;
  }
  float top = -__builtin_inff(), sum = 0;
  for (int e = 0; e < args.n_experts; ++e) top = router[e] > top ? router[e] : top;
  for (int e = 0; e < args.n_experts; ++e) sum += s[e] = exp_of(router[e] - top);
  for (int e = 0; e < args.n_experts; ++e) s[e] /= sum;
}

/// Weights of the chosen experts, ids ascending.
void expert_weights(const RouteArgs& args, const float* s, const int32_t* ids, float* weights) {
  const int n = args.top_k;
  for (int i = 0; i < n; ++i) weights[i] = s[ids[i]];
  if (args.score == RouteScore::kSoftmaxOfChosen) {
    float top = -__builtin_inff();
    for (int i = 0; i < n; ++i) top = weights[i] > top ? weights[i] : top;
    for (int i = 0; i < n; ++i) weights[i] = exp_of(weights[i] - top);
  }
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += weights[i];
  for (int i = 0; i < n; ++i) weights[i] = (args.normalize ? weights[i] / (sum + args.normalize_eps) : weights[i]) * args.scale;
}

}  // namespace

void VectorOps::route(const RouteArgs& args, const float* scores, std::span<const int32_t> token_ids, int32_t* expert_ids, float* weights) {
  for (ThreadScratch& s : scratch_) s.ranks.reserve(static_cast<size_t>(args.n_experts));
  tasks((static_cast<int64_t>(token_ids.size()) + 31) / 32, [&](int64_t task, ThreadScratch& scratch) {
    float* s = scratch.rows.get(static_cast<size_t>(args.n_experts));
    const int64_t end = std::min(static_cast<int64_t>(token_ids.size()), (task + 1) * 32);
    for (int64_t t = task * 32; t < end; ++t) {
      int32_t* ids = expert_ids + t * args.top_k;
      expert_scores(args, scores + t * args.n_experts, s);
      if (args.table) {
        const int32_t* fixed = args.table + static_cast<int64_t>(token_ids[static_cast<size_t>(t)]) * args.top_k;
        std::copy(fixed, fixed + args.top_k, ids);
      } else {
        scratch.ranks.clear();
        for (int e = 0; e < args.n_experts; ++e)
          scratch.ranks.push_back(rank_key(s[e] + (args.bias ? args.bias[e] : 0.0f), static_cast<uint32_t>(e)));
        std::nth_element(scratch.ranks.begin(), scratch.ranks.begin() + (args.top_k - 1), scratch.ranks.end());
        for (int i = 0; i < args.top_k; ++i) ids[i] = static_cast<int32_t>(scratch.ranks[static_cast<size_t>(i)] & 0xFFFFFFFFu);
      }
      std::sort(ids, ids + args.top_k);
      expert_weights(args, s, ids, weights + t * args.top_k);
    }
  });
}

void VectorOps::experts(std::span<const Expert> experts, Act act, float limit, const float* x, const int32_t* expert_ids,
                        const float* weights, int top_k, int n_tokens, float* y) {
  constexpr int kMost = 512;  // tokens at a time: bounds the scratch
  const int64_t width = experts[0].gate.n_cols, inner = experts[0].gate.n_rows, out = experts[0].down.n_rows;
  for (; n_tokens > kMost; n_tokens -= kMost) {
    this->experts(experts, act, limit, x, expert_ids, weights, top_k, kMost, y);
    x += kMost * width;
    expert_ids += kMost * top_k;
    weights += kMost * top_k;
    y += kMost * out;
  }
  // Slots (token, i) grouped by expert; place[slot] = its row among the grouped ones.
  const auto n_slots = static_cast<size_t>(n_tokens) * static_cast<size_t>(top_k);
  begins_.assign(experts.size() + 1, 0);
  order_.resize(n_slots * 2);
  int32_t* slots = order_.data();
  int32_t* place = slots + n_slots;
  for (size_t s = 0; s < n_slots; ++s) ++begins_[static_cast<size_t>(expert_ids[s]) + 1];
  for (size_t e = 0; e < experts.size(); ++e) begins_[e + 1] += begins_[e];
  for (size_t s = 0; s < n_slots; ++s) {
    place[s] = begins_[static_cast<size_t>(expert_ids[s])]++;  // begins_[e] ends at the begin of e + 1
    slots[place[s]] = static_cast<int32_t>(s);
  }
  float* results = step_buffer_.get(n_slots * static_cast<size_t>(out));
  for (size_t e = 0; e < experts.size(); ++e) {
    const int32_t begin = e == 0 ? 0 : begins_[e - 1], n = begins_[e] - begin;
    if (n == 0) continue;
    float* gathered = step_buffer2_.get(n_slots * static_cast<size_t>(width));
    float* gate = step_buffer3_.get(n_slots * static_cast<size_t>(inner) * 2);
    float* up = gate + static_cast<int64_t>(n) * inner;
    for (int32_t i = 0; i < n; ++i) {
      const float* row = x + slots[begin + i] / top_k * width;
      std::copy(row, row + width, gathered + i * width);
    }
    const Expert& expert = experts[e];
    feed_forward({expert.gate, expert.gate_bias, gate, inner}, {expert.up, expert.up_bias, up, inner}, act, limit,
                 {expert.down, expert.down_bias, results + begin * out, out}, gathered, width, n, gate);
  }
  spread(n_tokens, std::max<int64_t>(1, 16384 / (out * top_k)), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      std::fill(y + t * out, y + (t + 1) * out, 0.0f);
      for (int64_t s = t * top_k; s < (t + 1) * top_k; ++s)
        k_.add_scaled(y + t * out, weights[s], results + place[s] * out, out, y + t * out);
    }
  });
}

}  // namespace carrel::cpu
