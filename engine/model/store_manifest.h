// The manifest of a store entry as values and as JSON; private to this folder. Layout: docs/formats/model_store.md. Pure.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "engine/model/source.h"
#include "kernels/matrix.h"

namespace carrel {

constexpr std::string_view kWeightsFile = "weights.bin";
constexpr std::string_view kManifestFile = "manifest.json";
constexpr std::string_view kNoteFile = "entry.json";
constexpr std::string_view kGgufTokenizerFile = "gguf_tokenizer.bin";
constexpr std::string_view kWeightsMagic = "CRLMODL1";
constexpr uint64_t kPieceAlign = 4096;  // the first page holds the magic

/// One answered request.
struct StoredPiece {
  std::string id;      // of the request
  std::string tensor;  // for messages
  bool is_matrix = false;
  Form form = Form::kRows;     // of a matrix; vectors are float32, tables int32
  int64_t rows = 0, cols = 0;  // cols = 1 for vectors and tables
  uint64_t offset = 0, bytes = 0;
  Digest sha256{};
};

struct StoredText {
  std::string file;
  uint64_t bytes = 0;
  Digest sha256{};
};

/// A tensor of the source, asked for or not: families ask what there is.
struct SourceTensor {
  std::string name, type;
  std::vector<int64_t> shape;
};

struct Manifest {
  SourceFormat format = SourceFormat::kHuggingFace;
  std::optional<Digest> identity;  // of the model, the same as when it is loaded without import; absent in entries of the first imports
  uint64_t weights_bytes = 0;      // of the file
  int64_t file_bytes = 0;          // of the tensors in use as they came
  std::vector<StoredText> texts;
  std::vector<SourceTensor> source_tensors;
  std::vector<StoredPiece> pieces;
};

std::string encode_manifest(const Manifest& manifest);
/// Checks every name, size, offset and form; kCorrupt with `where`.
Result<Manifest> decode_manifest(std::string_view json, const std::string& where);

/// What is known about an entry and is not part of its content.
struct EntryNote {
  std::string name, source;
  int64_t imported_ms = 0;
};
std::string encode_note(const EntryNote& note);
EntryNote decode_note(std::string_view json);  // empty fields where it is damaged

}  // namespace carrel
