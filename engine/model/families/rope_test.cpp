#include "engine/model/families/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace carrel {
namespace {

ConfigReader section(const std::string& json) {
  return *ConfigReader::parse(json);
}

// 2.6: with 64 dimensions, base 160000, factor 16 from 65536, the ramp runs from 15 to 25.
TEST(Rope, YarnRampOfDeepseekV4) {
  YarnParams y;
  y.factor = 16;
  y.original_length = 65536;
  const auto plain = rope_frequencies(160000, 64), yarn = yarn_frequencies(160000, 64, y);
  for (size_t i = 0; i < 32; ++i) {
    const double ramp = std::min(1.0, std::max(0.0, (static_cast<double>(i) - 15) / 10));
    EXPECT_NEAR(yarn[i] / plain[i], ramp / 16 + 1 - ramp, 1e-12) << i;
  }
}

// 5.3: the range of gpt-oss is not rounded, in either format; Hugging Face says so, GGUF has no key for it.
TEST(Rope, YarnRampOfGptOss) {
  const auto hf = section(R"({"rope_type": "yarn", "factor": 32, "original_max_position_embeddings": 4096, "truncate": false})");
  const auto gguf = section(
      R"({"gpt-oss.rope.scaling.type": "yarn", "gpt-oss.rope.scaling.factor": 32, "gpt-oss.rope.scaling.original_context_length": 4096})");
  const auto plain = rope_frequencies(150000, 64);
  for (const RopeSpec& s : {rope_from_section(hf, 150000, 64, 131072), rope_from_gguf(gguf, "gpt-oss", 150000, 64, 131072, false)}) {
    EXPECT_NEAR(s.mscale, 1.34657, 1e-5);
    for (size_t i = 0; i < 32; ++i) {
      const double ramp = std::min(1.0, std::max(0.0, (static_cast<double>(i) - 8.0928) / (17.3980 - 8.0928)));
      EXPECT_NEAR(s.inv_freq[i] / plain[i], ramp / 32 + 1 - ramp, 2e-5) << i;
    }
  }
}

TEST(Rope, Llama3KeepsHighAndDividesLow) {
  const auto c = section(
      R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192})");
  const RopeSpec s = rope_from_section(c, 500000, 128, 131072);
  ASSERT_TRUE(c.status());
  const auto plain = rope_frequencies(500000, 128);
  EXPECT_EQ(s.inv_freq[0], plain[0]);
  EXPECT_DOUBLE_EQ(s.inv_freq[63], plain[63] / 8);
  for (size_t i = 1; i < 64; ++i) EXPECT_LT(s.inv_freq[i], s.inv_freq[i - 1]);
}

TEST(Rope, YarnScalesCosAndSinUnlessTold) {
  EXPECT_NEAR(
      rope_from_section(section(R"({"type": "yarn", "factor": 32, "original_max_position_embeddings": 4096})"), 150000, 64, 1).mscale,
      1.34657, 1e-5);
  EXPECT_EQ(
      rope_from_section(section(R"({"type": "yarn", "factor": 32, "original_max_position_embeddings": 4096, "attention_factor": 1.0})"),
                        150000, 64, 1)
          .mscale,
      1);
}

TEST(Rope, LinearDividesAll) {
  const RopeSpec s = rope_from_section(section(R"({"rope_type": "linear", "factor": 8})"), 1e6, 16, 1);
  for (size_t i = 0; i < 8; ++i) EXPECT_DOUBLE_EQ(s.inv_freq[i], rope_frequencies(1e6, 16)[i] / 8);
}

TEST(Rope, RefusesWhatItDoesNotKnow) {
  const auto c = section(R"({"rope_type": "dynamic", "factor": 2})");
  rope_from_section(c, 10000, 16, 1);
  EXPECT_EQ(c.status().error().code, Code::kUnsupported);
  const auto zero = section(R"({"rope_type": "linear", "factor": 0})");
  rope_from_section(zero, 10000, 16, 1);
  EXPECT_EQ(zero.status().error().code, Code::kCorrupt);
}

}  // namespace
}  // namespace carrel
