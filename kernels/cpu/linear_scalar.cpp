// Scalar path: the oracle of the tests. Reads the packed blob through its own walk (packed_block), adds in the order that linear.h states.
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/linear_kernels.h"
#include "kernels/float8.h"

namespace carrel::cpu {
namespace {

void quantize_group(const float* x, int offset, bool halves, int32_t* group) {
  float top = 0;
  bool finite = true;
  for (int i = 0; i < 32; i++) {
    finite = finite && std::isfinite(x[i]);
    top = std::fmax(top, std::fabs(x[i]));
  }
  const GroupScale s = group_scale(finite ? top : INFINITY);
  int8_t q[32];
  int sums[2] = {0, 0};
  for (int i = 0; i < 32; i++) {
    q[i] = s.inverse == 0 ? int8_t{0} : static_cast<int8_t>(std::nearbyint(x[i] * s.inverse));
    sums[i / 16] += q[i];
  }
  std::memcpy(group, q, 32);
  put_group_tail(s.scale, sums[0], sums[1], offset, halves, group);
}

void quantize(const float* x, int64_t n_groups, int offset, bool halves, int64_t stride, int32_t* words) {
  for (int64_t g = 0; g < n_groups; g++) quantize_group(x + 32 * g, offset, halves, words + g * stride);
}

/// One group of one row, one token; q: its 32 codes.
float add_group(Form form, const BlockCodes& c, int g, const int32_t* x, float acc) {
  const FormLayout l = layout_of(form);
  int8_t xq[32];
  std::memcpy(xq, x, 32);
  const auto x_scale = std::bit_cast<float>(x[kXScale]), x_sum = std::bit_cast<float>(x[kXSum]);
  const int n_halves = l.n_sub_scales == 2 ? 2 : 1;
  for (int h = 0; h < n_halves; h++) {
    int dot = x[kXStart + h];
    for (int k = 32 / n_halves * h; k < 32 / n_halves * (h + 1); k++) {
      const uint8_t code = c.q[32 * g + k];
      dot += (l.is_float ? e2m1_doubled(code) + l.offset : form == Form::kI8 ? static_cast<int8_t>(code) : code) * xq[k];
    }
    float scale = l.is_float ? e8m0_to_f32(static_cast<uint8_t>(c.d), 1) : f16_to_f32(c.d);
    if (form == Form::kI6K) scale *= static_cast<float>(static_cast<int8_t>(c.sub_scale[2 * g + h]));
    if (l.has_sub_min) scale *= static_cast<float>(c.sub_scale[g]);
    float v = std::fma(std::bit_cast<float>(dot), scale, -kDotBias * scale);
    const float m = f16_to_f32(c.m);
    if (l.has_min) v = std::fma(l.has_sub_min ? -(m * static_cast<float>(c.sub_min[g])) : m, x_sum, v);
    acc = std::fma(v, x_scale, acc);
  }
  return acc;
}

void row_block(Form form, const std::byte* blocks, int64_t n_blocks, const int32_t* x, int /*t*/, float* acc) {
  const FormLayout l = layout_of(form);
  for (int row = 0; row < kRowBlock; row++) {
    acc[row] = 0;
    for (int64_t b = 0; b < n_blocks; b++) {
      const BlockCodes c = packed_block(form, blocks + b * l.block_bytes(), row);
      for (int g = 0; g < l.n_groups(); g++) acc[row] = add_group(form, c, g, x + (b * l.n_groups() + g) * kXWords, acc[row]);
    }
  }
}

int one_row_block(int) {
  return 1;
}

void plain(Form form, const std::byte* w, int64_t n_cols, int n_row_blocks, const float* x, int64_t x_stride, int t, float* acc) {
  const Matrix m{form, n_row_blocks * kRowBlock, n_cols, w};
  std::vector<float> row(static_cast<size_t>(n_cols));
  for (int64_t r = 0; r < m.n_rows; r++) {
    dequantize_row(m, r, row);
    for (int i = 0; i < t; i++) {
      float sum = 0;
      for (int64_t k = 0; k < n_cols; k++) sum = std::fma(row[static_cast<size_t>(k)], x[i * x_stride + k], sum);
      acc[i * m.n_rows + r] = sum;
    }
  }
}

}  // namespace

const LinearKernels& scalar_kernels() {
  static constexpr LinearKernels kKernels = {1, 1, 1, 0, quantize, row_block, nullptr, nullptr, 4, one_row_block, plain};
  return kKernels;
}

}  // namespace carrel::cpu
