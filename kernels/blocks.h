// Quantized blocks taken apart into codes and scales: the meeting point of file layouts (dtype.cpp) and packed layouts (matrix.cpp).
// Both turn codes into float32 through values_of, so repacking cannot change a bit. Threads: everything here is pure.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/matrix.h"

namespace carrel {

/// One block of one row: 32 values, or 256 of a K type. Scales are the file's bits.
struct BlockCodes {
  uint16_t d = 0, m = 0;       // f16: scale, minimum (K types: super-scale, super-minimum); kX4: d is an e8m0 code
  uint8_t sub_scale[16] = {};  // K types: per 32 values (kI4K, kI5K) or int8 per 16 (kI6K)
  uint8_t sub_min[8] = {};     // kI4K, kI5K
  uint8_t q[256] = {};         // unsigned codes; kI8: the bits of int8
};

/// Geometry of a packed quantized form: a block of 16 rows is a head followed by groups of 32 columns.
///   head:  d f16[16] (kX4: e8m0[16]) | m f16[16] if has_min
///   group: sub_scales u8[n_sub_scales][16] | sub_mins u8[16] if has_sub_min | planes u8[n_planes][64] | codes u8[8 / 4 nibbles][64]
/// Byte row * 4 + i of code chunk c holds k = 4c + i (8-bit), or k = 4c + i low and k = 16 + 4c + i high (4-bit). The high bits of
/// k = 4c + i: one plane (5-bit): bit c of plane byte row * 4 + i; two planes (6-bit): bits 2(c % 4) .. +1 of the same byte of plane c / 4.
struct FormLayout {
  int block_values = 0;
  int n_sub_scales = 0;
  bool has_min = false;
  bool has_sub_min = false;
  int n_planes = 0;
  int code_bits = 4;
  int offset = 0;         // value code that means zero
  bool is_float = false;  // codes are e2m1, multiplied as kE2m1Codes has them; the scale is e8m0

  constexpr int n_groups() const { return block_values / 32; }
  constexpr int scale_bytes() const { return is_float ? 1 : 2; }
  constexpr int head_bytes() const { return kRowBlock * scale_bytes() * (has_min ? 2 : 1); }
  /// Bits of the unsigned codes that are multiplied.
  constexpr int dot_bits() const { return is_float ? 5 : code_bits + n_planes; }
  constexpr int sub_min_at() const { return 16 * n_sub_scales; }
  constexpr int planes_at() const { return sub_min_at() + (has_sub_min ? 16 : 0); }
  constexpr int codes_at() const { return planes_at() + 64 * n_planes; }
  constexpr int group_bytes() const { return codes_at() + 64 * code_bits; }
  constexpr int block_bytes() const { return head_bytes() + n_groups() * group_bytes(); }
};

/// e2m1 as unsigned integers around 12: twice the value, plus 12.
constexpr uint8_t kE2m1Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
/// The largest scale code of kX4 that products can be made with (linear.h): 2^105.
constexpr int kLargestX4Scale = 232;

/// Forms whose products are of float32 activations.
constexpr bool is_plain(Form f) {
  return f == Form::kF32 || f == Form::kF16 || f == Form::kBF16 || f == Form::kRows || f == Form::kF8;
}

/// kF8: columns that share a scale. A block of 16 rows is, per 128 columns or what is left of them, 256 · scale f32[16], then the codes of
/// one column after the other, u8[16]. (An e4m3 code shifted into an f16 is its value / 256.)
constexpr int kF8Columns = 128;

/// Bytes of 16 rows of a plain form (kRows has no row blocks). Inlined by force: AVX-512 files call it.
[[gnu::always_inline]] constexpr int64_t plain_block_bytes(Form f, int64_t n_cols) {
  if (f == Form::kF8) return n_cols * kRowBlock + (n_cols + kF8Columns - 1) / kF8Columns * kRowBlock * 4;
  return n_cols * kRowBlock * (f == Form::kF32 ? 4 : 2);
}

constexpr FormLayout layout_of(Form f) {
  switch (f) {
    case Form::kI8:
      return {.block_values = 32, .code_bits = 8};
    case Form::kI4:
      return {.block_values = 32, .offset = 8};
    case Form::kI4M:
      return {.block_values = 32, .has_min = true};
    case Form::kI5:
      return {.block_values = 32, .n_planes = 1, .offset = 16};
    case Form::kI5M:
      return {.block_values = 32, .has_min = true, .n_planes = 1};
    case Form::kI4K:
      return {.block_values = 256, .n_sub_scales = 1, .has_min = true, .has_sub_min = true};
    case Form::kI5K:
      return {.block_values = 256, .n_sub_scales = 1, .has_min = true, .has_sub_min = true, .n_planes = 1};
    case Form::kI6K:
      return {.block_values = 256, .n_sub_scales = 2, .n_planes = 2, .offset = 32};
    case Form::kX4:
      return {.block_values = 32, .offset = 12, .is_float = true};
    default:
      return {};
  }
}

/// Takes one block of a quantized file type apart.
BlockCodes read_block(DType type, const std::byte* block);
/// The codes of row `row` (0..15) of one packed block of 16 rows.
BlockCodes packed_block(Form form, const std::byte* block, int row);
/// The block's values; `form` is form_of the file type.
void values_of(Form form, const BlockCodes& codes, float* out);

}  // namespace carrel
