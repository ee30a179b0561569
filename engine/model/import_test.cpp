// Import with the real families: each builds from the store what it builds from the file.
#include <gtest/gtest.h>

#include <cstring>

#include "base/fault_env.h"
#include "engine/model/family.h"
#include "engine/model/store.h"

namespace carrel {
namespace {

constexpr auto kSame = [](Form stored) { return stored; };

Result<Graph> build(const ModelSource& texts, Weights& weights) {
  CARREL_ASSIGN(const Family* family, find_family(texts.format(), texts.config_json()));
  return build_graph(*family, texts.format(), texts.config_json(), weights, {});
}

Status build_hook(SourceFormat format, const std::string& config, Weights& weights) {
  CARREL_ASSIGN(const Family* family, find_family(format, config));
  CARREL_TRY(build_graph(*family, format, config, weights, {}));
  return {};
}

/// The matrices of a graph, in order.
std::vector<Matrix> matrices(const Graph& g) {
  std::vector<Matrix> out;
  for (const Node& n : g.nodes)
    if (const auto* linear = std::get_if<node::Linear>(&n)) {
      out.push_back(linear->w);
    } else if (const auto* experts = std::get_if<node::Experts>(&n)) {
      for (const Expert& e : experts->experts) out.insert(out.end(), {e.gate, e.up, e.down});
    }
  return out;
}

class Import : public ::testing::TestWithParam<const char*> {};

TEST_P(Import, a_family_builds_the_same_from_the_store) {
  FaultEnv env;
  const auto source = open_source(Env::real(), std::string("tests/golden/") + GetParam());
  ASSERT_TRUE(source) << source.error().text();
  ImportOptions options;
  const auto entry = import_source(&env, **source, "/m", options, build_hook);
  ASSERT_TRUE(entry) << entry.error().text();
  const auto model = open_stored_model(&env, entry->path, kSame, StoreVerify::kFull);
  ASSERT_TRUE(model) << model.error().text();
  const auto direct = weights_from_source(**source, kSame);
  const auto a = build(**source, *direct), b = build(*model->source, *model->weights);
  ASSERT_TRUE(a) << a.error().text();
  ASSERT_TRUE(b) << b.error().text();
  EXPECT_EQ(a->nodes.size(), b->nodes.size());
  const auto x = matrices(*a), y = matrices(*b);
  ASSERT_EQ(x.size(), y.size());
  ASSERT_GT(x.size(), 5u);
  for (size_t i = 0; i < x.size(); i++) {
    ASSERT_EQ(x[i].form, y[i].form);
    EXPECT_EQ(std::memcmp(x[i].data, y[i].data, packed_bytes(x[i].form, x[i].n_rows, x[i].n_cols)), 0) << i;
  }
  EXPECT_EQ(direct->file_bytes(), model->weights->file_bytes());
  EXPECT_EQ(direct->memory_bytes(), model->weights->memory_bytes());
  EXPECT_EQ(*direct->model_digest(), *model->weights->model_digest());  // state is shared whichever way the model came in
}

INSTANTIATE_TEST_SUITE_P(Golden, Import,
                         ::testing::Values("models/deepseek_v4/tiny_a", "models/deepseek_v4/tiny_a_native", "models/deepseek_v4/tiny_b",
                                           "models/gemma3_text", "models/llama", "models/mistral", "models/qwen3", "models/qwen3_moe",
                                           "gguf/deepseek_v4-bf16.gguf", "gguf/deepseek_v4.gguf", "gguf/gemma3_text-mix.gguf",
                                           "gguf/llama-q4_0.gguf", "gguf/llama256-q456_k.gguf", "gguf/qwen3_moe.gguf", "models/lfm2",
                                           "models/lfm2_moe", "models/qwen3_next", "models/qwen3_5_text", "models/qwen3_5_moe_text",
                                           "models/gpt_oss", "models/gpt_oss/mxfp4", "models/granitemoehybrid",
                                           "models/granitemoehybrid_dense", "gguf/lfm2_moe.gguf", "gguf/qwen3_next.gguf",
                                           "gguf/qwen3_5_moe_text.gguf", "gguf/gpt_oss-mxfp4.gguf", "gguf/granitemoehybrid_dense.gguf"));

TEST(ImportRefused, a_family_that_needs_another_type_is_refused_by_name) {
  FaultEnv env;
  std::string file = *read_file(Env::real(), "tests/golden/gguf/deepseek_v4-bf16.gguf");
  const std::string name = "blk.0.attn_kv.weight";
  const size_t type_at = file.find(name) + name.size() + 4 + 2 * 8;  // behind the dimensions
  ASSERT_EQ(file[type_at], 30);
  file[type_at] = 25;
  ASSERT_TRUE(write_file_atomic(&env, "/model.gguf", file));
  const auto source = open_source(&env, "/model.gguf");
  ASSERT_TRUE(source) << source.error().text();
  const auto entry = import_source(&env, **source, "/m", {}, build_hook);
  ASSERT_FALSE(entry);
  EXPECT_EQ(entry.error().code, Code::kUnsupported) << entry.error().text();
  EXPECT_NE(entry.error().message.find("'blk.0.attn_kv.weight' has the type I16, which this version does not read"), std::string::npos)
      << entry.error().text();
  EXPECT_TRUE(list_entries(&env, "/m")->empty());
}

}  // namespace
}  // namespace carrel
