// Reads the head of one GGUF file (versions 2 and 3, little endian): metadata, tokenizer, list of tensors. Pure, on borrowed bytes.
//
// Every length, count, type, offset and shape is checked before it is used; nothing is allocated that the file does not pay for in bytes. A
// tensor of a type that DType does not have is listed with its type's name (TensorInfo::unsupported_type).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/model/source.h"

namespace carrel {

/// Keys tokenizer.ggml.*; the text front end's GgufVocab is filled from this.
struct GgufTokenizer {
  std::string model, pre;
  std::vector<std::string> tokens;  // by id; any bytes
  std::vector<float> scores;        // by id, or empty
  std::vector<int32_t> types;       // by id, or empty
  std::vector<std::string> merges;
  int64_t bos = -1, eos = -1, eot = -1, eom = -1, unk = -1, pad = -1;  // -1: not in the file
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

/// Bytes for the model store and for digests; layout in docs/formats/model_store.md. kCorrupt when the bytes are not such.
Bytes encode_gguf_tokenizer(const GgufTokenizer& tokenizer);
Result<GgufTokenizer> decode_gguf_tokenizer(std::span<const std::byte> bytes);

struct GgufFile {
  std::string metadata_json;  // one object, keys as in the file, without the token lists; non-finite numbers are null
  std::string architecture;
  std::string chat_template;
  std::optional<GgufTokenizer> tokenizer;
  std::vector<TensorInfo> tensors;  // in the file's order; bytes are views into the file
};

/// kCorrupt (with byte offset, key or tensor), kUnsupported (version, byte order, split file).
Result<GgufFile> read_gguf(std::span<const std::byte> file, const std::string& where);

/// Type by its number in the file: name and block, for the tests against tests/golden/quant. n_values 0: unknown number.
struct GgufType {
  uint32_t id;
  std::string_view name;
  int n_values, n_bytes;
};
std::span<const GgufType> gguf_types();

}  // namespace carrel
