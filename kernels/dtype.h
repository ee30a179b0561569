// Element types of files and of memory: names, block geometry, conversion to float32.
// Layouts and exactness: tests/golden/quant/README.md. Threads: everything here is pure.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/error.h"

namespace carrel {

enum class DType : uint8_t {  // numbers reach the model store: never change them
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  kI32 = 3,
  kI64 = 4,
  kQ4_0 = 10,
  kQ4_1 = 11,
  kQ5_0 = 12,
  kQ5_1 = 13,
  kQ8_0 = 14,
  kQ4_K = 15,
  kQ5_K = 16,
  kQ6_K = 17,
  kMXFP4 = 18,   // GGUF: e2m1 with an e8m0 scale per 32
  kF8E4M3 = 20,  // its block scales are another tensor
  kF8E8M0 = 21,
  kU8 = 22,  // bytes, or two e2m1 each
  kI8 = 23,
  kPackedKv = 40,  // state rows only (packed_rows.h); the shapes here are those of the published geometry
  kPackedIndex = 41,
};

/// Values per block and bytes per block (plain types: 1 value).
struct BlockShape {
  int n_values;
  int n_bytes;
};
BlockShape block_shape(DType type);
std::string_view to_string(DType type);
std::optional<DType> dtype_from_string(std::string_view name);  // "F32", "BF16", "Q4_K" …

/// Bytes of n values; n must be a multiple of the block.
inline size_t bytes_of(DType type, size_t n) {
  const BlockShape b = block_shape(type);
  return n / static_cast<size_t>(b.n_values) * static_cast<size_t>(b.n_bytes);
}

/// Widens `out.size()` values to float32, exactly as tests/golden/quant defines them. in.size() == bytes_of(type, out.size()).
void to_f32(DType type, std::span<const std::byte> in, std::span<float> out);

inline float bf16_to_f32(uint16_t h) {
  return std::bit_cast<float>(static_cast<uint32_t>(h) << 16);
}
/// Nearest even; NaN stays NaN.
inline uint16_t f32_to_bf16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);  // nearest even

}  // namespace carrel
