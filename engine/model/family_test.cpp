// Choice of a family, and configurations that lie: every one must end in an error or a model, never in a crash.
#include "engine/model/family.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/model/fuzz_drive.h"
#include "engine/model/golden_run.h"

namespace carrel {
namespace {

using Json = nlohmann::json;

TEST(Family, TableKnowsEveryType) {
  const auto hf = [](const char* type) {
    return find_family(SourceFormat::kHuggingFace, std::string(R"({"model_type": ")") + type + "\"}");
  };
  for (const char* type : {"deepseek_v4", "llama", "mistral", "qwen3", "qwen3_moe", "gemma3", "gemma3_text", "gpt_oss", "granitemoehybrid",
                           "lfm2", "lfm2_moe", "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"})
    EXPECT_TRUE(hf(type)) << type;
  const auto gguf = [](const char* type) {
    return find_family(SourceFormat::kGguf, std::string(R"({"general.architecture": ")") + type + "\"}");
  };
  for (const char* type : {"deepseek4", "llama", "qwen3", "qwen3moe", "gemma3", "gpt-oss", "granitehybrid", "lfm2", "lfm2moe", "qwen3next",
                           "qwen35", "qwen35moe"})
    EXPECT_TRUE(gguf(type)) << type;
  EXPECT_EQ(hf("mamba9").error().code, Code::kUnsupported);
  EXPECT_NE(hf("mamba9").error().message.find("'mamba9' is not supported; this version runs deepseek_v4, gemma3_text"), std::string::npos);
  EXPECT_EQ(find_family(SourceFormat::kHuggingFace, "{}").error().code, Code::kCorrupt);
}

struct Opened {
  std::unique_ptr<ModelSource> source;
  std::unique_ptr<LoadedWeights> weights;
};

Opened open(const std::string& path) {
  Opened o;
  auto source = open_source(Env::real(), "tests/golden/" + path);
  EXPECT_TRUE(source) << source.error().text();
  o.source = *std::move(source);
  o.weights = weights_from_source(*o.source, [](Form f) { return f; });
  return o;
}

Result<Graph> build(const Opened& o, const Json& config) {
  CARREL_ASSIGN(const Family* family, find_family(o.source->format(), config.dump()));
  return family->build(o.source->format(), config.dump(), *o.weights, {});
}

const std::vector<Json>& lies() {
  static const std::vector<Json> kLies = {nullptr,
                                          0,
                                          -1,
                                          1,
                                          3,
                                          1 << 20,
                                          2147483647,
                                          4294967296LL,
                                          1e300,
                                          -0.5,
                                          "x",
                                          true,
                                          Json::array(),
                                          Json::array({1, 2}),
                                          Json::array({"x"}),
                                          Json::object(),
                                          Json::object({{"rope_type", "nonsense"}})};
  return kLies;
}

class LyingConfig : public testing::TestWithParam<const char*> {};

TEST_P(LyingConfig, EndsInAnErrorOrAModel) {
  const Opened o = open(GetParam());
  const Json config = Json::parse(o.source->config_json());
  const auto good = build(o, config);
  ASSERT_TRUE(good) << good.error().text();
  int refused = 0;
  for (const auto& [key, value] : config.items()) {
    for (const Json& lie : lies()) {
      Json bad = config;
      bad[key] = lie;
      const auto graph = build(o, bad);
      refused += !graph;
      EXPECT_TRUE(graph || !graph.error().message.empty()) << key << " = " << lie;
    }
    Json without = config;
    without.erase(key);
    (void)build(o, without);
  }
  EXPECT_GT(refused, 50);
}

INSTANTIATE_TEST_SUITE_P(Families, LyingConfig,
                         testing::Values("models/deepseek_v4/tiny_a", "models/deepseek_v4/tiny_a_native", "models/deepseek_v4/tiny_b",
                                         "models/gemma3_text", "models/llama", "models/mistral", "models/qwen3", "models/qwen3_moe",
                                         "gguf/deepseek_v4-bf16.gguf", "gguf/gemma3_text-mix.gguf", "gguf/llama.gguf",
                                         "gguf/qwen3_moe.gguf", "models/lfm2", "models/lfm2_moe", "models/qwen3_next",
                                         "models/qwen3_5_text", "models/qwen3_5_moe_text", "models/gpt_oss", "models/gpt_oss/mxfp4",
                                         "models/granitemoehybrid", "models/granitemoehybrid_dense", "gguf/lfm2.gguf", "gguf/lfm2_moe.gguf",
                                         "gguf/qwen3_next.gguf", "gguf/qwen3_5_text.gguf", "gguf/qwen3_5_moe_text.gguf",
                                         "gguf/gpt_oss.gguf", "gguf/gpt_oss-mxfp4.gguf", "gguf/granitemoehybrid.gguf",
                                         "gguf/granitemoehybrid_dense.gguf"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) {
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });

/// Several keys lie at once, sections included, over weights that have whatever is asked for.
TEST(Family, LiesTogetherEndInAnErrorOrAModel) {
  std::mt19937_64 random(5);
  const std::vector<std::string> seeds = *Env::real()->list("engine/model/testdata/family");
  const int n_rounds = std::getenv("CARREL_LONG") != nullptr ? 4000 : 200;
  for (const std::string& seed : seeds) {
    const std::string text = *read_file(Env::real(), "engine/model/testdata/family/" + seed);
    const Json config = Json::parse(text.empty() ? "" : text.substr(1), nullptr, false);
    if (!config.is_object() || config.size() < 3) continue;
    for (int round = 0; round < n_rounds; ++round) {
      Json bad = config;
      for (uint64_t n = 1 + random() % 4; n > 0; --n) {
        auto at = std::next(bad.begin(), static_cast<ptrdiff_t>(random() % bad.size()));
        if (at->is_object() && !at->empty()) at = std::next(at->begin(), static_cast<ptrdiff_t>(random() % at->size()));
        *at = random() % 4 != 0 ? lies()[random() % lies().size()] : Json(random() % 600);
      }
      const std::string bytes = text[0] + bad.dump();
      EXPECT_TRUE(fuzz::family(std::as_bytes(std::span(bytes)))) << seed << " " << bad;
    }
  }
}

TEST(Family, ErrorsNameTensorAndKey) {
  const Opened o = open("models/llama");
  Json config = Json::parse(o.source->config_json());
  config["hidden_size"] = 65;
  config["head_dim"] = 16;
  EXPECT_EQ(
      build(o, config).error().text(),
      "tests/golden/models/llama: tensor 'model.embed_tokens.weight' is BF16 [512, 64] where the configuration asks for 512 rows of 65 "
      "numbers from row 0 on, out of 512");
  config = Json::parse(o.source->config_json());
  config["num_hidden_layers"] = 5;
  EXPECT_NE(build(o, config).error().text().find("model.layers.4.input_layernorm.weight"), std::string::npos);
  config = Json::parse(o.source->config_json());
  config["rope_parameters"]["rope_type"] = "longrope";
  EXPECT_EQ(build(o, config).error().text(),
            "config rope_parameters.rope_type: 'longrope' is not a rope scaling of this version (default, linear, llama3, yarn)");
}

TEST(Family, StatesOfTheFamilies) {
  const auto describe = [](const std::string& path) {
    const Opened o = open(path);
    const auto graph = build(o, Json::parse(o.source->config_json()));
    std::string out = "B=" + std::to_string(graph->state.block_size);
    for (const StateSpec& g : graph->state.groups) {
      out += " " + g.name + ":" + std::string(to_string(g.kind)) + ":L" + std::to_string(g.n_layers) + ":r" + std::to_string(g.ratio) +
             ":e" + std::to_string(g.row_elems) + (g.window ? ":W" + std::to_string(g.window) : "") +
             (g.n_rows ? ":n" + std::to_string(g.n_rows) : "");
    }
    return out;
  };
  EXPECT_EQ(describe("models/llama"), "B=64 kv:compressed_kv:L4:r1:e64");
  EXPECT_EQ(describe("models/mistral"), "B=64 window:window:L4:r1:e96:W16");
  EXPECT_EQ(describe("models/gemma3_text"), "B=64 kv:compressed_kv:L1:r1:e64 window:window:L6:r1:e64:W16");
  EXPECT_EQ(describe("models/gpt_oss"), "B=64 kv:compressed_kv:L2:r1:e64 window:window:L2:r1:e64:W16");
  EXPECT_EQ(describe("models/lfm2"), "B=64 kv:compressed_kv:L2:r1:e64 conv:recurrent:L4:r0:e64:n2");
  EXPECT_EQ(describe("gguf/lfm2_moe.gguf"), "B=64 kv:compressed_kv:L2:r1:e64 conv:recurrent:L3:r0:e64:n2");
  EXPECT_EQ(describe("models/qwen3_next"), "B=64 kv:compressed_kv:L1:r1:e128 conv:recurrent:L4:r0:e128:n3 delta:recurrent:L4:r0:e16:n64");
  EXPECT_EQ(describe("models/qwen3_5_text"), "B=64 kv:compressed_kv:L1:r1:e64 conv:recurrent:L3:r0:e160:n3 delta:recurrent:L3:r0:e24:n64");
  EXPECT_EQ(describe("models/granitemoehybrid"),
            "B=64 kv:compressed_kv:L2:r1:e64 conv:recurrent:L2:r0:e192:n3 ssm:recurrent:L2:r0:e16:n128");
  EXPECT_EQ(describe("models/deepseek_v4/tiny_a"),
            "B=128 window:window:L5:r1:e32:W128 csa:compressed_kv:L2:r4:e32 csa.index:indexer:L2:r4:e32 csa.tail:tail:L2:r0:e64:n4 "
            "csa.index.tail:tail:L2:r0:e64:n4 "
            "hca:compressed_kv:L2:r128:e32");
  EXPECT_EQ(describe("models/deepseek_v4/tiny_b"),
            "B=64 window:window:L5:r1:e32:W8 csa:compressed_kv:L2:r4:e32 csa.index:indexer:L2:r4:e16 csa.tail:tail:L2:r0:e64:n4 "
            "csa.index.tail:tail:L2:r0:e32:n4 "
            "hca:compressed_kv:L3:r16:e32");
}

}  // namespace
}  // namespace carrel
