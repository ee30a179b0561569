// Peak loops of the AVX-512 path.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 warns of its own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "kernels/cpu/peak_kernels.h"

namespace carrel::cpu {

int peak_int8_avx512(int64_t n_rounds) {
  __m512i acc[kPeakChains], w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(5);
  for (__m512i& a : acc) a = _mm512_setzero_si512();
  for (int64_t i = 0; i < n_rounds; i++) {
#pragma GCC unroll 12
    for (__m512i& a : acc) a = _mm512_dpbusd_epi32(a, w, x);
    asm volatile("" : "+v"(x));
  }
  for (const __m512i& a : acc) acc[0] = _mm512_xor_si512(acc[0], a);
  return _mm_cvtsi128_si32(_mm512_castsi512_si128(acc[0]));
}

float peak_f32_avx512(int64_t n_rounds) {
  __m512 acc[kPeakChains], w = _mm512_set1_ps(0.5f), x = _mm512_set1_ps(0.25f);
  for (__m512& a : acc) a = _mm512_setzero_ps();
  for (int64_t i = 0; i < n_rounds; i++) {
#pragma GCC unroll 12
    for (__m512& a : acc) a = _mm512_fmadd_ps(w, x, a);
    asm volatile("" : "+v"(x));
  }
  for (const __m512& a : acc) acc[0] = _mm512_add_ps(acc[0], a);
  return _mm_cvtss_f32(_mm512_castps512_ps128(acc[0]));
}

}  // namespace carrel::cpu
