// AVX2 path: 8 lanes, two passes per row block. Products of unsigned codes and activations within ±127 are added up in 16 bits as long as
// they fit: eight of 4 bits (8 * 2 * 15 * 127), four of 5, two of 6, one of 8 (|w| <= 128, its sign moved to x).
#include <immintrin.h>

#include "kernels/cpu/linear_simd.h"

namespace carrel::cpu {
namespace {

struct Avx2 {
  using I = __m256i;
  using F = __m256;
  static constexpr int kLanes = 8, kTile = 6, kTileBlocks = 1, kDirect = 3, kPlainTile = 6, kPlainAccs = 12, kI8Offset = 0;
  static constexpr bool kAnyBits = false;

  static I load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const I*>(p)); }
  static void store(uint8_t* p, I v) { _mm256_storeu_si256(reinterpret_cast<I*>(p), v); }
  // Inlined by force: GCC takes a function that only prefetches for one without effect and drops the call.
  CARREL_INLINE static void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
  static F zero() { return _mm256_setzero_ps(); }
  template <class P>
  static F set1(const P* p) {
    return _mm256_broadcast_ss(reinterpret_cast<const float*>(p));
  }
  static F f32(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
  static void store_f32(float* p, F v) { _mm256_storeu_ps(p, v); }
  static F f16(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
  static F bf16(const void* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))), 16));
  }
  static F u8(const void* p) { return to_float(_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)))); }
  static F i8(const void* p) { return to_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)))); }
  static F half_e8m0(const void* p) {  // (code - 1) << 23, and below that denormals
    const I code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
    const I normal = _mm256_slli_epi32(_mm256_sub_epi32(code, _mm256_set1_epi32(1)), 23),
            small = _mm256_slli_epi32(_mm256_add_epi32(code, _mm256_set1_epi32(1)), 21);
    return as_float(_mm256_max_epi32(normal, small));
  }
  static F e4m3(const void* p) {  // sign | exponent and mantissa, seven bits up
    const __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p))), 7);
    return _mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16(static_cast<int16_t>(0xBFFF))));
  }
  static I e2m1_codes(I v) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kE2m1Codes));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(codes), v);
  }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F all(float x) { return _mm256_set1_ps(x); }
  static F as_float(I v) { return _mm256_castsi256_ps(v); }
  static F negate(F a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  static F to_float(I v) { return _mm256_cvtepi32_ps(v); }
  static I i8_codes(I v) { return v; }
  static I and_bytes(I v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask))); }
  static I or_masked(I a, I b, int mask) { return _mm256_or_si256(a, and_bytes(b, mask)); }
  template <int n>
  static I shift(I v) {  // left by n, or right by -n; bits of neighbour bytes are masked away by the caller
    if constexpr (n >= 0) return _mm256_slli_epi16(v, n);
    return _mm256_srli_epi16(v, n >= 0 ? 0 : -n);
  }

  template <int kBits>
  static I products(I w, I x) {
    if constexpr (kBits == 8) return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_maddubs_epi16(w, x);
  }

  /// dot[0][t], from its start on, of chunks [c0, c0 + n) of one row block and T tokens; x, start: of the first token.
  template <int R, int T, int kBits, bool kStart, int c0, int n, class W>
  CARREL_INLINE static void dots(const int32_t* x, const int32_t* start, W w, I (&dot)[R][T]) {
    static_assert(R == 1, "sixteen registers hold no second row block");
    constexpr int kFit = kBits == 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;
    constexpr int kRun = kFit < n ? kFit : n;
    const I ones = _mm256_set1_epi16(1);
    unroll<n / kRun>([&](auto r) CARREL_INLINE {
      I sum[T];
      unroll<kRun>([&](auto j) CARREL_INLINE {
        constexpr int c = c0 + r * kRun + j;
        const I wc = w(std::integral_constant<int, 0>{}, std::integral_constant<int, c>{});
        unroll<T>([&](auto t) CARREL_INLINE {
          const I p = products<kBits>(wc, _mm256_set1_epi32(x[kXWords * t + c]));
          sum[t] = j == 0 ? p : _mm256_add_epi16(sum[t], p);
        });
      });
      unroll<T>([&](auto t) CARREL_INLINE {
        const I from = r == 0 ? _mm256_set1_epi32(kStart ? start[kXWords * t] : kDotBits) : dot[0][t];
        dot[0][t] = _mm256_add_epi32(from, _mm256_madd_epi16(sum[t], ones));
      });
    });
  }
};

int sum_of(__m128i bytes) {  // 16 int8
  const __m256i w = _mm256_madd_epi16(_mm256_cvtepi8_epi16(bytes), _mm256_set1_epi16(1));
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

void quantize_group(const float* x, int offset, bool halves, int32_t* group) {
  const __m256i abs_mask = _mm256_set1_epi32(0x7FFFFFFF);
  __m256 v[4];
  __m256i top = _mm256_setzero_si256();  // bits of |x| compare like the values, and put NaN on top
  for (int i = 0; i < 4; i++) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), abs_mask));
  }
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
  const GroupScale s = group_scale(std::bit_cast<float>(_mm_cvtsi128_si32(m)));
  const __m256 inverse = _mm256_set1_ps(s.inverse);
  __m256i q[4];
  for (int i = 0; i < 4; i++) q[i] = s.inverse == 0 ? _mm256_setzero_si256() : _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  const __m256i bytes = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(group), bytes);
  const int low = sum_of(_mm256_castsi256_si128(bytes)), high = sum_of(_mm256_extracti128_si256(bytes, 1));
  put_group_tail(s.scale, low, high, offset, halves, group);
}

void quantize(const float* x, int64_t n_groups, int offset, bool halves, int64_t stride, int32_t* words) {
  for (int64_t g = 0; g < n_groups; g++, x += 32, words += stride) quantize_group(x, offset, halves, words);
}

}  // namespace

const LinearKernels& avx2_kernels() {
  static constexpr LinearKernels kKernels = {Avx2::kTile,      Avx2::kTileBlocks,      Avx2::kDirect,   Avx2::kI8Offset,
                                             quantize,         any_row_block<Avx2>,    any_widen<Avx2>, tile_of<Avx2>,
                                             Avx2::kPlainTile, plain_row_blocks<Avx2>, any_plain<Avx2>};
  return kKernels;
}

}  // namespace carrel::cpu
