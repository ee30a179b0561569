// Configurations that contradict the file: a layer or an expert that nobody asks for is refused at load and at import, by its name.
#include "engine/model/leftovers.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/fault_env.h"
#include "engine/model/family.h"
#include "engine/model/golden_run.h"
#include "engine/model/store.h"

namespace carrel {
namespace {

using Json = nlohmann::json;

/// A source that says another configuration.
class Edited final : public ModelSource {
 public:
  Edited(const ModelSource& of, std::string config) : of_(of), config_(std::move(config)) {}
  SourceFormat format() const override { return of_.format(); }
  const std::string& config_json() const override { return config_; }
  const std::string& path() const override { return of_.path(); }
  const std::vector<std::string>& tensor_names() const override { return of_.tensor_names(); }
  const TensorInfo* find(const std::string& name) const override { return of_.find(name); }
  const std::string& tokenizer_json() const override { return of_.tokenizer_json(); }
  const std::string& tokenizer_config_json() const override { return of_.tokenizer_config_json(); }
  const std::string& chat_template() const override { return of_.chat_template(); }
  const std::string& generation_config_json() const override { return of_.generation_config_json(); }
  const std::string& special_tokens_map_json() const override { return of_.special_tokens_map_json(); }
  const GgufTokenizer* gguf_tokenizer() const override { return of_.gguf_tokenizer(); }

 private:
  const ModelSource& of_;
  const std::string config_;
};

Status build_with(SourceFormat format, const std::string& config, Weights& weights) {
  CARREL_ASSIGN(const Family* family, find_family(format, config));
  CARREL_TRY(build_graph(*family, format, config, weights, {}));
  return {};
}

struct Contradiction {
  const char* model;
  const char* key;
  Json value;
  const char* tensor;  // the first that is left over
};

class Contradictions : public testing::TestWithParam<Contradiction> {};

TEST_P(Contradictions, AreRefusedAtLoadAndAtImport) {
  const Contradiction& p = GetParam();
  const auto source = open_source(Env::real(), std::string("tests/golden/") + p.model);
  ASSERT_TRUE(source) << source.error().text();
  Json config = Json::parse((*source)->config_json());
  config[p.key] = p.value;
  const Edited edited(**source, config.dump());
  const auto weights = weights_from_source(edited, [](Form f) { return f; }, LoadMatrices::kSizes);
  const Status load = build_with(edited.format(), edited.config_json(), *weights);
  FaultEnv env;
  const auto import = import_source(&env, edited, "/m", {}, build_with);
  ASSERT_FALSE(load);
  ASSERT_FALSE(import);
  for (const Error& e : {load.error(), import.error()}) {
    EXPECT_EQ(e.code, Code::kCorrupt);
    EXPECT_EQ(e.where, std::string("config ") + p.key) << e.text();
    EXPECT_NE(e.message.find(std::string("'") + p.tensor), std::string::npos) << e.text();
  }
  const auto entries = list_entries(&env, "/m");
  EXPECT_TRUE(!entries || entries->empty()) << "a refused import leaves nothing";
}

INSTANTIATE_TEST_SUITE_P(Leftovers, Contradictions,
                         testing::Values(Contradiction{"models/lfm2", "num_hidden_layers", 3, "model.layers.3."},
                                         Contradiction{"models/granitemoehybrid", "num_hidden_layers", 3, "model.layers.3."},
                                         Contradiction{"models/llama", "num_hidden_layers", 1, "model.layers.1."},
                                         Contradiction{"models/gpt_oss", "num_hidden_layers", 1, "model.layers.1."},
                                         Contradiction{"models/gpt_oss/mxfp4", "num_hidden_layers", 3, "model.layers.3."},
                                         Contradiction{"models/granitemoehybrid", "num_local_experts", 0,
                                                       "model.layers.0.block_sparse_moe."},
                                         Contradiction{"models/deepseek_v4/tiny_a", "num_hidden_layers", 2, "model.layers.2."},
                                         Contradiction{"gguf/llama.gguf", "llama.block_count", 1, "blk.1."},
                                         Contradiction{"gguf/gpt_oss.gguf", "gpt-oss.block_count", 1, "blk.1."}),
                         [](const auto& i) {
                           std::string name = std::string(i.param.model) + "_" + i.param.key;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

Result<std::vector<std::string>> check(const std::vector<TensorUse>& tensors, const std::string& config = "{}") {
  return check_leftovers(SourceFormat::kHuggingFace, config, tensors);
}

TEST(Leftovers, KnownKindsAreToldAndLeftOut) {
  const auto notes = check({{"model.embed_tokens.weight", true},
                            {"model.layers.0.self_attn.q_proj.weight", true},
                            {"model.layers.0.self_attn.rotary_emb.inv_freq", false},
                            {"model.layers.1.eh_proj.weight", false},  // a draft layer behind the last one, and all that belongs to it
                            {"model.layers.1.self_attn.q_proj.weight", false},
                            {"mtp.layers.0.input_layernorm.weight", false},
                            {"model.visual.blocks.0.attn.qkv.weight", false},
                            {"vision_tower.vision_model.encoder.layers.7.mlp.fc1.weight", false}});
  ASSERT_TRUE(notes) << notes.error().text();
  EXPECT_EQ(*notes, (std::vector<std::string>{
                        "draft layers: 3 tensors, 'model.layers.1.eh_proj.weight' first",
                        "rotary tables, which are computed here: 1 tensors, 'model.layers.0.self_attn.rotary_emb.inv_freq' first",
                        "the vision tower: 2 tensors, 'model.visual.blocks.0.attn.qkv.weight' first"}));
}

TEST(Leftovers, WhatNothingExplainsIsRefusedWithTheKeyThatIsProbablyWrong) {
  const auto where = [](const std::string& tensor, const std::string& config) {
    const auto r = check({{"model.layers.2.mlp.up_proj.weight", true}, {tensor, false}}, config);
    EXPECT_FALSE(r) << tensor;
    return r ? "" : r.error().where;
  };
  EXPECT_EQ(where("model.layers.3.mlp.up_proj.weight", "{}"), "config num_hidden_layers");
  EXPECT_EQ(where("model.layers.30.mlp.up_proj.weight", "{}"), "config num_hidden_layers");
  EXPECT_EQ(where("model.layers.1.mlp.experts.9.up_proj.weight", R"({"n_routed_experts": 4})"), "config n_routed_experts");
  EXPECT_EQ(where("model.layers.1.mlp.experts.9.up_proj.weight", R"({"text_config": {"num_experts": 4}})"), "config num_experts");
  EXPECT_EQ(where("model.layers.1.self_attn.q_proj.bias", R"({"attention_bias": false})"), "config attention_bias");
  EXPECT_EQ(where("model.layers.1.mamba.A_log", R"({"layer_types": []})"), "config layer_types");
  EXPECT_EQ(where("model.layers.1.self_attn.q_norm.weight", "{}"), "config model_type");
  EXPECT_EQ(where("score.weight", "{}"), "config model_type");
  const auto many = check({{"a", false}, {"b", false}, {"c", false}});
  EXPECT_NE(many.error().message.find("'a' and 2 more"), std::string::npos) << many.error().text();
}

/// Numbers that every token is multiplied with or divided by, in each family and both formats.
TEST(Numbers, AbsurdOnesAreRefusedByKeyInEveryFamily) {
  const std::vector<Json> eps = {0, -1e-6, 1.5, "x"}, base = {0, -10000, 1, 1e13}, scale = {0, -1, 1e7, 1e-7};
  struct Row {
    const char* key;
    const std::vector<Json>* lies;
  };
  const std::vector<Row> rows = {{"rms_norm_eps", &eps},
                                 {"norm_eps", &eps},
                                 {"hc_eps", &eps},
                                 {"rope_theta", &base},
                                 {"compress_rope_theta", &base},
                                 {"rope_local_base_freq", &base},
                                 {"query_pre_attn_scalar", &scale},
                                 {"attention_multiplier", &scale},
                                 {"embedding_multiplier", &scale},
                                 {"residual_multiplier", &scale},
                                 {"logits_scaling", &scale},
                                 {"routed_scaling_factor", &scale},
                                 {".layer_norm_rms_epsilon", &eps},
                                 {".epsilon", &eps},
                                 {".freq_base", &base},
                                 {".compress_rope_freq_base", &base},
                                 {".freq_base_swa", &base},
                                 {".logit_scale", &scale},
                                 {".embedding_scale", &scale},
                                 {".residual_scale", &scale},
                                 {"attention.scale", &scale},
                                 {".expert_weights_scale", &scale}};
  std::map<std::string, int> n_refused;
  const auto lie = [&](const ModelSource& source, const Json& config, Json& at, const std::string& key, const Row& row,
                       const std::string& model) {
    const Json honest = at[key];
    for (const Json& bad : *row.lies) {
      at[key] = bad;
      const auto weights = weights_from_source(source, [](Form f) { return f; }, LoadMatrices::kSizes);
      const Status s = build_with(source.format(), config.dump(), *weights);
      EXPECT_TRUE(!s && s.error().where.find(key) != std::string::npos)
          << model << " " << key << " " << bad << ": " << (s ? "taken" : s.error().text());
      n_refused[row.key]++;
    }
    at[key] = honest;
  };
  for (const char* model : {"models/deepseek_v4/tiny_a",
                            "models/deepseek_v4/tiny_a_native",
                            "models/gemma3_text",
                            "models/gpt_oss",
                            "models/granitemoehybrid",
                            "models/lfm2",
                            "models/lfm2_moe",
                            "models/llama",
                            "models/mistral",
                            "models/qwen3",
                            "models/qwen3_next",
                            "models/qwen3_5_text",
                            "gguf/deepseek_v4-bf16.gguf",
                            "gguf/gemma3_text-mix.gguf",
                            "gguf/gpt_oss.gguf",
                            "gguf/granitemoehybrid.gguf",
                            "gguf/lfm2.gguf",
                            "gguf/lfm2_moe.gguf",
                            "gguf/llama.gguf",
                            "gguf/qwen3_moe.gguf",
                            "gguf/qwen3_next.gguf"}) {
    const auto source = open_source(Env::real(), std::string("tests/golden/") + model);
    ASSERT_TRUE(source) << source.error().text();
    Json config = Json::parse((*source)->config_json());
    for (const Row& row : rows) {
      for (const std::string& key : [&] {
             std::vector<std::string> keys;
             for (const auto& [k, v] : config.items())
               if (v.is_number() &&
                   (k == row.key || (row.key[0] == '.' && k.ends_with(row.key)) || k.ends_with(std::string(".") + row.key)))
                 keys.push_back(k);
             return keys;
           }())
        lie(**source, config, config, key, row, model);
      if (config.contains("rope_parameters") && config["rope_parameters"].contains(row.key))
        lie(**source, config, config["rope_parameters"], row.key, row, model);
    }
  }
  for (const char* met : {"rms_norm_eps", "norm_eps", "rope_theta", "logits_scaling", ".layer_norm_rms_epsilon", ".freq_base"})
    EXPECT_GT(n_refused[met], 0) << met;
}

}  // namespace
}  // namespace carrel
