// What a fuzzer does with bytes, and what must hold then. Shared by the *_fuzz.cpp programs and the test that runs their corpus; linked
// into neither the product nor its libraries.
#pragma once
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/model/config_reader.h"
#include "engine/model/family.h"
#include "engine/model/gguf.h"
#include "engine/model/safetensors.h"
#include "engine/model/store_manifest.h"
#include "engine/model/weights.h"

namespace carrel::fuzz {

/// Tensors lie inside of the file, under distinct names, and those that are read have the bytes that shape and type ask for.
inline bool tensors_hold(const std::vector<TensorInfo>& tensors, std::span<const std::byte> file) {
  std::set<std::string> names;
  unsigned sum = 0;
  for (const TensorInfo& t : tensors) {
    if (!names.insert(t.name).second) return false;
    if (!t.bytes.empty() && (t.bytes.data() < file.data() || t.bytes.data() + t.bytes.size() > file.data() + file.size())) return false;
    if (t.unsupported_type.empty() && t.bytes.size() != bytes_of(t.dtype, static_cast<size_t>(t.n_elements()))) return false;
    if (!t.bytes.empty()) sum += static_cast<unsigned>(t.bytes.front()) + static_cast<unsigned>(t.bytes.back());
  }
  return sum <= 510u * tensors.size();
}

inline bool typed(const Error& e) {
  return (e.code == Code::kCorrupt || e.code == Code::kUnsupported) && !e.message.empty();
}

inline bool safetensors(std::span<const std::byte> file) {
  const auto r = read_safetensors(file, "f");
  return r ? tensors_hold(r->tensors, file) : typed(r.error());
}

inline bool gguf(std::span<const std::byte> file) {
  const auto r = read_gguf(file, "f");
  if (!r) return typed(r.error());
  if (r->tokenizer) {
    const Bytes stored = encode_gguf_tokenizer(*r->tokenizer);
    const auto back = decode_gguf_tokenizer(stored);
    if (!back || encode_gguf_tokenizer(*back) != stored) return false;
  }
  return ConfigReader::parse(r->metadata_json).has_value() && tensors_hold(r->tensors, file);
}

/// First byte 'T': a stored tokenizer; else a manifest. What is accepted reads back the same.
inline bool store(std::span<const std::byte> bytes) {
  if (!bytes.empty() && bytes[0] == std::byte{'T'}) {
    const auto r = decode_gguf_tokenizer(bytes.subspan(1));
    return r ? std::ranges::equal(encode_gguf_tokenizer(*r), bytes.subspan(1)) : typed(r.error());
  }
  const auto r = decode_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "m");
  if (!r) return typed(r.error());
  const std::string again = encode_manifest(*r);
  const auto back = decode_manifest(again, "m");
  return back && encode_manifest(*back) == again;
}

/// Weights that have what is asked for, up to the fourth layer and to 4 MiB; `optional`: also what a model may lack.
class AnyWeights final : public Weights {
 public:
  explicit AnyWeights(bool optional) : optional_(optional) {}
  bool has(const std::string&) const override { return optional_; }
  std::vector<int64_t> shape(const std::string&) const override { return {512, 64}; }
  Result<Matrix> matrix(const MatrixRequest& r) override {
    if (r.n_rows < 1 || r.n_cols < 1 || r.row_begin < 0 || r.n_rows > kMaxElements / r.n_cols || too_deep(r.tensor))
      return absent(r.tensor);
    return Matrix{Form::kRows, r.n_rows, r.n_cols, reinterpret_cast<const std::byte*>(zeros())};
  }
  Result<const float*> vector(const std::string& tensor, int64_t n, float) override {
    if (n < 1 || n > kMaxElements || too_deep(tensor)) return absent(tensor);
    return zeros();
  }
  Result<const int32_t*> table(const std::string& tensor, int64_t n) override {
    if (n < 1 || n > kMaxElements || too_deep(tensor)) return absent(tensor);
    return reinterpret_cast<const int32_t*>(zeros());
  }
  std::vector<TensorUse> tensors() const override { return {}; }

 private:
  static constexpr int64_t kMaxElements = 1 << 20;
  static bool too_deep(const std::string& tensor) {
    const size_t digit = tensor.find_first_of("0123456789");
    return digit != std::string::npos && (tensor[digit] > '3' || (digit + 1 < tensor.size() && tensor[digit + 1] != '.'));
  }
  static std::unexpected<Error> absent(const std::string& tensor) { return fail(Code::kCorrupt, "is absent", tensor); }
  static const float* zeros() {
    static const std::vector<float> kZeros(kMaxElements);
    return kZeros.data();
  }
  bool optional_;
};

/// First byte 'G' or 'g': metadata of GGUF, else config.json; a small letter: without the tensors that a model may lack. What is accepted
/// can be run: dimensions are positive, states have rows.
inline bool family(std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  const char first = static_cast<char>(bytes[0]);
  const SourceFormat format = (first & 0xDF) == 'G' ? SourceFormat::kGguf : SourceFormat::kHuggingFace;
  const std::string config(reinterpret_cast<const char*>(bytes.data()) + 1, bytes.size() - 1);
  const auto found = find_family(format, config);
  if (!found) return typed(found.error());
  AnyWeights weights((first & 0x20) == 0);
  const auto graph = (*found)->build(format, config, weights, {});
  if (!graph) return typed(graph.error());
  for (const StateSpec& s : graph->state.groups)
    if (s.n_layers < 1 || s.row_elems < 1) return false;
  return graph->vocab > 0 && graph->max_positions > 0 && graph->state.block_size > 0;
}

}  // namespace carrel::fuzz
