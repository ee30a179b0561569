// Hits computed again in the background: right ones are confirmed, a wrong one is found out and taken out of use, and what must be
// forgotten is forgotten.
#include "engine/shadow.h"

#include <gtest/gtest.h>

#include "tests/whole_world.h"

namespace carrel::whole {
namespace {

class Shadow : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto world = World::open(std::string("tests/golden/models/") + GetParam(), OpSet::kFast);
    ASSERT_TRUE(world) << world.error().text();
    world_ = std::move(*world);
    Model& model = world_->with_threads(1);
    const EngineConfig config{.max_batch_size = 4, .max_num_seqs = 4, .prefill_chunk = 96, .shadow_verify_rate = 1};
    StateConfig c = world_->state_config(model, config, 8 * world_->state_bytes(600));
    c.audit = true;
    c.label = "shadow test";
    state_ = std::move(*StateManager::create(std::move(c)));
    engine_ = std::make_unique<Engine>(config, &model, state_.get(), Env::real());
    for (int64_t i = 0; i < 3 * world_->block_size() + 9; i++)
      prompt_.push_back(static_cast<int32_t>(6 + (i * i + 31 * i) % (model.graph().vocab - 6)));
  }

  Request request(const std::string& tenant = "a") const {
    Request r;
    r.id = "r";
    r.prompt = prompt_;
    r.max_new_tokens = 6;
    r.ignore_end = true;
    r.sampling.temperature = 0;
    r.sampling.n_logprobs = 8;
    r.tenant = r.namespace_id = tenant;
    return r;
  }
  Answer answer(Request r) {
    Answer a;
    auto stream = engine_->submit(std::move(r));
    EXPECT_TRUE(stream);
    while (stream && !a.finish) (void)take_events(**stream, a, 1000);
    return a;
  }
  EngineStats settled(uint64_t n_done) {
    for (int i = 0; i < 500; i++) {
      const EngineStats s = engine_->stats();
      if (s.shadow_verified + s.shadow_dropped >= n_done) return s;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "the sampled hits were not computed again";
    return engine_->stats();
  }

  std::unique_ptr<World> world_;
  std::unique_ptr<StateManager> state_;
  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> prompt_;
};

TEST_P(Shadow, ConfirmsRightHits) {
  answer(request());
  EXPECT_EQ(engine_->stats().shadow_sampled, 0u) << "there was no hit yet";
  const uint64_t compared = state_->stats().compared;
  EXPECT_GT(answer(request()).finish->usage.cached_tokens, 0);
  const EngineStats s = settled(1);
  EXPECT_EQ(s.shadow_sampled, 1u);
  EXPECT_EQ(s.shadow_verified, 1u);
  EXPECT_EQ(s.shadow_mismatches, 0u);
  EXPECT_EQ(s.state.digest_mismatches, 0u);
  // Every group at every block of the hit, registers at its end alone.
  uint64_t n = 0;
  for (const StateSpec& g : world_->graph().state.groups) n += g.kind == StateKind::kRecurrent ? 1 : 3;
  EXPECT_GE(s.state.compared - compared, n);
  EXPECT_EQ(s.finished, 2u);
  EXPECT_EQ(s.running, 0u);
  EXPECT_EQ(s.prefill_tokens, prompt_.size() + prompt_.size() - 3 * static_cast<size_t>(world_->block_size()));
  EXPECT_EQ(state_->stats().n_sequences, 0);
}

TEST_P(Shadow, FindsAWrongHitAndTakesItOutOfUse) {
  const Answer right = answer(request());
  AdmitRequest of;
  const Request r = request();
  of.tokens = prompt_;
  of.namespace_id = r.namespace_id;
  of.namespace_secret = r.namespace_secret;
  for (const StateSpec& g : world_->graph().state.groups) ASSERT_TRUE(state_->damage_for_test(of, 2, g.name, Damage::kFlipSign));
  const Answer wrong = answer(request());
  EXPECT_GT(wrong.finish->usage.cached_tokens, 0);
  ASSERT_NE(difference(wrong, right, false), "") << "the damage must show, or there is nothing to find";
  const EngineStats s = settled(1);
  EXPECT_EQ(s.shadow_mismatches, 1u);
  EXPECT_GT(s.state.quarantined, 0u);
  const Answer again = answer(request());
  EXPECT_EQ(again.finish->usage.cached_tokens, 0);
  EXPECT_EQ(difference(again, right, false), "");
}

TEST_P(Shadow, ForgetsWhatIsPurgedAndKeepsNothingOfThoseWhoForbidIt) {
  answer(request("b"));
  Request no_store = request("b");
  no_store.store = false;
  EXPECT_GT(answer(no_store).finish->usage.cached_tokens, 0);
  EXPECT_EQ(engine_->stats().shadow_sampled, 0u);
  // While others wait nothing is computed again, so that the sample is still there when the purge comes.
  std::vector<std::unique_ptr<Stream>> busy;
  for (int i = 0; i < 24; i++) {
    Request r = request("c");
    r.prompt[0] = 6 + i;
    r.max_new_tokens = 40;
    busy.push_back(std::move(*engine_->submit(std::move(r))));
  }
  EXPECT_GT(answer(request("b")).finish->usage.cached_tokens, 0);
  state_->purge("b");
  busy.clear();  // cancelled
  const EngineStats s = settled(1);
  EXPECT_EQ(s.shadow_sampled, 1u);
  EXPECT_EQ(s.shadow_dropped, 1u);
  EXPECT_EQ(s.shadow_verified, 0u);
}

INSTANTIATE_TEST_SUITE_P(Models, Shadow, testing::Values("llama", "lfm2", "qwen3_next", "gemma3_text"),
                         [](const auto& i) { return std::string(i.param); });

TEST(ShadowQueue, IsBounded) {
  ShadowQueue q;
  const auto sample = [](size_t n_tokens) {
    ShadowSample s;
    s.tokens.resize(n_tokens);
    return s;
  };
  for (size_t i = 0; i < ShadowQueue::kMostSamples; i++) EXPECT_EQ(q.push(sample(10)), 0u);
  EXPECT_EQ(q.push(sample(10)), 1u);
  EXPECT_EQ(q.size(), ShadowQueue::kMostSamples);
  EXPECT_EQ(q.push(sample(ShadowQueue::kMostTokens)), ShadowQueue::kMostSamples);
  EXPECT_EQ(q.size(), 1u);
  EXPECT_EQ(q.push(sample(ShadowQueue::kMostTokens + 1)), 1u);
  EXPECT_EQ(q.drop([](const ShadowSample&) { return true; }), 1u);
  EXPECT_TRUE(q.empty());
}

}  // namespace
}  // namespace carrel::whole
