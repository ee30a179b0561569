// File blocks to codes, codes to values. Layouts: tests/golden/quant/README.md. Pure functions.
#include "kernels/blocks.h"

#include <cstring>

#include "kernels/float8.h"

namespace carrel {
namespace {

uint8_t u8(const std::byte* p, int at) {
  return static_cast<uint8_t>(p[at]);
}
uint16_t u16(const std::byte* p, int at) {
  return static_cast<uint16_t>(u8(p, at) | (u8(p, at + 1) << 8));
}

/// 32 codes, low nibbles first, then high nibbles.
void nibbles(const std::byte* p, uint8_t* q) {
  for (int j = 0; j < 16; j++) {
    q[j] = u8(p, j) & 15;
    q[j + 16] = u8(p, j) >> 4;
  }
}

void fifth_bits(const std::byte* p, uint8_t* q) {
  for (int i = 0; i < 32; i++) q[i] = static_cast<uint8_t>(q[i] | (((u8(p, i / 8) >> (i % 8)) & 1) << 4));
}

/// The 12 bytes of Q4_K and Q5_K: eight 6-bit scales and minima.
void k_scales(const std::byte* b, BlockCodes& c) {
  for (int s = 0; s < 4; s++) {
    c.sub_scale[s] = u8(b, s) & 63;
    c.sub_min[s] = u8(b, 4 + s) & 63;
    c.sub_scale[s + 4] = static_cast<uint8_t>((u8(b, 8 + s) & 15) | ((u8(b, s) >> 6) << 4));
    c.sub_min[s + 4] = static_cast<uint8_t>((u8(b, 8 + s) >> 4) | ((u8(b, 4 + s) >> 6) << 4));
  }
}

void k_nibbles(const std::byte* qs, uint8_t* q) {
  for (int i = 0; i < 256; i++) {
    const uint8_t byte = u8(qs, 32 * (i / 64) + i % 32);
    q[i] = i / 32 % 2 == 0 ? byte & 15 : byte >> 4;
  }
}

void read_q6(const std::byte* b, BlockCodes& c) {
  std::memcpy(c.sub_scale, b + 192, 16);
  c.d = u16(b, 208);
  for (int i = 0; i < 256; i++) {
    const int h = i / 128, j = i / 32 % 4, l = i % 32;
    const uint8_t low = u8(b, 64 * h + 32 * (j % 2) + l);
    const int high = (u8(b, 128 + 32 * h + l) >> (2 * j)) & 3;
    c.q[i] = static_cast<uint8_t>((j < 2 ? low & 15 : low >> 4) | (high << 4));
  }
}

void k_values(const BlockCodes& c, float* out) {
  const float d = f16_to_f32(c.d), dmin = f16_to_f32(c.m);
  for (int s = 0; s < 8; s++) {
    const float scale = d * static_cast<float>(c.sub_scale[s]), min = dmin * static_cast<float>(c.sub_min[s]);
    for (int i = 32 * s; i < 32 * s + 32; i++) out[i] = scale * static_cast<float>(c.q[i]) - min;
  }
}

}  // namespace

BlockCodes read_block(DType type, const std::byte* b) {
  BlockCodes c;
  c.d = u16(b, 0);
  switch (type) {
    case DType::kQ8_0:
      std::memcpy(c.q, b + 2, 32);
      break;
    case DType::kQ4_0:
      nibbles(b + 2, c.q);
      break;
    case DType::kQ4_1:
      c.m = u16(b, 2);
      nibbles(b + 4, c.q);
      break;
    case DType::kQ5_0:
      nibbles(b + 6, c.q);
      fifth_bits(b + 2, c.q);
      break;
    case DType::kQ5_1:
      c.m = u16(b, 2);
      nibbles(b + 8, c.q);
      fifth_bits(b + 4, c.q);
      break;
    case DType::kQ4_K:
      c.m = u16(b, 2);
      k_scales(b + 4, c);
      k_nibbles(b + 16, c.q);
      break;
    case DType::kQ5_K:
      c.m = u16(b, 2);
      k_scales(b + 4, c);
      k_nibbles(b + 48, c.q);
      for (int i = 0; i < 256; i++) c.q[i] = static_cast<uint8_t>(c.q[i] | (((u8(b, 16 + i % 32) >> (i / 32)) & 1) << 4));
      break;
    case DType::kQ6_K:
      read_q6(b, c);
      break;
    case DType::kMXFP4:
      c.d = u8(b, 0);
      nibbles(b + 1, c.q);
      break;
    default:  // plain types have no blocks
      break;
  }
  return c;
}

void values_of(Form form, const BlockCodes& c, float* out) {
  const FormLayout l = layout_of(form);
  const float d = f16_to_f32(c.d);
  if (l.is_float) {
    const float scale = e8m0_to_f32(static_cast<uint8_t>(c.d));
    for (int i = 0; i < 32; i++) out[i] = scale * e2m1_to_f32(c.q[i]);
  } else if (form == Form::kI8) {
    for (int i = 0; i < 32; i++) out[i] = d * static_cast<float>(static_cast<int8_t>(c.q[i]));
  } else if (l.has_sub_min) {
    k_values(c, out);
  } else if (form == Form::kI6K) {
    for (int i = 0; i < 256; i++) {
      const float scale = d * static_cast<float>(static_cast<int8_t>(c.sub_scale[i / 16]));
      out[i] = scale * static_cast<float>(c.q[i] - l.offset);
    }
  } else if (l.has_min) {
    const float m = f16_to_f32(c.m);
    for (int i = 0; i < 32; i++) out[i] = d * static_cast<float>(c.q[i]) + m;
  } else {
    for (int i = 0; i < 32; i++) out[i] = d * static_cast<float>(c.q[i] - l.offset);
  }
}

}  // namespace carrel
