// Inside of linear.cpp: what an instruction path provides. Each path fills one table from its own file (its own compiler flags).
// All functions compute whole row blocks of 16 and leave accumulators, not outputs. Threads: pure functions on caller's buffers.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/blocks.h"
#include "kernels/matrix.h"

namespace carrel::cpu {

/// Activations of a tile of t tokens, group by group, token by token: 12 words, which are
/// 8 words of four int8 | scale f32 | start of the dot of k 0..15 (32 if one dot) | start of k 16..31 | sum f32. A start is
/// kDotBits - offset * sum.
constexpr int kXWords = 12, kXScale = 8, kXStart = 9, kXSum = 11;

/// Dots start at the bits of 1.5 * 2^23, whose unit in the last place is 1: while |dot| < 2^22, the sum read as a float is kDotBias + dot,
/// exactly, and fma(that, scale, -kDotBias * scale) is scale * dot, rounded once, without a conversion. (The product with the bias is
/// exact: a scale has 18 bits.)
constexpr int32_t kDotBits = 0x4B400000;
constexpr float kDotBias = 12582912.0f;

/// A group of 16 rows widened to bytes, in the order of 8-bit codes. Per half (one half, or two of kI6K): the scale, and what takes the
/// bias of a dot away again. min: what is multiplied with the activation sum; no form has two halves and minima.
struct alignas(64) WideGroup {
  uint8_t q[512];
  struct Half {
    float scale[16], back[16];
  } half[2];
  float* min() { return half[1].scale; }
  const float* min() const { return half[1].scale; }
};
/// Where the results of a tile go: row block b of token t to `to + t * token_stride + b * block_stride`, 16 floats each.
struct TileOut {
  float* to = nullptr;
  int64_t token_stride = 0, block_stride = 0;
  const float* bias = nullptr;  // [n_row_blocks][16] or null, added first
  const float* add = nullptr;   // laid out as `to`, or null, added last
};
/// Sums n_groups of a tile of t tokens and n_row_blocks row blocks. w: row block after row block, `stride` groups apart; from:
/// [n_row_blocks][t][16] to go on from, or null for zeros; may be where `out` goes.
using TileFn = void (*)(const WideGroup* w, int64_t stride, int n_groups, const int32_t* x, const float* from, const TileOut& out);

/// Columns [0, n_groups * 32) of one row block and `n_blocks` packed blocks of it.
struct LinearKernels {
  int int_tile = 1;       // most tokens of an integer tile
  int tile_blocks = 1;    // most row blocks of an integer tile
  int int_direct = 1;     // most tokens of row_block
  int int_offset_i8 = 0;  // offset of kI8 codes as this path reads them
  /// Quantizes x[n_groups * 32]; words: the token's first, its groups lie `stride` words apart.
  void (*quantize)(const float* x, int64_t n_groups, int offset, bool halves, int64_t stride, int32_t* words);
  /// A tile of t <= int_direct tokens, straight from the packed blob: acc[t][16].
  void (*row_block)(Form form, const std::byte* blocks, int64_t n_blocks, const int32_t* x, int t, float* acc);
  /// Packed blocks to wide groups.
  void (*widen)(Form form, const std::byte* blocks, int64_t n_blocks, WideGroup* out);
  /// The tile of n_row_blocks <= tile_blocks and t <= int_tile.
  TileFn (*tile)(Form form, int n_row_blocks, int t);
  /// Plain forms: whole dots of t tokens (t <= plain_tile) and n_row_blocks (<= plain_row_blocks(t)) row blocks: acc[t][n_row_blocks * 16].
  int plain_tile = 1;
  int (*plain_row_blocks)(int t);
  void (*plain)(Form form, const std::byte* w, int64_t n_cols, int n_row_blocks, const float* x, int64_t x_stride, int t, float* acc);
};

/// Scale of an activation group from its largest magnitude, by the rule of linear.h; inverse 0 means that all codes are 0.
/// These two are inlined by force: an out-of-line copy of the AVX-512 file must not serve other machines.
struct GroupScale {
  float scale, inverse;
};
[[gnu::always_inline]] inline GroupScale group_scale(float top) {
  if (!(top < INFINITY)) return {NAN, 0};
  if (top < 1e-30f) return {0, 0};
  return {top / 127.0f, 127.0f / top};
}
/// Writes what follows the codes of a group: low, high: sums of the codes of its halves.
[[gnu::always_inline]] inline void put_group_tail(float scale, int low, int high, int offset, bool halves, int32_t* group) {
  group[kXScale] = __builtin_bit_cast(int32_t, scale);
  group[kXStart] = kDotBits - offset * (halves ? low : low + high);
  group[kXStart + 1] = kDotBits - offset * high;
  group[kXSum] = __builtin_bit_cast(int32_t, static_cast<float>(low + high));
}

const LinearKernels& scalar_kernels();
const LinearKernels& avx2_kernels();
const LinearKernels& avx512_kernels();

}  // namespace carrel::cpu
