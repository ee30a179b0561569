// The promise of the second and third sighting, on every shape of state: docs/state.md.
#include "engine/drill/reuse.h"

#include <gtest/gtest.h>

#include "tests/whole_world.h"

namespace carrel::whole {
namespace {

class Reuse : public testing::TestWithParam<const char*> {};

TEST_P(Reuse, KeepsThePromise) {
  auto world = World::open(GetParam()[0] == '\0' ? "" : std::string("tests/golden/models/") + GetParam(), OpSet::kFast);
  ASSERT_TRUE(world) << world.error().text();
  const auto rows = measure_reuse((*world)->with_threads(1));
  ASSERT_TRUE(rows) << rows.error().text();
  int64_t nominal = 0;
  for (const ReuseRow& r : *rows) {
    EXPECT_TRUE(r.kept()) << r.scenario << ", sighting " << r.sighting << ": nominal " << r.nominal << ", effective " << r.effective
                          << ", promised " << r.promised << "; " << r.veto;
    EXPECT_EQ(r.nominal, std::min(r.shared_tokens, r.prompt_tokens - 1) / (*world)->block_size() * (*world)->block_size());
    nominal += r.nominal;
  }
  EXPECT_GT(nominal, 0);
  EXPECT_EQ(rows->size(), 5u + kChatTurns + 3u + 4u);
}

INSTANTIATE_TEST_SUITE_P(Models, Reuse,
                         testing::Values("", "deepseek_v4/tiny_a", "deepseek_v4/tiny_b", "gemma3_text", "gpt_oss", "granitemoehybrid",
                                         "granitemoehybrid_dense", "lfm2", "lfm2_moe", "llama", "mistral", "qwen3", "qwen3_5_moe_text",
                                         "qwen3_5_text", "qwen3_next"),
                         [](const auto& i) {
                           std::string name = i.param[0] == '\0' ? "demo" : i.param;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace carrel::whole
