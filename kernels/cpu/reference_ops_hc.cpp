// Reference form of the manifold-constrained hyper-connections (architectures reference 2.5).
#include <cmath>

#include "kernels/cpu/math.h"
#include "kernels/cpu/reference_ops.h"

namespace carrel::cpu {
namespace {

/// (fn · x) / rms(x): `n_mix` numbers of one token; x: [n_streams * width].
std::vector<double> mix_of(const float* x, const HcArgs& args, int n_mix) {
  const int n = args.n_streams * args.width;
  double square = 0;
  for (int i = 0; i < n; ++i) square += static_cast<double>(x[i]) * x[i];
  const double inv = 1.0 / std::sqrt(square / n + args.norm_eps);
  std::vector<double> mix(static_cast<size_t>(n_mix), 0.0);
  for (int m = 0; m < n_mix; ++m) {
    for (int i = 0; i < n; ++i) mix[static_cast<size_t>(m)] += static_cast<double>(args.fn[static_cast<ptrdiff_t>(m) * n + i]) * x[i];
    mix[static_cast<size_t>(m)] *= inv;
  }
  return mix;
}

/// y = sum_j (sigmoid(mix[j] * scale + base[j]) + eps) x[j]
void weighted_streams(const float* x, const std::vector<double>& mix, const HcArgs& args, float* y) {
  for (int k = 0; k < args.width; ++k) {
    double sum = 0;
    for (int j = 0; j < args.n_streams; ++j) {
      const double pre = sigmoid_of(static_cast<float>(mix[static_cast<size_t>(j)] * args.scale[0] + args.base[j])) + static_cast<double>(args.hc_eps);
      sum += pre * x[j * args.width + k];
    }
    y[k] = static_cast<float>(sum);
  }
}

/// Divides each row (by_row) or each column of m [n][n] by its sum + eps.
void normalize(std::vector<double>& m, int n, bool by_row, double eps) {
  for (int a = 0; a < n; ++a) {
    double sum = eps;
    for (int b = 0; b < n; ++b) sum += m[static_cast<size_t>(by_row ? a * n + b : b * n + a)];
    for (int b = 0; b < n; ++b) m[static_cast<size_t>(by_row ? a * n + b : b * n + a)] /= sum;
  }
}

}  // namespace

void ReferenceOps::hc_pre(const float* x, const HcArgs& args, int n_tokens, float* y, float* post, float* comb) {
  const int n = args.n_streams;
  for (int t = 0; t < n_tokens; ++t, x += n * args.width, y += args.width, post += n, comb += n * n) {
    const std::vector<double> mix = mix_of(x, args, (2 + n) * n);
    weighted_streams(x, mix, args, y);
    for (int j = 0; j < n; ++j) {
      post[j] = 2 * sigmoid_of(static_cast<float>(mix[static_cast<size_t>(n + j)] * args.scale[1] + args.base[n + j]));
    }
    std::vector<double> m(static_cast<size_t>(n * n));
    for (int j = 0; j < n; ++j) {  // softmax of each row, + eps
      double top = -INFINITY, sum = 0;
      for (int k = 0; k < n; ++k) {
        const int i = j * n + k;
        m[static_cast<size_t>(i)] = mix[static_cast<size_t>(2 * n + i)] * args.scale[2] + args.base[2 * n + i];
        top = std::max(top, m[static_cast<size_t>(i)]);
      }
      for (int k = 0; k < n; ++k) sum += m[static_cast<size_t>(j * n + k)] = exp_of(static_cast<float>(m[static_cast<size_t>(j * n + k)] - top));
      for (int k = 0; k < n; ++k) m[static_cast<size_t>(j * n + k)] = m[static_cast<size_t>(j * n + k)] / sum + args.hc_eps;
    }
    normalize(m, n, false, args.hc_eps);
    for (int i = 1; i < args.n_iters; ++i) {
      normalize(m, n, true, args.hc_eps);
      normalize(m, n, false, args.hc_eps);
    }
    for (int i = 0; i < n * n; ++i) comb[i] = static_cast<float>(m[static_cast<size_t>(i)]);
  }
}

void ReferenceOps::hc_post(const float* f, const float* x, const float* post, const float* comb, int n_streams, int width, int n_tokens, float* out) {
  for (int t = 0; t < n_tokens; ++t, f += width, x += n_streams * width, post += n_streams, comb += n_streams * n_streams, out += n_streams * width) {
    for (int k = 0; k < n_streams; ++k) {
      for (int i = 0; i < width; ++i) {
        double sum = static_cast<double>(post[k]) * f[i];
        for (int j = 0; j < n_streams; ++j) sum += static_cast<double>(comb[j * n_streams + k]) * x[j * width + i];
        out[k * width + i] = static_cast<float>(sum);
      }
    }
  }
}

void ReferenceOps::hc_head(const float* x, const HcArgs& args, int n_tokens, float* y) {
  for (int t = 0; t < n_tokens; ++t, x += args.n_streams * args.width, y += args.width) {
    weighted_streams(x, mix_of(x, args, args.n_streams), args, y);
  }
}

}  // namespace carrel::cpu
