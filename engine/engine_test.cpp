// The engine loop over a small model: limits, deadlines, cancels, preemption, order, usage and shutdown. Bit-equality:
// tests/whole_test.cpp.
//
// The clock is the test's. Its gate holds the step thread between two looks at the clock, so that what must happen before the next step
// does.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <thread>

#include "base/fault_env.h"
#include "engine/model/model.h"

namespace carrel {
namespace {

/// A clock that only the test moves. While the gate is shut it holds every thread but the test's, or lets it look at the clock a few times:
/// some five looks are a step.
class GatedEnv final : public Env {
 public:
  void shut() {
    std::lock_guard lock(mu_);
    shut_ = true;
  }
  void open_gate() {
    {
      std::lock_guard lock(mu_);
      shut_ = false;
    }
    changed_.notify_all();
  }
  /// Returns when the step thread, which has work, stands at the gate again.
  void let_pass(int n_looks) {
    std::unique_lock lock(mu_);
    shut_ = true;
    n_looks_ = n_looks;
    changed_.notify_all();
    changed_.wait(lock, [&] { return held_ && n_looks_ == 0; });
  }
  void advance_ms(int64_t ms) { clock_.advance_ms(ms); }

  int64_t mono_ns() override {
    if (std::this_thread::get_id() != test_) {
      std::unique_lock lock(mu_);
      held_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return !shut_ || n_looks_ > 0; });
      held_ = false;
      if (shut_) n_looks_--;
    }
    return clock_.mono_ns();
  }
  int64_t wall_ms() override { return clock_.wall_ms(); }
  void sleep_ms(int64_t ms) override { clock_.sleep_ms(ms); }
  void random(std::span<std::byte> out) override { clock_.random(out); }
  Result<std::unique_ptr<File>> open(const std::string& path, Open mode) override { return clock_.open(path, mode); }
  Status rename(const std::string& from, const std::string& to) override { return clock_.rename(from, to); }
  Status remove(const std::string& path) override { return clock_.remove(path); }
  Status remove_all(const std::string& path) override { return clock_.remove_all(path); }
  Status make_dirs(const std::string& path) override { return clock_.make_dirs(path); }
  Status sync_dir(const std::string& path) override { return clock_.sync_dir(path); }
  Result<std::vector<std::string>> list(const std::string& dir) override { return clock_.list(dir); }
  bool exists(const std::string& path) override { return clock_.exists(path); }
  bool is_dir(const std::string& path) override { return clock_.is_dir(path); }

 private:
  FaultEnv clock_;
  const std::thread::id test_ = std::this_thread::get_id();
  std::mutex mu_;  // guards what follows
  std::condition_variable changed_;
  bool shut_ = false, held_ = false;
  int n_looks_ = 0;
};

/// The llama of the golden vectors with the demo's tokenizer; context 1024, blocks of 64.
Model& small_model() {
  static std::map<std::string, std::string> files;
  static std::unique_ptr<Model> model;
  if (model) return *model;
  const std::string golden = "tests/golden/models/llama/", demo = "app/assets/demo-model/";
  ModelLocation from;
  from.embedded = true;
  for (const std::string& path :
       {golden + "config.json", golden + "model.safetensors", demo + "tokenizer.json", demo + "tokenizer_config.json"}) {
    const std::string name = path.substr(path.rfind('/') + 1);
    files[name] = read_file(Env::real(), path).value();
    from.files[name] = std::as_bytes(std::span(files[name]));
  }
  ModelOptions options;
  options.threads = 1;
  model = Model::load(Env::real(), from, options).value();
  return *model;
}

struct Ended {
  std::vector<int32_t> ids;
  Finish finish;
};

/// Reads to the end; a stuck engine fails the test instead of hanging it.
Ended read_all(Stream& stream) {
  Ended e;
  e.finish.reason = FinishReason::kError;
  for (int i = 0; i < 600; i++) {
    auto event = stream.next(100);
    if (!event) continue;
    if (auto* finish = std::get_if<Finish>(&*event)) {
      e.finish = std::move(*finish);
      return e;
    }
    for (const TokenInfo& t : std::get<Delta>(*event).tokens) e.ids.push_back(t.id);
  }
  ADD_FAILURE() << "no end within a minute";
  return e;
}

class EngineLoop : public testing::Test {
 protected:
  void start(EngineConfig config, int64_t budget_tokens = 16 * 1024) {
    Model& model = small_model();
    StateConfig s;
    s.model = model.graph().state;
    s.model_digest = model.digest();
    s.numerics_id = model.numerics_id();
    s.kernel_layout_id = page_layout_id(model.graph().state);
    for (const StateSpec& g : s.model.groups)
      s.budget_bytes += static_cast<size_t>(budget_tokens / s.model.block_size) * page_bytes(g, s.model.block_size);
    s.max_sequences = config.max_num_seqs;
    s.max_step_tokens = std::max(config.prefill_chunk, config.max_batch_size);
    s.max_sequence_tokens = model.graph().max_positions;
    s.poison = s.audit = true;
    auto state = StateManager::create(std::move(s));
    ASSERT_TRUE(state) << state.error().text();
    state_ = std::move(*state);
    engine_ = std::make_unique<Engine>(config, &model, state_.get(), &env_);
  }

  static Request request(int64_t n_prompt, int64_t n_new, int first = 6) {
    Request r;
    for (int64_t i = 0; i < n_prompt; i++) r.prompt.push_back(static_cast<int32_t>(6 + (first + 7 * i) % 500));
    r.max_new_tokens = n_new;
    r.ignore_end = true;
    r.sampling.temperature = 0;
    r.tenant = r.namespace_id = "t";
    return r;
  }
  std::unique_ptr<Stream> submit(Request r) {
    auto stream = engine_->submit(std::move(r));
    EXPECT_TRUE(stream) << stream.error().text();
    return stream ? std::move(*stream) : nullptr;
  }

  GatedEnv env_;
  std::unique_ptr<StateManager> state_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineLoop, RefusesAtTheDoorWhatCanNeverRun) {
  start({});
  const auto refusal = [&](Request r) {
    auto stream = engine_->submit(std::move(r));
    EXPECT_FALSE(stream);
    return stream ? Error{} : stream.error();
  };
  EXPECT_EQ(refusal(request(0, 1)).where, "prompt");
  EXPECT_EQ(refusal(request(1, 0)).where, "max_tokens");
  const Error too_long = refusal(request(1000, 25));
  EXPECT_EQ(too_long.where, "context_length");
  EXPECT_NE(too_long.message.find("1024"), std::string::npos);
  Request r = request(3, 1);
  r.prompt[1] = 512;
  EXPECT_EQ(refusal(r).where, "prompt");
  r.prompt[1] = -1;
  EXPECT_EQ(refusal(r).where, "prompt");
  r = request(3, 1);
  r.sampling.top_p = 2;
  EXPECT_EQ(refusal(r).where, "top_p");
  EXPECT_EQ(engine_->stats().finished, 0u);
}

TEST_F(EngineLoop, WhatTheBudgetCannotHoldIsRefusedWithNumbers) {
  start({}, 512);
  const Ended e = read_all(*submit(request(600, 10)));
  EXPECT_EQ(e.finish.reason, FinishReason::kError);
  EXPECT_EQ(e.finish.error.code, Code::kInvalidArgument);
  EXPECT_NE(e.finish.error.message.find("600 tokens"), std::string::npos);
  EXPECT_EQ(read_all(*submit(request(400, 10))).finish.reason, FinishReason::kLength);  // the engine goes on
}

TEST_F(EngineLoop, AFullQueueRefusesAndRecovers) {
  start({.max_num_seqs = 1, .max_queue_depth = 3});
  env_.shut();  // whatever comes now waits
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 3; i++) streams.push_back(submit(request(10, 2)));
  auto refused = engine_->submit(request(10, 2));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  EXPECT_NE(refused.error().message.find("3 waiting"), std::string::npos);
  EXPECT_EQ(engine_->stats().refused, 1u);
  EXPECT_EQ(engine_->stats().queued, 3u);
  streams[1]->cancel();
  env_.open_gate();
  EXPECT_EQ(read_all(*streams[0]).finish.reason, FinishReason::kLength);
  EXPECT_EQ(read_all(*streams[1]).finish.reason, FinishReason::kCancelled);
  EXPECT_EQ(read_all(*streams[2]).finish.reason, FinishReason::kLength);
  EXPECT_EQ(read_all(*submit(request(10, 2))).finish.reason, FinishReason::kLength);
  EXPECT_EQ(engine_->stats().queued, 0u);
}

TEST_F(EngineLoop, NoMoreRunThanPlaces) {
  start({.max_batch_size = 8, .max_num_seqs = 2});
  env_.shut();
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 7; i++) streams.push_back(submit(request(20, 30, i)));
  env_.let_pass(20);
  EXPECT_EQ(state_->stats().n_sequences, 2);
  EXPECT_EQ(engine_->stats().queued, 5u);
  env_.open_gate();
  for (auto& s : streams) {
    EXPECT_EQ(read_all(*s).ids.size(), 30u);
    EXPECT_LE(state_->stats().n_sequences, 2);
  }
  EXPECT_EQ(engine_->stats().finished, 7u);
}

TEST_F(EngineLoop, ADeadlineInTheQueueEndsTheWaitOnly) {
  start({.max_num_seqs = 1});
  env_.shut();
  const auto running = submit(request(20, 900));
  env_.let_pass(10);
  ASSERT_TRUE(running->next(0));
  Request r = request(20, 5);
  r.queue_timeout_ms = 100;
  const auto waiting = submit(r);
  env_.advance_ms(99);
  env_.let_pass(20);
  EXPECT_FALSE(waiting->next(0)) << "one millisecond early";
  env_.advance_ms(1);
  env_.let_pass(20);
  const Ended e = read_all(*waiting);
  EXPECT_EQ(e.finish.reason, FinishReason::kDeadline);
  EXPECT_EQ(e.finish.error.where, "admission.queue_timeout_seconds");
  EXPECT_EQ(e.finish.usage.completion_tokens, 0);
  EXPECT_EQ(e.finish.usage.queue_ns, 100'000'000);
  running->cancel();
  const auto late = submit(r);
  env_.let_pass(20);
  EXPECT_EQ(read_all(*running).finish.reason, FinishReason::kCancelled);
  ASSERT_TRUE(late->next(0));
  env_.advance_ms(500);  // the limit does not hurt a request that has its place
  env_.open_gate();
  EXPECT_EQ(read_all(*late).finish.reason, FinishReason::kLength);
}

TEST_F(EngineLoop, ADeadlineWhileRunningKeepsWhatWasMade) {
  start({});
  Request r = request(20, 900);
  r.timeout_ms = 1000;
  env_.shut();
  const auto stream = submit(r);
  env_.let_pass(20);
  env_.advance_ms(1000);
  env_.let_pass(7);
  const Ended e = read_all(*stream);
  env_.open_gate();
  EXPECT_EQ(e.finish.reason, FinishReason::kDeadline);
  EXPECT_EQ(e.finish.error.code, Code::kDeadline);
  EXPECT_EQ(e.finish.error.where, "server.timeout_seconds");
  EXPECT_EQ(e.finish.usage.completion_tokens, static_cast<int64_t>(e.ids.size()));
  EXPECT_GT(e.ids.size(), 0u);
  EXPECT_LT(e.ids.size(), 8u);
  EXPECT_EQ(state_->stats().n_sequences, 0);
}

TEST_F(EngineLoop, ACancelInPrefillTakesEffectWithinAStep) {
  start({.max_batch_size = 1, .prefill_chunk = 4});
  env_.shut();
  const auto stream = submit(request(1000, 5));
  env_.let_pass(20);
  const uint64_t before = engine_->stats().steps;
  stream->cancel();
  env_.open_gate();
  const Ended e = read_all(*stream);
  EXPECT_EQ(e.finish.reason, FinishReason::kCancelled);
  EXPECT_EQ(e.finish.usage.completion_tokens, 0);
  EXPECT_LE(engine_->stats().steps, before + 1);
  EXPECT_GT(before, 0u);
  EXPECT_LT(before, 10u);
  EXPECT_EQ(state_->stats().n_sequences, 0);
  EXPECT_EQ(engine_->stats().cancelled, 1u);
}

TEST_F(EngineLoop, DroppingTheStreamCancels) {
  start({});
  (void)submit(request(20, 900));
  auto other = submit(request(20, 3));
  EXPECT_EQ(read_all(*other).finish.reason, FinishReason::kLength);
  while (engine_->stats().finished < 2) std::this_thread::yield();
  EXPECT_EQ(engine_->stats().cancelled, 1u);
}

TEST_F(EngineLoop, PreemptedRequestsGiveTheSameTokens) {
  std::vector<Request> requests;
  for (int i = 0; i < 3; i++) requests.push_back(request(60, 140, 11 * i));
  std::vector<std::vector<int32_t>> alone;
  start({.max_num_seqs = 1});
  for (const Request& r : requests) alone.push_back(read_all(*submit(r)).ids);
  engine_.reset();
  start({}, 320);  // each fits alone (200 tokens, 4 blocks), their prompts fit together, their answers do not
  env_.shut();
  std::vector<std::unique_ptr<Stream>> streams;
  for (const Request& r : requests) streams.push_back(submit(r));
  env_.open_gate();
  for (size_t i = 0; i < streams.size(); i++) {
    const Ended e = read_all(*streams[i]);
    EXPECT_EQ(e.finish.reason, FinishReason::kLength) << e.finish.error.text();
    EXPECT_EQ(e.ids, alone[i]);
    EXPECT_EQ(e.finish.usage.completion_tokens, 140);
    EXPECT_EQ(e.finish.usage.prompt_tokens, 60);
  }
  EXPECT_GT(engine_->stats().preempted, 0u);
  EXPECT_GT(engine_->stats().state.evicted, 0u);
}

TEST_F(EngineLoop, AChangedLayoutIsPlannedForBeforeTheNextStep) {
  start({});
  const Ended cold = read_all(*submit(request(100, 20)));
  ASSERT_EQ(cold.finish.reason, FinishReason::kLength);
  const EngineStats before = engine_->stats();
  EXPECT_GT(before.graph_plans, 0u);
  EXPECT_EQ(before.graph_replans, 0u);
  state_->bump_epoch();
  EXPECT_EQ(read_all(*submit(request(100, 20))).ids, cold.ids);
  EXPECT_EQ(engine_->stats().graph_replans, 1u);
  EXPECT_EQ(engine_->stats().graph_refused, 0u);
  EXPECT_EQ(engine_->stats().graph_plans, 2 * before.graph_plans) << "the same sizes, planned once more";
  EXPECT_EQ(read_all(*submit(request(100, 20, 9))).finish.reason, FinishReason::kLength);
  EXPECT_EQ(engine_->stats().graph_replans, 1u) << "once for each change";
}

TEST_F(EngineLoop, AStaleGraphRefusesAndNeverRuns) {
  start({});
  const Ended cold = read_all(*submit(request(100, 20)));
  engine_->hold_plans_for_test(true);
  state_->bump_epoch();
  for (int i = 0; i < 2; i++) {
    const Ended e = read_all(*submit(request(100, 20)));
    EXPECT_EQ(e.finish.reason, FinishReason::kError);
    EXPECT_EQ(e.finish.error.code, Code::kUnavailable);
    EXPECT_NE(e.finish.error.text().find("stale-graph"), std::string::npos) << e.finish.error.text();
    EXPECT_TRUE(e.ids.empty());
  }
  EXPECT_EQ(engine_->stats().graph_refused, 2u);
  EXPECT_EQ(state_->stats().n_sequences, 0);
  engine_->hold_plans_for_test(false);
  EXPECT_EQ(read_all(*submit(request(100, 20))).ids, cold.ids);
  EXPECT_EQ(engine_->stats().graph_replans, 1u);
}

TEST_F(EngineLoop, OnlineWorkGoesBeforeBatchWork) {
  start({.max_batch_size = 1, .max_num_seqs = 1});
  env_.shut();
  Request later = request(20, 3);
  later.priority = Priority::kBatch;
  const auto batch = submit(later), online = submit(request(20, 3));
  env_.let_pass(8);
  EXPECT_TRUE(online->next(0));
  EXPECT_FALSE(batch->next(0));
  env_.open_gate();
  EXPECT_EQ(read_all(*online).finish.reason, FinishReason::kLength);
  EXPECT_EQ(read_all(*batch).finish.reason, FinishReason::kLength);
}

TEST_F(EngineLoop, SeedsDoNotDependOnTheBatch) {
  start({});
  const auto seeded = [&](uint64_t seed) {
    Request r = request(30, 20);
    r.sampling.temperature = 2;
    r.sampling.seed = seed;
    return r;
  };
  std::vector<std::vector<int32_t>> alone;
  for (uint64_t seed = 0; seed < 6; seed++) alone.push_back(read_all(*submit(seeded(seed))).ids);
  EXPECT_NE(alone[0], alone[1]);
  env_.shut();
  std::vector<std::unique_ptr<Stream>> streams;
  for (uint64_t seed = 6; seed-- > 0;) streams.push_back(submit(seeded(seed)));
  env_.open_gate();
  for (size_t i = 0; i < 6; i++) EXPECT_EQ(read_all(*streams[i]).ids, alone[5 - i]);
}

TEST_F(EngineLoop, UsageAndCountersAddUp) {
  start({.prefill_chunk = 50});
  int64_t prompt = 0, cached = 0, completion = 0;
  for (int i = 0; i < 3; i++) {
    const Ended e = read_all(*submit(request(150, 7 + i)));
    EXPECT_EQ(e.finish.usage.prompt_tokens, 150);
    EXPECT_EQ(e.finish.usage.completion_tokens, 7 + i);
    EXPECT_EQ(e.finish.usage.cached_tokens, i == 0 ? 0 : 128);
    EXPECT_GE(e.finish.usage.total_ns, e.finish.usage.ttft_ns);
    prompt += e.finish.usage.prompt_tokens, cached += e.finish.usage.cached_tokens, completion += e.finish.usage.completion_tokens;
  }
  const EngineStats s = engine_->stats();
  EXPECT_EQ(static_cast<int64_t>(s.prefill_tokens), prompt - cached);
  EXPECT_EQ(static_cast<int64_t>(s.decode_tokens), completion - 3);  // the first token of each comes with its prompt
  EXPECT_EQ(s.finished, 3u);
  EXPECT_EQ(s.failed + s.cancelled + s.refused + s.preempted, 0u);
}

TEST_F(EngineLoop, AReaderThatSleepsHoldsNobodyUp) {
  start({});
  const auto sleeper = submit(request(20, 300));
  const auto other = submit(request(20, 20, 3));
  EXPECT_EQ(read_all(*other).finish.reason, FinishReason::kLength);
  while (engine_->stats().finished < 2) std::this_thread::yield();  // it ended although nobody read
  EXPECT_EQ(state_->stats().n_sequences, 0);
  EXPECT_EQ(read_all(*sleeper).ids.size(), 300u);
}

TEST_F(EngineLoop, TheEndOfTheEngineEndsItsRequests) {
  start({.max_num_seqs = 1});
  auto running = submit(request(20, 900)), waiting = submit(request(20, 5));
  ASSERT_TRUE(running->next(10'000));
  engine_.reset();
  EXPECT_EQ(read_all(*running).finish.reason, FinishReason::kCancelled);
  EXPECT_EQ(read_all(*waiting).finish.reason, FinishReason::kCancelled);
  EXPECT_EQ(state_->stats().n_sequences, 0);
  running.reset();  // streams may outlive the engine
  waiting->cancel();
}

TEST_F(EngineLoop, DrainWaitsForWhatRunsAndTakesNothingNew) {
  start({});
  env_.shut();
  const auto stream = submit(request(20, 30));
  env_.open_gate();
  engine_->drain(60'000);
  EXPECT_TRUE(engine_->stats().draining);
  EXPECT_EQ(engine_->stats().finished, 1u);
  EXPECT_EQ(read_all(*stream).finish.reason, FinishReason::kLength);
  const auto late = engine_->submit(request(5, 1));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kUnavailable);
}

TEST_F(EngineLoop, DrainCancelsWhenTimeIsUp) {
  start({.max_num_seqs = 1});
  const auto running = submit(request(20, 1000)), waiting = submit(request(20, 1000));
  ASSERT_TRUE(running->next(10'000));
  engine_->drain(0);
  EXPECT_EQ(engine_->stats().finished, 2u);
  EXPECT_EQ(read_all(*running).finish.reason, FinishReason::kCancelled);
  EXPECT_EQ(read_all(*waiting).finish.reason, FinishReason::kCancelled);
}

}  // namespace
}  // namespace carrel
