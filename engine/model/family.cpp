// The table of families and the choice by model type.
#include "engine/model/family.h"

#include <algorithm>

#include "engine/model/config_reader.h"
#include "engine/model/families/families.h"
#include "engine/model/leftovers.h"

namespace carrel {

const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = {deepseek_v4_family(), gemma3_family(),  gpt_oss_family(), granite_family(),   lfm2_family(),
                                                llama_family(),       mistral_family(), qwen3_family(),   qwen3_next_family()};
  return kFamilies;
}

Result<const Family*> find_family(SourceFormat format, const std::string& config_json) {
  CARREL_ASSIGN(const ConfigReader config, ConfigReader::parse(config_json));
  const bool gguf = format == SourceFormat::kGguf;
  const std::string key = gguf ? "general.architecture" : "model_type";
  const std::string type = config.text(key);
  CARREL_TRY(config.status());
  std::string known;
  for (const Family& f : families()) {
    const auto& types = gguf ? f.gguf_types : f.hf_types;
    if (std::find(types.begin(), types.end(), type) != types.end()) return &f;
    for (const std::string_view t : types) known += (known.empty() ? "" : ", ") + std::string(t);
  }
  return fail(Code::kUnsupported, "model type '" + type + "' is not supported; this version runs " + known, key);
}

Result<Graph> build_graph(const Family& family, SourceFormat format, const std::string& config_json, Weights& weights,
                          const BuildOptions& options, std::vector<std::string>* notes) {
  CARREL_ASSIGN(Graph graph, family.build(format, config_json, weights, options));
  CARREL_ASSIGN(std::vector<std::string> left_out, check_leftovers(format, config_json, weights.tensors()));
  if (notes != nullptr) *notes = std::move(left_out);
  return graph;
}

}  // namespace carrel
