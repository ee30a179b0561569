// Floats of 8 and 4 bits: e4m3 ("fn": no infinity, NaN 0x7F and 0xFF, largest 448), e8m0 (2^(code - 127), NaN 0xFF) and e2m1 (0 .5 1 1.5 2
// 3 4 6, code 8 .. negative). Values and rounding: tests/golden/quant/README.md. Threads: everything here is pure.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace carrel {

constexpr float kE4m3Max = 448, kE2m1Max = 6;

constexpr bool is_e4m3_nan(uint8_t code) {
  return (code & 0x7F) == 0x7F;
}

constexpr float e4m3_to_f32(uint8_t code) {
  if (is_e4m3_nan(code)) return std::numeric_limits<float>::quiet_NaN();
  const uint32_t magnitude = code & 0x7F, sign = static_cast<uint32_t>(code & 0x80) << 24;
  const float small = static_cast<float>(magnitude) * 0x1p-9f;  // no implicit one
  const uint32_t bits = magnitude < 8 ? std::bit_cast<uint32_t>(small) : (magnitude << 20) + (120u << 23);
  return std::bit_cast<float>(bits | sign);
}

/// Bits of 2^(code - 127 - halvings), halvings 0 or 1; codes 0 and 1 give float32 denormals. 0xFF is not asked for.
constexpr float e8m0_to_f32(uint8_t code, int halvings = 0) {
  const int exponent = code - halvings;  // as float32 has it
  return std::bit_cast<float>(exponent > 0 ? static_cast<uint32_t>(exponent) << 23 : 0x400000u >> -exponent);
}

/// Twice the value: an integer.
constexpr int e2m1_doubled(uint8_t code) {
  constexpr int kValues[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  return (code & 8) != 0 ? -kValues[code & 7] : kValues[code & 7];
}

constexpr float e2m1_to_f32(uint8_t code) {
  const float v = static_cast<float>(e2m1_doubled(code & 7)) * 0.5f;
  return (code & 8) != 0 ? -v : v;
}

/// Nearest, ties to even, beyond the largest the largest; NaN stays NaN.
inline uint8_t f32_to_e4m3(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f), sign = bits >> 24 & 0x80;
  const float magnitude = std::fabs(f);
  if (magnitude != magnitude) return static_cast<uint8_t>(sign | 0x7F);
  if (magnitude >= kE4m3Max) return static_cast<uint8_t>(sign | 0x7E);
  if (magnitude < 0x1p-6f) return static_cast<uint8_t>(sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p9f)));
  uint32_t u = std::bit_cast<uint32_t>(magnitude);
  u += 0x7FFFF + (u >> 20 & 1);
  return static_cast<uint8_t>(sign | ((u >> 20) - (120u << 3)));
}

/// The same for e2m1; NaN becomes the largest.
inline uint8_t f32_to_e2m1(float f) {
  const float m = std::fabs(f);
  const int code = m <= 0.25f ? 0 : m < 0.75f ? 1 : m <= 1.25f ? 2 : m < 1.75f ? 3 : m <= 2.5f ? 4 : m < 3.5f ? 5 : m <= 5.0f ? 6 : 7;
  return static_cast<uint8_t>(code | (std::signbit(f) ? 8 : 0));
}

/// The smallest power of two, as an e8m0 code, by which `top` / that is at most `largest` (448 or 6; 1.5): DeepSeek's rule
/// 2^ceil(log2(top / largest)), from the bits. top: finite, its floor taken by the caller.
inline uint8_t power_of_two_scale(float top, float largest) {
  const uint32_t bits = std::bit_cast<uint32_t>(top / largest);
  const uint32_t up = (bits & 0x7FFFFF) != 0 ? 1 : 0;
  return static_cast<uint8_t>((bits >> 23) + up);
}

}  // namespace carrel
