// The golden text vectors, read in place from the shared folder (CARREL_SHARED, default: beside the checkout).
#include "engine/text/golden_text.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "engine/model/gguf.h"
#include "engine/model/source_text.h"
#include "engine/text/tokenizer.h"

namespace carrel {
namespace {

/// The folder, or empty after a printed reason; under CI its absence is a failure.
std::string golden_tokenizers() {
  const char* shared = std::getenv("CARREL_SHARED");
  const std::string dir = std::string(shared != nullptr ? shared : "../shared") + "/golden/text/tokenizers";
  if (Env::real()->is_dir(dir)) return dir;
  EXPECT_EQ(std::getenv("CI"), nullptr) << "no golden text vectors at " << dir << "; set CARREL_SHARED";
  std::printf("skipped: no golden text vectors at %s (set CARREL_SHARED)\n", dir.c_str());
  return {};
}

void expect_all(const Result<GoldenTextReport>& r, int64_t at_least) {
  ASSERT_TRUE(r) << r.error().text();
  EXPECT_GE(r->n_checks, at_least);
  EXPECT_EQ(r->n_failed, 0);
  for (const std::string& f : r->failures) ADD_FAILURE() << f;
}

struct Family {
  const char* name;
  int64_t n_vectors;
  int64_t n_streams;
};

class GoldenTokenizer : public testing::TestWithParam<Family> {};

TEST_P(GoldenTokenizer, all_vectors_and_streams) {
  const std::string dir = golden_tokenizers();
  if (dir.empty()) GTEST_SKIP();
  expect_all(check_tokenizer_family(Env::real(), dir + "/" + GetParam().name), 8 * GetParam().n_vectors + GetParam().n_streams);
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTokenizer,
                         testing::Values(Family{"qwen3", 329, 39}, Family{"gpt_oss", 314, 44}, Family{"gemma3", 477, 43},
                                         Family{"deepseek_v3", 324, 42}, Family{"llama3", 310, 44}, Family{"gpt2", 273, 44},
                                         Family{"llama2_spm", 292, 46}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(GoldenText, split_patterns) {
  const std::string dir = golden_tokenizers();
  if (dir.empty()) GTEST_SKIP();
  expect_all(check_split_patterns(Env::real(), dir), 1792);
}

/// The tokenizer keys of a GGUF file.
Result<std::shared_ptr<const Tokenizer>> from_gguf_file(const std::string& bytes, const std::string& name) {
  CARREL_ASSIGN(GgufFile file, read_gguf(std::as_bytes(std::span(bytes)), name));
  if (!file.tokenizer) return fail(Code::kNotFound, "no tokenizer", name);
  return Tokenizer::from_gguf(gguf_vocab(*file.tokenizer));
}

TEST(GoldenText, gguf_vocabulary_with_scores) {
  const std::string dir = golden_tokenizers();
  if (dir.empty()) GTEST_SKIP();
  auto bytes = read_packed(Env::real(), dir + "/llama2_spm/vocab.gguf");
  ASSERT_TRUE(bytes) << bytes.error().text();
  auto t = from_gguf_file(*bytes, "vocab.gguf");
  ASSERT_TRUE(t) << t.error().text();
  expect_all(check_tokenizer(Env::real(), **t, dir + "/llama2_spm"), 8 * 292 + 46);
}

}  // namespace
}  // namespace carrel
