// The model store: imported models under one folder, each a folder named by its digest, never changed in place.
//
// Import asks a family for its requests once, packs each of them for the kernels and writes them with their SHA-256; loading serves the
// same requests from there. File format: docs/formats/model_store.md. Threads: every function may run on any thread, also in several
// processes at once: an entry appears whole by one rename or not at all. Errors name the entry and the tensor or file.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "base/hash.h"
#include "engine/model/source.h"
#include "engine/model/weights.h"

namespace carrel {

struct StoreEntry {
  std::string
      digest;        // 64 hex digits: SHA-256 of the manifest, which holds those of everything else; LoadedWeights::model_digest is another
  std::string path;  // its folder
  std::string name;  // as imported; empty when the note beside the manifest is lost
  std::string source;  // path it came from, for people
  SourceFormat format = SourceFormat::kHuggingFace;
  int64_t n_tensors = 0;     // packed pieces
  int64_t packed_bytes = 0;  // of weights on disk
  int64_t file_bytes = 0;    // of the tensors in use as they came
  int64_t imported_ms = 0;
  std::string problem;  // of list_entries only: why the entry cannot be used
};

struct StoreProgress {
  int64_t done_bytes = 0, total_bytes = 0;
  std::string_view tensor;
};
/// Called after each piece; false stops the work with kCancelled and leaves nothing behind.
using ProgressFn = std::function<bool(const StoreProgress&)>;

struct ImportOptions {
  std::string name;       // empty: last part of the source's path
  bool quantize = false;  // plain float matrices to int8 with a scale per 32, routers excepted; the only import that changes values
  ProgressFn progress;
};

/// Builds the model's graph against these weights (find_family and Family::build), so that every request is made. Matrices it gets have no
/// data.
using BuildHook = std::function<Status(SourceFormat format, const std::string& config_json, Weights& weights)>;

/// Imports a model folder or .gguf file. The same content again adopts the entry that is there (and repairs it when it is damaged). Errors:
/// of open_source and of the hook; kExhausted when the disk is full. No half entry is ever visible.
Result<StoreEntry> import_model(Env* env, const std::string& source_path, const std::string& store_dir, const ImportOptions& options,
                                const BuildHook& build);
Result<StoreEntry> import_source(Env* env, const ModelSource& source, const std::string& store_dir, const ImportOptions& options,
                                 const BuildHook& build);

/// Sorted by name. An entry that cannot be read is listed with its problem. Empty when there is no store yet.
Result<std::vector<StoreEntry>> list_entries(Env* env, const std::string& store_dir);
/// By name, or by the first digits (at least 6) of the digest. kNotFound, kInvalidArgument when several match.
Result<StoreEntry> find_entry(Env* env, const std::string& store_dir, const std::string& name_or_digest);
/// Out of sight by one rename, then deleted. A process that has the model loaded is not disturbed.
Status remove_entry(Env* env, const std::string& store_dir, const std::string& digest);

struct DamagedPiece {
  std::string object;  // tensor or file
  std::string what;
};
struct VerifyReport {
  int64_t n_checked = 0, checked_bytes = 0;
  std::vector<DamagedPiece> damage;  // empty: the entry is whole
};
/// Reads everything and compares every SHA-256. kCorrupt when not even the manifest can be trusted.
Result<VerifyReport> verify_entry(Env* env, const std::string& entry_dir, const ProgressFn& progress = {});

enum class StoreVerify {
  kFull,     // every piece is checked when it is loaded
  kSampled,  // one in sixteen is; the caller runs verify_entry in the background and stops serving on damage
};

/// An entry opened for loading; the parts live independently. Its texts were checked on opening.
struct StoredModel {
  StoreEntry entry;
  /// Format, configuration, tokenizer and template; no tensors.
  std::unique_ptr<ModelSource> source;
  /// Serves the requests that were made at import. kCorrupt names the damaged tensor, kUnsupported a request that was not made.
  std::unique_ptr<LoadedWeights> weights;
};
Result<StoredModel> open_stored_model(Env* env, const std::string& entry_dir, FormChooser choose, StoreVerify verify,
                                      LoadMatrices what = LoadMatrices::kAll);

}  // namespace carrel
