#include "engine/text/golden_text.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace carrel {
namespace {

/// Folder of the published vectors, or empty (then the test skips; under CI it fails).
std::string text_vectors() {
  const char* shared = std::getenv("CARREL_SHARED");
  const std::string dir = std::string(shared != nullptr ? shared : "../shared") + "/golden/text";
  return Env::real()->is_dir(dir) ? dir : "";
}

void expect_clean(const Result<GoldenTextReport>& report, int64_t at_least) {
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_GE(report->n_checks, at_least);
  std::string failures;
  for (const std::string& f : report->failures) failures += f + "\n";
  EXPECT_EQ(report->n_failed, 0) << failures;
}

class GoldenText : public testing::TestWithParam<const char*> {};

TEST_P(GoldenText, EveryVectorAndStream) {
  const std::string dir = text_vectors();
  if (dir.empty()) {
    ASSERT_EQ(std::getenv("CI"), nullptr) << "../shared/golden/text is missing";
    std::printf("skipped: published tokenizers (CARREL_SHARED names no folder with golden/text)\n");
    GTEST_SKIP();
  }
  expect_clean(check_tokenizer_family(Env::real(), dir + "/tokenizers/" + GetParam()), 1500);
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenText, testing::Values("qwen3", "gpt_oss", "gemma3", "deepseek_v3", "llama3", "gpt2", "llama2_spm"),
                         [](const auto& info) { return std::string(info.param); });

TEST(GoldenSplits, EveryPublishedPattern) {
  const std::string dir = text_vectors();
  if (dir.empty()) GTEST_SKIP();
  expect_clean(check_split_patterns(Env::real(), dir + "/tokenizers"), 1700);
}

}  // namespace
}  // namespace carrel
