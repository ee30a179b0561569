#include "engine/model/random_weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/env.h"
#include "engine/model/family.h"
#include "engine/model/plain_state.h"

namespace carrel {
namespace {

const std::string kShapes = "tests/shapes", kModels = "tests/golden/models";

/// Runs three tokens of the configuration's model; empty: every logit is finite and they are not all equal.
std::string run(const std::string& path, DType stored, LoadedWeights** loaded = nullptr) {
  static ThreadTeam team(2);
  static std::unique_ptr<LoadedWeights> weights;
  const auto json = read_file(Env::real(), path);
  if (!json) return json.error().message;
  const auto family = find_family(SourceFormat::kHuggingFace, *json);
  if (!family) return family.error().message;
  const auto ops = make_ops(OpSet::kFast, &team);
  auto made = random_weights(*json, stored, [&](Form form) { return (*ops)->wanted_form(form); });
  if (!made) return made.error().message;
  weights = *std::move(made);
  if (loaded != nullptr) *loaded = weights.get();
  const auto graph = (*family)->build(SourceFormat::kHuggingFace, *json, *weights, {.kv_dtype = (*ops)->kv_dtype()});
  if (!graph) return graph.error().message + " (" + graph.error().where + ")";
  GraphRunner runner(&*graph, ops->get(), 8);
  PlainSequence sequence(&graph->state);
  const int32_t tokens[] = {5, 17, 40}, last = 2;
  const float* logits = sequence.run(runner, tokens, std::span(&last, 1));
  for (int i = 0; i < graph->vocab; i++)
    if (!std::isfinite(logits[i])) return "a logit is not finite";
  return std::all_of(logits, logits + graph->vocab, [&](float v) { return v == logits[0]; }) ? "all logits are equal" : "";
}

TEST(RandomWeights, EveryFamilyRuns) {
  for (const char* name :
       {"lfm2", "lfm2_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "granitemoehybrid", "granitemoehybrid_dense", "gpt_oss",
        "gpt_oss/mxfp4", "deepseek_v4/tiny_a_native", "llama", "mistral", "qwen3", "qwen3_moe", "gemma3_text"})
    for (const DType stored : {DType::kBF16, DType::kQ8_0, DType::kQ4_1})
      EXPECT_EQ(run(kModels + "/" + name + "/config.json", stored), "") << name << " " << to_string(stored);
}

TEST(RandomWeights, BytesAreThoseOfTheStoredType) {
  LoadedWeights* weights = nullptr;
  int64_t bytes[2] = {};
  for (const DType stored : {DType::kBF16, DType::kQ8_0}) {
    ASSERT_EQ(run(kModels + "/llama/config.json", stored, &weights), "");
    bytes[stored == DType::kQ8_0] = weights->file_bytes();
  }
  EXPECT_NEAR(static_cast<double>(bytes[1]) / static_cast<double>(bytes[0]), 34.0 / 64, 0.15) << "rows of 48 stay bf16";
}

TEST(RandomWeights, RefusesWhatItCannotDraw) {
  const auto same = [](Form f) { return f; };
  EXPECT_EQ(random_weights("{}", DType::kQ6_K, same).error().code, Code::kUnsupported);
  EXPECT_EQ(random_weights("[1", DType::kBF16, same).error().code, Code::kCorrupt);
}

// Shapes of tests/shapes are read by `carrel bench --shape`; one that no family takes would only show then.
TEST(RandomWeights, ShapesAreOfKnownFamilies) {
  const auto names = Env::real()->list(kShapes);
  ASSERT_TRUE(names);
  int n = 0;
  for (const std::string& name : *names) {
    if (!name.ends_with(".json")) continue;
    n++;
    EXPECT_TRUE(find_family(SourceFormat::kHuggingFace, *read_file(Env::real(), kShapes + "/" + name))) << name;
  }
  EXPECT_GE(n, 11);
}

}  // namespace
}  // namespace carrel
