// Where a model comes from: a Hugging Face folder, a GGUF file, or Carrel's own store, seen through one interface.
//
// A source gives metadata and bounds-checked tensor bytes; it interprets nothing. Nothing in a file is trusted: every offset, size, dtype,
// shape and count was checked before a tensor is listed. Threads: const methods may run concurrently. The bytes live as long as the source.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "kernels/dtype.h"

namespace carrel {

struct GgufTokenizer;  // gguf.h

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  /// Name of a type that this version does not read ("F8_E5M2", "Q2_K"); dtype says nothing then. Empty for the types of DType. Such a
  /// tensor is listed, so that a family that does not need it can serve the model; whoever needs it refuses it by this name.
  std::string unsupported_type;
  std::vector<int64_t> shape;  // outermost first (GGUF's reversed order is put right), product checked
  std::span<const std::byte> bytes;
  int64_t n_elements() const;
};

enum class SourceFormat { kHuggingFace, kGguf };

class ModelSource {
 public:
  virtual ~ModelSource() = default;
  virtual SourceFormat format() const = 0;
  /// Hugging Face: config.json as written ({"__float__": "Infinity"} and bare Infinity accepted). GGUF: its metadata as one JSON object,
  /// keys as in the file ("llama.block_count"), without the token arrays.
  virtual const std::string& config_json() const = 0;
  /// File or folder, for messages.
  virtual const std::string& path() const = 0;
  /// Names in file order.
  virtual const std::vector<std::string>& tensor_names() const = 0;
  virtual const TensorInfo* find(const std::string& name) const = 0;

  /// Text front end as it lies in the model: contents of tokenizer.json, tokenizer_config.json, chat template, generation_config.json;
  /// empty when absent.
  virtual const std::string& tokenizer_json() const = 0;
  virtual const std::string& tokenizer_config_json() const = 0;
  virtual const std::string& chat_template() const = 0;  // chat_template.jinja, tokenizer_config.json or GGUF metadata
  virtual const std::string& generation_config_json() const = 0;
  virtual const std::string& special_tokens_map_json() const = 0;
  /// The tokenizer of a GGUF file; null for Hugging Face and for a file without one.
  virtual const GgufTokenizer* gguf_tokenizer() const = 0;
};

/// kUnsupported with tensor and type when the type is not one of DType.
Status check_type(const TensorInfo& tensor, const std::string& where);
/// Sum of the bytes of all tensors as they came.
int64_t tensor_bytes(const ModelSource& source);

/// A folder with config.json, or a .gguf file. Errors name file and tensor: kCorrupt, kUnsupported (type by name), kNotFound.
Result<std::unique_ptr<ModelSource>> open_source(Env* env, const std::string& path);

/// Files already in memory (the embedded model): name → content. The content is borrowed.
Result<std::unique_ptr<ModelSource>> open_folder_in_memory(std::map<std::string, std::span<const std::byte>> files);

}  // namespace carrel
