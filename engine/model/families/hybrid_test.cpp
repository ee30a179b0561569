// Families with recurrent layers, and gpt_oss: spellings that mean the same, places where the text model lies, settings that are refused.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/model/families/rope.h"
#include "engine/model/golden_run.h"
#include "engine/model/safetensors.h"

namespace carrel {
namespace {

using Json = nlohmann::json;

const std::string kGolden = "tests/golden/";

std::string slurp(const std::string& path) {
  auto text = read_file(Env::real(), kGolden + path);
  EXPECT_TRUE(text) << text.error().text();
  return text ? *text : std::string();
}

/// A folder in memory.
struct Files {
  std::string config, weights;
  Result<std::unique_ptr<ModelSource>> open() const {
    return open_folder_in_memory(
        {{"config.json", std::as_bytes(std::span(config))}, {"model.safetensors", std::as_bytes(std::span(weights))}});
  }
};

Files files_of(const std::string& model, const std::string& config = "config.json") {
  return {slurp(model + "/" + config), slurp(model + "/model.safetensors")};
}

/// Logits of every position of a prompt that crosses windows and blocks; empty after a failure, which is reported.
std::vector<float> logits(const OpenSource& open) {
  const auto model = load_golden_model(open, OpSet::kExact, CpuPath::kAuto, 1, DType::kF32);
  EXPECT_TRUE(model) << model.error().text();
  if (!model) return {};
  std::vector<int32_t> ids(70), wanted(70);
  for (int i = 0; i < 70; ++i) ids[static_cast<size_t>(i)] = 3 + i * 37 % 500, wanted[static_cast<size_t>(i)] = i;
  PlainSequence sequence(&(*model)->graph.state);
  return run_tokens(**model, ids, std::vector<int>{70}, wanted, sequence);
}
std::vector<float> logits(const Files& files) {
  return logits([&] { return files.open(); });
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_FALSE(a.empty());
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

std::string error_of(const Files& files) {
  const auto model = load_golden_model([&] { return files.open(); }, OpSet::kExact, CpuPath::kAuto, 1, DType::kF32);
  return model ? "no error" : model.error().text();
}

class Legacy : public testing::TestWithParam<const char*> {};

TEST_P(Legacy, OldAndNewConfigAreOneModel) {
  const std::string model = std::string("models/") + GetParam();
  expect_same_bits(logits(files_of(model)), logits(files_of(model, "config_legacy.json")));
}

INSTANTIATE_TEST_SUITE_P(Hybrids, Legacy,
                         testing::Values("lfm2", "lfm2_moe", "qwen3_next", "gpt_oss", "granitemoehybrid", "granitemoehybrid_dense"),
                         [](const auto& info) { return std::string(info.param); });

/// The same weights with names mapped.
Files renamed(Files files, const std::function<std::string(const std::string&)>& rename) {
  auto parsed = read_safetensors(std::as_bytes(std::span(files.weights)), "weights");
  EXPECT_TRUE(parsed);
  for (TensorInfo& t : parsed->tensors) t.name = rename(t.name);
  files.weights = write_safetensors(parsed->tensors);
  return files;
}

TEST(Hybrids, TextModelOfALargerOneIsFoundWhereverItLies) {
  const Files plain = files_of("models/qwen3_5_text");
  const std::vector<float> want = logits(plain);
  for (const char* prefix : {"model.language_model.", "language_model.model."}) {
    Files nested = renamed(plain, [&](const std::string& name) { return prefix + name.substr(6); });  // behind "model."
    Json text = Json::parse(plain.config);
    text.erase("tie_word_embeddings");
    nested.config =
        Json({{"model_type", "qwen3_5"}, {"tie_word_embeddings", true}, {"text_config", text}, {"vision_config", {{"depth", 2}}}}).dump();
    expect_same_bits(want, logits(nested));
  }
}

TEST(Hybrids, OlderWordsOfLfm2) {
  const Files files = files_of("models/lfm2");
  Files old = files;
  Json c = Json::parse(files.config);
  c["full_attn_idxs"] = {2, 4};
  c["block_ff_dim"] = c["intermediate_size"];
  c["theta"] = 10000.0;
  c["tie_embedding"] = true;
  for (const char* key : {"layer_types", "intermediate_size", "rope_parameters", "tie_word_embeddings"}) c.erase(key);
  old.config = c.dump();
  expect_same_bits(logits(files), logits(old));
}

TEST(Hybrids, DerivedKeysOfQwenAndGranite) {
  const Files qwen = files_of("models/qwen3_next");
  Files derived = qwen;
  Json c = Json::parse(qwen.config);
  c.erase("layer_types");  // every fourth is full
  derived.config = c.dump();
  expect_same_bits(logits(qwen), logits(derived));

  const Files granite = files_of("models/granitemoehybrid");
  derived = granite;
  c = Json::parse(granite.config);
  c["layers_block_type"] = {"mamba", "attention", "mamba", "attention"};
  c["mamba_d_head"] = "auto";
  for (const char* key : {"layer_types", "time_step_limit", "position_embedding_type"}) c.erase(key);
  derived.config = c.dump();
  expect_same_bits(logits(granite), logits(derived));
}

TEST(Hybrids, GraniteOfAttentionAloneNeedsNoMixer) {
  Files files = files_of("models/granitemoehybrid_dense");
  files = renamed(files, [](std::string name) {
    if (name.starts_with("model.layers.1.")) return "model.layers.0." + name.substr(15);
    if (name.starts_with("model.layers.")) return "vision_tower." + name;  // what is left out with a reason
    return name;
  });
  Json c = Json::parse(files.config);
  c["num_hidden_layers"] = 1;
  c["layer_types"] = {"attention"};
  for (const char* key : {"mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_conv_bias"}) c.erase(key);
  files.config = c.dump();
  EXPECT_EQ(logits(files).size(), 70u * 512u);
}

TEST(Hybrids, GptOssWindowsAreInEvenLayers) {
  const Files files = files_of("models/gpt_oss");
  Files derived = files;
  Json c = Json::parse(files.config);
  for (const char* key : {"layer_types", "swiglu_alpha"}) c.erase(key);
  derived.config = c.dump();
  expect_same_bits(logits(files), logits(derived));
}

/// Experts of one layer as one tensor, [E, gate rows | up rows, H] and [E, H, I], as some files have them.
TEST(Hybrids, JoinedExpertsOfQwen35) {
  const Files each = files_of("models/qwen3_5_moe_text");
  auto parsed = read_safetensors(std::as_bytes(std::span(each.weights)), "weights");
  ASSERT_TRUE(parsed);
  std::map<std::string, const TensorInfo*> by_name;
  for (const TensorInfo& t : parsed->tensors) by_name[t.name] = &t;
  std::vector<TensorInfo> out;
  std::vector<std::vector<std::byte>> bytes;
  bytes.reserve(64);
  for (const TensorInfo& t : parsed->tensors)
    if (t.name.find(".experts.") == std::string::npos) out.push_back(t);
  for (int layer = 0; layer < 4; ++layer) {
    const std::string p = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    const auto join = [&](const std::string& name, std::initializer_list<const char*> parts, std::vector<int64_t> shape) {
      std::vector<std::byte>& all = bytes.emplace_back();
      for (int e = 0; e < 6; ++e)
        for (const char* part : parts) {
          const auto from = by_name.at(p + std::to_string(e) + "." + part + ".weight")->bytes;
          all.insert(all.end(), from.begin(), from.end());
        }
      out.push_back({.name = p + name, .dtype = DType::kBF16, .unsupported_type = "", .shape = std::move(shape), .bytes = all});
    };
    join("gate_up_proj", {"gate_proj", "up_proj"}, {6, 32, 64});
    join("down_proj", {"down_proj"}, {6, 64, 16});
  }
  Files joined = each;
  joined.weights = write_safetensors(out);
  expect_same_bits(logits(each), logits(joined));
}

/// The stored GGUF file was made so that rounding the range changes nothing; the published numbers are not so kind.
TEST(Hybrids, GptOssGgufDoesNotRoundTheYarnRange) {
  const auto source = open_source(Env::real(), kGolden + "gguf/gpt_oss.gguf");
  ASSERT_TRUE(source);
  Json c = Json::parse((*source)->config_json());
  c["gpt-oss.rope.freq_base"] = 150000.0;
  c["gpt-oss.rope.scaling.factor"] = 32.0;
  c["gpt-oss.rope.scaling.original_context_length"] = 4096;
  const auto weights = weights_from_source(**source, [](Form f) { return f; });
  const auto graph = (*find_family(SourceFormat::kGguf, c.dump()))->build(SourceFormat::kGguf, c.dump(), *weights, {});
  ASSERT_TRUE(graph) << graph.error().text();
  YarnParams y{.factor = 32, .original_length = 4096, .beta_fast = 32, .beta_slow = 1, .truncate = false};
  EXPECT_EQ(graph->ropes.at(0).inv_freq, yarn_frequencies(150000, 16, y));
  y.truncate = true;
  EXPECT_NE(graph->ropes.at(0).inv_freq, yarn_frequencies(150000, 16, y));
}

TEST(Hybrids, DraftLayersOfGgufAreLeftOut) {
  const std::string path = "gguf/qwen3_5_text.gguf";
  const auto source = open_source(Env::real(), kGolden + path);
  ASSERT_TRUE(source);
  Json c = Json::parse((*source)->config_json());
  const auto layers = [&](const Json& config) -> std::string {
    const auto weights = weights_from_source(**source, [](Form f) { return f; });
    const auto family = find_family(SourceFormat::kGguf, config.dump());
    const auto graph = (*family)->build(SourceFormat::kGguf, config.dump(), *weights, {});
    return graph ? std::to_string(graph->state.groups[1].n_layers) : graph.error().text();
  };
  EXPECT_EQ(layers(c), "4");
  c["qwen35.block_count"] = 6;  // a fifth layer and one draft layer, whose tensors are not asked for
  c["qwen35.nextn_predict_layers"] = 1;
  EXPECT_EQ(layers(c), "4");
  c["qwen35.nextn_predict_layers"] = 6;
  EXPECT_NE(layers(c).find("nextn_predict_layers: leaves no layer"), std::string::npos);
}

TEST(Hybrids, WhatWasNotTriedIsRefusedByName) {
  struct Setting {
    const char *model, *key, *value, *says;
  };
  const Setting settings[] = {
      {"lfm2", "conv_bias", "true", "config conv_bias: must be false"},
      {"lfm2", "layer_types", R"(["conv","conv","conv","conv","conv","conv"])", "without any attention layer"},
      {"lfm2", "layer_types", R"(["conv","conv","full_attention","conv","full_attention","mamba"])", "'mamba' is not a layer type"},
      {"lfm2", "conv_L_cache", "1", "config conv_L_cache: must be a whole number from 2"},
      {"lfm2_moe", "use_expert_bias", "false", "config use_expert_bias: must be true"},
      {"lfm2_moe", "norm_topk_prob", "false", "config norm_topk_prob: must be true"},
      {"qwen3_next", "hidden_act", "\"gelu\"", "config hidden_act: 'gelu' is not part of this family"},
      {"qwen3_next", "attention_bias", "true", "config attention_bias: must be false"},
      {"qwen3_next", "quantization_config", R"({"quant_method": "fp8"})", "config quantization_config: weights quantized by 'fp8'"},
      {"qwen3_5_text", "attn_output_gate", "false", "config attn_output_gate: must be true"},
      {"qwen3_5_text", "mamba_ssm_dtype", "\"bfloat16\"", "config mamba_ssm_dtype: 'bfloat16'"},
      {"qwen3_5_text", "linear_num_value_heads", "5", "config linear_num_value_heads: the key heads do not divide"},
      {"gpt_oss", "swiglu_alpha", "1.5", "config swiglu_alpha: must be 1.702"},
      {"gpt_oss", "swiglu_limit", "0", "config swiglu_limit: is 0; must be a number from 1e-06 to 1e+06"},
      {"gpt_oss", "hidden_act", "\"gelu\"", "config hidden_act: 'gelu'"},
      {"gpt_oss", "attention_bias", "false", "config attention_bias: must be true"},
      {"gpt_oss", "quantization_config", R"({"quant_method": "gptq"})", "config quantization_config.quant_method: 'gptq'"},
      {"granitemoehybrid", "mamba_conv_bias", "false", "config mamba_conv_bias: must be true"},
      {"granitemoehybrid", "time_step_limit", "[0.001, 0.1]", "config time_step_limit: must be [0, Infinity]"},
      {"granitemoehybrid", "mamba_n_groups", "3", "config mamba_n_heads: the groups do not divide"},
      {"granitemoehybrid", "mamba_d_head", "32", "config mamba_d_head: times mamba_n_heads is not"},
      {"granitemoehybrid", "hidden_act", "\"gelu\"", "config hidden_act: 'gelu'"},
      {"granitemoehybrid", "logits_scaling", "0", "config logits_scaling: is 0; must be a number from 1e-06 to 1e+06"},
  };
  for (const Setting& s : settings) {
    Files files = files_of(std::string("models/") + s.model);
    Json c = Json::parse(files.config);
    c[s.key] = Json::parse(s.value);
    files.config = c.dump();
    EXPECT_NE(error_of(files).find(s.says), std::string::npos) << s.model << " " << s.key << ": " << error_of(files);
  }
}

TEST(Hybrids, SizesThatWouldFillTheMemoryAreRefused) {
  Files files = files_of("models/qwen3_next");
  Json c = Json::parse(files.config);
  for (const char* key : {"linear_num_key_heads", "linear_num_value_heads"}) c[key] = 1;
  for (const char* key : {"linear_key_head_dim", "linear_value_head_dim"}) c[key] = 1 << 16;
  files.config = c.dump();
  EXPECT_NE(error_of(files).find("out of range"), std::string::npos) << error_of(files);
  files = files_of("models/granitemoehybrid");
  c = Json::parse(files.config);
  c["mamba_d_state"] = 1 << 20;
  files.config = c.dump();
  EXPECT_NE(error_of(files).find("out of range"), std::string::npos) << error_of(files);
}

}  // namespace
}  // namespace carrel
