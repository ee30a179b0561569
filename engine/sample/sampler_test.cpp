#include "engine/sample/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace carrel {
namespace {

int32_t draw(std::vector<float> logits, SamplingParams p, int64_t position = 7, std::vector<int32_t> prompt = {}, std::vector<int32_t> answer = {}) {
  Sampler s;
  return s.sample(logits, p, prompt, answer, position)->id;
}

TEST(Philox, KnownAnswer) {
  // Philox 4x32-10 with zero counter and key starts 6627e8d5 e169c58d (published test vector of Random123).
  EXPECT_EQ(philox_uniform(0, 0), static_cast<double>((uint64_t{0x6627e8d5} << 32 | 0xe169c58du) >> 11) * 0x1p-53);
}

TEST(Sampler, GreedyTakesTheLowerIdOfATie) {
  SamplingParams p;
  p.temperature = 0;
  EXPECT_EQ(draw({1, 3, 3, 2}, p), 1);
}

TEST(Sampler, NanIsAnErrorOfTheRequest) {
  Sampler s;
  const std::vector<float> logits{1, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_FALSE(s.sample(logits, {}, {}, {}, 0));
}

TEST(Sampler, SeedAndPositionDecideAlone) {
  std::vector<float> logits(100);
  for (size_t i = 0; i < logits.size(); i++) logits[i] = static_cast<float>(i % 7);
  SamplingParams p;
  p.seed = 42;
  EXPECT_EQ(draw(logits, p, 5), draw(logits, p, 5));
  int different = 0;
  for (int i = 0; i < 50; i++) different += draw(logits, p, i) != draw(logits, p, i + 1);
  EXPECT_GT(different, 25);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  SamplingParams p;
  p.seed = 1;
  std::map<int32_t, int> n;
  for (int i = 0; i < 20000; i++) n[draw(logits, p, i)]++;
  EXPECT_NEAR(n[0] / 20000.0, 0.5, 0.02);
  EXPECT_NEAR(n[1] / 20000.0, 0.3, 0.02);
}

TEST(Sampler, TruncationKeepsOnlyWhatItSays) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  SamplingParams top_k, top_p, min_p;
  top_k.top_k = 2;
  top_p.top_p = 0.7f;
  min_p.min_p = 0.5f;
  for (int i = 0; i < 2000; i++) {
    EXPECT_LT(draw(logits, top_k, i), 2);
    EXPECT_LT(draw(logits, top_p, i), 2);
    EXPECT_LT(draw(logits, min_p, i), 2);
  }
}

TEST(Sampler, PenaltiesAndBiasMoveTheChoice) {
  SamplingParams p;
  p.temperature = 0;
  p.presence_penalty = 2;
  EXPECT_EQ(draw({3, 2}, p, 0, {}, {0}), 1);
  EXPECT_EQ(draw({3, 2}, p, 0, {0}, {}), 0);  // presence looks at the answer only
  p.presence_penalty = 0;
  p.repetition_penalty = 2;
  EXPECT_EQ(draw({3, 2}, p, 0, {0}, {}), 1);
  p.repetition_penalty = 1;
  p.logit_bias = {{1, 5.0f}};
  EXPECT_EQ(draw({3, 2}, p), 1);
}

TEST(Sampler, LogprobsAreOfTheModel) {
  Sampler s;
  SamplingParams p;
  p.temperature = 0;
  p.n_logprobs = 2;
  p.logit_bias = {{2, 50.0f}};
  const std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  const Sampled r = s.sample(logits, p, {}, {}, 0).value();
  EXPECT_EQ(r.id, 2);
  EXPECT_NEAR(r.logprob, std::log(0.2f), 1e-6);
  ASSERT_EQ(r.top.size(), 2u);
  EXPECT_EQ(r.top[0].id, 0);
  EXPECT_NEAR(r.top[1].logprob, std::log(0.3f), 1e-6);
}

std::vector<float> hilly_logits() {
  std::vector<float> logits(50);
  for (size_t i = 0; i < logits.size(); i++) logits[i] = static_cast<float>(i * 7919 % 13);
  logits[30] = 20;
  return logits;
}

TEST(Cases, case_state_f4) {  // temperature 0 divides by nothing; a tie goes to the lowest id
  std::vector<float> logits = hilly_logits();
  SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_EQ(draw(logits, greedy), 30);
  logits[41] = logits[12] = 20;
  EXPECT_EQ(draw(logits, greedy), 12);
  SamplingParams cold;  // almost zero: the quotient overflows float, the choice must not
  cold.temperature = 1e-30f;
  EXPECT_EQ(draw(hilly_logits(), cold), 30);
}

TEST(Cases, case_state_f5) {  // the edges of every range
  const std::vector<float> logits = hilly_logits();
  SamplingParams zero_p, one_p, all_k, no_k, one_min;
  zero_p.top_p = 0;
  one_p.top_p = 1;
  all_k.top_k = 1'000'000;
  no_k.top_k = 0;
  one_min.min_p = 1;
  for (int i = 0; i < 200; i++) {
    EXPECT_EQ(draw(logits, zero_p, i), 30);
    EXPECT_EQ(draw(logits, one_min, i), 30);
    EXPECT_LT(draw(logits, all_k, i), 50);
    EXPECT_EQ(draw(logits, all_k, i), draw(logits, no_k, i));  // both mean: every token
    EXPECT_EQ(draw(logits, one_p, i), draw(logits, no_k, i));
  }
  SamplingParams banned;
  for (int32_t id = 0; id < 50; id++)
    if (id != 7) banned.logit_bias.emplace_back(id, -100.0f);
  EXPECT_EQ(draw(logits, banned), 7);
  SamplingParams none_left = zero_p;  // every filter at its strictest: one candidate remains
  none_left.top_k = 1;
  none_left.min_p = 1;
  EXPECT_EQ(draw(logits, none_left), 30);
  for (const float penalty : {-2.0f, 2.0f}) {
    SamplingParams p;
    p.presence_penalty = p.frequency_penalty = penalty;
    EXPECT_TRUE(check(p, 50));
    EXPECT_LT(draw(logits, p), 50);
  }
  for (const float min_p : {0.0f, 1.0f})
    for (const int top_k : {0, 3}) {  // a penalty that makes a logit infinite leaves that token, not nothing
      SamplingParams p;
      p.repetition_penalty = 1e-40f;
      p.min_p = min_p;
      p.top_k = top_k;
      EXPECT_EQ(draw(logits, p, 7, {30}), 30);
      EXPECT_EQ(draw(std::vector<float>(50, -std::numeric_limits<float>::infinity()), p, 7) >= 0, true);
    }
  for (const uint64_t seed : {uint64_t{0}, static_cast<uint64_t>(-5), uint64_t{1} << 63}) {
    SamplingParams p;
    p.seed = seed;
    for (int i = 0; i < 20; i++) EXPECT_EQ(draw(logits, p, i), draw(logits, p, i));
  }
}

TEST(Sampler, RangesAreChecked) {
  SamplingParams p;
  EXPECT_TRUE(check(p, 10));
  p.top_p = 1.5f;
  EXPECT_EQ(check(p, 10).error().where, "top_p");
  p.top_p = 1;
  p.logit_bias = {{10, 1.0f}};
  EXPECT_EQ(check(p, 10).error().where, "logit_bias");
}

}  // namespace
}  // namespace carrel
