// F16: sixteen floats with the vocabulary of math.h, in two AVX2 registers or one AVX-512 register. Every operation works lane by lane and
// every reduction follows one tree, so code written on F16 gives the same bits on both.
//
// Included only by files that define CARREL_SIMD_NS (avx2 or avx512) first: the two forms are different types in different namespaces, and
// everything is inlined, so that no AVX-512 instruction can reach a machine without it.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/math.h"

namespace carrel::cpu {
inline namespace CARREL_SIMD_NS {

constexpr int kLanes = 16;

#ifdef __AVX512F__

// The zero-masked forms below are the plain instructions; GCC 12 takes the plain intrinsics for reads of uninitialized memory.
constexpr __mmask16 kAll = 0xFFFF;

CARREL_INLINE __m512i shift_left(__m512i x, unsigned n) {
  return _mm512_maskz_slli_epi32(kAll, x, n);
}

struct F16 {
  __m512 v;
  CARREL_INLINE static F16 set(float x) { return {_mm512_set1_ps(x)}; }
  CARREL_INLINE static F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  /// n < 16 floats, zeros behind them; touches no other memory.
  CARREL_INLINE static F16 load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1u), p)}; }
  CARREL_INLINE static F16 load_bf16(const uint16_t* p) {
    return {
        _mm512_castsi512_ps(shift_left(_mm512_maskz_cvtepu16_epi32(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16))};
  }
  CARREL_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
  CARREL_INLINE void store_n(float* p, int n) const { _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1u), v); }
  CARREL_INLINE __m256 low() const { return _mm512_maskz_extractf32x8_ps(0xFF, v, 0); }
  CARREL_INLINE __m256 high() const { return _mm512_maskz_extractf32x8_ps(0xFF, v, 1); }
};
CARREL_INLINE F16 operator+(F16 a, F16 b) {
  return {a.v + b.v};
}
CARREL_INLINE F16 operator-(F16 a, F16 b) {
  return {a.v - b.v};
}
CARREL_INLINE F16 operator*(F16 a, F16 b) {
  return {a.v * b.v};
}
CARREL_INLINE F16 operator/(F16 a, F16 b) {
  return {a.v / b.v};
}
CARREL_INLINE F16 fma(F16 a, F16 b, F16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
CARREL_INLINE F16 max(F16 a, F16 b) {
  return {_mm512_maskz_max_ps(kAll, a.v, b.v)};
}
CARREL_INLINE F16 min(F16 a, F16 b) {
  return {_mm512_maskz_min_ps(kAll, a.v, b.v)};
}
CARREL_INLINE F16 abs(F16 a) {
  return {_mm512_castsi512_ps(_mm512_and_epi32(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7FFFFFFF)))};
}
CARREL_INLINE F16 with_sign(F16 a, F16 b) {
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));  // a where the bit of the mask is 0, b where it is 1
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(sign, _mm512_castps_si512(b.v), _mm512_castps_si512(a.v), 0xCA))};
}
CARREL_INLINE F16 if_less(F16 a, F16 b, F16 x, F16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
CARREL_INLINE F16 pow2_of_shifted(F16 t) {
  return {_mm512_castsi512_ps(_mm512_add_epi32(shift_left(_mm512_castps_si512(t.v), 23), _mm512_set1_epi32(0x3F800000)))};
}

/// Sixteen words of 32 bits: sums, or pairs of 16-bit codes.
struct Words {
  __v16si v;  // not __m512i: GCC keeps sums of another type than the instruction's in memory
  CARREL_INLINE static Words set(int32_t x) { return {reinterpret_cast<__v16si>(_mm512_set1_epi32(x))}; }
  CARREL_INLINE static Words load(const int32_t* p) { return {reinterpret_cast<__v16si>(_mm512_loadu_si512(p))}; }
};
/// sum + the products of the pairs of a and b.
CARREL_INLINE Words add_pairs(Words sum, Words a, Words b) {
  return {reinterpret_cast<__v16si>(
      _mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sum.v), reinterpret_cast<__m512i>(a.v), reinterpret_cast<__m512i>(b.v)))};
}
CARREL_INLINE F16 to_float(Words x) {
  return {_mm512_maskz_cvtepi32_ps(kAll, reinterpret_cast<__m512i>(x.v))};
}

/// x in lanes [lo, hi), y elsewhere; any integers.
CARREL_INLINE F16 if_lane_in(int lo, int hi, F16 x, F16 y) {
  const uint32_t below = hi <= 0 ? 0u : hi >= 16 ? 0xFFFFu : (1u << hi) - 1u;
  const uint32_t under = lo <= 0 ? 0u : lo >= 16 ? 0xFFFFu : (1u << lo) - 1u;
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(below & ~under), y.v, x.v)};
}

#else

CARREL_INLINE __m256i mask_of(int n, int first) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - first), lane);
}

struct F16 {
  __m256 a, b;
  CARREL_INLINE static F16 set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  CARREL_INLINE static F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  /// n < 16 floats, zeros behind them; touches no other memory.
  CARREL_INLINE static F16 load_n(const float* p, int n) {
    return {_mm256_maskload_ps(p, mask_of(n, 0)), n > 8 ? _mm256_maskload_ps(p + 8, mask_of(n, 8)) : _mm256_setzero_ps()};
  }
  CARREL_INLINE static F16 load_bf16(const uint16_t* p) {
    const __m128i lo = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), hi = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(lo), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(hi), 16))};
  }
  CARREL_INLINE void store(float* p) const {
    _mm256_storeu_ps(p, a);
    _mm256_storeu_ps(p + 8, b);
  }
  CARREL_INLINE void store_n(float* p, int n) const {
    _mm256_maskstore_ps(p, mask_of(n, 0), a);
    if (n > 8) _mm256_maskstore_ps(p + 8, mask_of(n, 8), b);
  }
  CARREL_INLINE __m256 low() const { return a; }
  CARREL_INLINE __m256 high() const { return b; }
};
CARREL_INLINE F16 operator+(F16 x, F16 y) {
  return {x.a + y.a, x.b + y.b};
}
CARREL_INLINE F16 operator-(F16 x, F16 y) {
  return {x.a - y.a, x.b - y.b};
}
CARREL_INLINE F16 operator*(F16 x, F16 y) {
  return {x.a * y.a, x.b * y.b};
}
CARREL_INLINE F16 operator/(F16 x, F16 y) {
  return {x.a / y.a, x.b / y.b};
}
CARREL_INLINE F16 fma(F16 x, F16 y, F16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
CARREL_INLINE F16 max(F16 x, F16 y) {
  return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
CARREL_INLINE F16 min(F16 x, F16 y) {
  return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
CARREL_INLINE F16 abs(F16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
CARREL_INLINE F16 with_sign(F16 x, F16 y) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(sign, x.a), _mm256_and_ps(sign, y.a)),
          _mm256_or_ps(_mm256_andnot_ps(sign, x.b), _mm256_and_ps(sign, y.b))};
}
CARREL_INLINE F16 if_less(F16 p, F16 q, F16 x, F16 y) {
  return {_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(p.a, q.a, _CMP_LT_OQ)), _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(p.b, q.b, _CMP_LT_OQ))};
}
CARREL_INLINE __m256 pow2_half(__m256 t) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(t), 23), _mm256_set1_epi32(0x3F800000)));
}
CARREL_INLINE F16 pow2_of_shifted(F16 t) {
  return {pow2_half(t.a), pow2_half(t.b)};
}

/// Sixteen words of 32 bits: sums, or pairs of 16-bit codes.
struct Words {
  __m256i a, b;
  CARREL_INLINE static Words set(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  CARREL_INLINE static Words load(const int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
  }
};
/// sum + the products of the pairs of x and y.
CARREL_INLINE Words add_pairs(Words sum, Words x, Words y) {
  return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(x.a, y.a)), _mm256_add_epi32(sum.b, _mm256_madd_epi16(x.b, y.b))};
}
CARREL_INLINE F16 to_float(Words x) {
  return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}

/// x in lanes [lo, hi), y elsewhere; any integers.
CARREL_INLINE F16 if_lane_in(int lo, int hi, F16 x, F16 y) {
  const __m256i ma = _mm256_andnot_si256(mask_of(lo, 0), mask_of(hi, 0)), mb = _mm256_andnot_si256(mask_of(lo, 8), mask_of(hi, 8));
  return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(ma)), _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(mb))};
}

#endif

/// The reduction tree of every sum and maximum: lane j with j + 8, then j + 4, j + 2, j + 1.
template <class Op8, class Op4, class Op1>
CARREL_INLINE float reduce(F16 x, Op8 op8, Op4 op4, Op1 op1) {
  const __m256 s8 = op8(x.low(), x.high());
  const __m128 s4 = op4(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = op4(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(op1(s2, _mm_shuffle_ps(s2, s2, 1)));
}
CARREL_INLINE float sum_of(F16 x) {
  return reduce(
      x, [](__m256 a, __m256 b) { return a + b; }, [](__m128 a, __m128 b) { return a + b; }, [](__m128 a, __m128 b) { return a + b; });
}
CARREL_INLINE float max_of(F16 x) {
  return reduce(
      x, [](__m256 a, __m256 b) { return _mm256_max_ps(a, b); }, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); },
      [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
}

/// Bits of the largest of 64 floats that are not negative; those of a NaN without sign are above all others.
CARREL_INLINE int32_t top_bits(F16 a, F16 b, F16 c, F16 d) {
  const auto larger = [](__m256i x, __m256i y) CARREL_LAMBDA_INLINE { return _mm256_max_epi32(x, y); };
  const auto bits = [larger](F16 x) CARREL_LAMBDA_INLINE { return larger(_mm256_castps_si256(x.low()), _mm256_castps_si256(x.high())); };
  const __m256i t = larger(larger(bits(a), bits(b)), larger(bits(c), bits(d)));
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1)));
}

/// Calls f(i, n) for n = 16 lanes at a time and once for the rest.
template <class F>
CARREL_INLINE void for_lanes(int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, kLanes);
  if (i < n) f(i, static_cast<int>(n - i));
}
CARREL_INLINE F16 load(const float* p, int n) {
  return n == kLanes ? F16::load(p) : F16::load_n(p, n);
}
CARREL_INLINE void store(F16 x, float* p, int n) {
  if (n == kLanes) {
    x.store(p);
  } else {
    x.store_n(p, n);
  }
}

/// sum_k a[k] b[k]: lane j adds k = j, j + 16 … by fma, then the tree.
CARREL_INLINE float dot_of(const float* a, const float* b, int64_t n) {
  F16 sum = F16::set(0.0f);
  for_lanes(n, [&](int64_t i, int m) { sum = fma(load(a + i, m), load(b + i, m), sum); });
  return sum_of(sum);
}

}  // namespace CARREL_SIMD_NS
}  // namespace carrel::cpu
