// A model ready to run: graph, weights in memory, ops, text front end. Built once at start; const use from any thread except ops() and graph runs,
// which belong to the step thread.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "base/hash.h"
#include "engine/model/graph.h"
#include "engine/model/source.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace carrel {

class Model;

struct ModelOptions {
  std::string name;                // as the API shows it
  OpSet ops = OpSet::kFast;
  int threads = 0;                 // 0: all cores
  std::string kv_dtype = "auto";   // auto, f32, bf16, packed (deepseek_v4)
  std::string chat_template_file;  // replaces the model's own
  int64_t max_sequence_length = 0; // 0: the model's
  bool verify_full = true;         // model.verify
  bool sizes_only = false;         // for the planner: weights have no data, nothing may be run, the digest is empty
  /// Asked before the weights are read, with the same model in sizes only; an error ends the load.
  std::function<Status(const Model& sizes)> admit;
};

/// Where the bytes are: exactly one of the three.
struct ModelLocation {
  std::string path;         // folder or .gguf
  std::string store_entry;  // folder of an imported model
  bool embedded = false;    // the demo model inside the binary; files given by the caller
  std::map<std::string, std::span<const std::byte>> files;
};

/// What generation_config.json asks for; do_sample: false means temperature 0.
struct GenerationDefaults {
  float temperature = 1, top_p = 1;
  int top_k = 0;
};

class Model {
 public:
  static Result<std::unique_ptr<Model>> load(Env* env, const ModelLocation& from, const ModelOptions& options);
  ~Model();

  const std::string& name() const;
  std::string_view family() const;
  const Graph& graph() const;
  Ops& ops();
  ThreadTeam& team();
  int team_size() const;
  /// Ops of the same numerics for somebody who computes beside the step thread.
  Result<std::unique_ptr<Ops>> make_private_ops(ThreadTeam* team) const;
  const Tokenizer& tokenizer() const;
  const ChatTemplate* chat_template() const;  // null: the model has none and none was configured
  const GenerationDefaults& generation_defaults() const;
  const Digest& digest() const;               // weights + tokenizer + template + config: identity of its state
  const std::string& numerics_id() const;
  std::string op_set() const;
  int64_t weight_bytes() const;    // packed, in memory
  int64_t file_bytes() const;      // of the tensors as they came: what a bandwidth bound is stated on
  int64_t mapped_bytes() const;    // of files that are mapped while the weights are read; 0 from the store and when embedded
  int64_t created_ms() const;      // load time

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace carrel
