// From a source's tensor to a requested matrix: which rows, and where their values lie. See packing.h.
//
// Two walks over the same bytes: gather() moves rows for pack_matrix, read_row() reads values one by one for check_lossless.
#include <algorithm>
#include <cstring>

#include "base/codec.h"
#include "engine/model/packing.h"

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
  if (!cols || is_integer_type(t.dtype) || n % r.n_cols != 0 || !has_rows(r, n / r.n_cols) || r.n_cols % block_shape(t.dtype).n_values != 0)
    return wrong_shape(t, describe(r), where);
  if (r.transposed && !is_plain_type(t.dtype))
    return fail(
        Code::kUnsupported,
        "tensor '" + t.name + "' is " + std::string(to_string(t.dtype)) + " and its rows are columns; only F32, F16 and BF16 are read so",
        where);
  return FoundMatrix{.tensor = &t, .scales = nullptr, .form = form_of(t.dtype)};
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

/// Values of one row of the tensor.
void read_row(const FoundMatrix& f, const MatrixRequest& r, int64_t row, std::span<float> out) {
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
  return find_plain(*t, r, source.path());
}

Status pack_request(const FoundMatrix& f, const MatrixRequest& r, Form form, std::span<std::byte> out, const std::string& where) {
  Bytes moved;
  Status s = pack_matrix(f.tensor->dtype, gather(*f.tensor, r, moved), r.n_rows, r.n_cols, form, out);
  if (!s) return fail(s.error().code, "tensor '" + r.tensor + "' (" + s.error().where + "): " + s.error().message, where);
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
