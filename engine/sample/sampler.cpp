#include "engine/sample/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace carrel {
namespace {

// Heap order: larger logit first, then the lower id, so that ties always fall the same way.
bool worse(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) { return a.first != b.first ? a.first < b.first : a.second > b.second; }

double log_sum_exp(std::span<const float> logits, float top) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - top);
  return static_cast<double>(top) + std::log(sum);
}

bool plain_greedy(const SamplingParams& p) {
  return p.temperature == 0 && p.repetition_penalty == 1 && p.presence_penalty == 0 && p.frequency_penalty == 0 && p.logit_bias.empty();
}

void add_logprobs(std::span<const float> logits, int n, Sampled& out) {
  const float top = *std::max_element(logits.begin(), logits.end());
  const double norm = log_sum_exp(logits, top);
  out.logprob = static_cast<float>(logits[static_cast<size_t>(out.id)] - norm);
  if (n <= 0) return;
  std::vector<std::pair<float, int32_t>> best;  // min-heap of the n best
  const auto better = [](const auto& a, const auto& b) { return worse(b, a); };
  for (size_t i = 0; i < logits.size(); i++) {
    const std::pair<float, int32_t> c{logits[i], static_cast<int32_t>(i)};
    if (best.size() < static_cast<size_t>(n)) {
      best.push_back(c);
      std::push_heap(best.begin(), best.end(), better);
    } else if (worse(best.front(), c)) {
      std::pop_heap(best.begin(), best.end(), better);
      best.back() = c;
      std::push_heap(best.begin(), best.end(), better);
    }
  }
  std::sort(best.begin(), best.end(), better);
  for (const auto& [logit, id] : best) out.top.push_back({id, static_cast<float>(logit - norm)});
}

}  // namespace

double philox_uniform(uint64_t seed, uint64_t position) {
  std::array<uint32_t, 4> c{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
  std::array<uint32_t, 2> k{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1), static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  const uint64_t bits = (uint64_t{c[0]} << 32 | c[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

std::vector<float> logprobs_of(std::span<const float> logits, std::span<const int32_t> ids) {
  const double norm = log_sum_exp(logits, *std::max_element(logits.begin(), logits.end()));
  std::vector<float> out;
  out.reserve(ids.size());
  for (const int32_t id : ids) out.push_back(static_cast<float>(logits[static_cast<size_t>(id)] - norm));
  return out;
}

Status check(const SamplingParams& p, int vocab) {
  const auto bad = [](const char* field, const char* range) { return fail(Code::kInvalidArgument, std::string("must be ") + range, field); };
  if (!(p.temperature >= 0 && p.temperature <= 100)) return bad("temperature", "between 0 and 100");
  if (p.top_k < 0) return bad("top_k", "0 (off) or more");
  if (!(p.top_p >= 0 && p.top_p <= 1)) return bad("top_p", "between 0 (the best token only) and 1");
  if (!(p.min_p >= 0 && p.min_p <= 1)) return bad("min_p", "between 0 and 1");
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 10)) return bad("repetition_penalty", "above 0 and at most 10");
  if (!(p.presence_penalty >= -2 && p.presence_penalty <= 2)) return bad("presence_penalty", "between -2 and 2");
  if (!(p.frequency_penalty >= -2 && p.frequency_penalty <= 2)) return bad("frequency_penalty", "between -2 and 2");
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || id >= vocab) return fail(Code::kInvalidArgument, "names token " + std::to_string(id) + ", the vocabulary has " + std::to_string(vocab), "logit_bias");
    if (!(bias >= -100 && bias <= 100)) return bad("logit_bias", "between -100 and 100");
  }
  return {};
}

Result<Sampled> Sampler::sample(std::span<const float> logits, const SamplingParams& params, std::span<const int32_t> prompt,
                                std::span<const int32_t> answer, int64_t position) {
  Sampled out;
  int32_t best = 0;
  for (size_t i = 0; i < logits.size(); i++) {
    if (std::isnan(logits[i])) return fail(Code::kInternal, "numeric error: the model gave NaN logits at position " + std::to_string(position));
    if (logits[i] > logits[static_cast<size_t>(best)]) best = static_cast<int32_t>(i);
  }
  if (plain_greedy(params)) {
    out.id = best;
    if (params.n_logprobs >= 0) add_logprobs(logits, params.n_logprobs, out);
    return out;
  }

  adjusted_.assign(logits.begin(), logits.end());
  counts_.resize(logits.size(), 0);
  const auto touch = [&](std::span<const int32_t> ids) {
    for (const int32_t id : ids)
      if (counts_[static_cast<size_t>(id)]++ == 0) touched_.push_back(id);
  };
  const auto forget = [&] {
    for (const int32_t id : touched_) counts_[static_cast<size_t>(id)] = 0;
    touched_.clear();
  };
  if (params.presence_penalty != 0 || params.frequency_penalty != 0) {
    touch(answer);
    for (const int32_t id : touched_) adjusted_[static_cast<size_t>(id)] -= params.presence_penalty + params.frequency_penalty * static_cast<float>(counts_[static_cast<size_t>(id)]);
    forget();
  }
  if (params.repetition_penalty != 1) {
    touch(prompt);
    touch(answer);
    for (const int32_t id : touched_) {
      float& x = adjusted_[static_cast<size_t>(id)];
      x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    }
    forget();
  }
  for (const auto& [id, bias] : params.logit_bias) adjusted_[static_cast<size_t>(id)] += bias;

  heap_.clear();
  for (size_t i = 0; i < adjusted_.size(); i++) heap_.emplace_back(adjusted_[i], static_cast<int32_t>(i));
  std::make_heap(heap_.begin(), heap_.end(), worse);
  if (params.temperature == 0) {
    out.id = heap_.front().second;
  } else {
    // Candidates come off the heap best first until top_k, top_p or min_p ends the list; weights are relative to the best.
    const double top = heap_.front().first, inv_t = 1.0 / params.temperature;
    // The best weighs 1 by definition: a penalty may have made it infinite, and inf - inf would leave no candidate at all.
    const auto weight = [&](float x) { return x >= top ? 1.0 : std::exp((static_cast<double>(x) - top) * inv_t); };
    const size_t limit = params.top_k > 0 ? std::min<size_t>(heap_.size(), static_cast<size_t>(params.top_k)) : heap_.size();
    std::vector<std::pair<double, int32_t>> kept;  // weight, id
    double total = 0;
    const bool all = params.top_k == 0 && params.top_p >= 1;
    if (all) {
      for (size_t i = 0; i < adjusted_.size(); i++) {
        const double w = weight(adjusted_[i]);
        if (w >= params.min_p && w > 0) kept.emplace_back(w, static_cast<int32_t>(i)), total += w;
      }
    } else {
      double everything = 0;  // top_p is a share of what top_k leaves
      if (params.top_k == 0)
        for (const float x : adjusted_) everything += weight(x);
      std::vector<std::pair<float, int32_t>> order;
      auto end = heap_.end();
      double sum = 0;
      while (order.size() < limit) {
        order.push_back(heap_.front());
        sum += weight(heap_.front().first);
        std::pop_heap(heap_.begin(), end, worse);
        --end;
        if (params.top_k == 0 && sum >= params.top_p * everything) break;
      }
      if (params.top_k > 0) everything = sum;
      for (const auto& [x, id] : order) {
        const double w = weight(x);
        if (!kept.empty() && (w < params.min_p || total >= params.top_p * everything)) break;
        kept.emplace_back(w, id);
        total += w;
      }
    }
    double u = philox_uniform(params.seed, static_cast<uint64_t>(position)) * total;
    out.id = kept.back().second;
    for (const auto& [w, id] : kept) {
      if (u < w) {
        out.id = id;
        break;
      }
      u -= w;
    }
  }
  if (params.n_logprobs >= 0) add_logprobs(logits, params.n_logprobs, out);
  return out;
}

}  // namespace carrel
