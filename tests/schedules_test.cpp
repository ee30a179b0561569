// Random schedules of submit, abort, evict, offload, snapshot, restore and damage over a serving engine whose state lives on from one to
// the next: no wrong token, no wrong bit. One schedule is a handful of requests and what happens to the state meanwhile.
//
// 10^4 schedules; CARREL_SMALL=1 500, CARREL_LONG=1 10^5. CARREL_SCHEDULE_SEED=N draws the same again. A run with fewer than 30 % hits, or
// in which some kind of state never shortened a match, fails.
#include <gtest/gtest.h>
#include <unistd.h>

#include <iostream>
#include <random>

#include "storage/extent_store.h"
#include "tests/seed.h"
#include "tests/whole_world.h"

namespace carrel::whole {
namespace {

struct Dice {
  std::mt19937_64 engine;
  int64_t below(int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); }
  bool percent(int p) { return below(100) < p; }
};

/// One model, its engine, the questions that are asked over and over, and their answers cold and alone.
class Field {
 public:
  /// folder: of a disk tier, with threads that write behind and restore; empty: host memory alone, moved by whoever needs it.
  Field(const char* dir, uint64_t seed, std::string folder = {}) : dice_{std::mt19937_64(seed)}, folder_(std::move(folder)) {
    auto world = World::open(dir, OpSet::kFast);
    if (!world) {
      ADD_FAILURE() << world.error().text();
      return;
    }
    world_ = std::move(*world);
    Cold cold(*world_);
    draw_questions();
    for (const Request& q : questions_) alone_.push_back(cold.answer(q));
    open_engine();
  }
  ~Field() {
    engine_.reset();
    state_.reset();
    disk_.reset();
    if (!folder_.empty()) (void)Env::real()->remove_all(folder_);
  }
  bool ok() const { return engine_ != nullptr; }

  void run(int64_t n_schedules) {
    for (int64_t i = 0; i < n_schedules && !testing::Test::HasFailure(); i++) {
      schedule();
      if (i % 512 == 511) restart();
    }
    (void)state_->purge("a");  // planted damage that nobody met
    EXPECT_EQ(state_->check_invariants(), "");
    restart();
  }

  /// Every kind of state that the model has shortened a match, and had a damaged copy.
  bool complete() const {
    const auto& groups = world_->graph().state.groups;
    return std::all_of(groups.begin(), groups.end(), [&](const StateSpec& g) {
      return sums_.vetoes[static_cast<size_t>(g.kind)] > 0 && sums_.restore_failures[static_cast<size_t>(g.kind)] > 0;
    });
  }

  const StateStats& sums() const { return sums_; }
  uint64_t answers() const { return n_answers_; }

 private:
  void draw_questions() {
    const int vocab = world_->graph().vocab, block = world_->block_size();
    std::vector<std::vector<int32_t>> documents(2);
    const auto tokens = [&](int64_t n, std::vector<int32_t>& out) {
      for (int64_t i = 0; i < n; i++) out.push_back(static_cast<int32_t>(6 + dice_.below(vocab - 6)));
    };
    for (auto& d : documents) tokens(3 * block, d);
    for (int i = 0; i < 10; i++) {
      Request q;
      const auto& d = documents[static_cast<size_t>(i % 2)];
      const int64_t shared = i < 6 ? (1 + i / 2) * block : dice_.below(3 * block);
      q.prompt.assign(d.begin(), d.begin() + shared);
      tokens(1 + dice_.below(i < 6 ? 12 : 5), q.prompt);
      q.max_new_tokens = 1 + dice_.below(4);
      q.ignore_end = true;
      q.sampling.temperature = 0;
      q.sampling.n_logprobs = 8;
      q.tenant = q.namespace_id = "a";
      q.namespace_secret.fill(std::byte{1});
      questions_.push_back(std::move(q));
    }
  }

  void open_engine() {
    const EngineConfig config{.max_batch_size = 4, .max_num_seqs = 4, .prefill_chunk = 96};
    Model& model = world_->with_threads(1);
    StateConfig c = world_->state_config(model, config, 0);
    c.budget_bytes = 3 * world_->state_bytes(4 * world_->block_size()) + 4 * (world_->graph().state.slot_bytes + 64);
    c.host_budget_bytes = 2 * c.budget_bytes;
    c.poison = true;
    c.label = "schedules";
    if (!folder_.empty()) open_tiers(c);
    auto made = StateManager::create(std::move(c));
    if (!made) {
      ADD_FAILURE() << made.error().text();
      return;
    }
    state_ = std::move(*made);
    engine_ = std::make_unique<Engine>(config, &model, state_.get(), Env::real());
  }

  /// The host tier holds half of what it would, so that the disk is asked, too.
  void open_tiers(StateConfig& c) {
    ExtentStoreConfig disk;
    disk.dir = folder_;
    disk.max_bytes = 4 << 20;
    disk.segment_bytes = disk.growth_bytes = 1 << 20;
    disk_.reset();
    auto store = ExtentStore::open(Env::real(), std::move(disk));
    if (!store) {
      ADD_FAILURE() << store.error().text();
      return;
    }
    disk_ = std::move(*store);
    c.disk = disk_.get();
    c.host_budget_bytes = 16 * 2 * kExtentUnitBytes;
    c.transfer_threads = 1;
    c.write_delay_ms = 0;
    c.seal_key = [key = std::make_shared<const SecretKey>(sha256("schedules"))](const std::string&) { return key; };
  }

  AdmitRequest of(size_t question) const {
    AdmitRequest r;
    r.tokens = questions_[question].prompt;
    r.namespace_id = questions_[question].namespace_id;
    r.namespace_secret = questions_[question].namespace_secret;
    return r;
  }

  /// Another process goes on with what this one had.
  void restart() {
    const StateSnapshot snapshot = folder_.empty() ? state_->snapshot(of(0)) : StateSnapshot();
    engine_.reset();
    add(state_->stats());
    if (!folder_.empty()) state_.reset();  // before the store that it borrows
    open_engine();
    if (ok() && folder_.empty()) state_->adopt(of(0), snapshot);
  }

  /// One thing that happens to the state while requests run.
  void upset() {
    const auto q = static_cast<size_t>(dice_.below(static_cast<int64_t>(questions_.size())));
    const auto& groups = world_->graph().state.groups;
    const std::string& group = groups[static_cast<size_t>(dice_.below(static_cast<int64_t>(groups.size())))].name;
    const int64_t block = dice_.below(3);
    switch (dice_.below(10)) {
      case 0:
      case 1:
        state_->evict_one_for_test();
        break;
      case 2:
      case 3:
        (void)state_->damage_for_test(of(q), block, group, Damage::kOffload);
        break;
      case 4:
        (void)state_->damage_for_test(of(q), block, group, Damage::kEvict);
        (void)state_->damage_for_test(of(q), block, group, Damage::kDropHost);
        break;
      case 5:
        (void)state_->damage_for_test(of(q), block, group, Damage::kFlipHostBit);
        break;
      case 6:
        (void)state_->damage_for_test(of(q), block, group, dice_.percent(50) ? Damage::kHalfBlock : Damage::kLayout);
        break;
      case 7:
        (void)state_->adopt(of(0), state_->snapshot(of(0)));
        break;
      case 8:
        if (dice_.percent(20)) (void)state_->purge("a");
        break;
      default:
        (void)state_->explain(of(q));
    }
  }

  void schedule() {
    struct Asked {
      size_t question;
      std::unique_ptr<Stream> stream;
      Answer answer;
    };
    std::vector<Asked> asked;
    const int64_t n = 1 + dice_.below(3);
    for (int64_t i = 0; i < n; i++) {
      if (dice_.percent(60)) upset();
      Asked a;
      a.question = static_cast<size_t>(dice_.below(static_cast<int64_t>(questions_.size())));
      Request r = questions_[a.question];
      r.store = !dice_.percent(10);
      r.reuse = !dice_.percent(5);
      auto stream = engine_->submit(std::move(r));
      ASSERT_TRUE(stream) << stream.error().text();
      a.stream = std::move(*stream);
      asked.push_back(std::move(a));
    }
    if (dice_.percent(50)) upset();
    if (dice_.percent(15)) {
      Asked& victim = asked[static_cast<size_t>(dice_.below(n))];
      victim.answer.cancelled = true;
      victim.stream->cancel();
    }
    for (Asked& a : asked) {
      while (!a.answer.finish) (void)take_events(*a.stream, a.answer, 1000);
      const bool part = a.answer.finish->reason == FinishReason::kCancelled;
      ASSERT_TRUE(!part || a.answer.cancelled);
      ASSERT_EQ(difference(a.answer, alone_[a.question], part), "") << "question " << a.question;
      n_answers_++;
    }
  }

  void add(const StateStats& s) {
    sums_.prompt_tokens += s.prompt_tokens;
    sums_.effective_tokens += s.effective_tokens;
    sums_.restored_tokens += s.restored_tokens;
    sums_.restored_from_disk += s.restored_from_disk;
    sums_.stored_on_disk += s.stored_on_disk;
    sums_.evicted += s.evicted;
    for (size_t k = 0; k < std::size(kStateKinds); k++) {
      sums_.vetoes[k] += s.vetoes[k];
      sums_.restore_failures[k] += s.restore_failures[k];
    }
    EXPECT_EQ(s.digest_mismatches, 0u);
  }

  Dice dice_;
  const std::string folder_;
  std::unique_ptr<World> world_;
  std::unique_ptr<ExtentStore> disk_;
  std::vector<Request> questions_;
  std::vector<Answer> alone_;
  std::unique_ptr<StateManager> state_;
  std::unique_ptr<Engine> engine_;
  StateStats sums_;
  uint64_t n_answers_ = 0;
};

/// What moves by threads of its own: written behind, restored while the request waits, found again by the next process.
TEST(Schedules, WithThreadsAndADiskNoneGivesAWrongBit) {
  std::optional<uint64_t> given;
  ASSERT_TRUE(read_seed("CARREL_SCHEDULE_SEED", &given));
  const int64_t n = std::getenv("CARREL_LONG") != nullptr ? 20'000 : std::getenv("CARREL_SMALL") != nullptr ? 200 : 1'500;
  const uint64_t seed = given.value_or(20261130);
  std::cout << "CARREL_SCHEDULE_SEED=" << seed << std::endl;
  for (const char* model : {"deepseek_v4/tiny_b", "qwen3_next"}) {
    SCOPED_TRACE("CARREL_SCHEDULE_SEED=" + std::to_string(seed) + ", " + model);
    Field field((std::string("tests/golden/models/") + model).c_str(), seed,
                testing::TempDir() + "carrel_schedules_" + std::to_string(::getpid()));
    ASSERT_TRUE(field.ok());
    field.run(n / 2);
    if (HasFailure()) return;
    const StateStats& s = field.sums();
    EXPECT_GT(static_cast<double>(s.effective_tokens), 0.3 * static_cast<double>(s.prompt_tokens)) << "hits are too rare to prove anything";
    EXPECT_GT(s.restored_tokens, 0u);
    EXPECT_GT(s.stored_on_disk, 0u);
    EXPECT_GT(s.restored_from_disk, 0u);
    std::cout << model << ": " << field.answers() << " answers, " << 100 * s.effective_tokens / s.prompt_tokens
              << " % of prompt tokens reused, " << s.restored_tokens << " restored; " << s.restored_from_disk << " records from disk, "
              << s.stored_on_disk << " extents stored\n";
  }
}

TEST(Schedules, NoneGivesAWrongBit) {
  std::optional<uint64_t> given;
  ASSERT_TRUE(read_seed("CARREL_SCHEDULE_SEED", &given));
  const int64_t n = std::getenv("CARREL_LONG") != nullptr ? 100'000 : std::getenv("CARREL_SMALL") != nullptr ? 500 : 10'000;
  const uint64_t seed = given.value_or(20261130);
  std::cout << "CARREL_SCHEDULE_SEED=" << seed << std::endl;
  constexpr const char* kModels[] = {"deepseek_v4/tiny_b", "gemma3_text", "lfm2", "qwen3_next"};
  StateStats sums;
  uint64_t n_answers = 0;
  for (size_t i = 0; i < std::size(kModels); i++) {
    SCOPED_TRACE("CARREL_SCHEDULE_SEED=" + std::to_string(seed) + ", " + kModels[i]);
    Field field((std::string("tests/golden/models/") + kModels[i]).c_str(), seed + i);
    ASSERT_TRUE(field.ok());
    const int64_t share = n / static_cast<int64_t>(std::size(kModels));
    field.run(share);
    // Which rare things happen depends on the machine's timing too: small runs draw on until each was seen, within reason.
    for (int more = 0; more < 40 && n < 10'000 && !HasFailure() && !field.complete(); more++) field.run(share);
    if (HasFailure()) return;
    const StateStats& s = field.sums();
    EXPECT_GT(static_cast<double>(s.effective_tokens), 0.3 * static_cast<double>(s.prompt_tokens)) << "hits are too rare to prove anything";
    EXPECT_GT(s.restored_tokens, 0u);
    sums.prompt_tokens += s.prompt_tokens;
    sums.effective_tokens += s.effective_tokens;
    for (size_t k = 0; k < std::size(kStateKinds); k++) sums.vetoes[k] += s.vetoes[k], sums.restore_failures[k] += s.restore_failures[k];
    n_answers += field.answers();
  }
  std::cout << "at least " << n << " schedules, " << n_answers << " answers, " << 100 * sums.effective_tokens / sums.prompt_tokens
            << " % of prompt tokens reused; vetoes:";
  for (const StateKind kind : kStateKinds) {
    std::cout << " " << to_string(kind) << " " << sums.vetoes[static_cast<size_t>(kind)];
    EXPECT_GT(sums.vetoes[static_cast<size_t>(kind)], 0u) << to_string(kind) << " never shortened a match";
    EXPECT_GT(sums.restore_failures[static_cast<size_t>(kind)], 0u) << to_string(kind) << ": no damaged copy was met";
  }
  std::cout << std::endl;
}

}  // namespace
}  // namespace carrel::whole
