// Matrix products of the CPU back end: y[token][row] = bias[row] + sum_k W[row][k] x[token][k], with bits that depend on nothing but the
// token's own x and the matrix: not on n_tokens, neighbours, threads, or the instruction path.
//
// Order, for every output element on its own:
//   plain forms (kF32, kF16, kBF16, kF8): acc = 0; acc = fma(w[k], x[k], acc) for k = 0, 1, 2 …
//     kF8: w[k] = code · scale, rounded to float32 once: the bits of the same weights in float32, read at a quarter of the bytes.
//   integer forms: x is quantized per token and group of 32 (below), then for groups g = 0, 1, 2 …
//       v = scale_w * dot_g                     dot_g exact, codes taken with their offset
//       v = fma(min_w, float(sum_x), v)         forms with minima
//       acc = fma(v, scale_x, acc)              kI6K: these steps per half of 16
//     scale_w = d (f16), K forms d * sub_scale (exact); min_w = m, K forms -(dmin * sub_min) (exact).
//     kX4: codes are e2m1 doubled, -12 … 12, scale_w = 2^(e - 128), exact down to the denormals of e = 0 and 1. e <= kLargestX4Scale
//     (scales up to 2^105): above, the bias of a dot (linear_kernels.h) overflows; whoever loads a model refuses such a scale.
//   then y = acc + bias.
// Activations of a group: scale_x = absmax / 127; q = nearest_even(x * (127 / absmax)); all zero with scale 0 when absmax < 1e-30; scale
// NaN, and so a NaN in every output of that token, when x is not finite.
//
// Threads: one caller at a time per Scratch and team; rows are split over the team. Errors: none; shapes are the caller's contract.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/ops.h"

namespace carrel::cpu {

enum class Path { kScalar, kAvx2, kAvx512 };  // kScalar: the test oracle; kAvx512 means F, BW, VL, DQ, VNNI and BF16

bool path_available(Path path);
Path best_path();
std::string_view to_string(Path path);

/// Quantized activations of one call; grows to the largest call and stays.
struct Scratch {
  std::vector<int32_t> words;
  std::vector<int32_t> inner;  // between the products of a feed-forward
};

/// Products of one x, whose quantized form is made once. x: n_tokens rows of x_stride floats (n_cols used); outs: see ops.h; any form but
/// kRows.
void linear_packed(std::span<const LinearOut> outs, const float* x, int64_t x_stride, int n_tokens, ThreadTeam* team, Path path,
                   Scratch& scratch);

/// What happens to the outputs of two matrices of one shape; apply: VectorKernels::gated. y: [n_tokens][n_rows].
struct Gating {
  Act act;
  float limit;
  float* y;
  void (*apply)(Act act, const float* gate, const float* up, float limit, int64_t n, float* y);
};
/// gating of gate and up; their own y (contiguous) may be left unwritten.
void gated_packed(const LinearOut& gate, const LinearOut& up, const Gating& gating, const float* x, int64_t x_stride, int n_tokens,
                  ThreadTeam* team, Path path, Scratch& scratch);

/// down of that gating, the same bits; gating.y may be left unwritten.
void feed_forward_packed(const LinearOut& gate, const LinearOut& up, const Gating& gating, const LinearOut& down, const float* x,
                         int64_t x_stride, int n_tokens, ThreadTeam* team, Path path, Scratch& scratch);

/// One product. x: n_tokens rows of x_stride floats (w.n_cols used); y: n_tokens rows of y_stride floats (w.n_rows written, nothing else
/// touched). Strides may exceed the widths (slices). bias: [n_rows] or null. team may be null. Any form but kRows.
void linear_packed(const Matrix& w, const float* bias, const float* x, int64_t x_stride, int n_tokens, float* y, int64_t y_stride,
                   ThreadTeam* team, Path path, Scratch& scratch);

/// The same for w.form == kF32, which needs no scratch.
void linear_f32(const Matrix& w, const float* bias, const float* x, int64_t x_stride, int n_tokens, float* y, int64_t y_stride,
                ThreadTeam* team, Path path);

}  // namespace carrel::cpu
