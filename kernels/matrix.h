// Weight matrices as the kernels read them. y[out] = W[out][in] · x[in], W row-major in the file, packed here.
//
// A packed matrix is one contiguous blob, position independent, equal on disk (model store) and in memory. Repacking a file type
// changes no value: dequantize_row gives the same float32 as to_f32 of the source row, bit for bit, and the blob has at most 5 % more
// bytes than the source. Rows are interleaved in blocks of 16 (rows beyond n_rows are zero), so that lanes are output rows
// and every lane adds its products in the order k = 0, 1, 2 … (design: numerics).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kernels/dtype.h"

namespace carrel {

enum class Form : uint8_t {  // numbers reach the model store: never change them
  kF32 = 0,                  // float32
  kF16 = 1,                  // IEEE half
  kBF16 = 2,                 // bfloat16
  kI8 = 3,                   // Q8_0: int8, f16 scale per 32
  kI4 = 4,                   // Q4_0: 4 bits offset 8, f16 scale per 32
  kI4M = 5,                  // Q4_1: 4 bits, f16 scale and minimum per 32
  kI5 = 6,                   // Q5_0: 5 bits offset 16
  kI5M = 7,                  // Q5_1
  kI4K = 8,                  // Q4_K: 4 bits, 6-bit sub-scales and minima per 32, f16 super-scales per 256
  kI5K = 9,                  // Q5_K
  kI6K = 10,                 // Q6_K: 6 bits offset 32, int8 sub-scales per 16, f16 super-scale per 256
  kRows = 11,                // float32, plain row-major: what the `reference` ops read
  kX4 = 12,                  // MXFP4: e2m1 with an e8m0 scale per 32
  kF8 = 13,                  // e4m3 with a float32 scale per row and 128 columns; any number of columns
};
constexpr Form kLastForm = Form::kF8;

constexpr int kRowBlock = 16;

/// A borrowed packed matrix; the blob is 64-byte aligned and outlives the view.
struct Matrix {
  Form form = Form::kF32;
  int64_t n_rows = 0;  // outputs
  int64_t n_cols = 0;  // inputs
  const std::byte* data = nullptr;
};

std::string_view to_string(Form form);
/// The form that keeps every value of a file type.
Form form_of(DType type);
/// Bytes of a packed matrix; n_cols must be a multiple of the form's group.
size_t packed_bytes(Form form, int64_t n_rows, int64_t n_cols);
/// Packs rows of a file tensor (row-major, `type`) into `form`, which is form_of(type), kF32 or kRows (both widen), or kI8 (quantizes per
/// group of 32, absmax/127 — the only lossy one). out.size() == packed_bytes(form, …). Errors: impossible shape; kCorrupt names the place
/// of a scale that is NaN or out of range (kLargestX4Scale of blocks.h).
Status pack_matrix(DType type, std::span<const std::byte> rows, int64_t n_rows, int64_t n_cols, Form form, std::span<std::byte> out);
/// The same for e4m3 codes, which have their scales beside: scales[row][(n_cols + 127) / 128], a value is code · scale rounded once. Into
/// kF8, kF32 or kRows. kCorrupt names the place of a NaN, or of a scale that is not finite or beyond 2^119.
Status pack_f8(std::span<const std::byte> codes, std::span<const float> scales, int64_t n_rows, int64_t n_cols, Form form,
               std::span<std::byte> out);
/// Repacks an already packed matrix into kF32 or kRows (for the `exact` and `reference` ops).
Status repack_matrix(const Matrix& from, Form form, std::span<std::byte> out);
/// Row `row` as float32, exact.
void dequantize_row(const Matrix& w, int64_t row, std::span<float> out);

}  // namespace carrel
