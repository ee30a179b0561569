// The loops of the vector op sets (exact, fast) that an instruction path provides: one table per path, filled by vector_avx2.cpp and
// vector_avx512.cpp from the same source (vector_kernels_impl.h), with the same bits.
//
// Pure functions on the caller's memory, any thread. Nothing here knows of batches, pages or threads: vector_ops*.cpp does.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace carrel::cpu {

/// Keys walk in blocks of this many rows, at absolute positions (or by rank for compressed rows).
constexpr int kKeyBlock = 64;
/// Most queries of one softmax_step.
constexpr int kMostQueries = 256;
/// Bits of a code's magnitude so that a dot over `dim` is summed in 32: dim * 2^(2 bits) <= 2^30.
inline int code_bits(int dim) {
  int bits = 14;
  while (bits > 1 && (int64_t{dim} << (2 * bits)) > int64_t{1} << 30) --bits;
  return bits;
}

/// Bits of values and weights: 64 keys * 2^12 * 2^12 = 2^30.
constexpr int kValueBits = 12;

struct VectorKernels {
  // ---- per element
  void (*add)(const float* a, const float* b, int64_t n, float* y);
  void (*scale)(float s, const float* x, int64_t n, float* y);                       // y = s x, in place allowed
  void (*add_scaled)(const float* a, float s, const float* b, int64_t n, float* y);  // y = fma(s, b, a), in place allowed
  void (*gated)(Act act, const float* gate, const float* up, float limit, int64_t n, float* y);
  void (*softcap)(float cap, int64_t n, float* x);
  void (*rms_norm)(const float* x, const float* weight, float eps, int dim, float* y);  // one row
  /// One head of one token; v points at the first rotated dimension.
  void (*rope)(float* v, const float* cos, const float* sin, int half, bool interleaved, bool inverse);
  void (*to_bf16)(const float* x, int64_t n, uint16_t* y);
  float (*dot)(const float* a, const float* b, int64_t n);

  // ---- matrices of one block of keys
  /// c[i][j] = (carry ? carry[i] c[i][j] : 0) + sum_k a[i][k] b[k][j], k ascending by fma, for i < m and j < 16 n16.
  void (*product)(int m, int n16, int n_k, const float* a, ptrdiff_t lda, const float* b, ptrdiff_t ldb, float* c, ptrdiff_t ldc,
                  const float* carry);
  /// kt[k][i] = element begin + k of rows[i] for lo <= i < hi; other lanes of kt ([dim][64]) keep what they hold.
  void (*load_keys)(const std::byte* const* rows, DType dtype, int begin, int dim, int lo, int hi, float* kt);
  /// Codes of a row for product_codes: code pairs 2k, 2k + 1 in word k, (dim + 1) / 2 words; returns their scale, a power of two (0 below
  /// 2^-100, NaN where x is not finite).
  float (*encode_row)(const float* x, int dim, int bits, int32_t* words);
  /// The same of keys in bfloat16 rows, as load_keys: kt[k][i], scales[i] (k counts words). Lanes beside [lo, hi) are left with anything.
  void (*encode_keys)(const std::byte* const* rows, int begin, int dim, int lo, int hi, int bits, int32_t* kt, float* scales);
  /// c[i][j] = float(sum of the products of codes) * kt_scales[j] * a_scales[i], for i < m and j < 16 n16; a: [m][n_words], kt:
  /// [n_words][64], c: [m][64].
  void (*product_codes)(int m, int n16, int n_words, const int32_t* a, const float* a_scales, const int32_t* kt, const float* kt_scales,
                        float* c);
  /// Codes of values in bfloat16 rows for product_weights: of rows 2i, 2i + 1 in word v[i][k], k rounded up to 16 with zeros; scales[i] of
  /// each row. Rows beside [lo, hi) are left with anything.
  void (*encode_values)(const std::byte* const* rows, int begin, int dim, int lo, int hi, int32_t* v, float* scales);
  /// Codes of weights s[n][64] * scales[64], of which [lo, hi) are seen: pairs of keys as words[n][32], and their scales.
  void (*encode_weights)(int n, const float* s, const float* scales, int lo, int hi, int32_t* words, float* weight_scales);
  /// c[i][j] = fma(float(sum of the products of codes), a_scales[i], c[i][j] * carry[i]); a: words [begin, end) of [m][32], v: [32][16
  /// n16].
  void (*product_weights)(int m, int n16, int begin, int end, const int32_t* a, const float* a_scales, const int32_t* v, float* c,
                          const float* carry);
  /// v[i][k] = element begin + k of rows[i] for lo <= i < hi; v: [64][dim rounded up to 16], zeros behind dim.
  void (*load_values)(const std::byte* const* rows, DType dtype, int begin, int dim, int lo, int hi, float* v);
  /// One online-softmax step of n queries over scores s[n][64], of which [lo, hi) are seen. For each: s *= scale; m' = max(m, max s);
  /// s = e^(s - m') (0 where not seen); factor = e^(m - m'), which also belongs to what was summed before; l = fma(l, factor, sum s).
  void (*softmax_step)(int n, float* s, float scale, int lo, int hi, float* m, float* l, float* factor);
  /// out[e] = sum_h w[h] max(0, s[h][e]), h ascending by fma, 64 lanes; s: [n_heads][64].
  void (*weigh_heads)(const float* s, const float* w, int n_heads, float* out);

  // ---- compression and hyper-connections
  /// out[k] = sum_i e^(z[i][k] - max z) c[i][k] / sum_i e^(z[i][k] - max z), rows ascending.
  void (*pool)(const float* const* c, const float* const* z, int n_rows, int dim, float* out);
  /// out[k] = a f[k] + sum_j weights[j * weight_stride] x[j * width + k], j ascending by fma (f null: starts from 0).
  void (*mix_streams)(float a, const float* f, const float* x, const float* weights, int weight_stride, int n_streams, int width,
                      float* out);
};

const VectorKernels& vector_avx2();
const VectorKernels& vector_avx512();

}  // namespace carrel::cpu
