// AVX-512 path: 16 lanes, one row block per vector, VNNI dots of unsigned codes; int8 weights are offset by 128 on the fly. Built with its
// own flags, entered only where cpuid has them: no inline function of a library may be called from here.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 warns of its own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "kernels/cpu/linear_simd.h"

namespace carrel::cpu {
namespace {

struct Avx512 {
  using I = __m512i;
  using F = __m512;
  static constexpr int kLanes = 16, kTile = 12, kDirect = 8, kPlainTile = 12, kPlainAccs = 24, kI8Offset = 128;
  static constexpr bool kAnyBits = true;

  static I load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static void store(uint8_t* p, I v) { _mm512_storeu_si512(p, v); }
  // Inlined by force: GCC takes a function that only prefetches for one without effect and drops the call.
  CARREL_INLINE static void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
  static F zero() { return _mm512_setzero_ps(); }
  template <class P>
  static F set1(const P* p) {
    return _mm512_set1_ps(*reinterpret_cast<const float*>(p));
  }
  static F f32(const void* p) { return _mm512_loadu_ps(p); }
  static void store_f32(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F f16(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
  static F bf16(const void* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 16));
  }
  static F u8(const void* p) { return to_float(_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))); }
  static F i8(const void* p) { return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F negate(F a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  static F to_float(I v) { return _mm512_cvtepi32_ps(v); }
  static I i8_codes(I v) { return _mm512_xor_si512(v, _mm512_set1_epi8(static_cast<char>(0x80))); }
  static I and_bytes(I v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask))); }
  static I or_masked(I a, I b, int mask) { return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8(static_cast<char>(mask)), 0xF8); }
  template <int n>
  static I shift(I v) {
    if constexpr (n >= 0) return _mm512_slli_epi16(v, n);
    return _mm512_srli_epi16(v, n >= 0 ? 0 : -n);
  }

  /// dot[t] of chunks [c0, c0 + n) of T tokens; x: [chunk][token] words; begin: [token] start words.
  template <int T, int kBits, bool kStart, int c0, int n, class W>
  CARREL_INLINE static void dots(const int32_t* x, const int32_t* begin, W w, I (&dot)[T]) {
    unroll<T>([&](auto t) CARREL_INLINE { dot[t] = kStart ? _mm512_set1_epi32(begin[t]) : _mm512_setzero_si512(); });
    unroll<n>([&](auto j) CARREL_INLINE {
      constexpr int c = c0 + j;
      const I wc = w(std::integral_constant<int, c>{});
      unroll<T>([&](auto t) CARREL_INLINE { dot[t] = _mm512_dpbusd_epi32(dot[t], wc, _mm512_set1_epi32(x[c * T + t])); });
    });
  }
};

}  // namespace

const LinearKernels& avx512_kernels() {
  static constexpr LinearKernels kKernels = {
      Avx512::kTile,    Avx512::kDirect,    Avx512::kI8Offset,        quantize_avx2,    any_row_block<Avx512>, any_widen<Avx512>,
      any_tile<Avx512>, Avx512::kPlainTile, plain_row_blocks<Avx512>, any_plain<Avx512>};
  return kKernels;
}

}  // namespace carrel::cpu
