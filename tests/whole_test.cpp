// The promise, end to end: whatever the batch, the chunks, the threads, the neighbours, cancels, preemptions and evictions, and however
// much of a prefix was reused, a request's tokens and the bits of its log probabilities are those of the same request run cold and alone.
//
// Each scenario is drawn from one seed. CARREL_WHOLE_SEED=N runs that scenario alone; CARREL_SMALL=1 runs few, CARREL_LONG=1 many.
#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "tests/seed.h"
#include "tests/whole_world.h"

namespace carrel::whole {
namespace {

struct Case {
  const char* name;
  const char* dir;  // "": the demo model
  OpSet ops;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t between(int64_t low, int64_t high) { return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1)); }
  bool one_in(int n) { return between(1, n) == 1; }
  template <class T>
  T pick(std::initializer_list<T> of) {
    return of.begin()[between(0, static_cast<int64_t>(of.size()) - 1)];
  }
  std::vector<int32_t> tokens(int64_t n, int vocab) {
    std::vector<int32_t> out;
    for (int64_t i = 0; i < n; i++) out.push_back(static_cast<int32_t>(between(6, vocab - 1)));  // no control tokens
    return out;
  }

 private:
  std::mt19937_64 engine_;
};

struct Scenario {
  int n_threads = 1;
  EngineConfig engine;
  size_t budget_bytes = 0;
  bool audit = false;
  int n_clients = 1;
  std::vector<Request> questions;
  std::vector<Plan> plans;
  std::vector<Event> events;

  std::string text() const {
    std::ostringstream out;
    out << n_threads << " threads, batch " << engine.max_batch_size << ", sequences " << engine.max_num_seqs << ", chunk "
        << engine.prefill_chunk << ", budget " << budget_bytes << ", " << n_clients << " clients, " << questions.size() << " questions, "
        << plans.size() << " requests";
    return out.str();
  }
};

SamplingParams draw_sampling(Random& r, int vocab) {
  SamplingParams s;
  s.temperature = r.pick({0.0f, 0.0f, 0.7f, 1.0f, 3.0f});
  s.top_k = r.pick({0, 0, 20});
  s.top_p = r.pick({1.0f, 0.9f});
  s.min_p = r.pick({0.0f, 0.0f, 0.01f});
  s.repetition_penalty = r.pick({1.0f, 1.0f, 1.3f});
  s.presence_penalty = r.pick({0.0f, 0.0f, 0.5f});
  s.frequency_penalty = r.pick({0.0f, 0.0f, 0.25f});
  if (r.one_in(4)) s.logit_bias = {{static_cast<int32_t>(r.between(6, vocab - 1)), 3.0f}};
  s.seed = static_cast<uint64_t>(r.between(0, 1'000'000));
  s.n_logprobs = r.pick({0, 20, 20, 20, 20, vocab});  // the whole vocabulary: every logit's bits
  return s;
}

/// Prompts that share documents, many of them ending close to a border of blocks, so that answers cross it. Growing: short prompts that all
/// do.
std::vector<Request> draw_questions(Random& r, World& world, bool growing) {
  const int vocab = world.graph().vocab, block = world.block_size();
  std::vector<std::vector<int32_t>> documents;
  for (int i = 0; i < 2; i++) documents.push_back(r.tokens((growing ? 1 : r.between(2, block == 128 ? 4 : 5)) * block, vocab));
  std::vector<Request> out;
  const int64_t n = r.between(4, 7);
  for (int64_t i = 0; i < n; i++) {
    const std::vector<int32_t>& document = documents[static_cast<size_t>(r.between(0, 1))];
    const auto size = static_cast<int64_t>(document.size());
    const int64_t shared = growing ? (r.one_in(4) ? block : 0) : r.one_in(4) ? r.between(1, size) : r.between(1, size / block) * block;
    Request q;
    q.prompt.assign(document.begin(), document.begin() + shared);
    const int64_t tail = growing || r.one_in(2) ? block - 1 - r.between(0, 12) : r.between(0, block / 2);
    const std::vector<int32_t> own = r.tokens(tail, vocab);
    q.prompt.insert(q.prompt.end(), own.begin(), own.end());
    q.max_new_tokens = r.one_in(5) ? r.between(1, 4) : r.between(growing ? 20 : 8, 40);
    q.ignore_end = !r.one_in(3);
    if (r.one_in(4)) q.stop = {"e", "th"};
    q.sampling = draw_sampling(r, vocab);
    out.push_back(std::move(q));
  }
  out.front().sampling.n_logprobs = vocab;  // in no scenario are there only the best
  return out;
}

Plan draw_plan(Random& r, const Scenario& s, size_t question) {
  Plan p;
  p.question = question;
  p.request = s.questions[question];
  const bool second_tenant = r.one_in(5);
  p.request.tenant = p.request.namespace_id = second_tenant ? "b" : "a";
  p.request.namespace_secret.fill(std::byte(second_tenant ? 2 : 1));
  p.request.reuse = !r.one_in(6);
  p.request.store = !r.one_in(6);
  p.request.priority = r.one_in(4) ? Priority::kBatch : Priority::kOnline;
  p.client = static_cast<int>(r.between(0, s.n_clients - 1));
  p.submit_step = static_cast<uint64_t>(r.one_in(3) ? 0 : r.between(0, 60));
  if (r.one_in(5))
    p.cancel_after_steps = static_cast<uint64_t>(r.between(0, 12));
  else if (r.one_in(8))
    p.cancel_after_tokens = static_cast<size_t>(r.between(1, 10));
  return p;
}

Scenario draw(uint64_t seed, World& world) {
  Random r(seed);
  Scenario s;
  s.n_threads = r.pick({1, 1, 1, 2, 2, 2, 3, 4});
  s.engine.max_batch_size = static_cast<int>(r.between(1, 8));
  s.engine.max_num_seqs = static_cast<int>(r.between(2, 10));
  s.engine.prefill_chunk = r.pick({1, 7, 16, 33, 64, 64, 130, 512});
  s.audit = r.one_in(4);
  s.n_clients = static_cast<int>(r.between(1, 3));
  const bool growing = seed % 2 == 0;  // answers compete for space: preemption
  s.questions = draw_questions(r, world, growing);
  const int64_t n = r.between(8, 14);
  for (int64_t i = 0; i < n; i++)
    s.plans.push_back(draw_plan(r, s, static_cast<size_t>(r.between(0, static_cast<int64_t>(s.questions.size()) - 1))));
  for (int i = 0; i < 3; i++) {  // equal prompts at once: computed once
    Plan p = draw_plan(r, s, 0);
    p.submit_step = 0;
    s.plans.push_back(std::move(p));
  }
  if (growing) {
    s.engine.max_batch_size = s.engine.max_num_seqs = 8;
    for (Plan& p : s.plans) p.submit_step /= 6;
  }
  std::stable_sort(s.plans.begin(), s.plans.end(), [](const Plan& a, const Plan& b) { return a.submit_step < b.submit_step; });
  size_t longest = 0;
  for (const Request& q : s.questions)
    longest = std::max(longest, world.state_bytes(static_cast<int64_t>(q.prompt.size()) + q.max_new_tokens));
  s.budget_bytes = static_cast<size_t>(static_cast<double>(longest) * (growing ? r.pick({1.0, 1.4}) : r.pick({1.0, 1.3, 1.8, 2.5, 8.0})));
  s.budget_bytes += static_cast<size_t>(s.engine.max_num_seqs) * world.graph().state.slot_bytes;
  if (r.one_in(4)) {
    for (int i = 0; i < 3; i++)
      s.events.push_back({static_cast<uint64_t>(r.between(0, 60)), r.pick({Upheaval::kPurge, Upheaval::kEpoch, Upheaval::kVerify})});
    std::sort(s.events.begin(), s.events.end(), [](const Event& a, const Event& b) { return a.step > b.step; });
  }
  return s;
}

/// Counters that prove that what the scenarios are about has happened.
struct Proof {
  uint64_t hit_tokens = 0, waited = 0, compared = 0, cancelled = 0, cut_answers = 0, preempted = 0, evicted = 0, bits = 0;
  bool complete() const { return hit_tokens && waited && compared && cancelled && cut_answers && preempted && evicted && bits; }
  void add(const EngineStats& s) {
    hit_tokens += s.state.effective_tokens;
    waited += s.state.waited;
    compared += s.state.compared;
    cancelled += s.cancelled;
    preempted += s.preempted;
    evicted += s.state.evicted;
  }
  void add(const Proof& p) {
    hit_tokens += p.hit_tokens, waited += p.waited, compared += p.compared, cancelled += p.cancelled, cut_answers += p.cut_answers;
    preempted += p.preempted, evicted += p.evicted, bits += p.bits;
  }
  friend std::ostream& operator<<(std::ostream& out, const Proof& p) {
    return out << "hit tokens " << p.hit_tokens << ", waits for a prefix in flight " << p.waited << ", blocks computed again and compared "
               << p.compared << ", cancelled " << p.cancelled << " (" << p.cut_answers << " with a part of the answer), preempted "
               << p.preempted << ", evicted " << p.evicted << ", log probabilities compared " << p.bits;
  }
};

class Whole : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    auto world = World::open(GetParam().dir, GetParam().ops);
    ASSERT_TRUE(world) << world.error().text();
    world_ = std::move(*world);
    cold_ = std::make_unique<Cold>(*world_);
  }

  void run(uint64_t seed) {
    const Scenario s = draw(seed, *world_);
    SCOPED_TRACE("CARREL_WHOLE_SEED=" + std::to_string(seed) + " runs this scenario alone: " + s.text());
    Model& model = world_->with_threads(s.n_threads);
    StateConfig config = world_->state_config(model, s.engine, s.budget_bytes);
    config.poison = true;
    config.audit = s.audit;
    auto state = StateManager::create(std::move(config));
    ASSERT_TRUE(state) << state.error().text();
    EngineStats stats;
    std::vector<Answer> answers;
    {
      Engine engine(s.engine, &model, state->get(), Env::real());
      auto ran = run_clients(engine, s.plans, s.n_clients, s.events);
      ASSERT_TRUE(ran) << ran.error().text();
      answers = std::move(*ran);
      stats = engine.stats();
    }
    EXPECT_EQ(stats.state.digest_mismatches, 0u);
    EXPECT_EQ(stats.state.quarantined, 0u);
    EXPECT_EQ(stats.state.n_sequences, 0);
    EXPECT_EQ(stats.finished, s.plans.size());
    EXPECT_EQ((*state)->check_invariants(), "");
    proof_.add(stats);
    std::map<size_t, Answer> alone;
    for (size_t i = 0; i < s.plans.size(); i++) check(s.plans[i], answers[i], alone);
  }

  void check(const Plan& plan, const Answer& got, std::map<size_t, Answer>& alone) {
    auto [at, is_new] = alone.try_emplace(plan.question);
    if (is_new) at->second = cold_->answer(plan.request);
    const Answer& want = at->second;
    ASSERT_TRUE(want.finish->reason == FinishReason::kStop || want.finish->reason == FinishReason::kLength) << want.finish->error.text();
    const bool part = got.finish->reason == FinishReason::kCancelled;
    EXPECT_TRUE(!part || got.cancelled);
    EXPECT_EQ(difference(got, want, part), "") << "question " << plan.question << ", prompt of " << plan.request.prompt.size()
                                               << " tokens, reused " << got.finish->usage.cached_tokens << ", reuse " << plan.request.reuse
                                               << ", store " << plan.request.store;
    const EngineUsage& u = got.finish->usage;
    EXPECT_EQ(u.prompt_tokens, static_cast<int64_t>(plan.request.prompt.size()));
    EXPECT_EQ(u.completion_tokens, static_cast<int64_t>(got.tokens.size()));
    EXPECT_EQ(u.cached_tokens, u.match.effective);
    EXPECT_LE(u.match.effective, u.match.nominal);
    EXPECT_LT(u.match.nominal, u.prompt_tokens);
    EXPECT_EQ(u.match.effective % world_->block_size(), 0);
    EXPECT_EQ(u.match.vetoes.empty(), u.match.effective == u.match.nominal);
    EXPECT_TRUE(plan.request.reuse || u.match.nominal == 0);
    if (part && !got.tokens.empty()) proof_.cut_answers++;
    for (const TokenInfo& t : got.tokens) proof_.bits += 1 + t.top.size();
  }

  static void TearDownTestSuite() { EXPECT_TRUE(n_cases_ == 0 || all_.complete()) << all_; }

  static bool set(const char* variable) { return std::getenv(variable) != nullptr; }

  std::unique_ptr<World> world_;
  std::unique_ptr<Cold> cold_;
  Proof proof_;
  static inline Proof all_;  // of the cases that ran to their end
  static inline int n_cases_ = 0;
};

TEST_P(Whole, EveryAnswerHasTheBitsOfTheSameRequestColdAndAlone) {
  std::optional<uint64_t> one;
  ASSERT_TRUE(read_seed("CARREL_WHOLE_SEED", &one));
  if (one) return run(*one);
  const bool small = set("CARREL_SMALL");
  const uint64_t n_scenarios = set("CARREL_LONG") ? 60 : small ? 3 : world_->block_size() == 128 ? 4 : 6;
  // The sets of one model go on where the other ends: twice as many scenarios as each of them has time for.
  const uint64_t first = set("CARREL_LONG") || small || GetParam().ops == OpSet::kFast ? 1 : n_scenarios + 1;
  // Which rare things happen depends on the machine's timing too: more scenarios are drawn until each was seen, within reason.
  for (uint64_t i = 0; i < n_scenarios || (!small && i < 20 * n_scenarios && !proof_.complete()); i++) {
    run(first + i);
    if (HasFailure()) return;
  }
  EXPECT_TRUE(small || proof_.complete());
  all_.add(proof_);
  n_cases_++;
  std::cout << GetParam().name << ": " << proof_ << "\n";
}

INSTANTIATE_TEST_SUITE_P(Models, Whole,
                         testing::Values(Case{"demo_fast", "", OpSet::kFast}, Case{"demo_exact", "", OpSet::kExact},
                                         Case{"deepseek_v4_tiny_a_fast", "tests/golden/models/deepseek_v4/tiny_a", OpSet::kFast},
                                         Case{"deepseek_v4_tiny_a_exact", "tests/golden/models/deepseek_v4/tiny_a", OpSet::kExact},
                                         Case{"deepseek_v4_tiny_b_fast", "tests/golden/models/deepseek_v4/tiny_b", OpSet::kFast},
                                         Case{"deepseek_v4_tiny_b_exact", "tests/golden/models/deepseek_v4/tiny_b", OpSet::kExact},
                                         Case{"gemma3_fast", "tests/golden/models/gemma3_text", OpSet::kFast},
                                         Case{"gemma3_exact", "tests/golden/models/gemma3_text", OpSet::kExact},
                                         Case{"gpt_oss_fast", "tests/golden/models/gpt_oss", OpSet::kFast},
                                         Case{"granite_fast", "tests/golden/models/granitemoehybrid", OpSet::kFast},
                                         Case{"lfm2_fast", "tests/golden/models/lfm2", OpSet::kFast},
                                         Case{"lfm2_exact", "tests/golden/models/lfm2", OpSet::kExact},
                                         Case{"qwen3_next_fast", "tests/golden/models/qwen3_next", OpSet::kFast},
                                         Case{"qwen3_next_exact", "tests/golden/models/qwen3_next", OpSet::kExact},
                                         Case{"llama_fast", "tests/golden/models/llama", OpSet::kFast},
                                         Case{"llama_exact", "tests/golden/models/llama", OpSet::kExact},
                                         Case{"mistral_fast", "tests/golden/models/mistral", OpSet::kFast},
                                         Case{"mistral_exact", "tests/golden/models/mistral", OpSet::kExact},
                                         Case{"qwen3_fast", "tests/golden/models/qwen3", OpSet::kFast},
                                         Case{"qwen3_exact", "tests/golden/models/qwen3", OpSet::kExact},
                                         Case{"qwen3_moe_fast", "tests/golden/models/qwen3_moe", OpSet::kFast},
                                         Case{"qwen3_moe_exact", "tests/golden/models/qwen3_moe", OpSet::kExact}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace carrel::whole
