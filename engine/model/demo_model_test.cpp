// The model that the binary carries reproduces its samples, and its states may be fed in any pieces.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/model/golden_run.h"

namespace carrel {
namespace {

const std::string kDemo = "app/assets/demo-model";

std::unique_ptr<GoldenModel> load(OpSet ops) {
  auto m = load_golden_model([] { return open_source(Env::real(), kDemo); }, ops, CpuPath::kAuto, 2, auto_kv_dtype(ops));
  EXPECT_TRUE(m) << m.error().text();
  return m ? *std::move(m) : nullptr;
}

struct Sample {
  std::string name;
  std::vector<int32_t> prompt, expected;
};

std::vector<Sample> samples() {
  const auto text = read_file(Env::real(), kDemo + "/samples.json");
  EXPECT_TRUE(text);
  std::vector<Sample> out;
  const auto json = nlohmann::json::parse(*text);
  for (const auto& s : json["samples"]) out.push_back({s["name"], s["prompt_ids"], s["expected_ids"]});
  return out;
}

class DemoModel : public testing::TestWithParam<OpSet> {};

TEST_P(DemoModel, AnswersItsSamplesTokenForToken) {
  const auto model = load(GetParam());
  ASSERT_TRUE(model);
  const size_t vocab = static_cast<size_t>(model->graph.vocab);
  const auto all = samples();
  ASSERT_EQ(all.size(), 41u);
  for (const Sample& s : all) {
    std::vector<int32_t> tokens = s.prompt, wanted;
    tokens.insert(tokens.end(), s.expected.begin(), s.expected.end() - 1);
    for (size_t i = s.prompt.size() - 1; i < tokens.size(); ++i) wanted.push_back(static_cast<int32_t>(i));
    std::vector<int> steps(s.prompt.size() / 256, 256);  // then token by token, as an answer is made
    if (s.prompt.size() % 256) steps.push_back(static_cast<int>(s.prompt.size() % 256));
    PlainSequence sequence(&model->graph.state);
    const std::vector<float> logits = run_tokens(*model, tokens, steps, wanted, sequence);
    for (size_t i = 0; i < s.expected.size(); ++i) {
      const float* row = logits.data() + i * vocab;
      const auto best = static_cast<int32_t>(std::max_element(row, row + vocab) - row);
      ASSERT_EQ(best, s.expected[i]) << s.name << " token " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, DemoModel, testing::Values(OpSet::kExact, OpSet::kFast),
                         [](const auto& info) { return std::string(info.param == OpSet::kExact ? "exact" : "fast"); });

TEST(DemoModel, DeclaresEveryStateKind) {
  const auto model = load(OpSet::kFast);
  ASSERT_TRUE(model);
  const ModelState& state = model->graph.state;
  EXPECT_EQ(state.block_size, 128);
  std::vector<std::string> names;
  for (const StateSpec& g : state.groups) names.push_back(g.name + ":" + std::string(to_string(g.kind)) + ":" + std::to_string(g.n_layers));
  EXPECT_EQ(names, (std::vector<std::string>{"window:window:4", "csa:compressed_kv:2", "csa.index:indexer:2", "csa.tail:tail:2",
                                             "csa.index.tail:tail:2", "hca:compressed_kv:1"}));
  for (const StateSpec& g : state.groups) EXPECT_EQ(g.dtype, g.kind == StateKind::kTail ? DType::kF32 : DType::kBF16) << g.name;
}

}  // namespace
}  // namespace carrel
