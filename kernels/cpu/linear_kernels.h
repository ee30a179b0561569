// Inside of linear.cpp: what an instruction path provides. Each path fills one table from its own file (its own compiler flags).
// All functions compute whole row blocks of 16 and leave accumulators, not outputs. Threads: pure functions on caller's buffers.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/blocks.h"
#include "kernels/matrix.h"

namespace carrel::cpu {

/// Activations of a tile of t tokens, group by group: 12 * t words per group, [word][token]:
/// 8 words of four int8 | scale f32 | start of the dot of k 0..15 (32 if one dot) | start of k 16..31 | scale * sum f32. A start is -offset
/// * sum.
constexpr int kXWords = 12;

/// A group of 16 rows widened to bytes, in the order of 8-bit codes; min is what is multiplied with the activation sum.
struct alignas(64) WideGroup {
  uint8_t q[512];
  float scale[2][16];  // kI6K: per half
  float min[16];
};

/// Columns [0, n_groups * 32) of one row block and `n_blocks` packed blocks of it.
struct LinearKernels {
  int int_tile = 1;       // most tokens of an integer tile
  int tile_blocks = 1;    // most row blocks of an integer tile
  int int_direct = 1;     // most tokens of row_block
  int int_offset_i8 = 0;  // offset of kI8 codes as this path reads them
  /// Quantizes x[n_groups * 32], token `slot` of a tile of t tokens.
  void (*quantize)(const float* x, int64_t n_groups, int offset, bool halves, int t, int32_t* words, int slot);
  /// A tile of t <= int_direct tokens, straight from the packed blob: acc[t][16].
  void (*row_block)(Form form, const std::byte* blocks, int64_t n_blocks, const int32_t* x, int t, float* acc);
  /// Packed blocks to wide groups.
  void (*widen)(Form form, const std::byte* blocks, int64_t n_blocks, WideGroup* out);
  /// Adds n_groups to acc[t][n_row_blocks][16] of a tile of t tokens; w: row block after row block, `stride` groups apart.
  void (*tile)(Form form, const WideGroup* w, int64_t stride, int n_row_blocks, int n_groups, const int32_t* x, int t, float* acc);
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
[[gnu::always_inline]] inline void put_group_tail(float scale, int low, int high, int offset, bool halves, int t, int32_t* group, int slot) {
  group[8 * t + slot] = __builtin_bit_cast(int32_t, scale);
  group[9 * t + slot] = -offset * (halves ? low : low + high);
  group[10 * t + slot] = -offset * high;
  group[11 * t + slot] = __builtin_bit_cast(int32_t, scale * static_cast<float>(low + high));
}
void quantize_avx2(const float* x, int64_t n_groups, int offset, bool halves, int t, int32_t* words, int slot);

const LinearKernels& scalar_kernels();
const LinearKernels& avx2_kernels();
const LinearKernels& avx512_kernels();

}  // namespace carrel::cpu
