// Reading state rows (float32 or bfloat16) eight elements at a time, and turning eight rows into columns. Included by the sources of the
// vector kernels only, after CARREL_SIMD_NS is defined.
#pragma once
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector_kernels.h"

namespace carrel::cpu {
inline namespace CARREL_SIMD_NS {
namespace {

CARREL_INLINE __m256 load8(const std::byte* row, DType dtype, int k) {
  if (dtype == DType::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(row) + k);
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(reinterpret_cast<const uint16_t*>(row) + k));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

CARREL_INLINE float load1(const std::byte* row, DType dtype, int k) {
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(row)[k];
  return __builtin_bit_cast(float, static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(row)[k]) << 16);
}

/// Eight rows of eight floats to eight columns, kKeyBlock floats apart.
CARREL_INLINE void transpose8(const __m256* r, float* out) {
  __m256 t[8], u[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * kKeyBlock, _mm256_permute2f128_ps(u[i], u[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * kKeyBlock, _mm256_permute2f128_ps(u[i], u[i + 4], 0x31));
  }
}

}  // namespace
}  // namespace CARREL_SIMD_NS
}  // namespace carrel::cpu
