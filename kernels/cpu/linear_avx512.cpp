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
  static constexpr int kLanes = 16, kTile = 6, kTileBlocks = 2, kDirect = 8, kPlainTile = 12, kPlainAccs = 24, kI8Offset = 128;
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
  static F half_e8m0(const void* p) {  // (code - 1) << 23, and below that denormals
    const I code = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    const I normal = _mm512_slli_epi32(_mm512_sub_epi32(code, _mm512_set1_epi32(1)), 23),
            small = _mm512_slli_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(1)), 21);
    return as_float(_mm512_max_epi32(normal, small));
  }
  static F e4m3(const void* p) {  // sign | exponent and mantissa, seven bits up
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p))), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xBFFF))));
  }
  static void e4m3_two(const void* p, F& first, F& second) {
    const I wide = _mm512_slli_epi16(_mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 7);
    const I halves = _mm512_and_si512(wide, _mm512_set1_epi16(static_cast<int16_t>(0xBFFF)));
    first = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
  }
  static I e2m1_codes(I v) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kE2m1Codes));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(codes), v);
  }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F all(float x) { return _mm512_set1_ps(x); }
  static F as_float(I v) { return _mm512_castsi512_ps(v); }
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

  /// dot[r][t], from its start on, of chunks [c0, c0 + n) of R row blocks and T tokens; x, start: of the first token.
  template <int R, int T, int kBits, bool kStart, int c0, int n, class W>
  CARREL_INLINE static void dots(const int32_t* x, const int32_t* start, W w, I (&dot)[R][T]) {
    unroll<T>([&](auto t) CARREL_INLINE {
      const I from = _mm512_set1_epi32(kStart ? start[kXWords * t] : kDotBits);
      unroll<R>([&](auto r) CARREL_INLINE { dot[r][t] = from; });
    });
    unroll<n>([&](auto j) CARREL_INLINE {
      constexpr int c = c0 + j;
      I wc[R];
      unroll<R>([&](auto r) CARREL_INLINE { wc[r] = w(r, std::integral_constant<int, c>{}); });
      unroll<T>([&](auto t) CARREL_INLINE {
        const I xc = _mm512_set1_epi32(x[kXWords * t + c]);
        unroll<R>([&](auto r) CARREL_INLINE { dot[r][t] = _mm512_dpbusd_epi32(dot[r][t], wc[r], xc); });
      });
    });
  }
};

/// One group of 32; sums by dots with ones.
CARREL_INLINE inline void quantize_group(const float* x, int offset, bool halves, int32_t* group) {
  const __m512i abs_mask = _mm512_set1_epi32(0x7FFFFFFF);
  const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
  // Bits of |x| compare like the values, and put NaN on top.
  const __m512i top16 =
      _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low), abs_mask), _mm512_and_si512(_mm512_castps_si512(high), abs_mask));
  const __m256i top8 = _mm256_max_epi32(_mm512_castsi512_si256(top16), _mm512_extracti64x4_epi64(top16, 1));
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(top8), _mm256_extracti128_si256(top8, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
  const GroupScale s = group_scale(__builtin_bit_cast(float, _mm_cvtsi128_si32(m)));
  const __m512 inverse = _mm512_set1_ps(s.inverse);
  const __mmask16 keep = s.inverse == 0 ? 0 : 0xFFFF;
  const __m128i q0 = _mm512_cvtsepi32_epi8(_mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(low, inverse)));
  const __m128i q1 = _mm512_cvtsepi32_epi8(_mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(high, inverse)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(group), q0);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(group + 4), q1);
  const __m128i ones = _mm_set1_epi8(1), none = _mm_setzero_si128();
  const __m128i a = _mm_dpbusd_epi32(none, ones, q0), b = _mm_dpbusd_epi32(none, ones, q1);
  __m128i sums = _mm_hadd_epi32(a, b);
  sums = _mm_hadd_epi32(sums, sums);
  put_group_tail(s.scale, _mm_cvtsi128_si32(sums), _mm_extract_epi32(sums, 1), offset, halves, group);
}

/// Largest of the 16 lanes of each vector, as bits of non-negative floats: lanes 4i … 4i + 3 hold that of v[i].
CARREL_INLINE inline __m512i tops_of(const __m512i (&v)[4]) {
  const __m512i a = _mm512_max_epi32(_mm512_shuffle_i32x4(v[0], v[1], 0x44), _mm512_shuffle_i32x4(v[0], v[1], 0xEE));
  const __m512i b = _mm512_max_epi32(_mm512_shuffle_i32x4(v[2], v[3], 0x44), _mm512_shuffle_i32x4(v[2], v[3], 0xEE));
  __m512i m = _mm512_max_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
  m = _mm512_max_epi32(m, _mm512_shuffle_epi32(m, _MM_PERM_BADC));
  return _mm512_max_epi32(m, _mm512_shuffle_epi32(m, _MM_PERM_CDAB));
}

/// Codes of two groups: 32 bytes each, in order.
CARREL_INLINE inline __m512i codes_of(const float* x, __m512 inverse0, __m512 inverse1) {
  __m512i q[4];
  unroll<4>([&](auto i)
                CARREL_INLINE { q[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), i < 2 ? inverse0 : inverse1)); });
  const __m512i mixed = _mm512_packs_epi16(_mm512_packs_epi32(q[0], q[1]), _mm512_packs_epi32(q[2], q[3]));
  // Quarter j of `mixed` holds words j, 4 + j (codes 4j … of either half) of the first group, then of the second.
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), mixed);
}

/// Four groups of 32 side by side: a group alone is one long chain of dependent operations. False, and nothing written, where a value is
/// not finite.
CARREL_INLINE inline bool quantize_four(const float* x, int offset, bool halves, int64_t stride, int32_t* words) {
  const __m512i abs_mask = _mm512_set1_epi32(0x7FFFFFFF);
  __m512i v[4];
  unroll<4>([&](auto i) CARREL_INLINE {
    const __m512i low = _mm512_and_si512(_mm512_loadu_si512(x + 32 * i), abs_mask),
                  high = _mm512_and_si512(_mm512_loadu_si512(x + 32 * i + 16), abs_mask);
    v[i] = _mm512_max_epi32(low, high);
  });
  const __m512 top = _mm512_castsi512_ps(tops_of(v));
  if (_mm512_cmp_ps_mask(top, _mm512_set1_ps(INFINITY), _CMP_NLT_UQ) != 0) return false;
  const __mmask16 some = _mm512_cmp_ps_mask(top, _mm512_set1_ps(1e-30f), _CMP_NLT_UQ);
  const __m512 scale = _mm512_maskz_div_ps(some, top, _mm512_set1_ps(127.0f)),
               inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(127.0f), top);
  const __m512i q01 = codes_of(x, _mm512_shuffle_f32x4(inverse, inverse, 0x00), _mm512_shuffle_f32x4(inverse, inverse, 0x55));
  const __m512i q23 = codes_of(x + 64, _mm512_shuffle_f32x4(inverse, inverse, 0xAA), _mm512_shuffle_f32x4(inverse, inverse, 0xFF));
  // A quarter of q01 is half a group: four sums to add.
  const __m512i ones = _mm512_set1_epi8(1), none = _mm512_setzero_si512();
  const __m512i s01 = _mm512_dpbusd_epi32(none, ones, q01), s23 = _mm512_dpbusd_epi32(none, ones, q23);
  __m512i pairs = _mm512_add_epi32(_mm512_unpacklo_epi32(s01, s23), _mm512_unpackhi_epi32(s01, s23));  // of 01, of 23, of 01, of 23
  pairs = _mm512_add_epi32(pairs, _mm512_shuffle_epi32(pairs, _MM_PERM_BADC));
  const __m512i low = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 8, 8, 8, 8, 1, 1, 1, 1, 9, 9, 9, 9), pairs);
  const __m512i high = _mm512_permutexvar_epi32(_mm512_setr_epi32(4, 4, 4, 4, 12, 12, 12, 12, 5, 5, 5, 5, 13, 13, 13, 13), pairs);
  const __m512i sum = _mm512_add_epi32(low, high), start = _mm512_set1_epi32(kDotBits), by = _mm512_set1_epi32(offset);
  const __m512i start0 = _mm512_sub_epi32(start, _mm512_mullo_epi32(by, halves ? low : sum)),
                start1 = _mm512_sub_epi32(start, _mm512_mullo_epi32(by, high));
  __m512i tail = _mm512_mask_mov_epi32(_mm512_castps_si512(scale), 0x2222, start0);
  tail = _mm512_mask_mov_epi32(tail, 0x4444, start1);
  tail = _mm512_mask_mov_epi32(tail, 0x8888, _mm512_castps_si512(_mm512_cvtepi32_ps(sum)));
  unroll<4>([&](auto i) CARREL_INLINE {
    int32_t* group = words + i * stride;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(group), _mm512_extracti64x4_epi64(i < 2 ? q01 : q23, i % 2));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(group + kXScale), _mm512_extracti32x4_epi32(tail, i));
  });
  return true;
}

void quantize(const float* x, int64_t n_groups, int offset, bool halves, int64_t stride, int32_t* words) {
  static_assert(kXScale == 8 && kXStart == 9 && kXSum == 11, "quantize_four writes them as one");
  int64_t g = 0;
  for (; g + 4 <= n_groups; g += 4) {
    if (!quantize_four(x + 32 * g, offset, halves, stride, words + g * stride)) break;
  }
  for (; g < n_groups; g++) quantize_group(x + 32 * g, offset, halves, words + g * stride);
}

}  // namespace

const LinearKernels& avx512_kernels() {
  static constexpr LinearKernels kKernels = {Avx512::kTile,      Avx512::kTileBlocks,      Avx512::kDirect,   Avx512::kI8Offset,
                                             quantize,           any_row_block<Avx512>,    any_widen<Avx512>, tile_of<Avx512>,
                                             Avx512::kPlainTile, plain_row_blocks<Avx512>, any_plain<Avx512>};
  return kKernels;
}

}  // namespace carrel::cpu
