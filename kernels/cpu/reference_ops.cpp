// Reference ops that know one token at a time: embedding, products, norms, rotation, gates, experts. See reference_ops.h.
#include "kernels/cpu/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cpu/math.h"

namespace carrel::cpu {

void ReferenceOps::embed(const Matrix& table, std::span<const int32_t> ids, float scale, float* y) {
  for (const int32_t id : ids) {
    dequantize_row(table, id, std::span(y, static_cast<size_t>(table.n_cols)));
    for (int64_t k = 0; k < table.n_cols; ++k) y[k] *= scale;
    y += table.n_cols;
  }
}

void ReferenceOps::linear(const Matrix& w, const float* bias, const float* x, int64_t x_stride, int n_tokens, float* y, int64_t y_stride) {
  const auto* rows = reinterpret_cast<const float*>(w.data);
  for (int t = 0; t < n_tokens; ++t) {
    for (int64_t r = 0; r < w.n_rows; ++r) {
      double sum = bias ? bias[r] : 0.0;
      for (int64_t k = 0; k < w.n_cols; ++k) sum += static_cast<double>(rows[r * w.n_cols + k]) * x[t * x_stride + k];
      y[t * y_stride + r] = static_cast<float>(sum);
    }
  }
}

void ReferenceOps::rms_norm(const float* x, const float* weight, float eps, int64_t n_rows, int dim, float* y, int n_weights) {
  for (int64_t r = 0; r < n_rows; ++r, x += dim, y += dim) {
    const float* w = weight ? weight + r % n_weights * dim : nullptr;
    double sum = 0;
    for (int k = 0; k < dim; ++k) sum += static_cast<double>(x[k]) * x[k];
    const double inv = 1.0 / std::sqrt(sum / dim + eps);
    for (int k = 0; k < dim; ++k) y[k] = static_cast<float>(x[k] * inv * (w ? w[k] : 1.0f));
  }
}

void ReferenceOps::rope(float* x, const RopeArgs& args, const RopeTable& table, int n_tokens) {
  const int half = args.dims / 2;
  for (int t = 0; t < n_tokens; ++t) {
    const float* cos = table.cos.data() + static_cast<ptrdiff_t>(t) * table.half;
    const float* sin = table.sin.data() + static_cast<ptrdiff_t>(t) * table.half;
    for (int h = 0; h < args.n_heads; ++h) {
      float* v = x + (static_cast<ptrdiff_t>(t) * args.n_heads + h) * args.head_dim + args.begin;
      for (int i = 0; i < half; ++i) {
        float& a = args.interleaved ? v[2 * i] : v[i];
        float& b = args.interleaved ? v[2 * i + 1] : v[i + half];
        const double c = cos[i], s = args.inverse ? -sin[i] : sin[i];
        const double a0 = a, b0 = b;
        a = static_cast<float>(a0 * c - b0 * s);
        b = static_cast<float>(b0 * c + a0 * s);
      }
    }
  }
}

namespace {

float activated(Act act, float g) {
  switch (act) {
    case Act::kSilu:
      return silu_of(g);
    case Act::kGeluTanh:
      return gelu_tanh_of(g);
    case Act::kSigmoid:
      return sigmoid_of(g);
    default:
      return g;
  }
}

}  // namespace

void ReferenceOps::gated(Act act, const float* gate, const float* up, float limit, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    float g = gate[i], u = up[i];
    if (limit > 0) {
      g = g > limit ? limit : g;
      u = u > limit ? limit : u < -limit ? -limit : u;
    }
    y[i] = act == Act::kSwigluOai ? (u + 1) * g * sigmoid_of(1.702f * g) : activated(act, g) * u;
  }
}

void ReferenceOps::add(const float* a, const float* b, float scale, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(a[i] + static_cast<double>(scale) * b[i]);
}

void ReferenceOps::scale(float s, int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] *= s;
}

void ReferenceOps::gate_rows(const float* g, const float* x, int64_t n_rows, int width, float* y) {
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int k = 0; k < width; ++k) y[r * width + k] = sigmoid_of(g[r]) * x[r * width + k];
  }
}

void ReferenceOps::softcap(float cap, int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = cap * tanh_of(x[i] / cap);
}

namespace {

/// A before B: larger score, then lower index; -0 equals 0, NaN comes last.
bool ranks_before(const std::vector<float>& score, int32_t a, int32_t b) {
  const float x = score[static_cast<size_t>(a)], y = score[static_cast<size_t>(b)];
  if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
  if (!std::isnan(x) && x != y) return x > y;
  return a < b;
}

/// The k first by rank, ascending by index.
std::vector<int32_t> best_of(const std::vector<float>& score, int k) {
  std::vector<int32_t> order(score.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return ranks_before(score, a, b); });
  order.resize(std::min(order.size(), static_cast<size_t>(k)));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace

void ReferenceOps::route(const RouteArgs& args, const float* scores, std::span<const int32_t> token_ids, int32_t* expert_ids, float* weights) {
  const auto n = static_cast<size_t>(args.n_experts);
  std::vector<float> s(n), biased(n);
  for (const int32_t token : token_ids) {
    if (args.score == RouteScore::kSoftmax) {
      const float top = *std::max_element(scores, scores + n);
      double sum = 0;
      for (size_t e = 0; e < n; ++e) sum += s[e] = exp_of(scores[e] - top);
      for (size_t e = 0; e < n; ++e) s[e] = static_cast<float>(s[e] / sum);
    } else {
      for (size_t e = 0; e < n; ++e) {
        s[e] = args.score == RouteScore::kSigmoid        ? sigmoid_of(scores[e])
               : args.score == RouteScore::kSqrtSoftplus ? std::sqrt(softplus_of(scores[e]))
                                                         : scores[e];
      }
    }
    for (size_t e = 0; e < n; ++e) biased[e] = s[e] + (args.bias ? args.bias[e] : 0.0f);
    std::vector<int32_t> ids = best_of(biased, args.top_k);
    if (args.table) {
      const int32_t* fixed = args.table + static_cast<ptrdiff_t>(token) * args.top_k;
      ids.assign(fixed, fixed + args.top_k);
      std::sort(ids.begin(), ids.end());
    }
    if (args.score == RouteScore::kSoftmaxOfChosen) {
      float top = -__builtin_inff();
      for (const int32_t e : ids) top = std::max(top, scores[e]);
      for (const int32_t e : ids) s[static_cast<size_t>(e)] = exp_of(scores[e] - top);
    }
    double sum = 0;
    for (const int32_t e : ids) sum += s[static_cast<size_t>(e)];
    for (const int32_t e : ids) {
      const double w = s[static_cast<size_t>(e)] / (args.normalize ? sum + args.normalize_eps : 1.0);
      *expert_ids++ = e;
      *weights++ = static_cast<float>(w * args.scale);
    }
    scores += n;
  }
}

void ReferenceOps::experts(std::span<const Expert> experts, Act act, float limit, const float* x, const int32_t* expert_ids, const float* weights,
                           int top_k, int n_tokens, float* y) {
  const int64_t width = experts[0].gate.n_cols, inner = experts[0].gate.n_rows, out = experts[0].down.n_rows;
  std::vector<float> gate(static_cast<size_t>(inner)), up(gate), result(static_cast<size_t>(out));
  for (int t = 0; t < n_tokens; ++t) {
    std::vector<double> sum(static_cast<size_t>(out), 0.0);
    for (int i = 0; i < top_k; ++i) {
      const Expert& e = experts[static_cast<size_t>(expert_ids[t * top_k + i])];
      linear(e.gate, e.gate_bias, x + t * width, width, 1, gate.data(), inner);
      linear(e.up, e.up_bias, x + t * width, width, 1, up.data(), inner);
      gated(act, gate.data(), up.data(), limit, inner, gate.data());
      linear(e.down, e.down_bias, gate.data(), inner, 1, result.data(), out);
      for (size_t k = 0; k < sum.size(); ++k) sum[k] += static_cast<double>(weights[t * top_k + i]) * result[k];
    }
    for (size_t k = 0; k < sum.size(); ++k) y[static_cast<size_t>(t) * sum.size() + k] = static_cast<float>(sum[k]);
  }
}

// Indexer (2.8), here because it shares the ranking with route().
void ReferenceOps::index_topk(const float* q, const float* w, int n_heads, int dim, int top_k, const StateRows& keys, const Batch& batch,
                              int32_t* selected) {
  std::vector<float> key(static_cast<size_t>(dim)), score, rounded;
  for (int i = 0; keys.layout.dtype == DType::kPackedIndex && i < batch.n_tokens * n_heads; ++i) {
    const std::vector<float> head = turned_and_rounded(q + static_cast<ptrdiff_t>(i) * dim, dim);
    rounded.insert(rounded.end(), head.begin(), head.end());
  }
  if (!rounded.empty()) q = rounded.data();
  for (int t = 0; t < batch.n_tokens; ++t, selected += top_k) {
    const SeqStep& seq = batch.seqs[static_cast<size_t>(batch.seq_of[static_cast<size_t>(t)])];
    const int n_visible = (batch.positions[static_cast<size_t>(t)] + 1) / keys.layout.ratio;
    score.clear();
    for (int e = 0; e < n_visible; ++e) {
      read_row(keys.row(seq, e), keys.layout.dtype, 0, dim, key.data());
      double sum = 0;
      for (int h = 0; h < n_heads; ++h) {
        const float* head = q + (static_cast<ptrdiff_t>(t) * n_heads + h) * dim;
        double dot = 0;
        for (int k = 0; k < dim; ++k) dot += static_cast<double>(head[k]) * key[static_cast<size_t>(k)];
        sum += static_cast<double>(w[t * n_heads + h]) * (dot < 0 ? 0.0 : dot);
      }
      score.push_back(static_cast<float>(sum));
    }
    const std::vector<int32_t> best = best_of(score, top_k);
    std::fill(std::copy(best.begin(), best.end(), selected), selected + top_k, -1);
  }
}

}  // namespace carrel::cpu
