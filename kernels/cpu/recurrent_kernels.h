// The loops of recurrent layers that an instruction path provides: one table per path, filled by recurrent_avx2.cpp and
// recurrent_avx512.cpp from the same source (recurrent_kernels_impl.h), with the same bits. Formulas: architectures
// reference 3.4, 4.3, 6.1.
//
// A run is consecutive tokens of one sequence over some lanes of one head's state, one token after another. Pure functions on the caller's
// memory, any thread. Nothing here knows of batches, pages or threads: vector_ops_recurrent.cpp does.
#pragma once
#include <cstddef>

#include "kernels/ops.h"

namespace carrel::cpu {

/// Lanes of a state that a run takes at most: 128 rows of them stay in L1.
constexpr int kScanLanes = 64;

/// Where a run finds and leaves its lanes of the state, row by row, strides in floats. Between its tokens they are in `work`.
struct ScanState {
  int n_rows = 0, n_lanes = 0;  // n_lanes <= kScanLanes
  const float* from = nullptr;  // null: zeros
  float* to = nullptr;          // may be `from`
  ptrdiff_t stride = 0;
  float* work = nullptr;  // [n_rows][kScanLanes]
};

/// Gated delta rule: state [k_dim][lanes]. d = beta fma(-decay, m, v) with m = sum_i k[i] S[i]; S[i] = fma(k[i], d, decay S[i]);
/// y = sum_i q[i] S[i]. Sums by ascending i, by fma from 0.
struct DeltaRun {
  ScanState state;
  int n_tokens = 0;
  const float* qk = nullptr;     // [n_tokens][q | k], of n_rows each
  const float* gates = nullptr;  // decay of a token; its beta lies beta_at behind it
  ptrdiff_t beta_at = 0, gate_stride = 0;
  const float* v = nullptr;
  ptrdiff_t v_stride = 0;
  float* y = nullptr;
  ptrdiff_t y_stride = 0;
};

/// Mamba2: state [state_dim][lanes]. S[i] = fma(b[i], step x, decay S[i]); y = d x + sum_i c[i] S[i], by ascending i, by fma from d x.
struct SsmRun {
  ScanState state;
  int n_tokens = 0;
  const float *x = nullptr, *b = nullptr, *c = nullptr;
  ptrdiff_t stride = 0;          // of all three
  const float* gates = nullptr;  // decay of a token; its step lies step_at behind it
  ptrdiff_t step_at = 0, gate_stride = 0;
  float d = 0;
  float* y = nullptr;
  ptrdiff_t y_stride = 0;
};

/// Convolution of n_tokens over n channels; taps of token i are rows i .. i + kernel - 1, of row_bytes each, in dtype, readable to a
/// multiple of 16 channels. y = bias + sum_j w[j] tap[j], by ascending j, by fma from the bias or 0; then silu.
struct ConvTile {
  DType dtype = DType::kF32;
  int kernel = 0, n_tokens = 0, n = 0;
  const std::byte* rows = nullptr;
  size_t row_bytes = 0;
  const float* weight = nullptr;  // [kernel][w_stride]
  ptrdiff_t w_stride = 0;
  const float* bias = nullptr;  // or null
  bool silu = false;
  float* y = nullptr;
  ptrdiff_t y_stride = 0;
};

struct RecurrentKernels {
  void (*delta)(const DeltaRun& run);
  void (*ssm)(const SsmRun& run);
  void (*conv)(const ConvTile& tile);
  /// decay[h] = e^(args.a[h] softplus(a[h] + dt_bias[h])), beta[h] = sigmoid(b[h]), of all value heads of one token.
  void (*delta_gates)(const DeltaArgs& args, const float* a, const float* b, float* decay, float* beta);
  /// step[h] = softplus(dt[h] + dt_bias[h]) cut to [dt_min, dt_max], decay[h] = e^(step args.a[h]).
  void (*ssm_gates)(const SsmArgs& args, const float* dt, float* decay, float* step);
  /// y = x (scale / √(x . x + eps)); the dot in 16 lanes and their tree.
  void (*unit)(const float* x, int n, float eps, float scale, float* y);
};

const RecurrentKernels& recurrent_avx2();
const RecurrentKernels& recurrent_avx512();

}  // namespace carrel::cpu
