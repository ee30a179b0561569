// From a source's tensor to a requested matrix: which rows, and where their values lie. See packing.h.
//
// Two walks over the same bytes: gather() moves rows for pack_matrix, read_row() reads values one by one for check_lossless.
#include <algorithm>
#include <cstring>

#include "base/codec.h"
#include "engine/model/packing.h"
#include "kernels/blocks.h"
#include "kernels/float8.h"

namespace carrel {
namespace {

bool is_plain_type(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

/// Row of the tensor that becomes row i of the request.
int64_t source_row(const MatrixRequest& r, int64_t i) {
  if (r.unpair_rows > 0) {
    const int64_t d = r.unpair_rows, in_head = i % d;
    i += 2 * (in_head % (d / 2)) + in_head / (d / 2) - in_head;
  }
  return r.row_begin + (r.period == 0 ? i : i / r.take * r.period + i % r.take);
}

bool possible(const MatrixRequest& r) {
  const bool halves = r.unpair_rows >= 0 && r.unpair_rows % 2 == 0 && (r.unpair_rows == 0 || r.n_rows % r.unpair_rows == 0);
  const bool groups = (r.period == 0 && r.take == 0) || (r.take > 0 && r.take <= r.period);
  return r.n_cols > 0 && r.n_rows > 0 && r.row_begin >= 0 && halves && groups;
}

/// Whether a tensor of n rows has all that are asked for.
bool has_rows(const MatrixRequest& r, int64_t n) {
  if (r.total_rows != 0 && r.total_rows != n) return false;
  if (r.row_begin >= n) return false;
  if (r.period == 0) return r.n_rows <= n - r.row_begin;
  const int64_t groups = (r.n_rows - 1) / r.take;  // before the last one
  return groups <= n / r.period && groups * r.period + (r.n_rows - 1) % r.take < n - r.row_begin;
}

std::string describe(const MatrixRequest& r) {
  std::string out =
      std::to_string(r.n_rows) + " rows of " + std::to_string(r.n_cols) + " numbers from row " + std::to_string(r.row_begin) + " on";
  if (r.period > 0) out += ", " + std::to_string(r.take) + " of every " + std::to_string(r.period);
  if (r.total_rows > 0) out += ", out of " + std::to_string(r.total_rows);
  return out + (r.transposed ? ", transposed" : "");
}

Result<FoundMatrix> find_plain(const TensorInfo& t, const MatrixRequest& r, const std::string& where) {
  const size_t n_dims = t.shape.size();
  const bool cols = r.transposed ? n_dims >= 2 && t.shape[n_dims - 2] == r.n_cols : n_dims < 2 || t.shape.back() == r.n_cols;
  const int64_t n = t.n_elements();
  if (!cols || is_table_type(t.dtype) || t.dtype == DType::kF8E8M0 || n % r.n_cols != 0 || !has_rows(r, n / r.n_cols) ||
      r.n_cols % block_shape(t.dtype).n_values != 0)
    return wrong_shape(t, describe(r), where);
  if (r.transposed && !is_plain_type(t.dtype))
    return fail(
        Code::kUnsupported,
        "tensor '" + t.name + "' is " + std::string(to_string(t.dtype)) + " and its rows are columns; only F32, F16 and BF16 are read so",
        where);
  return FoundMatrix{.tensor = &t, .scales = nullptr, .form = form_of(t.dtype)};
}

std::unexpected<Error> wrong_scales(const TensorInfo& t, const TensorInfo& scales, const std::string& where) {
  std::string shape;
  for (const int64_t d : t.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(d);
  return wrong_shape(scales, "the scales of '" + t.name + "', " + std::string(to_string(t.dtype)) + " [" + shape + "]", where);
}

int64_t tiles(int64_t n) {
  return (n + kF8Columns - 1) / kF8Columns;
}

Result<FoundMatrix> find_f8(const TensorInfo& t, const TensorInfo& scales, const MatrixRequest& r, const std::string& where) {
  if (t.shape.size() < 2 || t.shape.back() != r.n_cols || !has_rows(r, t.n_elements() / r.n_cols))
    return wrong_shape(t, describe(r), where);
  std::vector<int64_t> wanted = t.shape;
  for (size_t i = wanted.size() - 2; i < wanted.size(); i++) wanted[i] = tiles(wanted[i]);
  if (scales.shape != wanted || !(is_plain_type(scales.dtype) || scales.dtype == DType::kF8E8M0)) return wrong_scales(t, scales, where);
  return FoundMatrix{.tensor = &t, .scales = &scales, .form = Form::kF8};
}

Result<FoundMatrix> find_x4(const TensorInfo& t, const TensorInfo& scales, const MatrixRequest& r, const std::string& where) {
  const size_t n_dims = t.shape.size();
  const bool blocks = scales.shape.size() + 1 == n_dims;  // [.., C / 32, 16]
  const bool cols = n_dims >= 2 && r.n_cols % 32 == 0 &&
                    (blocks ? n_dims >= 3 && t.shape.back() == 16 && t.shape[n_dims - 2] == r.n_cols / 32 : t.shape.back() == r.n_cols / 2);
  if (!cols || !has_rows(r, t.n_elements() / (r.n_cols / 2))) return wrong_shape(t, describe(r) + " in 4 bits each", where);
  std::vector<int64_t> wanted = t.shape;
  if (blocks) wanted.pop_back();
  if (!blocks) wanted.back() = r.n_cols / 32;
  if (scales.shape != wanted || (scales.dtype != DType::kU8 && scales.dtype != DType::kF8E8M0)) return wrong_scales(t, scales, where);
  return FoundMatrix{.tensor = &t, .scales = &scales, .form = Form::kX4};
}

/// Bytes of an element of row `row` of a transposed tensor, and the distance to the next one.
struct Column {
  const std::byte* at;
  size_t stride;
};
Column column_of(const TensorInfo& t, int64_t n_cols, int64_t row) {
  const int64_t n_rows = t.shape.back();  // of each matrix
  const size_t size = bytes_of(t.dtype, 1);
  return {t.bytes.data() + static_cast<size_t>(row / n_rows * n_rows * n_cols + row % n_rows) * size, static_cast<size_t>(n_rows) * size};
}

std::span<const std::byte> row_bytes_of(const TensorInfo& t, int64_t n_cols, int64_t row) {
  const size_t n = bytes_of(t.dtype, static_cast<size_t>(n_cols));
  return t.bytes.subspan(static_cast<size_t>(row) * n, n);
}

/// Turns a band of rows at a time: neighbours in a band are neighbours in memory.
void gather_transposed(const TensorInfo& t, const MatrixRequest& r, std::span<std::byte> out) {
  constexpr int64_t kBand = 64;
  const size_t size = bytes_of(t.dtype, 1), row_bytes = size * static_cast<size_t>(r.n_cols);
  std::vector<Column> columns;
  for (int64_t first = 0; first < r.n_rows; first += kBand) {
    columns.clear();
    for (int64_t i = first; i < std::min(first + kBand, r.n_rows); i++) columns.push_back(column_of(t, r.n_cols, source_row(r, i)));
    std::byte* to = out.data() + static_cast<size_t>(first) * row_bytes;
    for (size_t k = 0; k < static_cast<size_t>(r.n_cols); k++)
      for (size_t i = 0; i < columns.size(); i++) std::memcpy(to + i * row_bytes + k * size, columns[i].at + k * columns[i].stride, size);
  }
}

/// The requested rows of a tensor that needs no scales, one behind the other. `moved` keeps them where they are not so already.
std::span<const std::byte> gather(const TensorInfo& t, const MatrixRequest& r, Bytes& moved) {
  const size_t row_bytes = bytes_of(t.dtype, static_cast<size_t>(r.n_cols)), n = row_bytes * static_cast<size_t>(r.n_rows);
  if (!r.transposed && r.unpair_rows == 0 && r.period == 0) return t.bytes.subspan(static_cast<size_t>(r.row_begin) * row_bytes, n);
  moved.resize(n);
  if (r.transposed) {
    gather_transposed(t, r, moved);
    return moved;
  }
  for (int64_t i = 0; i < r.n_rows; i++)
    std::memcpy(moved.data() + static_cast<size_t>(i) * row_bytes, row_bytes_of(t, r.n_cols, source_row(r, i)).data(), row_bytes);
  return moved;
}

/// Scales of one row of an e4m3 tensor, one per tile of columns.
void read_f8_scales(const FoundMatrix& f, const MatrixRequest& r, int64_t row, std::span<float> out) {
  const int64_t n_rows = f.tensor->shape[f.tensor->shape.size() - 2];  // of each matrix
  const auto at = static_cast<size_t>((row / n_rows * tiles(n_rows) + row % n_rows / kF8Columns) * tiles(r.n_cols));
  to_f32(f.scales->dtype, f.scales->bytes.subspan(bytes_of(f.scales->dtype, at), bytes_of(f.scales->dtype, out.size())), out);
}

/// One row of two e2m1 a byte as MXFP4 blocks of GGUF: scale, then 16 bytes that hold value j low and value j + 16 high.
void turn_x4_row(const std::byte* packed, const std::byte* scales, int64_t n_groups, std::byte* out) {
  const auto nibble = [&](int64_t k) { return static_cast<uint8_t>(packed[k / 2]) >> (k % 2 * 4) & 15; };
  for (int64_t g = 0; g < n_groups; g++) {
    *out++ = scales[g];
    for (int64_t j = 32 * g; j < 32 * g + 16; j++) *out++ = static_cast<std::byte>(nibble(j) | nibble(j + 16) << 4);
  }
}

Status pack_f8_request(const FoundMatrix& f, const MatrixRequest& r, Form form, std::span<std::byte> out) {
  Bytes moved;
  const auto n_tiles = static_cast<size_t>(tiles(r.n_cols));
  std::vector<float> scales(static_cast<size_t>(r.n_rows) * n_tiles);
  for (int64_t i = 0; i < r.n_rows; i++)
    read_f8_scales(f, r, source_row(r, i), std::span(scales).subspan(static_cast<size_t>(i) * n_tiles, n_tiles));
  return pack_f8(gather(*f.tensor, r, moved), scales, r.n_rows, r.n_cols, form, out);
}

Status pack_x4_request(const FoundMatrix& f, const MatrixRequest& r, Form form, std::span<std::byte> out) {
  const int64_t n_groups = r.n_cols / 32;
  Bytes blocks(bytes_of(DType::kMXFP4, static_cast<size_t>(r.n_rows * r.n_cols)));
  for (int64_t i = 0; i < r.n_rows; i++) {
    const int64_t group = source_row(r, i) * n_groups;
    turn_x4_row(f.tensor->bytes.data() + 16 * group, f.scales->bytes.data() + group, n_groups, blocks.data() + 17 * i * n_groups);
  }
  return pack_matrix(DType::kMXFP4, blocks, r.n_rows, r.n_cols, form, out);
}

Status check_x4_range(const FoundMatrix& f, const MatrixRequest& r, const std::string& where) {
  const int64_t n_groups = r.n_cols / 32;
  for (int64_t i = 0; i < r.n_rows; i++) {
    for (int64_t g = 0; g < n_groups; g++) {
      const auto at = static_cast<size_t>(source_row(r, i) * n_groups + g);
      const auto code = static_cast<int>(f.scales != nullptr ? f.scales->bytes[at] : f.tensor->bytes[17 * at]);
      if (code <= kLargestX4Scale) continue;
      return fail(Code::kCorrupt,
                  "tensor '" + r.tensor + "': row " + std::to_string(source_row(r, i)) + ", column " + std::to_string(32 * g) +
                      " has the scale " + (code == 0xFF ? "NaN" : "2^" + std::to_string(code - 127)) +
                      ", which no weight has; the file is damaged",
                  where);
    }
  }
  return {};
}

/// Values of one row of a tensor that has its scales beside.
void read_scaled_row(const FoundMatrix& f, const MatrixRequest& r, int64_t row, std::span<float> out) {
  const std::byte* at = f.tensor->bytes.data();
  if (f.form == Form::kF8) {
    std::vector<float> scales(static_cast<size_t>(tiles(r.n_cols)));
    read_f8_scales(f, r, row, scales);
    for (size_t k = 0; k < out.size(); k++)
      out[k] = e4m3_to_f32(static_cast<uint8_t>(at[static_cast<size_t>(row) * out.size() + k])) * scales[k / kF8Columns];
    return;
  }
  for (size_t k = 0; k < out.size(); k++) {
    const size_t value = static_cast<size_t>(row) * out.size() + k;
    const auto pair = static_cast<uint8_t>(at[value / 2]), scale = static_cast<uint8_t>(f.scales->bytes[value / 32]);
    out[k] = e2m1_to_f32(k % 2 == 0 ? pair & 15 : pair >> 4) * e8m0_to_f32(scale);
  }
}

/// Values of one row of the tensor.
void read_row(const FoundMatrix& f, const MatrixRequest& r, int64_t row, std::span<float> out) {
  if (f.scales != nullptr) return read_scaled_row(f, r, row, out);
  if (!r.transposed) return to_f32(f.tensor->dtype, row_bytes_of(*f.tensor, r.n_cols, row), out);
  const Column c = column_of(*f.tensor, r.n_cols, row);
  for (size_t k = 0; k < out.size(); k++) to_f32(f.tensor->dtype, {c.at + k * c.stride, bytes_of(f.tensor->dtype, 1)}, out.subspan(k, 1));
}

}  // namespace

std::string MatrixRequest::id() const {
  std::string out =
      "m" + std::to_string(row_begin) + "+" + std::to_string(n_rows) + "x" + std::to_string(n_cols) + "u" + std::to_string(unpair_rows);
  if (period > 0) out += "p" + std::to_string(period) + "/" + std::to_string(take);
  if (transposed) out += "t";
  if (!scales.empty()) out += "s" + std::to_string(tensor.size());  // where the second name begins
  return out + ":" + tensor + (scales.empty() ? "" : "+" + scales);
}

Result<FoundMatrix> find_for(const ModelSource& source, const MatrixRequest& r) {
  CARREL_ASSIGN(const TensorInfo* t, find_readable(source, r.tensor));
  if (!possible(r)) return fail(Code::kInternal, "impossible request " + r.id(), source.path());
  if (!needs_scales(t->dtype)) {
    if (r.scales.empty()) return find_plain(*t, r, source.path());
    return fail(
        Code::kUnsupported,
        "tensor '" + r.tensor + "' has the type " + std::string(to_string(t->dtype)) + ", but '" + r.scales + "' claims to scale it",
        source.path());
  }
  if (r.scales.empty() || r.transposed) return without_scales(*t, source.path());
  CARREL_ASSIGN(const TensorInfo* scales, find_readable(source, r.scales));
  return t->dtype == DType::kF8E4M3 ? find_f8(*t, *scales, r, source.path()) : find_x4(*t, *scales, r, source.path());
}

Status pack_request(const FoundMatrix& f, const MatrixRequest& r, Form form, std::span<std::byte> out, const std::string& where) {
  if (f.form == Form::kX4) CARREL_TRY(check_x4_range(f, r, where));
  return pack_any(f, r, form, out, where);
}

Status pack_any(const FoundMatrix& f, const MatrixRequest& r, Form form, std::span<std::byte> out, const std::string& where) {
  Bytes moved;
  const Status s = f.scales == nullptr   ? pack_matrix(f.tensor->dtype, gather(*f.tensor, r, moved), r.n_rows, r.n_cols, form, out)
                   : f.form == Form::kF8 ? pack_f8_request(f, r, form, out)
                                         : pack_x4_request(f, r, form, out);
  const std::string from = r.row_begin == 0 && r.period == 0 ? "" : ", rows from " + std::to_string(r.row_begin) + " on";
  if (!s) return fail(s.error().code, "tensor '" + r.tensor + "' (" + s.error().where + from + "): " + s.error().message, where);
  return {};
}

Status check_lossless(const FoundMatrix& f, const MatrixRequest& r, const Matrix& packed, const std::string& where) {
  const auto n_cols = static_cast<size_t>(r.n_cols);
  std::vector<float> is(n_cols), was(n_cols);
  for (int64_t i = 0; i < r.n_rows; i++) {
    read_row(f, r, source_row(r, i), was);
    dequantize_row(packed, i, is);
    if (std::memcmp(is.data(), was.data(), n_cols * sizeof(float)) != 0)
      return fail(Code::kInternal,
                  "packing changed a value in row " + std::to_string(i) + " of tensor '" + r.tensor + "'; please report this", where);
  }
  return {};
}

}  // namespace carrel
