// Reference ops of recurrent layers: convolution, gated delta rule, Mamba2. Formulas: architectures reference 3.4, 4.3, 6.1; registers:
// batch.h.
#include <cmath>
#include <cstring>

#include "kernels/cpu/math.h"
#include "kernels/cpu/reference_ops.h"

namespace carrel::cpu {
namespace {

/// Walks the tokens of every sequence over its registers: begins with what the sequence comes with, keeps what is wanted, leaves the end.
/// token(step row, registers of the layer).
template <class F>
void walk(const Registers& r, const Batch& batch, const F& token) {
  for (const SeqStep& seq : batch.seqs) {
    std::byte* live = r.live(seq);
    if (seq.n_past == 0) {
      std::memset(live, 0, r.layer_bytes());
    } else if (seq.restored) {
      std::memcpy(live, r.at(seq, seq.n_past / batch.block_size - 1), r.layer_bytes());
    }
    for (int i = 0; i < seq.n_tokens; ++i) {
      token(seq.first_token + i, live);
      const int64_t n = seq.n_past + i + 1;
      if (n % batch.block_size != 0) continue;
      if (std::byte* kept = r.at(seq, n / batch.block_size - 1)) std::memcpy(kept, live, r.layer_bytes());
    }
  }
}

/// x / sqrt(sum x² + eps) * scale
std::vector<double> l2_normalized(const float* x, int n, float eps, float scale) {
  double sum = eps;
  for (int k = 0; k < n; ++k) sum += static_cast<double>(x[k]) * x[k];
  std::vector<double> y(static_cast<size_t>(n));
  for (int k = 0; k < n; ++k) y[static_cast<size_t>(k)] = x[k] / std::sqrt(sum) * scale;
  return y;
}

}  // namespace

void ReferenceOps::short_conv(const float* x, const ShortConvArgs& args, const Registers& columns, const Batch& batch, float* y) {
  const auto n = static_cast<size_t>(args.n_channels);
  const int n_kept = args.kernel - 1;
  std::vector<float> taps(static_cast<size_t>(args.kernel) * n);  // [kernel][n]: oldest first
  walk(columns, batch, [&](int t, std::byte* live) {
    const auto row = [&](int j) { return live + static_cast<size_t>(j) * columns.layout.row_stride_bytes; };
    for (int j = 0; j < n_kept; ++j) read_row(row(j), columns.layout.dtype, 0, args.n_channels, taps.data() + static_cast<size_t>(j) * n);
    float* newest = taps.data() + static_cast<size_t>(n_kept) * n;
    std::memcpy(newest, x + static_cast<size_t>(t) * n, n * sizeof(float));
    if (columns.layout.dtype == DType::kBF16) {
      for (size_t c = 0; c < n; ++c) newest[c] = bf16_to_f32(f32_to_bf16(newest[c]));
    }
    for (size_t c = 0; c < n; ++c) {
      double sum = args.bias ? args.bias[c] : 0.0;
      for (size_t j = 0; j < static_cast<size_t>(args.kernel); ++j) sum += static_cast<double>(args.weight[j * n + c]) * taps[j * n + c];
      const auto s = static_cast<float>(sum);
      y[static_cast<size_t>(t) * n + c] = args.silu ? silu_of(s) : s;
    }
    for (int j = 0; j < n_kept; ++j)
      write_row(row(j), columns.layout.dtype, 0, args.n_channels, taps.data() + static_cast<size_t>(j + 1) * n);
  });
}

void ReferenceOps::delta_scan(const float* qkv, const float* a, const float* b, const DeltaArgs& args, const Registers& state,
                              const Batch& batch, float* y) {
  const int nk = args.n_k_heads, nv = args.n_v_heads, dk = args.k_dim, dv = args.v_dim;
  const int64_t width = 2 * int64_t{nk} * dk + int64_t{nv} * dv;
  walk(state, batch, [&](int t, std::byte* live) {
    for (int h = 0; h < nv; ++h) {
      const int kh = args.tiled_heads ? h % nk : h / (nv / nk);
      const float* row = qkv + t * width;
      const std::vector<double> q = l2_normalized(row + kh * dk, dk, args.l2_eps, args.scale);
      const std::vector<double> k = l2_normalized(row + (nk + kh) * dk, dk, args.l2_eps, 1);
      const float* v = row + 2 * nk * dk + h * dv;
      const double beta = sigmoid_of(b[t * nv + h]);
      const double decay = exp_of(args.a[h] * softplus_of(a[t * nv + h] + args.dt_bias[h]));
      float* s = reinterpret_cast<float*>(live) + static_cast<ptrdiff_t>(h) * dk * dv;  // [dk][dv]
      for (int j = 0; j < dv; ++j) {
        double memory = 0, out = 0;
        for (int i = 0; i < dk; ++i) memory += decay * s[i * dv + j] * k[static_cast<size_t>(i)];
        const double delta = beta * (v[j] - memory);
        for (int i = 0; i < dk; ++i) {
          s[i * dv + j] = static_cast<float>(decay * s[i * dv + j] + k[static_cast<size_t>(i)] * delta);
          out += s[i * dv + j] * q[static_cast<size_t>(i)];
        }
        y[(int64_t{t} * nv + h) * dv + j] = static_cast<float>(out);
      }
    }
  });
}

void ReferenceOps::ssm_scan(const float* xbc, const float* dt, const SsmArgs& args, const Registers& state, const Batch& batch, float* y) {
  const int nh = args.n_heads, np = args.head_dim, ns = args.state_dim;
  const int64_t inner = int64_t{nh} * np, width = inner + 2 * int64_t{args.n_groups} * ns;
  walk(state, batch, [&](int t, std::byte* live) {
    for (int h = 0; h < nh; ++h) {
      const int group = h / (nh / args.n_groups);
      const float* x = xbc + t * width + int64_t{h} * np;
      const float* bs = xbc + t * width + inner + int64_t{group} * ns;
      const float* cs = bs + int64_t{args.n_groups} * ns;
      const double step = std::min(std::max(softplus_of(dt[t * nh + h] + args.dt_bias[h]), args.dt_min), args.dt_max);
      const double decay = exp_of(static_cast<float>(step) * args.a[h]);
      float* s = reinterpret_cast<float*>(live) + static_cast<ptrdiff_t>(h) * ns * np;  // [ns][np]
      for (int p = 0; p < np; ++p) {
        double out = static_cast<double>(args.d[h]) * x[p];
        for (int i = 0; i < ns; ++i) {
          s[i * np + p] = static_cast<float>(decay * s[i * np + p] + step * x[p] * bs[i]);
          out += static_cast<double>(s[i * np + p]) * cs[i];
        }
        y[(int64_t{t} * nh + h) * np + p] = static_cast<float>(out);
      }
    }
  });
}

}  // namespace carrel::cpu
