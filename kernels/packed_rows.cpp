// See the header.
#include "kernels/packed_rows.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/float8.h"

namespace carrel {
namespace {

constexpr uint8_t kNanScale = 0xFF;

constexpr std::array<float, 256> make_e4m3_values() {
  std::array<float, 256> v{};
  for (size_t i = 0; i < v.size(); i++) v[i] = e4m3_to_f32(static_cast<uint8_t>(i));
  return v;
}
constexpr std::array<float, 256> kE4m3Values = make_e4m3_values();

constexpr std::array<float, 16> make_e2m1_values() {
  std::array<float, 16> v{};
  for (size_t i = 0; i < v.size(); i++) v[i] = e2m1_to_f32(static_cast<uint8_t>(i));
  return v;
}
constexpr std::array<float, 16> kE2m1Values = make_e2m1_values();

float scale_value(uint8_t code) {
  return code == kNanScale ? NAN : e8m0_to_f32(code);
}

/// The scale of a group, and its reciprocal; kNanScale when a value is not finite.
struct GroupScale {
  uint8_t code;
  float inverse;
};
GroupScale group_scale(const float* x, int n, float floor, float largest) {
  float top = floor;
  for (int i = 0; i < n; i++) {
    if (!std::isfinite(x[i])) return {kNanScale, 0};
    top = std::fmax(top, std::fabs(x[i]));
  }
  const uint8_t code = power_of_two_scale(top, largest);
  return {code, e8m0_to_f32(static_cast<uint8_t>(254 - code))};
}

/// Group by group: scales, and codes of e2m1 by put(index, code).
template <class Put>
void code_index(const float* x, int n, uint8_t* scales, Put put) {
  for (int g = 0; g < n; g += kPackedIndexGroup) {
    const GroupScale s = group_scale(x + g, kPackedIndexGroup, kIndexFloor, kE2m1Max);
    scales[g / kPackedIndexGroup] = s.code;
    for (int i = g; i < g + kPackedIndexGroup; i++) put(i, s.code == kNanScale ? uint8_t{0} : f32_to_e2m1(x[i] * s.inverse));
  }
}

void pack_kv(const float* x, int n, std::byte* row) {
  const PackedKvParts p = packed_kv_parts(n);
  std::memset(row + p.scales_at, 0, p.n_bytes - static_cast<size_t>(p.scales_at));
  for (int g = 0; g < p.n_codes; g += kPackedGroup) {
    const GroupScale s = group_scale(x + g, kPackedGroup, kPackedFloor, kE4m3Max);
    row[p.scales_at + g / kPackedGroup] = static_cast<std::byte>(s.code);
    for (int i = g; i < g + kPackedGroup; i++) row[i] = static_cast<std::byte>(s.code == kNanScale ? 0 : f32_to_e4m3(x[i] * s.inverse));
  }
  for (int i = 0; i < kPackedRotary; i++) {
    const uint16_t h = f32_to_bf16(x[p.n_codes + i]);
    std::memcpy(row + p.rotary_at + 2 * i, &h, sizeof h);
  }
}

void unpack_kv(const std::byte* row, int n, float* out) {
  const PackedKvParts p = packed_kv_parts(n);
  for (int g = 0; g < p.n_codes; g += kPackedGroup) {
    const float scale = scale_value(static_cast<uint8_t>(row[p.scales_at + g / kPackedGroup]));
    for (int i = g; i < g + kPackedGroup; i++) out[i] = kE4m3Values[static_cast<size_t>(row[i])] * scale;
  }
  for (int i = 0; i < kPackedRotary; i++) {
    uint16_t h;
    std::memcpy(&h, row + p.rotary_at + 2 * i, sizeof h);
    out[p.n_codes + i] = bf16_to_f32(h);
  }
}

void pack_index(const float* x, int n, std::byte* row) {
  float turned[kMostPackedIndex];
  std::memcpy(turned, x, static_cast<size_t>(n) * sizeof(float));
  hadamard(turned, n);
  std::memset(row, 0, static_cast<size_t>(n) / 2);
  code_index(turned, n, reinterpret_cast<uint8_t*>(row) + n / 2,
             [&](int i, uint8_t code) { row[i / 2] |= static_cast<std::byte>(code << (i % 2 * 4)); });
}

void unpack_index(const std::byte* row, int n, float* out) {
  for (int i = 0; i < n; i++) {
    const auto code = static_cast<size_t>(row[i / 2]) >> (i % 2 * 4) & 15;
    out[i] = kE2m1Values[code] * scale_value(static_cast<uint8_t>(row[n / 2 + i / kPackedIndexGroup]));
  }
}

}  // namespace

bool packed_fits(DType type, int n) {
  if (type == DType::kPackedKv) return n >= kPackedRotary + kPackedGroup && (n - kPackedRotary) % kPackedGroup == 0;
  return n >= kPackedIndexGroup && n <= kMostPackedIndex && std::has_single_bit(static_cast<unsigned>(n));
}

size_t row_bytes(DType type, int n) {
  if (type == DType::kPackedKv) return packed_kv_parts(n).n_bytes;
  if (type == DType::kPackedIndex) return static_cast<size_t>(n / 2 + n / kPackedIndexGroup);
  return bytes_of(type, static_cast<size_t>(n));
}

void pack_row(DType type, const float* x, int n, std::byte* row) {
  return type == DType::kPackedKv ? pack_kv(x, n, row) : pack_index(x, n, row);
}

void unpack_row(DType type, const std::byte* row, int n, float* out) {
  if (type == DType::kPackedKv) return unpack_kv(row, n, out);
  if (type == DType::kPackedIndex) return unpack_index(row, n, out);
  to_f32(type, {row, row_bytes(type, n)}, {out, static_cast<size_t>(n)});
}

void round_index_query(float* q, int n) {
  hadamard(q, n);
  uint8_t scales[kMostPackedIndex / kPackedIndexGroup];
  code_index(q, n, scales, [&](int i, uint8_t code) { q[i] = kE2m1Values[code] * scale_value(scales[i / kPackedIndexGroup]); });
}

void hadamard(float* x, int n) {
  for (int half = 1; half < n; half *= 2) {
    for (int begin = 0; begin < n; begin += 2 * half) {
      for (int i = begin; i < begin + half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const auto norm = static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
  for (int i = 0; i < n; i++) x[i] *= norm;
}

}  // namespace carrel
