// Scores and weighted sums on integers: vectors as codes with one power of two each, their dots exact, so the order of adding is free and
// every instruction path has the same bits. Half the instructions of float32 where 16-bit dots exist. Part of vector_kernels_impl.h.
#pragma once
#include "kernels/cpu/state_rows_simd.h"

namespace carrel::cpu {
inline namespace CARREL_SIMD_NS {
namespace {

/// value = scale * code, code = nearest_even(value * inverse), |code| <= 2^bits; both scales are powers of two.
struct CodeStep {
  float scale, inverse;
};

/// From the bits of the largest magnitude. Below 2^-100 all codes are 0; where a value is not finite the scale is NaN.
CARREL_INLINE CodeStep code_step(int32_t top, int bits) {
  const int exponent = (top >> 23) - 127;  // top < 2^(exponent + 1)
  if (exponent == 128) return {__builtin_nanf(""), 0.0f};
  if (exponent < -100) return {0.0f, 0.0f};
  const int shift = bits - 1 - exponent;  // within [-128 + bits, 100 + bits]
  return {__builtin_bit_cast(float, (127 - shift) << 23), __builtin_bit_cast(float, (127 + shift) << 23)};
}

/// Bits of the largest magnitude of `dim` elements of a row; those of a NaN are above all others.
template <DType kType>
CARREL_INLINE int32_t top_of(const std::byte* row, int begin, int dim) {
  int32_t most = 0;
  int k = 0;
  if constexpr (kType == DType::kF32) {
    const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i top = _mm256_setzero_si256();
    for (; k + 8 <= dim; k += 8) top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(load8(row, kType, begin + k)), mask));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    most = _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1)));
  } else {
    const __m256i mask = _mm256_set1_epi16(0x7FFF);
    __m256i top = _mm256_setzero_si256();
    for (; k + 16 <= dim; k += 16)
      top = _mm256_max_epu16(top, _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * (begin + k))), mask));
    const __m128i m = _mm_max_epu16(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(m, _mm_set1_epi16(-1)));  // the complement: there is no maximum of this kind
    most = static_cast<int32_t>((~static_cast<uint32_t>(_mm_cvtsi128_si32(least)) & 0xFFFFu) << 16);
  }
  for (; k < dim; ++k) {
    const int32_t bits = __builtin_bit_cast(int32_t, load1(row, kType, begin + k)) & 0x7FFFFFFF;
    most = bits > most ? bits : most;
  }
  return most;
}

/// Sixteen values to sixteen codes, in order.
CARREL_INLINE __m256i codes16(__m256 low, __m256 high, __m256 inverse) {
  const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(low, inverse)), b = _mm256_cvtps_epi32(_mm256_mul_ps(high, inverse));
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
}
/// Code `at` of an array of words.
CARREL_INLINE void put_code(int32_t* words, int at, float x, float inverse) {
  const auto code = static_cast<int16_t>(_mm_cvtss_si32(_mm_set_ss(x * inverse)));
  __builtin_memcpy(reinterpret_cast<std::byte*>(words) + 2 * at, &code, 2);
}

float encode_row(const float* x, int dim, int bits, int32_t* words) {
  const CodeStep s = code_step(top_of<DType::kF32>(reinterpret_cast<const std::byte*>(x), 0, dim), bits);
  int k = 0;
  for (; k + 16 <= dim; k += 16) {
    const __m256i c = codes16(_mm256_loadu_ps(x + k), _mm256_loadu_ps(x + k + 8), _mm256_set1_ps(s.inverse));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + k / 2), c);
  }
  for (; k < dim; ++k) put_code(words, k, x[k], s.inverse);
  if (dim % 2 != 0) put_code(words, dim, 0.0f, 0.0f);
  return s.scale;
}

void encode_keys(const std::byte* const* rows, int begin, int dim, int lo, int hi, int bits, int32_t* kt, float* scales) {
  for (int i = lo / 8 * 8; i < hi; i += 8) {
    const std::byte* row[8];
    float inverse[8];
    for (int j = 0; j < 8; ++j) {
      const std::byte* r = row[j] = rows[i + j < lo ? lo : i + j < hi ? i + j : hi - 1];  // lanes beside [lo, hi): any row that is there
      const CodeStep s = code_step(top_of<DType::kBF16>(r, begin, dim), bits);
      scales[i + j] = s.scale;
      inverse[j] = s.inverse;
    }
    int k = 0;
    for (; k + 16 <= dim; k += 16) {
      __m256 r[8];
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j)
        r[j] = _mm256_castsi256_ps(
            codes16(load8(row[j], DType::kBF16, begin + k), load8(row[j], DType::kBF16, begin + k + 8), _mm256_set1_ps(inverse[j])));
      transpose8(r, reinterpret_cast<float*>(kt) + k / 2 * kKeyBlock + i);
    }
    for (; k < dim; ++k) {
      for (int j = 0; j < 8; ++j) put_code(kt, (k / 2 * kKeyBlock + i + j) * 2 + k % 2, load1(row[j], DType::kBF16, begin + k), inverse[j]);
    }
    for (int j = 0; dim % 2 != 0 && j < 8; ++j) put_code(kt, (dim / 2 * kKeyBlock + i + j) * 2 + 1, 0.0f, 0.0f);
  }
}

void encode_values(const std::byte* const* rows, int begin, int dim, int lo, int hi, int32_t* v, float* scales) {
  const int padded = (dim + kLanes - 1) / kLanes * kLanes;
  for (int i = lo / 2 * 2; i < hi; i += 2) {
    const std::byte* row[2] = {rows[i < lo ? lo : i], rows[i + 1 < hi ? i + 1 : hi - 1]};
    float inverse[2];
    for (int j = 0; j < 2; ++j) {
      const CodeStep s = code_step(top_of<DType::kBF16>(row[j], begin, dim), kValueBits);
      scales[i + j] = s.scale;
      inverse[j] = s.inverse;
    }
    int32_t* out = v + i / 2 * padded;
    int k = 0;
    for (; k + 16 <= dim; k += 16) {
      __m256i c[2];
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j)
        c[j] = codes16(load8(row[j], DType::kBF16, begin + k), load8(row[j], DType::kBF16, begin + k + 8), _mm256_set1_ps(inverse[j]));
      const __m256i low = _mm256_unpacklo_epi16(c[0], c[1]), high = _mm256_unpackhi_epi16(c[0], c[1]);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k), _mm256_permute2x128_si256(low, high, 0x20));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k + 8), _mm256_permute2x128_si256(low, high, 0x31));
    }
    for (; k < padded; ++k) {
      for (int j = 0; j < 2; ++j)
        put_code(out, 2 * k + j, k < dim ? load1(row[j], DType::kBF16, begin + k) : 0.0f, k < dim ? inverse[j] : 0.0f);
    }
  }
}

void encode_weights(int n, const float* s, const float* scales, int lo, int hi, int32_t* words, float* weight_scales) {
  constexpr int kN = kKeyBlock / kLanes;
  for (int r = 0; r < n; ++r, s += kKeyBlock, words += kKeyBlock / 2) {
    F16 w[kN];
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j)
      w[j] = if_lane_in(lo - j * kLanes, hi - j * kLanes, F16::load(s + j * kLanes) * F16::load(scales + j * kLanes), F16::set(0.0f));
    // A NaN of a value's scale has no sign; one among the weights spoils their sum, and so the result, whatever its code.
    const CodeStep step = code_step(top_bits(w[0], w[1], w[2], w[3]), kValueBits);
    weight_scales[r] = step.scale;
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + j * kLanes / 2),
                          codes16(w[j].low(), w[j].high(), _mm256_set1_ps(step.inverse)));
  }
}

/// R rows by N registers of 16 lanes: finish(r, j, dot as float). a: rows of lda words, b: rows of ldb words.
template <int R, int N, class Finish>
CARREL_INLINE void code_tile(int n_words, const int32_t* a, int lda, const int32_t* b, int ldb, Finish finish) {
  Words sum[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) sum[r][j] = Words::set(0);
  }
  for (int k = 0; k < n_words; ++k) {
    Words lane[N];
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) lane[j] = Words::load(b + k * ldb + j * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Words x = Words::set(a[r * lda + k]);
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) sum[r][j] = add_pairs(sum[r][j], lane[j], x);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) finish(r, j, to_float(sum[r][j]));
  }
}

/// Calls fn<R, N>(first row, first register of 16) over m rows and n16 registers.
template <class Fn>
CARREL_INLINE void for_code_tiles(int m, int n16, Fn fn) {
  int j = 0;
  const auto rows = [&]<int N>() CARREL_LAMBDA_INLINE {
    int i = 0;
    for (; i + 6 <= m; i += 6) fn.template operator()<6, N>(i, j);
    for (; i + 3 <= m; i += 3) fn.template operator()<3, N>(i, j);
    for (; i < m; ++i) fn.template operator()<1, N>(i, j);
  };
#ifdef __AVX512F__
  for (; j + 4 <= n16; j += 4) rows.template operator()<4>();
  for (; j + 2 <= n16; j += 2) rows.template operator()<2>();
#endif
  for (; j < n16; ++j) rows.template operator()<1>();
}

void product_codes(int m, int n16, int n_words, const int32_t* a, const float* a_scales, const int32_t* kt, const float* kt_scales,
                   float* c) {
  for_code_tiles(m, n16, [&]<int R, int N>(int i, int j) CARREL_LAMBDA_INLINE {
    code_tile<R, N>(n_words, a + i * n_words, n_words, kt + j * kLanes, kKeyBlock, [&](int r, int l, F16 dot) CARREL_LAMBDA_INLINE {
      (dot * F16::load(kt_scales + (j + l) * kLanes) * F16::set(a_scales[i + r])).store(c + (i + r) * kKeyBlock + (j + l) * kLanes);
    });
  });
}

void product_weights(int m, int n16, int begin, int end, const int32_t* a, const float* a_scales, const int32_t* v, float* c,
                     const float* carry) {
  const int width = n16 * kLanes;
  for_code_tiles(m, n16, [&]<int R, int N>(int i, int j) CARREL_LAMBDA_INLINE {
    code_tile<R, N>(end - begin, a + i * (kKeyBlock / 2) + begin, kKeyBlock / 2, v + begin * width + j * kLanes, width,
                    [&](int r, int l, F16 dot) CARREL_LAMBDA_INLINE {
                      float* at = c + (i + r) * width + (j + l) * kLanes;
                      fma(dot, F16::set(a_scales[i + r]), F16::load(at) * F16::set(carry[i + r])).store(at);
                    });
  });
}

}  // namespace
}  // namespace CARREL_SIMD_NS
}  // namespace carrel::cpu
