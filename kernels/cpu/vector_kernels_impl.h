// Source of the loops of vector_kernels.h, compiled once per instruction path. Include after defining CARREL_SIMD_NS.
// Everything is internal to the including file: nothing may be merged by the linker with code of another path.
#pragma once
#include "kernels/cpu/score_kernels_impl.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/state_rows_simd.h"
#include "kernels/cpu/vector_kernels.h"

namespace carrel::cpu {
inline namespace CARREL_SIMD_NS {
namespace {

// ---- per element

void add(const float* a, const float* b, int64_t n, float* y) {
  for_lanes(n, [&](int64_t i, int m) { store(load(a + i, m) + load(b + i, m), y + i, m); });
}

void scale(float s, const float* x, int64_t n, float* y) {
  for_lanes(n, [&](int64_t i, int m) { store(load(x + i, m) * F16::set(s), y + i, m); });
}

void add_scaled(const float* a, float s, const float* b, int64_t n, float* y) {
  for_lanes(n, [&](int64_t i, int m) { store(fma(F16::set(s), load(b + i, m), load(a + i, m)), y + i, m); });
}

/// y = product(g, u) of the cut values.
template <class F>
CARREL_INLINE void gated_by(F product, const float* gate, const float* up, float limit, int64_t n, float* y) {
  const F16 top = F16::set(limit > 0 ? limit : __builtin_inff()), bottom = F16::set(0.0f) - top;
  for_lanes(n, [&](int64_t i, int m) {
    // min and max give their second operand for a NaN, which therefore stays one
    const F16 g = min(top, load(gate + i, m)), u = max(bottom, min(top, load(up + i, m)));
    store(product(g, u), y + i, m);
  });
}

void gated(Act act, const float* gate, const float* up, float limit, int64_t n, float* y) {
  switch (act) {
    case Act::kSilu:
      return gated_by([](F16 g, F16 u) CARREL_LAMBDA_INLINE { return silu_of(g) * u; }, gate, up, limit, n, y);
    case Act::kGeluTanh:
      return gated_by([](F16 g, F16 u) CARREL_LAMBDA_INLINE { return gelu_tanh_of(g) * u; }, gate, up, limit, n, y);
    case Act::kSigmoid:
      return gated_by([](F16 g, F16 u) CARREL_LAMBDA_INLINE { return sigmoid_of(g) * u; }, gate, up, limit, n, y);
    case Act::kIdentity:
      return gated_by([](F16 g, F16 u) CARREL_LAMBDA_INLINE { return g * u; }, gate, up, limit, n, y);
    case Act::kSwigluOai:
      return gated_by([](F16 g, F16 u) CARREL_LAMBDA_INLINE { return (u + F16::set(1.0f)) * g * sigmoid_of(F16::set(1.702f) * g); }, gate,
                      up, limit, n, y);
  }
}

void softcap(float cap, int64_t n, float* x) {
  for_lanes(n, [&](int64_t i, int m) { store(tanh_of(load(x + i, m) / F16::set(cap)) * F16::set(cap), x + i, m); });
}

void rms_norm(const float* x, const float* weight, float eps, int dim, float* y) {
  const float inv = rsqrt_of(dot_of(x, x, dim) / static_cast<float>(dim) + eps);
  for_lanes(dim, [&](int64_t i, int m) {
    const F16 v = load(x + i, m) * F16::set(inv);
    store(weight ? v * load(weight + i, m) : v, y + i, m);
  });
}

void rope(float* v, const float* cos, const float* sin, int half, bool interleaved, bool inverse) {
  const float sign = inverse ? -1.0f : 1.0f;
  if (interleaved) {
    for (int i = 0; i < half; ++i) {
      const float a = v[2 * i], b = v[2 * i + 1], s = sin[i] * sign;
      v[2 * i] = __builtin_fmaf(-b, s, a * cos[i]);
      v[2 * i + 1] = __builtin_fmaf(a, s, b * cos[i]);
    }
    return;
  }
  for_lanes(half, [&](int64_t i, int m) {
    const F16 a = load(v + i, m), b = load(v + half + i, m), c = load(cos + i, m), s = load(sin + i, m) * F16::set(sign);
    store(fma(F16::set(0.0f) - b, s, a * c), v + i, m);
    store(fma(a, s, b * c), v + half + i, m);
  });
}

void to_bf16(const float* x, int64_t n, uint16_t* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
    const __m256i nan = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
    const __m256i r = _mm256_blendv_epi8(rounded, nan, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), _mm256_castsi256_si128(packed));
  }
  for (; i < n; ++i) {
    const uint32_t u = __builtin_bit_cast(uint32_t, x[i]);
    y[i] = static_cast<uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? (u >> 16) | 0x40u : (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
  }
}

float dot(const float* a, const float* b, int64_t n) {
  return dot_of(a, b, n);
}

// ---- matrices of one block of keys

/// R rows by N registers of 16 lanes, accumulators in registers.
template <int R, int N>
CARREL_INLINE void product_tile(int n_k, const float* a, ptrdiff_t lda, const float* b, ptrdiff_t ldb, float* c, ptrdiff_t ldc,
                                const float* carry) {
  F16 acc[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) acc[r][j] = carry != nullptr ? F16::load(c + r * ldc + j * kLanes) * F16::set(carry[r]) : F16::set(0.0f);
  }
  for (int k = 0; k < n_k; ++k) {
    F16 row[N];
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) row[j] = F16::load(b + k * ldb + j * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F16 x = F16::set(a[r * lda + k]);
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) acc[r][j] = fma(x, row[j], acc[r][j]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) acc[r][j].store(c + r * ldc + j * kLanes);
  }
}

template <int N>
CARREL_INLINE void product_columns(int m, int n_k, const float* a, ptrdiff_t lda, const float* b, ptrdiff_t ldb, float* c, ptrdiff_t ldc,
                                   const float* carry) {
  int i = 0;
  for (; i + 6 <= m; i += 6) product_tile<6, N>(n_k, a + i * lda, lda, b, ldb, c + i * ldc, ldc, carry != nullptr ? carry + i : nullptr);
  a += i * lda;
  c += i * ldc;
  if (carry != nullptr) carry += i;
  switch (m - i) {
    case 5:
      return product_tile<5, N>(n_k, a, lda, b, ldb, c, ldc, carry);
    case 4:
      return product_tile<4, N>(n_k, a, lda, b, ldb, c, ldc, carry);
    case 3:
      return product_tile<3, N>(n_k, a, lda, b, ldb, c, ldc, carry);
    case 2:
      return product_tile<2, N>(n_k, a, lda, b, ldb, c, ldc, carry);
    case 1:
      return product_tile<1, N>(n_k, a, lda, b, ldb, c, ldc, carry);
    default:
      return;
  }
}

void product(int m, int n16, int n_k, const float* a, ptrdiff_t lda, const float* b, ptrdiff_t ldb, float* c, ptrdiff_t ldc,
             const float* carry) {
  int j = 0;
#ifdef __AVX512F__
  for (; j + 4 <= n16; j += 4) product_columns<4>(m, n_k, a, lda, b + j * kLanes, ldb, c + j * kLanes, ldc, carry);
  for (; j + 2 <= n16; j += 2) product_columns<2>(m, n_k, a, lda, b + j * kLanes, ldb, c + j * kLanes, ldc, carry);
#endif
  for (; j < n16; ++j) product_columns<1>(m, n_k, a, lda, b + j * kLanes, ldb, c + j * kLanes, ldc, carry);
}

template <DType kType>
CARREL_INLINE void load_keys_of(const std::byte* const* rows, int begin, int dim, int lo, int hi, float* kt) {
  int i = lo;
  for (; i < hi && i % 8 != 0; ++i) {
    for (int k = 0; k < dim; ++k) kt[k * kKeyBlock + i] = load1(rows[i], kType, begin + k);
  }
  for (; i + 8 <= hi; i += 8) {
    int k = 0;
    for (; k + 8 <= dim; k += 8) {
      __m256 r[8];
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) r[j] = load8(rows[i + j], kType, begin + k);
      transpose8(r, kt + k * kKeyBlock + i);
    }
    for (; k < dim; ++k) {
      for (int j = 0; j < 8; ++j) kt[k * kKeyBlock + i + j] = load1(rows[i + j], kType, begin + k);
    }
  }
  for (; i < hi; ++i) {
    for (int k = 0; k < dim; ++k) kt[k * kKeyBlock + i] = load1(rows[i], kType, begin + k);
  }
}

void load_keys(const std::byte* const* rows, DType dtype, int begin, int dim, int lo, int hi, float* kt) {
  if (dtype == DType::kF32) {
    load_keys_of<DType::kF32>(rows, begin, dim, lo, hi, kt);
  } else {
    load_keys_of<DType::kBF16>(rows, begin, dim, lo, hi, kt);
  }
}

template <DType kType>
CARREL_INLINE void load_values_of(const std::byte* const* rows, int begin, int dim, int lo, int hi, float* v) {
  const int padded = (dim + kLanes - 1) / kLanes * kLanes;
  for (int i = lo; i < hi; ++i) {
    float* out = v + i * padded;
    int k = 0;
    for (; k + 8 <= dim; k += 8) _mm256_storeu_ps(out + k, load8(rows[i], kType, begin + k));
    for (; k < dim; ++k) out[k] = load1(rows[i], kType, begin + k);
    for (; k < padded; ++k) out[k] = 0.0f;
  }
}

void load_values(const std::byte* const* rows, DType dtype, int begin, int dim, int lo, int hi, float* v) {
  if (dtype == DType::kF32) {
    load_values_of<DType::kF32>(rows, begin, dim, lo, hi, v);
  } else {
    load_values_of<DType::kBF16>(rows, begin, dim, lo, hi, v);
  }
}

template <bool kWhole>
CARREL_INLINE void softmax_rows(int n, float* s, F16 scale, int lo, int hi, float* m, float* sums, float* factor) {
  constexpr int kN = kKeyBlock / kLanes;
  for (int r = 0; r < n; ++r, s += kKeyBlock) {
    F16 x[kN];
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) {
      x[j] = F16::load(s + j * kLanes) * scale;
      if (!kWhole) x[j] = if_lane_in(lo - j * kLanes, hi - j * kLanes, x[j], F16::set(-__builtin_inff()));
    }
    const float top = max(F1{m[r]}, F1{max_of(max(max(x[0], x[1]), max(x[2], x[3])))}).v;
    factor[r] = m[r] - top;
    m[r] = top;
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) {
      x[j] = exp_of_low(x[j] - F16::set(top));
      x[j].store(s + j * kLanes);
    }
    sums[r] = sum_of((x[0] + x[1]) + (x[2] + x[3]));
  }
}

void softmax_step(int n, float* s, float scale, int lo, int hi, float* m, float* l, float* factor) {
  float sums[kMostQueries];
  if (lo == 0 && hi == kKeyBlock) {
    softmax_rows<true>(n, s, F16::set(scale), lo, hi, m, sums, factor);
  } else {
    softmax_rows<false>(n, s, F16::set(scale), lo, hi, m, sums, factor);
  }
  for_lanes(n, [&](int64_t i, int lanes) {
    const F16 f = exp_of_low(load(factor + i, lanes));
    store(f, factor + i, lanes);
    store(fma(load(l + i, lanes), f, load(sums + i, lanes)), l + i, lanes);
  });
}

void weigh_heads(const float* s, const float* w, int n_heads, float* out) {
  for (int j = 0; j < kKeyBlock; j += kLanes) {
    F16 sum = F16::set(0.0f);
    for (int h = 0; h < n_heads; ++h) sum = fma(F16::set(w[h]), max(F16::set(0.0f), F16::load(s + h * kKeyBlock + j)), sum);
    sum.store(out + j);
  }
}

// ---- compression and hyper-connections

void pool(const float* const* c, const float* const* z, int n_rows, int dim, float* out) {
  for_lanes(dim, [&](int64_t k, int m) {
    F16 top = load(z[0] + k, m);
    for (int i = 1; i < n_rows; ++i) top = max(top, load(z[i] + k, m));
    F16 sum = F16::set(0.0f), total = F16::set(0.0f);
    for (int i = 0; i < n_rows; ++i) {
      const F16 f = exp_of(load(z[i] + k, m) - top);
      total = total + f;
      sum = fma(f, load(c[i] + k, m), sum);
    }
    store(sum / total, out + k, m);
  });
}

void mix_streams(float a, const float* f, const float* x, const float* weights, int weight_stride, int n_streams, int width, float* out) {
  for_lanes(width, [&](int64_t k, int m) {
    F16 sum = f ? F16::set(a) * load(f + k, m) : F16::set(0.0f);
    for (int j = 0; j < n_streams; ++j)
      sum = fma(F16::set(weights[j * weight_stride]), load(x + static_cast<int64_t>(j) * width + k, m), sum);
    store(sum, out + k, m);
  });
}

constexpr VectorKernels kKernels = {add,          scale,         add_scaled,    gated,          softcap,         rms_norm,
                                    rope,         to_bf16,       dot,           product,        load_keys,       encode_row,
                                    encode_keys,  product_codes, encode_values, encode_weights, product_weights, load_values,
                                    softmax_step, weigh_heads,   pool,          mix_streams};

}  // namespace
}  // namespace CARREL_SIMD_NS
}  // namespace carrel::cpu
