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

}  // namespace

std::string vector_id(const std::string& tensor, int64_t n, float add) {
  return "v" + std::to_string(n) + "+" + std::to_string(std::bit_cast<uint32_t>(add)) + ":" + tensor;
}

std::string table_id(const std::string& tensor, int64_t n) {
  return "t" + std::to_string(n) + ":" + tensor;
}

Result<const TensorInfo*> find_readable(const ModelSource& source, const std::string& tensor) {
  const TensorInfo* t = source.find(tensor);
  if (t == nullptr) return fail(Code::kCorrupt, "has no tensor '" + tensor + "', which its configuration asks for", source.path());
  CARREL_TRY(check_type(*t, source.path()));
  return t;
}

std::unexpected<Error> wrong_shape(const TensorInfo& t, const std::string& wanted, const std::string& where) {
  std::string shape;
  for (const int64_t d : t.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(d);
  return fail(
      Code::kCorrupt,
      "tensor '" + t.name + "' is " + std::string(to_string(t.dtype)) + " [" + shape + "] where the configuration asks for " + wanted,
      where);
}

std::unexpected<Error> without_scales(const TensorInfo& t, const std::string& where) {
  return fail(Code::kUnsupported,
              "tensor '" + t.name + "' has the type " + std::string(to_string(t.dtype)) +
                  ", whose values need a tensor of scales, and none is there or known for it",
              where);
}

Result<const TensorInfo*> find_for(const ModelSource& source, const std::string& tensor, int64_t n, bool table) {
  CARREL_ASSIGN(const TensorInfo* t, find_readable(source, tensor));
  if (needs_scales(t->dtype) || t->dtype == DType::kF8E8M0) return without_scales(*t, source.path());
  if (n < 0 || t->n_elements() != n || is_table_type(t->dtype) != table)
    return wrong_shape(*t, std::to_string(n) + (table ? " integers" : " numbers"), source.path());
  return t;
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

void WeightArena::count(size_t n_bytes) {
  used_ += static_cast<int64_t>((n_bytes + kAlign - 1) / kAlign * kAlign);
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
