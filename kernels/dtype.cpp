// Element types: one table of names and shapes, and the widening of each type. Pure functions.
#include "kernels/dtype.h"

#include <immintrin.h>

#include <array>
#include <cstring>

#include "kernels/blocks.h"
#include "kernels/float8.h"

namespace carrel {
namespace {

struct TypeRow {
  DType type;
  std::string_view name;
  BlockShape shape;
};

constexpr std::array kTypes = {
    TypeRow{DType::kF32, "F32", {1, 4}},
    TypeRow{DType::kF16, "F16", {1, 2}},
    TypeRow{DType::kBF16, "BF16", {1, 2}},
    TypeRow{DType::kI32, "I32", {1, 4}},
    TypeRow{DType::kI64, "I64", {1, 8}},
    TypeRow{DType::kQ4_0, "Q4_0", {32, 18}},
    TypeRow{DType::kQ4_1, "Q4_1", {32, 20}},
    TypeRow{DType::kQ5_0, "Q5_0", {32, 22}},
    TypeRow{DType::kQ5_1, "Q5_1", {32, 24}},
    TypeRow{DType::kQ8_0, "Q8_0", {32, 34}},
    TypeRow{DType::kQ4_K, "Q4_K", {256, 144}},
    TypeRow{DType::kQ5_K, "Q5_K", {256, 176}},
    TypeRow{DType::kQ6_K, "Q6_K", {256, 210}},
    TypeRow{DType::kMXFP4, "MXFP4", {32, 17}},
    TypeRow{DType::kF8E4M3, "F8_E4M3", {1, 1}},
    TypeRow{DType::kF8E8M0, "F8_E8M0", {1, 1}},
    TypeRow{DType::kU8, "U8", {1, 1}},
    TypeRow{DType::kI8, "I8", {1, 1}},
    TypeRow{DType::kPackedKv, "PACKED_KV", {512, 584}},
    TypeRow{DType::kPackedIndex, "PACKED_INDEX", {128, 68}},
};

const TypeRow& row_of(DType type) {
  for (const TypeRow& r : kTypes)
    if (r.type == type) return r;
  return kTypes[0];
}

template <class T, class Convert>
void widen(std::span<const std::byte> in, std::span<float> out, Convert convert) {
  for (size_t i = 0; i < out.size(); i++) {
    T v;
    std::memcpy(&v, in.data() + i * sizeof(T), sizeof(T));
    out[i] = convert(v);
  }
}

}  // namespace

BlockShape block_shape(DType type) {
  return row_of(type).shape;
}

std::string_view to_string(DType type) {
  return row_of(type).name;
}

std::optional<DType> dtype_from_string(std::string_view name) {
  for (const TypeRow& r : kTypes)
    if (r.name == name) return r.type;
  return std::nullopt;
}

void to_f32(DType type, std::span<const std::byte> in, std::span<float> out) {
  switch (type) {
    case DType::kF32:
      std::memcpy(out.data(), in.data(), out.size_bytes());
      return;
    case DType::kF16:
      return widen<uint16_t>(in, out, f16_to_f32);
    case DType::kBF16:
      return widen<uint16_t>(in, out, bf16_to_f32);
    case DType::kI32:
      return widen<int32_t>(in, out, [](int32_t v) { return static_cast<float>(v); });
    case DType::kI64:
      return widen<int64_t>(in, out, [](int64_t v) { return static_cast<float>(v); });
    case DType::kF8E4M3:
      return widen<uint8_t>(in, out, e4m3_to_f32);
    case DType::kF8E8M0:
      return widen<uint8_t>(in, out, [](uint8_t v) { return v == 0xFF ? std::numeric_limits<float>::quiet_NaN() : e8m0_to_f32(v); });
    case DType::kU8:
      return widen<uint8_t>(in, out, [](uint8_t v) { return static_cast<float>(v); });
    case DType::kI8:
      return widen<int8_t>(in, out, [](int8_t v) { return static_cast<float>(v); });
    default:
      break;
  }
  const BlockShape b = block_shape(type);
  const Form form = form_of(type);
  for (size_t i = 0; i < out.size() / static_cast<size_t>(b.n_values); i++)
    values_of(form, read_block(type, in.data() + i * static_cast<size_t>(b.n_bytes)), out.data() + i * static_cast<size_t>(b.n_values));
}

float f16_to_f32(uint16_t h) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

uint16_t f32_to_f16(float f) {
  return static_cast<uint16_t>(_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), 0));
}

}  // namespace carrel
