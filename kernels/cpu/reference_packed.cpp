// DeepSeek-V4's packed rows for the reference set, written from docs/formats/kv_packed.md alone: codes by searching the nearest value, the
// Hadamard matrix by its definition, in float64. Judges kernels/packed_rows.cpp, so it may share nothing with it.
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/reference_ops.h"

namespace carrel::cpu {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// exponent and mantissa bits below a sign bit; without infinities.
double small_float(int code, int mantissa_bits, int bias) {
  const int exponent = code >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1), one = 1 << mantissa_bits;
  if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return std::ldexp(one + mantissa, exponent - bias - mantissa_bits);
}
double e4m3(int code) {
  static const auto values = [] {  // of all codes: a run asks hundreds of millions of times
    std::array<double, 256> out{};
    for (int c = 0; c < 256; ++c)
      out[static_cast<size_t>(c)] = (c & 0x7F) == 0x7F ? kNan : small_float(c & 0x7F, 3, 7) * (c >= 0x80 ? -1 : 1);
    return out;
  }();
  return values[static_cast<size_t>(code)];
}
double e2m1(int code) {
  return small_float(code & 7, 1, 1) * (code >= 8 ? -1 : 1);
}

/// The code, of those below `n_codes`, whose value is nearest to |x|, the even one of two; with `sign` where x is negative.
int nearest_code(double x, int n_codes, int sign, double (*value)(int)) {
  int best = 0;
  for (int code = 1; code < n_codes; ++code) {
    const double now = std::abs(std::abs(x) - value(code)), before = std::abs(std::abs(x) - value(best));
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best + (std::signbit(x) ? sign : 0);
}

/// The exponent of the smallest power of two that brings `top` to `largest` or below.
int scale_exponent(double top, double largest) {
  int exponent = 0;
  const double fraction = std::frexp(top / largest, &exponent);  // in [1/2, 1)
  return fraction == 0.5 ? exponent - 1 : exponent;
}

/// Codes and scales of a group of n; scale code 0xFF where something is not finite.
struct Group {
  std::vector<int> codes;
  int scale_code = 0xFF;
};
Group round_group(const float* x, int n, double floor, double largest, int n_codes, int sign, double (*value)(int)) {
  Group out;
  double top = floor;
  for (int i = 0; i < n; ++i) top = std::isfinite(x[i]) && top == top ? std::max(top, std::abs(static_cast<double>(x[i]))) : kNan;
  out.codes.assign(static_cast<size_t>(n), 0);
  if (std::isnan(top)) return out;
  const int exponent = scale_exponent(static_cast<float>(top), largest);
  out.scale_code = exponent + 127;
  for (int i = 0; i < n; ++i) out.codes[static_cast<size_t>(i)] = nearest_code(std::ldexp(x[i], -exponent), n_codes, sign, value);
  return out;
}
Group round_e4m3(const float* x) {
  return round_group(x, 64, 1e-4f, 448, 0x7F, 0x80, e4m3);
}
Group round_e2m1(const float* x) {
  return round_group(x, 32, std::ldexp(6.0, -126), 6, 8, 8, e2m1);
}

float scaled(double value, int scale_code) {
  return static_cast<float>(scale_code == 0xFF ? kNan : std::ldexp(value, scale_code - 127));
}

std::vector<float> turned(const float* x, int n) {
  std::vector<float> out;
  for (int i = 0; i < n; ++i) {
    double sum = 0;
    for (int j = 0; j < n; ++j) sum += std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? x[j] : -static_cast<double>(x[j]);
    out.push_back(static_cast<float>(sum / std::sqrt(n)));
  }
  return out;
}

int code_at(const std::byte* p) {
  return static_cast<int>(*p);
}

}  // namespace

void write_packed_row(std::byte* row, DType dtype, int n, const float* in) {
  if (dtype == DType::kPackedIndex) {
    const std::vector<float> x = turned(in, n);
    for (int g = 0; g < n / 32; ++g) {
      const Group group = round_e2m1(x.data() + static_cast<ptrdiff_t>(32) * g);
      for (int i = 0; i < 16; ++i) {
        const auto at = static_cast<size_t>(2 * i);
        row[16 * g + i] = static_cast<std::byte>(group.codes[at] + 16 * group.codes[at + 1]);
      }
      row[n / 2 + g] = static_cast<std::byte>(group.scale_code);
    }
    return;
  }
  const int n_codes = n - 64, n_groups = n_codes / 64;
  std::byte* scales = row + n_codes + 128;
  for (int g = 0; g < n_groups; ++g) {
    const Group group = round_e4m3(in + static_cast<ptrdiff_t>(64) * g);
    for (int i = 0; i < 64; ++i) row[64 * g + i] = static_cast<std::byte>(group.codes[static_cast<size_t>(i)]);
    scales[g] = static_cast<std::byte>(group.scale_code);
  }
  for (int g = n_groups; g % 8 != 0; ++g) scales[g] = std::byte{0};
  for (int i = 0; i < 64; ++i) {
    const uint16_t h = f32_to_bf16(in[n_codes + i]);
    row[n_codes + 2 * i] = static_cast<std::byte>(h & 0xFF);
    row[n_codes + 2 * i + 1] = static_cast<std::byte>(h >> 8);
  }
}

void read_packed_row(const std::byte* row, DType dtype, int n, float* out) {
  if (dtype == DType::kPackedIndex) {
    for (int i = 0; i < n; ++i) {
      const int pair = code_at(row + i / 2);
      out[i] = scaled(e2m1(i % 2 == 0 ? pair % 16 : pair / 16), code_at(row + n / 2 + i / 32));
    }
    return;
  }
  const int n_codes = n - 64;
  for (int i = 0; i < n_codes; ++i) out[i] = scaled(e4m3(code_at(row + i)), code_at(row + n_codes + 128 + i / 64));
  for (int i = 0; i < 64; ++i) {
    const int low = code_at(row + n_codes + 2 * i), high = code_at(row + n_codes + 2 * i + 1);
    out[n_codes + i] = bf16_to_f32(static_cast<uint16_t>(low + 256 * high));
  }
}

std::vector<float> turned_and_rounded(const float* q, int n) {
  std::vector<float> out = turned(q, n);
  for (int g = 0; g < n; g += 32) {
    const Group group = round_e2m1(out.data() + g);
    for (int i = 0; i < 32; ++i) out[static_cast<size_t>(g + i)] = scaled(e2m1(group.codes[static_cast<size_t>(i)]), group.scale_code);
  }
  return out;
}

}  // namespace carrel::cpu
