// Packing of weight matrices: codes move, values stay. Layout of each form: blocks.h and README.md. Pure functions on caller's buffers.
#include "kernels/matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/blocks.h"
#include "kernels/float8.h"

namespace carrel {
namespace {

constexpr std::array<std::string_view, 14> kNames = {"f32", "f16", "bf16", "i8",  "i4",   "i4m", "i5",
                                                     "i5m", "i4k", "i5k",  "i6k", "rows", "x4",  "f8"};
constexpr int64_t kMaxSide = int64_t{1} << 31;
constexpr int64_t kMaxElements = int64_t{1} << 44;

int64_t row_blocks(int64_t n_rows) {
  return (n_rows + kRowBlock - 1) / kRowBlock;
}
size_t row_block_bytes(Form form, int64_t n_cols) {
  if (is_plain(form)) return static_cast<size_t>(plain_block_bytes(form, n_cols));
  const FormLayout l = layout_of(form);
  return static_cast<size_t>(n_cols / l.block_values) * static_cast<size_t>(l.block_bytes());
}

uint8_t* bytes(std::byte* p) {
  return reinterpret_cast<uint8_t*>(p);
}
const uint8_t* bytes(const std::byte* p) {
  return reinterpret_cast<const uint8_t*>(p);
}

/// Writes 32 codes of one row into a group of 16 rows whose bytes of that row are zero.
void put_codes(const FormLayout& l, const uint8_t* q, int row, uint8_t* group) {
  uint8_t* codes = group + l.codes_at();
  uint8_t* planes = group + l.planes_at();
  for (int k = 0; k < 32; k++) {
    const int c = k / 4, at = row * 4 + k % 4;
    if (l.code_bits == 8) {
      codes[c * 64 + at] = q[k];
      continue;
    }
    uint8_t& pair = codes[(c % 4) * 64 + at];
    pair = static_cast<uint8_t>(pair | ((q[k] & 15) << (c < 4 ? 0 : 4)));
    if (l.n_planes == 1) planes[at] = static_cast<uint8_t>(planes[at] | ((q[k] >> 4) << c));
    if (l.n_planes == 2) {
      uint8_t& two = planes[(c / 4) * 64 + at];
      two = static_cast<uint8_t>(two | ((q[k] >> 4) << (2 * (c % 4))));
    }
  }
}

void get_codes(const FormLayout& l, const uint8_t* group, int row, uint8_t* q) {
  const uint8_t* codes = group + l.codes_at();
  const uint8_t* planes = group + l.planes_at();
  for (int k = 0; k < 32; k++) {
    const int c = k / 4, at = row * 4 + k % 4;
    if (l.code_bits == 8) {
      q[k] = codes[c * 64 + at];
      continue;
    }
    int v = (codes[(c % 4) * 64 + at] >> (c < 4 ? 0 : 4)) & 15;
    if (l.n_planes == 1) v |= ((planes[at] >> c) & 1) << 4;
    if (l.n_planes == 2) v |= ((planes[(c / 4) * 64 + at] >> (2 * (c % 4))) & 3) << 4;
    q[k] = static_cast<uint8_t>(v);
  }
}

void put_block(const FormLayout& l, const BlockCodes& c, int row, std::byte* block) {
  std::memcpy(block + l.scale_bytes() * row, &c.d, static_cast<size_t>(l.scale_bytes()));
  if (l.has_min) std::memcpy(block + 32 + 2 * row, &c.m, 2);
  for (int g = 0; g < l.n_groups(); g++) {
    uint8_t* group = bytes(block) + l.head_bytes() + g * l.group_bytes();
    for (int s = 0; s < l.n_sub_scales; s++) group[16 * s + row] = c.sub_scale[g * l.n_sub_scales + s];
    if (l.has_sub_min) group[l.sub_min_at() + row] = c.sub_min[g];
    put_codes(l, c.q + 32 * g, row, group);
  }
}

/// Group of 32 to int8 with an f16 scale; false when a value is not finite or too large for the scale.
bool quantize_group(const float* x, BlockCodes& c) {
  float top = 0;
  for (int i = 0; i < 32; i++) {
    if (!std::isfinite(x[i])) return false;
    top = std::max(top, std::fabs(x[i]));
  }
  c.d = f32_to_f16(top / 127);
  const float scale = f16_to_f32(c.d);
  if (!std::isfinite(scale)) return false;
  for (int i = 0; i < 32; i++) {
    const float q = scale > 0 ? std::clamp(std::nearbyint(x[i] / scale), -127.0f, 127.0f) : 0.0f;
    c.q[i] = static_cast<uint8_t>(static_cast<int8_t>(q));
  }
  return true;
}

std::string shape_text(DType type, int64_t n_rows, int64_t n_cols) {
  return std::string(to_string(type)) + " [" + std::to_string(n_rows) + ", " + std::to_string(n_cols) + "]";
}

Status check_sides(int64_t n_rows, int64_t n_cols, const std::string& where) {
  if (n_rows < 1 || n_cols < 1 || n_rows > kMaxSide || n_cols > kMaxSide || n_rows > kMaxElements / n_cols)
    return fail(Code::kInvalidArgument, "impossible matrix shape; the file is damaged or not a model", where);
  return {};
}

Status check_shape(DType type, std::span<const std::byte> rows, int64_t n_rows, int64_t n_cols, Form form, size_t out_bytes) {
  const std::string where = shape_text(type, n_rows, n_cols);
  if (type == DType::kI32 || type == DType::kI64 || type == DType::kU8 || type == DType::kI8)
    return fail(Code::kUnsupported, "an integer tensor is not a weight matrix; use it as a table", where);
  if (type == DType::kF8E4M3 || type == DType::kF8E8M0)
    return fail(Code::kUnsupported, "8-bit floats are no weights without the scales that belong to them", where);
  CARREL_TRY(check_sides(n_rows, n_cols, where));
  const int64_t unit = std::max<int64_t>(block_shape(type).n_values, is_plain(form) ? 1 : layout_of(form).block_values);
  if (n_cols % unit != 0)
    return fail(Code::kInvalidArgument, "row length is no multiple of " + std::to_string(unit) + "; store this tensor as BF16 or F32",
                where);
  if (form != form_of(type) && form != Form::kF32 && form != Form::kRows && form != Form::kI8)
    return fail(Code::kInvalidArgument, "cannot be packed as " + std::string(to_string(form)) + " without changing values", where);
  if (rows.size() != bytes_of(type, static_cast<size_t>(n_rows * n_cols)))
    return fail(Code::kCorrupt, "has " + std::to_string(rows.size()) + " bytes, its shape asks for another number; the file is damaged",
                where);
  if (out_bytes != packed_bytes(form, n_rows, n_cols)) return fail(Code::kInternal, "packing buffer has the wrong size", where);
  return {};
}

/// One row of float32 into a plain form.
void put_plain_row(Form form, std::span<const float> values, int64_t row, std::byte* out) {
  const auto n_cols = static_cast<int64_t>(values.size());
  if (form == Form::kRows) {
    std::memcpy(out + static_cast<size_t>(row * n_cols) * 4, values.data(), values.size_bytes());
    return;
  }
  float* dst = reinterpret_cast<float*>(out) + row / kRowBlock * kRowBlock * n_cols + row % kRowBlock;
  for (size_t k = 0; k < values.size(); k++) dst[k * kRowBlock] = values[k];
}

/// F16 and BF16 in their own form: 16-bit elements move unseen.
void pack_halves(const std::byte* rows, int64_t n_rows, int64_t n_cols, std::byte* out) {
  for (int64_t r = 0; r < n_rows; r++)
    for (int64_t k = 0; k < n_cols; k++)
      std::memcpy(out + 2 * (r / kRowBlock * kRowBlock * n_cols + k * kRowBlock + r % kRowBlock), rows + 2 * (r * n_cols + k), 2);
}

void pack_codes(DType type, const std::byte* rows, int64_t n_rows, int64_t n_cols, Form form, std::byte* out) {
  const FormLayout l = layout_of(form);
  const auto n_bytes = static_cast<size_t>(block_shape(type).n_bytes);
  const int64_t n_blocks = n_cols / l.block_values;
  for (int64_t r = 0; r < n_rows; r++) {
    std::byte* dst = out + static_cast<size_t>(r / kRowBlock) * row_block_bytes(form, n_cols);
    for (int64_t b = 0; b < n_blocks; b++)
      put_block(l, read_block(type, rows + static_cast<size_t>(r * n_blocks + b) * n_bytes), static_cast<int>(r % kRowBlock),
                dst + b * l.block_bytes());
  }
}

Status check_x4_scales(const std::byte* rows, int64_t n_rows, int64_t n_cols, const std::string& where) {
  const int64_t n_blocks = n_cols / 32;
  for (int64_t i = 0; i < n_rows * n_blocks; i++) {
    if (rows[17 * i] == std::byte{0xFF})
      return fail(Code::kCorrupt,
                  "row " + std::to_string(i / n_blocks) + ", column " + std::to_string(i % n_blocks * 32) +
                      " has the scale NaN, which no weight has; the file is damaged",
                  where);
  }
  return {};
}

constexpr float kLargestF8Scale = 0x1p119f;  // 448 times that is finite

Status check_f8_row(std::span<const std::byte> codes, std::span<const float> scales, int64_t row, const std::string& where) {
  const auto bad = [&](size_t column, const std::string& what) {
    return fail(
        Code::kCorrupt,
        "row " + std::to_string(row) + ", column " + std::to_string(column) + " has " + what + ", which no weight has; the file is damaged",
        where);
  };
  for (size_t i = 0; i < scales.size(); i++)
    if (!(std::fabs(scales[i]) <= kLargestF8Scale)) return bad(i * kF8Columns, "a scale that is NaN or beyond 2^119");
  for (size_t k = 0; k < codes.size(); k++)
    if (is_e4m3_nan(static_cast<uint8_t>(codes[k]))) return bad(k, "the value NaN");
  return {};
}

/// Codes and scales of one row; `block`: its row block.
void put_f8_row(std::span<const std::byte> codes, std::span<const float> scales, size_t lane, std::byte* block) {
  for (size_t i = 0; i < scales.size(); i++) {
    const float scale = scales[i] * 256;
    std::memcpy(block + 4 * lane, &scale, 4);
    block += 4 * kRowBlock;
    const size_t end = std::min(codes.size(), (i + 1) * kF8Columns);
    for (size_t k = i * kF8Columns; k < end; k++, block += kRowBlock) block[lane] = codes[k];
  }
}

void get_f8_row(const std::byte* block, size_t lane, std::span<float> out) {
  for (size_t k = 0; k < out.size();) {
    float scale;
    std::memcpy(&scale, block + 4 * lane, 4);
    block += 4 * kRowBlock;
    const size_t end = std::min(out.size(), k + kF8Columns);
    for (; k < end; k++, block += kRowBlock) out[k] = e4m3_to_f32(static_cast<uint8_t>(block[lane])) * 0x1p-8f * scale;
  }
}

Status quantize_row(std::span<const float> values, int64_t row, std::byte* out) {
  const FormLayout l = layout_of(Form::kI8);
  std::byte* dst = out + static_cast<size_t>(row / kRowBlock) * row_block_bytes(Form::kI8, static_cast<int64_t>(values.size()));
  for (size_t g = 0; g < values.size() / 32; g++) {
    BlockCodes c;
    if (!quantize_group(values.data() + 32 * g, c))
      return fail(Code::kInvalidArgument,
                  "row " + std::to_string(row) + " holds values that int8 cannot express; keep this tensor unquantized");
    put_block(l, c, static_cast<int>(row % kRowBlock), dst + g * static_cast<size_t>(l.block_bytes()));
  }
  return {};
}

}  // namespace

BlockCodes packed_block(Form form, const std::byte* block, int row) {
  const FormLayout l = layout_of(form);
  BlockCodes c;
  std::memcpy(&c.d, block + l.scale_bytes() * row, static_cast<size_t>(l.scale_bytes()));
  if (l.has_min) std::memcpy(&c.m, block + 32 + 2 * row, 2);
  for (int g = 0; g < l.n_groups(); g++) {
    const uint8_t* group = bytes(block) + l.head_bytes() + g * l.group_bytes();
    for (int s = 0; s < l.n_sub_scales; s++) c.sub_scale[g * l.n_sub_scales + s] = group[16 * s + row];
    if (l.has_sub_min) c.sub_min[g] = group[l.sub_min_at() + row];
    get_codes(l, group, row, c.q + 32 * g);
  }
  return c;
}

std::string_view to_string(Form form) {
  const auto i = static_cast<size_t>(form);
  return i < kNames.size() ? kNames[i] : "unknown";
}

Form form_of(DType type) {
  switch (type) {
    case DType::kF16:
      return Form::kF16;
    case DType::kBF16:
      return Form::kBF16;
    case DType::kQ4_0:
      return Form::kI4;
    case DType::kQ4_1:
      return Form::kI4M;
    case DType::kQ5_0:
      return Form::kI5;
    case DType::kQ5_1:
      return Form::kI5M;
    case DType::kQ8_0:
      return Form::kI8;
    case DType::kQ4_K:
      return Form::kI4K;
    case DType::kQ5_K:
      return Form::kI5K;
    case DType::kQ6_K:
      return Form::kI6K;
    case DType::kMXFP4:
      return Form::kX4;
    case DType::kF8E4M3:
      return Form::kF8;
    default:
      return Form::kF32;
  }
}

size_t packed_bytes(Form form, int64_t n_rows, int64_t n_cols) {
  if (form == Form::kRows) return static_cast<size_t>(n_rows) * static_cast<size_t>(n_cols) * 4;
  return static_cast<size_t>(row_blocks(n_rows)) * row_block_bytes(form, n_cols);
}

Status pack_matrix(DType type, std::span<const std::byte> rows, int64_t n_rows, int64_t n_cols, Form form, std::span<std::byte> out) {
  CARREL_TRY(check_shape(type, rows, n_rows, n_cols, form, out.size()));
  if (type == DType::kMXFP4) CARREL_TRY(check_x4_scales(rows.data(), n_rows, n_cols, shape_text(type, n_rows, n_cols)));
  std::memset(out.data(), 0, out.size());
  if (form == form_of(type) && form != Form::kF32) {
    if (is_plain(form)) {
      pack_halves(rows.data(), n_rows, n_cols, out.data());
    } else {
      pack_codes(type, rows.data(), n_rows, n_cols, form, out.data());
    }
    return {};
  }
  std::vector<float> values(static_cast<size_t>(n_cols));
  const size_t row_bytes = bytes_of(type, values.size());
  for (int64_t r = 0; r < n_rows; r++) {
    to_f32(type, rows.subspan(static_cast<size_t>(r) * row_bytes, row_bytes), values);
    if (form == Form::kI8) {
      CARREL_TRY(quantize_row(values, r, out.data()));
    } else {
      put_plain_row(form, values, r, out.data());
    }
  }
  return {};
}

Status pack_f8(std::span<const std::byte> codes, std::span<const float> scales, int64_t n_rows, int64_t n_cols, Form form,
               std::span<std::byte> out) {
  const std::string where = shape_text(DType::kF8E4M3, n_rows, n_cols);
  CARREL_TRY(check_sides(n_rows, n_cols, where));
  const auto n = static_cast<size_t>(n_cols), n_scales = (n + kF8Columns - 1) / kF8Columns;
  if (codes.size() != static_cast<size_t>(n_rows) * n || scales.size() != static_cast<size_t>(n_rows) * n_scales ||
      out.size() != packed_bytes(form, n_rows, n_cols))
    return fail(Code::kInternal, "packing buffers have the wrong sizes", where);
  if (form != Form::kF8 && form != Form::kF32 && form != Form::kRows)
    return fail(Code::kInvalidArgument, "cannot be packed as " + std::string(to_string(form)) + " without changing values", where);
  std::memset(out.data(), 0, out.size());
  std::vector<float> values(n);
  for (int64_t r = 0; r < n_rows; r++) {
    const auto row = codes.subspan(static_cast<size_t>(r) * n, n);
    const auto row_scales = scales.subspan(static_cast<size_t>(r) * n_scales, n_scales);
    CARREL_TRY(check_f8_row(row, row_scales, r, where));
    if (form == Form::kF8) {
      put_f8_row(row, row_scales, static_cast<size_t>(r % kRowBlock),
                 out.data() + static_cast<size_t>(r / kRowBlock) * row_block_bytes(form, n_cols));
      continue;
    }
    for (size_t k = 0; k < n; k++) values[k] = e4m3_to_f32(static_cast<uint8_t>(row[k])) * row_scales[k / kF8Columns];
    put_plain_row(form, values, r, out.data());
  }
  return {};
}

Status repack_matrix(const Matrix& from, Form form, std::span<std::byte> out) {
  if (form != Form::kF32 && form != Form::kRows)
    return fail(Code::kInternal, "a packed matrix repacks into f32 or rows only, not into " + std::string(to_string(form)));
  if (out.size() != packed_bytes(form, from.n_rows, from.n_cols)) return fail(Code::kInternal, "packing buffer has the wrong size");
  std::memset(out.data(), 0, out.size());
  std::vector<float> values(static_cast<size_t>(from.n_cols));
  for (int64_t r = 0; r < from.n_rows; r++) {
    dequantize_row(from, r, values);
    put_plain_row(form, values, r, out.data());
  }
  return {};
}

void dequantize_row(const Matrix& w, int64_t row, std::span<float> out) {
  const std::byte* block = w.data + static_cast<size_t>(row / kRowBlock) * row_block_bytes(w.form, w.n_cols);
  const auto lane = static_cast<size_t>(row % kRowBlock);
  const auto n_cols = static_cast<size_t>(w.n_cols);
  if (w.form == Form::kRows) {
    std::memcpy(out.data(), w.data + static_cast<size_t>(row) * n_cols * 4, n_cols * 4);
  } else if (w.form == Form::kF32) {
    for (size_t k = 0; k < n_cols; k++) std::memcpy(&out[k], block + 4 * (k * kRowBlock + lane), 4);
  } else if (w.form == Form::kF8) {
    get_f8_row(block, lane, out);
  } else if (is_plain(w.form)) {
    for (size_t k = 0; k < n_cols; k++) {
      uint16_t h;
      std::memcpy(&h, block + 2 * (k * kRowBlock + lane), 2);
      out[k] = w.form == Form::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
    }
  } else {
    const FormLayout l = layout_of(w.form);
    for (size_t k = 0; k < n_cols; k += static_cast<size_t>(l.block_values), block += l.block_bytes())
      values_of(w.form, packed_block(w.form, block, static_cast<int>(lane)), &out[k]);
  }
}

}  // namespace carrel
