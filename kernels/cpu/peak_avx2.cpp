// Peak loops of the AVX2 path, and the plain read. The empty asm keeps the compiler from sharing or hoisting products.
#include <immintrin.h>

#include "kernels/cpu/peak_kernels.h"

namespace carrel::cpu {

int peak_int8_avx2(int64_t n_rounds) {
  __m256i acc[kPeakChains], w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(5);
  const __m256i ones = _mm256_set1_epi16(1);
  for (__m256i& a : acc) a = _mm256_setzero_si256();
  for (int64_t i = 0; i < n_rounds; i++) {
#pragma GCC unroll 12
    for (__m256i& a : acc) {
      asm volatile("" : "+x"(x));
      a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_maddubs_epi16(w, _mm256_sign_epi8(x, w)), ones));
    }
  }
  for (const __m256i& a : acc) acc[0] = _mm256_xor_si256(acc[0], a);
  return _mm256_extract_epi32(acc[0], 0);
}

float peak_f32_avx2(int64_t n_rounds) {
  __m256 acc[kPeakChains], w = _mm256_set1_ps(0.5f), x = _mm256_set1_ps(0.25f);
  for (__m256& a : acc) a = _mm256_setzero_ps();
  for (int64_t i = 0; i < n_rounds; i++) {
#pragma GCC unroll 12
    for (__m256& a : acc) a = _mm256_fmadd_ps(w, x, a);
    asm volatile("" : "+x"(x));
  }
  for (const __m256& a : acc) acc[0] = _mm256_add_ps(acc[0], a);
  return _mm256_cvtss_f32(acc[0]);
}

int read_lines(const void* p, int64_t n_lines) {
  const auto* at = static_cast<const __m256i*>(p);
  __m256i acc[8];
  for (__m256i& a : acc) a = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + 4 <= n_lines; i += 4, at += 8) {
    _mm_prefetch(reinterpret_cast<const char*>(at) + 4096, _MM_HINT_T0);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) acc[j] = _mm256_xor_si256(acc[j], _mm256_loadu_si256(at + j));
  }
  for (; i < n_lines; i++, at += 2) acc[0] = _mm256_xor_si256(acc[0], _mm256_xor_si256(_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)));
  for (int j = 1; j < 8; j++) acc[0] = _mm256_xor_si256(acc[0], acc[j]);
  return _mm256_extract_epi32(acc[0], 0);
}

}  // namespace carrel::cpu
