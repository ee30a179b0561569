// Weights as a family asks for them: matrices packed for the chosen ops, vectors as float32.
//
// Two loaders stand behind the interface: one reads a ModelSource and packs (direct loading, import), one reads the model store, where the
// same requests were packed at import. A request is named by its id(), so a family asks the same questions of both. Threads: one loading
// thread. Memory: owned by the Weights object, 64-byte aligned, huge pages where the system gives them.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "kernels/matrix.h"

namespace carrel {

/// Part of a tensor taken as one matrix [n_rows][n_cols]. Rows and columns count values, however they are packed.
struct MatrixRequest {
  std::string tensor;
  int64_t row_begin = 0;  // in rows of n_cols, counted over all leading dimensions (expert e of [E, R, C] starts at e R)
  int64_t n_rows = 0;
  int64_t n_cols = 0;
  /// 0, or rows per head: rows come as adjacent rotary pairs (GGUF llama) and are put back to halves: row s·d/2 + i of a head ← row 2i + s.
  int64_t unpair_rows = 0;
  /// Rows in groups: row i of the request is row row_begin + (i / take) period + i % take of the tensor; 0 and 0: contiguous. Interleaved
  /// gate and up: period 2, take 1; per head q | gate: period 2d, take d. take <= period. Applied after unpair_rows.
  int64_t period = 0, take = 0;
  /// The tensor's last two dimensions are the other way round, [.., n_cols, R]: the request sees it as [.., R, n_cols], and row_begin and
  /// period count those rows. Types of one float per element only.
  bool transposed = false;
  /// The tensor of block scales, for the types that have them beside (packing.h: F8_E4M3; I8 and U8 of two e2m1); empty: it needs none.
  std::string scales = {};
  /// Rows that the whole tensor must have (leading dimensions multiplied); 0: not checked. No part of the id: the store was checked at
  /// import.
  int64_t total_rows = 0;

  std::string id() const;
};

/// A tensor of the checkpoint, and whether any of it was asked for.
struct TensorUse {
  std::string name;
  bool asked = false;
};

class Weights {
 public:
  virtual ~Weights() = default;
  virtual bool has(const std::string& tensor) const = 0;
  virtual std::vector<int64_t> shape(const std::string& tensor) const = 0;  // empty when absent
  /// Errors: kCorrupt when absent or of another shape, with the tensor's name.
  virtual Result<Matrix> matrix(const MatrixRequest& request) = 0;
  /// All elements of a tensor as float32 (add: a constant, e.g. the 1 of unit-offset norms). n = expected count.
  virtual Result<const float*> vector(const std::string& tensor, int64_t n, float add = 0) = 0;
  virtual Result<const int32_t*> table(const std::string& tensor, int64_t n) = 0;  // I32 or I64 values, range checked to int32
  /// What the checkpoint has, in its order.
  virtual std::vector<TensorUse> tensors() const = 0;
};

/// Weights in memory, with what the rest of the process wants to know about them.
class LoadedWeights : public Weights {
 public:
  virtual int64_t memory_bytes() const = 0;  // packed, as they lie in memory
  virtual int64_t file_bytes() const = 0;    // of the tensors that were asked for, as they came
  /// Identity of the model: configuration, tokenizer, template and every tensor that was asked for. Call after the family has built its
  /// graph.
  virtual Result<Digest> model_digest() const = 0;
};

/// Which form a matrix takes in memory, by the form that keeps its values: the same, kF32 or kRows.
using FormChooser = std::function<Form(Form stored)>;

class ModelSource;

/// What a loader does with matrices. kSizes (planner): their data is null and memory_bytes counts what they would take; vectors and tables
/// are read as always, since families look at them.
enum class LoadMatrices { kAll, kSizes };

/// Packs on request, directly from the source, which must outlive it. The same request gives the same memory. Errors: kCorrupt (absent,
/// other shape), kUnsupported (type, by name), each with tensor and file; kExhausted.
std::unique_ptr<LoadedWeights> weights_from_source(const ModelSource& source, FormChooser choose, LoadMatrices what = LoadMatrices::kAll);

}  // namespace carrel
