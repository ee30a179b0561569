// See the header.
#include "engine/model/packing.h"

#include <bit>
#include <cstring>

#include "base/codec.h"
#include "engine/model/gguf.h"

namespace carrel {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kChunkBytes = 32 << 20;

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); i++) out += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

Result<const TensorInfo*> find_readable(const ModelSource& source, const std::string& tensor) {
  const TensorInfo* t = source.find(tensor);
  if (t == nullptr) return fail(Code::kCorrupt, "has no tensor '" + tensor + "', which its configuration asks for", source.path());
  CARREL_TRY(check_type(*t, source.path()));
  return t;
}

bool is_integer(DType type) {
  return type == DType::kI32 || type == DType::kI64;
}

std::unexpected<Error> wrong_shape(const TensorInfo& t, const std::string& wanted, const std::string& where) {
  return fail(Code::kCorrupt,
              "tensor '" + t.name + "' is " + std::string(to_string(t.dtype)) + " " + shape_text(t.shape) +
                  " where the configuration asks for " + wanted,
              where);
}

/// Source bytes of the requested rows, in the source's order.
std::span<const std::byte> rows_of(const TensorInfo& t, const MatrixRequest& r) {
  const auto row_bytes = bytes_of(t.dtype, static_cast<size_t>(r.n_cols));
  return t.bytes.subspan(static_cast<size_t>(r.row_begin) * row_bytes, static_cast<size_t>(r.n_rows) * row_bytes);
}

/// Row of the source that becomes row `row` of the request.
int64_t source_row(const MatrixRequest& r, int64_t row) {
  if (r.unpair_rows == 0) return row;
  const int64_t d = r.unpair_rows, in_head = row % d;
  const int64_t s = in_head / (d / 2), i = in_head % (d / 2);
  return row - in_head + 2 * i + s;
}

}  // namespace

std::string MatrixRequest::id() const {
  return "m" + std::to_string(row_begin) + "+" + std::to_string(n_rows) + "x" + std::to_string(n_cols) + "u" + std::to_string(unpair_rows) +
         ":" + tensor;
}

std::string vector_id(const std::string& tensor, int64_t n, float add) {
  return "v" + std::to_string(n) + "+" + std::to_string(std::bit_cast<uint32_t>(add)) + ":" + tensor;
}

std::string table_id(const std::string& tensor, int64_t n) {
  return "t" + std::to_string(n) + ":" + tensor;
}

Result<const TensorInfo*> find_for(const ModelSource& source, const MatrixRequest& r) {
  CARREL_ASSIGN(const TensorInfo* t, find_readable(source, r.tensor));
  if (r.n_cols < 1 || r.n_rows < 1 || r.row_begin < 0 || r.unpair_rows < 0 || r.unpair_rows % 2 != 0 ||
      (r.unpair_rows > 0 && r.n_rows % r.unpair_rows != 0))
    return fail(Code::kInternal, "impossible request " + r.id(), source.path());
  const int64_t n = t->n_elements();
  const bool rows_fit = n % r.n_cols == 0 && r.n_rows <= n / r.n_cols && r.row_begin <= n / r.n_cols - r.n_rows;
  const bool cols_fit = t->shape.size() < 2 || t->shape.back() == r.n_cols;
  if (!rows_fit || !cols_fit || is_integer(t->dtype) || r.n_cols % block_shape(t->dtype).n_values != 0)
    return wrong_shape(
        *t, std::to_string(r.n_rows) + " rows of " + std::to_string(r.n_cols) + " numbers from row " + std::to_string(r.row_begin) + " on",
        source.path());
  return t;
}

Result<const TensorInfo*> find_for(const ModelSource& source, const std::string& tensor, int64_t n, bool table) {
  CARREL_ASSIGN(const TensorInfo* t, find_readable(source, tensor));
  if (n < 0 || t->n_elements() != n || is_integer(t->dtype) != table)
    return wrong_shape(*t, std::to_string(n) + (table ? " integers" : " numbers"), source.path());
  return t;
}

Status pack_request(const TensorInfo& tensor, const MatrixRequest& r, Form form, std::span<std::byte> out, const std::string& where) {
  std::span<const std::byte> rows = rows_of(tensor, r);
  Bytes permuted;
  if (r.unpair_rows > 0) {
    const size_t row_bytes = rows.size() / static_cast<size_t>(r.n_rows);
    permuted.resize(rows.size());
    for (int64_t i = 0; i < r.n_rows; i++)
      std::memcpy(permuted.data() + static_cast<size_t>(i) * row_bytes, rows.data() + static_cast<size_t>(source_row(r, i)) * row_bytes,
                  row_bytes);
    rows = permuted;
  }
  Status s = pack_matrix(tensor.dtype, rows, r.n_rows, r.n_cols, form, out);
  if (!s) return fail(s.error().code, "tensor '" + tensor.name + "' (" + s.error().where + "): " + s.error().message, where);
  return {};
}

Status check_lossless(const TensorInfo& tensor, const MatrixRequest& r, const Matrix& packed, const std::string& where) {
  const auto n_cols = static_cast<size_t>(r.n_cols);
  const size_t row_bytes = bytes_of(tensor.dtype, n_cols);
  const auto rows = rows_of(tensor, r);
  std::vector<float> is(n_cols), was(n_cols);
  for (int64_t i = 0; i < r.n_rows; i++) {
    to_f32(tensor.dtype, rows.subspan(static_cast<size_t>(source_row(r, i)) * row_bytes, row_bytes), was);
    dequantize_row(packed, i, is);
    if (std::memcmp(is.data(), was.data(), n_cols * sizeof(float)) != 0)
      return fail(Code::kInternal,
                  "packing changed a value in row " + std::to_string(i) + " of tensor '" + tensor.name + "'; please report this", where);
  }
  return {};
}

void read_vector(const TensorInfo& tensor, float add, std::span<float> out) {
  to_f32(tensor.dtype, tensor.bytes, out);
  if (add != 0)
    for (float& v : out) v += add;
}

Status read_table(const TensorInfo& tensor, std::span<int32_t> out, const std::string& where) {
  if (tensor.dtype == DType::kI32) {
    if (!out.empty()) std::memcpy(out.data(), tensor.bytes.data(), out.size_bytes());
    return {};
  }
  for (size_t i = 0; i < out.size(); i++) {
    int64_t v = 0;
    std::memcpy(&v, tensor.bytes.data() + i * sizeof(v), sizeof(v));
    if (v < INT32_MIN || v > INT32_MAX)
      return fail(Code::kCorrupt,
                  "tensor '" + tensor.name + "' holds " + std::to_string(v) + " at place " + std::to_string(i) + ", too large for a table",
                  where);
    out[i] = static_cast<int32_t>(v);
  }
  return {};
}

Result<std::span<std::byte>> WeightArena::take(size_t n_bytes) {
  const size_t n = (n_bytes + kAlign - 1) / kAlign * kAlign;
  if (n > rest_.size()) {
    const bool own = n > kChunkBytes / 4;  // so that the rest of a shared buffer is not lost to a big matrix
    CARREL_ASSIGN(HugeBuffer buffer, HugeBuffer::allocate(own ? n : kChunkBytes, false));
    buffers_.push_back(std::move(buffer));
    const std::span<std::byte> fresh = buffers_.back().span();
    used_ += static_cast<int64_t>(n);
    if (!own) rest_ = fresh.subspan(n);
    return fresh.first(n_bytes);
  }
  const auto out = rest_.first(n_bytes);
  rest_ = rest_.subspan(n);
  used_ += static_cast<int64_t>(n);
  return out;
}

Digest source_digest(const ModelSource& source, const std::vector<std::string>& tensors, bool quantized) {
  ByteWriter w;
  w.field(quantized ? "carrel quantized model 1" : "carrel model 1");
  w.u8(source.format() == SourceFormat::kGguf ? 1 : 0);
  for (const std::string* text : {&source.config_json(), &source.tokenizer_json(), &source.tokenizer_config_json(),
                                  &source.special_tokens_map_json(), &source.chat_template(), &source.generation_config_json()})
    w.field(*text);
  w.field(source.gguf_tokenizer() == nullptr ? Bytes() : encode_gguf_tokenizer(*source.gguf_tokenizer()));
  for (const std::string& name : tensors) {
    const TensorInfo& t = *source.find(name);
    w.field(name);
    w.field(to_string(t.dtype));
    w.u64(t.shape.size());
    for (const int64_t d : t.shape) w.i64(d);
    const Digest d = sha256(t.bytes);
    w.raw(d);
  }
  return sha256(w.bytes());
}

}  // namespace carrel
