// Inner parts of golden.cpp: a file of vectors, a model loaded for a check, and running a token sequence in chosen chunks. Not for other
// users.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model/config_reader.h"
#include "engine/model/family.h"
#include "engine/model/golden.h"
#include "engine/model/plain_state.h"
#include "engine/model/source.h"
#include "engine/model/weights.h"

namespace carrel {

/// A safetensors file of vectors.
class VectorFile {
 public:
  static Result<std::shared_ptr<VectorFile>> open(Env* env, const std::string& path);
  bool has(const std::string& name) const { return find(name) != nullptr; }
  std::vector<float> floats(const std::string& name) const;  // empty when absent
  std::vector<int32_t> ints(const std::string& name) const;
  const TensorInfo* find(const std::string& name) const;
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::string content_;
  std::map<std::string, TensorInfo> tensors_;
  std::vector<std::string> names_;
};

/// A model over one op set. Members in the order of their needs.
struct GoldenModel {
  std::unique_ptr<ModelSource> source;
  std::unique_ptr<ThreadTeam> team;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Weights> weights;
  Graph graph;
  bool quantised = false;  // any weight in a block type
};

/// What opens the model anew; a check loads it for several op sets.
using OpenSource = std::function<Result<std::unique_ptr<ModelSource>>()>;

Result<std::unique_ptr<GoldenModel>> load_golden_model(const OpenSource& open, OpSet set, CpuPath path, int threads, DType kv_dtype);
/// What kv_dtype `auto` means for a set.
DType auto_kv_dtype(OpSet set);

/// Runs tokens from an empty state in steps of the given sizes (the rest one by one), and returns the logits after the wanted positions
/// (ascending), [wanted][vocab].
std::vector<float> run_tokens(const GoldenModel& model, std::span<const int32_t> tokens, std::span<const int> steps,
                              std::span<const int32_t> wanted, PlainSequence& sequence, const GraphRunner::Probe& probe = {});

/// Everything known about one model's vectors.
struct GoldenVectors {
  std::shared_ptr<VectorFile> file;
  std::shared_ptr<VectorFile> trace;        // deepseek_v4; may be null
  double tight = 0, wide = 0;               // bounds of logits
  std::vector<double> hidden;               // bounds of hidden.layers, layer by layer; empty: none given
  std::map<std::string, double> registers;  // bounds of state.NNN.layerI.<kind>: conv, recurrent
  std::map<std::string, double> trace_bounds;
  std::string trace_prompt;
  std::vector<int> trace_positions, trace_indexer_positions;
  int trace_mhc_position = 0, trace_state_after = 0;
};

/// Limits of `fast` against `exact`, for one model.
struct FastLimits {
  double mean_kl = 0, top1 = 1;
};

/// Fills `out`; an error means that the check itself could not run.
Status check_model(const OpenSource& open, const GoldenVectors& vectors, const FastLimits& limits, const GoldenOptions& options,
                   GoldenFile& out);
/// hidden.layers, traces and states; sets out.first_off and adds to out.failures and out.worst.
void localise(const GoldenModel& model, const GoldenVectors& vectors, GoldenFile& out);
/// tests/golden/quant: gguf.safetensors, and float8.safetensors and mxfp4.safetensors where they are.
Status check_formats(Env* env, const std::string& dir, GoldenReport& report);
/// Tokenizer, split patterns or chat templates in this folder, each a file of the report. False: there are none.
bool check_texts(Env* env, const std::string& dir, GoldenReport& report);
/// state.NNN.layerI.{conv,recurrent}: error over its bound, worst of one forward and of single tokens, by vector name, in the order of
/// positions and layers.
struct RegisterError {
  std::string name;
  double ratio = 0;
};
std::vector<RegisterError> compare_registers(const GoldenModel& model, const GoldenVectors& vectors);
/// Largest absolute difference; infinite where one side is empty, of another size or not a number.
double largest_difference(const std::vector<float>& a, const std::vector<float>& b);
/// The longest prompt's ids.
std::vector<int32_t> longest_prompt(const VectorFile& file);
/// Keeps the largest error over its bound (NaN counts as infinite) and where it was.
void note_error(GoldenFile& out, double ratio, const std::string& at);

}  // namespace carrel
