// The loops of linear_avx2.cpp and linear_avx512.cpp, written once over a vector type V of 8 or 16 lanes. Lanes are output rows; V lives in
// an anonymous namespace of its file, so that nothing here is shared between files built with different flags. Pure functions.
//
// V provides: I, F (integer, float vectors), kLanes, kTile, kTileBlocks, kDirect, kPlainTile, kI8Offset, load/store, f16/bf16/u8/i8
// widening, half_e8m0 (half the scale), e4m3 (the value / 256; e4m3_two: of 32 codes, with 16 lanes), e2m1_codes (kE2m1Codes), mul, fma,
// and
//   dots<R, T, kBits, …>(x, start, w, dot): see the files.
#pragma once
#include <cstdint>
#include <utility>

#include "kernels/cpu/linear_kernels.h"

namespace carrel::cpu {

#define CARREL_INLINE __attribute__((always_inline))

template <int N, class Fn>
CARREL_INLINE inline void unroll(Fn fn) {
  [&]<int... i>(std::integer_sequence<int, i...>)
      CARREL_INLINE { (fn(std::integral_constant<int, i>{}), ...); }(std::make_integer_sequence<int, N>{});
}

/// How a form's integer product differs from others.
struct Variant {
  int bits = 8;
  bool min = false, halves = false, start = false;  // start: the codes have an offset
};

template <class V>
constexpr Variant variant_of(Form form) {
  const FormLayout l = layout_of(form);
  const int offset = form == Form::kI8 ? V::kI8Offset : l.offset;
  return {V::kAnyBits ? 8 : l.dot_bits(), l.has_min, l.n_sub_scales == 2, offset != 0};
}

/// Lanes [lane, lane + V::kLanes) of the four values k = 4c .. 4c + 3 of a group, as V reads codes.
template <class V, Form kForm, int c>
CARREL_INLINE inline typename V::I chunk(const uint8_t* group, int lane) {
  constexpr FormLayout l = layout_of(kForm);
  const uint8_t* codes = group + l.codes_at() + lane * 4;
  if constexpr (l.code_bits == 8) {
    return V::i8_codes(V::load(codes + 64 * c));
  } else {
    const typename V::I pair = V::load(codes + 64 * (c % 4));
    const typename V::I low = V::and_bytes(c < 4 ? pair : V::template shift<-4>(pair), 0x0F);
    if constexpr (l.is_float) {
      return V::e2m1_codes(low);
    } else if constexpr (l.n_planes == 0) {
      return low;
    } else {
      const typename V::I plane = V::load(group + l.planes_at() + lane * 4 + (l.n_planes == 2 ? 64 * (c / 4) : 0));
      constexpr int kFrom = l.n_planes == 2 ? 2 * (c % 4) : c;
      return V::or_masked(low, V::template shift<4 - kFrom>(plane), l.n_planes == 2 ? 0x30 : 0x10);
    }
  }
}

template <class V>
struct Scales {
  typename V::F s[2], back[2], min;  // back: -kDotBias * s
};

/// Scales of one group; head: the block's first bytes.
template <class V, Form kForm>
CARREL_INLINE inline Scales<V> scales(const uint8_t* head, const uint8_t* group, int lane) {
  constexpr FormLayout l = layout_of(kForm);
  Scales<V> r;
  if constexpr (l.is_float) {
    r.s[0] = r.s[1] = V::half_e8m0(head + lane);
  } else {
    r.s[0] = r.s[1] = V::f16(head + 2 * lane);
  }
  if constexpr (l.n_sub_scales == 2) {
    r.s[1] = V::mul(r.s[0], V::i8(group + 16 + lane));
    r.s[0] = V::mul(r.s[0], V::i8(group + lane));
  } else if constexpr (l.n_sub_scales == 1) {
    r.s[0] = V::mul(r.s[0], V::u8(group + lane));
  }
  r.back[0] = V::mul(r.s[0], V::all(-kDotBias));
  r.back[1] = V::mul(r.s[1], V::all(-kDotBias));
  if constexpr (l.has_min) r.min = V::f16(head + 32 + 2 * lane);
  if constexpr (l.has_sub_min) r.min = V::mul(V::negate(r.min), V::u8(group + l.sub_min_at() + lane));
  return r;
}

/// acc[r][t] takes one group of tokens t for R row blocks, in the fixed order. s[r]: their scales; w(r, c): the weights of chunk c.
template <class V, int R, int T, Variant kV, class W>
CARREL_INLINE inline void add_group(const int32_t* x, const Scales<V> (&s)[R], W w, typename V::F (&acc)[R][T]) {
  constexpr int kHalves = kV.halves ? 2 : 1;
  unroll<kHalves>([&](auto h) CARREL_INLINE {
    typename V::I dot[R][T];
    V::template dots<R, T, kV.bits, kV.start, 8 / kHalves * h, 8 / kHalves>(x, x + kXStart + h, w, dot);
    unroll<T>([&](auto t) CARREL_INLINE {
      const int32_t* xt = x + kXWords * t;
      unroll<R>([&](auto r) CARREL_INLINE {
        typename V::F v = V::fma(V::as_float(dot[r][t]), s[r].s[h], s[r].back[h]);
        if constexpr (kV.min) v = V::fma(s[r].min, V::set1(xt + kXSum), v);
        acc[r][t] = V::fma(v, V::set1(xt + kXScale), acc[r][t]);
      });
    });
  });
}

/// Asks for what will be read some groups later: hides memory latency across the 4 KiB borders where hardware prefetch stops.
template <class V>
CARREL_INLINE inline void prefetch_group(const FormLayout& l, const uint8_t* group, int g) {
  constexpr int kAhead = 6144;
  for (int at = 0; at < l.group_bytes() + (g == 0 ? l.head_bytes() : 0); at += 64) V::prefetch(group + kAhead + at);
}

/// Decode: T tokens, the packed bytes streamed once, both halves of the block where V has 8 lanes.
template <class V, Form kForm, int T>
void row_block(const std::byte* blocks, int64_t n_blocks, const int32_t* x, float* out) {
  constexpr FormLayout l = layout_of(kForm);
  constexpr int kParts = kRowBlock / V::kLanes;
  typename V::F acc[kParts][1][T];
  unroll<kParts>([&](auto part) CARREL_INLINE { unroll<T>([&](auto t) CARREL_INLINE { acc[part][0][t] = V::zero(); }); });
  const uint8_t* p = reinterpret_cast<const uint8_t*>(blocks);
  for (int64_t b = 0; b < n_blocks; b++) {
    const uint8_t* head = p;
    p += l.head_bytes();
    for (int g = 0; g < l.n_groups(); g++, p += l.group_bytes(), x += kXWords * T) {
      prefetch_group<V>(l, p, g);
      unroll<kParts>([&](auto part) CARREL_INLINE {
        constexpr int lane = part * V::kLanes;
        const Scales<V> s[1] = {scales<V, kForm>(head, p, lane)};
        add_group<V, 1, T, variant_of<V>(kForm)>(x, s, [&](auto, auto c) CARREL_INLINE { return chunk<V, kForm, c>(p, lane); }, acc[part]);
      });
    }
  }
  unroll<kParts>([&](auto part) CARREL_INLINE {
    unroll<T>([&](auto t) CARREL_INLINE { V::store_f32(out + t * kRowBlock + part * V::kLanes, acc[part][0][t]); });
  });
}

template <class V, Form kForm>
void widen(const std::byte* blocks, int64_t n_blocks, WideGroup* out) {
  constexpr FormLayout l = layout_of(kForm);
  const uint8_t* p = reinterpret_cast<const uint8_t*>(blocks);
  for (int64_t b = 0; b < n_blocks; b++) {
    const uint8_t* head = p;
    p += l.head_bytes();
    for (int g = 0; g < l.n_groups(); g++, p += l.group_bytes(), out++) {
      prefetch_group<V>(l, p, g);
      for (int lane = 0; lane < kRowBlock; lane += V::kLanes) {
        unroll<8>([&](auto c) CARREL_INLINE { V::store(out->q + 64 * c + 4 * lane, chunk<V, kForm, c>(p, lane)); });
        const Scales<V> s = scales<V, kForm>(head, p, lane);
        unroll<variant_of<V>(kForm).halves ? 2 : 1>([&](auto h) CARREL_INLINE {
          V::store_f32(out->half[h].scale + lane, s.s[h]);
          V::store_f32(out->half[h].back + lane, s.back[h]);
        });
        if constexpr (l.has_min) V::store_f32(out->min() + lane, s.min);
      }
    }
  }
}

/// Prefill: T tokens x R row blocks, accumulators in registers over n_groups.
template <class V, Variant kV, int R, int T>
void tile(const WideGroup* w, int64_t stride, int n_groups, const int32_t* x, const float* from, const TileOut& out) {
  for (int lane = 0; lane < kRowBlock; lane += V::kLanes) {
    typename V::F acc[R][T];
    unroll<R>([&](auto r) CARREL_INLINE {
      unroll<T>([&](auto t) CARREL_INLINE { acc[r][t] = from == nullptr ? V::zero() : V::f32(from + (r * T + t) * kRowBlock + lane); });
    });
    const int32_t* xg = x;
    for (const WideGroup* g = w; g < w + n_groups; g++, xg += kXWords * T) {
      Scales<V> s[R];
      unroll<R>([&](auto r) CARREL_INLINE {
        unroll<kV.halves ? 2 : 1>([&](auto h) CARREL_INLINE {
          s[r].s[h] = V::f32(g[r * stride].half[h].scale + lane);
          s[r].back[h] = V::f32(g[r * stride].half[h].back + lane);
        });
        if constexpr (kV.min) s[r].min = V::f32(g[r * stride].min() + lane);
      });
      add_group<V, R, T, kV>(xg, s, [&](auto r, auto c) CARREL_INLINE { return V::load(g[r * stride].q + 4 * lane + 64 * c); }, acc);
    }
    unroll<R>([&](auto r) CARREL_INLINE {
      if (out.bias != nullptr) {
        unroll<T>([&](auto t) CARREL_INLINE { acc[r][t] = V::add(acc[r][t], V::f32(out.bias + r * kRowBlock + lane)); });
      }
      unroll<T>([&](auto t) CARREL_INLINE {
        const int64_t at = t * out.token_stride + r * out.block_stride + lane;
        V::store_f32(out.to + at, out.add != nullptr ? V::add(acc[r][t], V::f32(out.add + at)) : acc[r][t]);
      });
    });
  }
}

/// Plain forms: T tokens x R row blocks, fma in k order.
template <class V, Form kForm, int T, int R>
void plain(const std::byte* w, int64_t n_cols, const float* x, int64_t x_stride, float* out, int out_stride) {
  constexpr int kParts = kRowBlock / V::kLanes;
  constexpr int kSize = kForm == Form::kF32 ? 4 : 2;
  typename V::F acc[R * kParts][T];
  unroll<R * kParts>([&](auto i) CARREL_INLINE { unroll<T>([&](auto t) CARREL_INLINE { acc[i][t] = V::zero(); }); });
  const uint8_t* p = reinterpret_cast<const uint8_t*>(w);
  const int64_t block_bytes = n_cols * kRowBlock * kSize;
  for (int64_t k = 0; k < n_cols; k++, p += kRowBlock * kSize) {
    typename V::F wv[R * kParts];
    unroll<R * kParts>([&](auto i) CARREL_INLINE {
      const uint8_t* at = p + i / kParts * block_bytes + i % kParts * V::kLanes * kSize;
      if constexpr (T <= 2 && i % kParts == 0) V::prefetch(at + 1024);
      wv[i] = kForm == Form::kF32 ? V::f32(at) : kForm == Form::kF16 ? V::f16(at) : V::bf16(at);
    });
    unroll<T>([&](auto t) CARREL_INLINE {
      const typename V::F xv = V::set1(x + t * x_stride + k);
      unroll<R * kParts>([&](auto i) CARREL_INLINE { acc[i][t] = V::fma(wv[i], xv, acc[i][t]); });
    });
  }
  unroll<R * kParts>([&](auto i) CARREL_INLINE {
    unroll<T>([&](auto t) CARREL_INLINE { V::store_f32(out + t * out_stride + i * V::kLanes, acc[i][t]); });
  });
}

/// kF8 in the same order: a weight is made in a register, code / 256 times 256 · scale, rounded as it would be in memory.
template <class V, int T, int R>
void plain_f8(const std::byte* w, int64_t n_cols, const float* x, int64_t x_stride, float* out, int out_stride) {
  constexpr int kParts = kRowBlock / V::kLanes;
  typename V::F acc[R * kParts][T];
  unroll<R * kParts>([&](auto i) CARREL_INLINE { unroll<T>([&](auto t) CARREL_INLINE { acc[i][t] = V::zero(); }); });
  const uint8_t* p = reinterpret_cast<const uint8_t*>(w);
  const int64_t block_bytes = plain_block_bytes(Form::kF8, n_cols);
  const auto multiply = [&](int64_t k, const typename V::F(&wv)[R * kParts]) CARREL_INLINE {
    unroll<T>([&](auto t) CARREL_INLINE {
      const typename V::F xv = V::set1(x + t * x_stride + k);
      unroll<R * kParts>([&](auto i) CARREL_INLINE { acc[i][t] = V::fma(wv[i], xv, acc[i][t]); });
    });
  };
  const auto column = [&](int64_t k, const typename V::F(&scale)[R * kParts]) CARREL_INLINE {
    typename V::F wv[R * kParts];
    unroll<R * kParts>([&](auto i)
                           CARREL_INLINE { wv[i] = V::mul(V::e4m3(p + i / kParts * block_bytes + i % kParts * V::kLanes), scale[i]); });
    multiply(k, wv);
    p += kRowBlock;
  };
  const auto two_columns = [&](int64_t k, const typename V::F(&scale)[R * kParts]) CARREL_INLINE {
    if constexpr (kParts > 1 || T > 4) {  // the weights of two columns take registers that many tokens need
      column(k, scale);
      column(k + 1, scale);
    } else {
      typename V::F wv[2][R];
      unroll<R>([&](auto r) CARREL_INLINE {
        V::e4m3_two(p + r * block_bytes, wv[0][r], wv[1][r]);
        unroll<2>([&](auto j) CARREL_INLINE { wv[j][r] = V::mul(wv[j][r], scale[r]); });
      });
      unroll<2>([&](auto j) CARREL_INLINE { multiply(k + j, wv[j]); });
      p += 2 * kRowBlock;
    }
  };
  for (int64_t k = 0; k < n_cols;) {
    typename V::F scale[R * kParts];
    unroll<R * kParts>([&](auto i) CARREL_INLINE { scale[i] = V::f32(p + i / kParts * block_bytes + i % kParts * V::kLanes * 4); });
    p += 4 * kRowBlock;
    const int64_t end = n_cols - k < kF8Columns ? n_cols : k + kF8Columns;
    for (; k + 4 <= end; k += 4) {  // a line of codes
      if constexpr (T <= 2) unroll<R>([&](auto r) CARREL_INLINE { V::prefetch(p + r * block_bytes + 1024); });
      unroll<2>([&](auto j) CARREL_INLINE { two_columns(k + 2 * j, scale); });
    }
    for (; k < end; k++) column(k, scale);
  }
  unroll<R * kParts>([&](auto i) CARREL_INLINE {
    unroll<T>([&](auto t) CARREL_INLINE { V::store_f32(out + t * out_stride + i * V::kLanes, acc[i][t]); });
  });
}

// ---- tables: from run-time forms and sizes to the templates above

template <class Fn>
CARREL_INLINE inline void with_form(Form form, Fn fn) {
  switch (form) {
    case Form::kI8:
      return fn.template operator()<Form::kI8>();
    case Form::kI4:
      return fn.template operator()<Form::kI4>();
    case Form::kI4M:
      return fn.template operator()<Form::kI4M>();
    case Form::kI5:
      return fn.template operator()<Form::kI5>();
    case Form::kI5M:
      return fn.template operator()<Form::kI5M>();
    case Form::kI4K:
      return fn.template operator()<Form::kI4K>();
    case Form::kI5K:
      return fn.template operator()<Form::kI5K>();
    case Form::kI6K:
      return fn.template operator()<Form::kI6K>();
    case Form::kX4:
      return fn.template operator()<Form::kX4>();
    default:
      return;
  }
}

template <class V>
void any_row_block(Form form, const std::byte* blocks, int64_t n_blocks, const int32_t* x, int t, float* acc) {
  with_form(form, [&]<Form kForm>() {
    unroll<V::kDirect>([&](auto i) {
      if (t == i + 1) row_block<V, kForm, i + 1>(blocks, n_blocks, x, acc);
    });
  });
}

template <class V>
void any_widen(Form form, const std::byte* blocks, int64_t n_blocks, WideGroup* out) {
  with_form(form, [&]<Form kForm>() { widen<V, kForm>(blocks, n_blocks, out); });
}

template <class V>
TileFn tile_of(Form form, int n_row_blocks, int t) {
  TileFn fn = nullptr;
  with_form(form, [&]<Form kForm>() {
    unroll<V::kTile>([&](auto i) {
      unroll<V::kTileBlocks>([&](auto r) {
        if (t == i + 1 && n_row_blocks == r + 1) fn = tile<V, variant_of<V>(kForm), r + 1, i + 1>;
      });
    });
  });
  return fn;
}

/// Most row blocks of 16 that t tokens leave registers for.
template <class V>
constexpr int plain_row_blocks(int t) {
  const int fit = V::kPlainAccs / (t * (kRowBlock / V::kLanes));
  return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

template <class V, int T, int R>
void plain_blocks(Form form, const std::byte* w, int64_t n_cols, const float* x, int64_t x_stride, float* out, int out_stride) {
  if (form == Form::kF32) return plain<V, Form::kF32, T, R>(w, n_cols, x, x_stride, out, out_stride);
  if (form == Form::kF8) return plain_f8<V, T, R>(w, n_cols, x, x_stride, out, out_stride);
  if (form == Form::kF16) return plain<V, Form::kF16, T, R>(w, n_cols, x, x_stride, out, out_stride);
  return plain<V, Form::kBF16, T, R>(w, n_cols, x, x_stride, out, out_stride);
}

/// t tokens in pieces of the sizes that exist; a token's bits do not depend on its piece.
template <class V, int T>
void plain_tokens(Form form, const std::byte* w, int64_t n_cols, int n_row_blocks, const float* x, int64_t x_stride, int t, float* out) {
  constexpr int kMost = plain_row_blocks<V>(T);
  const int64_t block_bytes = plain_block_bytes(form, n_cols);
  const int out_stride = n_row_blocks * kRowBlock;
  for (; t >= T; t -= T, x += T * x_stride, out += T * out_stride) {
    int r = 0;
    if constexpr (kMost >= 4) {
      for (; r + 4 <= n_row_blocks; r += 4)
        plain_blocks<V, T, 4>(form, w + r * block_bytes, n_cols, x, x_stride, out + r * kRowBlock, out_stride);
    }
    if constexpr (kMost >= 2) {
      for (; r + 2 <= n_row_blocks; r += 2)
        plain_blocks<V, T, 2>(form, w + r * block_bytes, n_cols, x, x_stride, out + r * kRowBlock, out_stride);
    }
    for (; r < n_row_blocks; r++) plain_blocks<V, T, 1>(form, w + r * block_bytes, n_cols, x, x_stride, out + r * kRowBlock, out_stride);
  }
  if constexpr (T > 1) {
    if (t > 0) plain_tokens<V, T == 12 ? 6 : T == 6 ? 4 : T / 2>(form, w, n_cols, n_row_blocks, x, x_stride, t, out);
  }
}

template <class V>
void any_plain(Form form, const std::byte* w, int64_t n_cols, int n_row_blocks, const float* x, int64_t x_stride, int t, float* acc) {
  plain_tokens<V, V::kPlainTile>(form, w, n_cols, n_row_blocks, x, x_stride, t, acc);
}

}  // namespace carrel::cpu
