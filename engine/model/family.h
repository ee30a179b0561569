// The table of model families. A family is one file in families/: it recognises a config, reads it, and describes the model as a Graph.
// Adding one: a file, its golden folder, a line in the table of families.cpp.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/model/graph.h"
#include "engine/model/source.h"
#include "engine/model/weights.h"

namespace carrel {

struct BuildOptions {
  DType kv_dtype = DType::kF32;
};

struct Family {
  std::string_view name;                               // "deepseek_v4"
  std::vector<std::string_view> hf_types, gguf_types;  // model_type; general.architecture
  Result<Graph> (*build)(SourceFormat format, const std::string& config_json, Weights& weights, const BuildOptions& options);
};

const std::vector<Family>& families();
/// kUnsupported names the type and lists what there is.
Result<const Family*> find_family(SourceFormat format, const std::string& config_json);

/// The family's graph, when the checkpoint has nothing that it leaves out without a reason (leftovers.h). notes: what is left out, for the
/// log.
Result<Graph> build_graph(const Family& family, SourceFormat format, const std::string& config_json, Weights& weights,
                          const BuildOptions& options, std::vector<std::string>* notes = nullptr);

}  // namespace carrel
