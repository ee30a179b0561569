// Plans: replayed, bound to one layout, blind to every address of an earlier step.
#include "engine/model/step_plan.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <random>

#include "engine/model/golden_run.h"

namespace carrel {
namespace {

std::unique_ptr<GoldenModel> load(const std::string& path, OpSet ops = OpSet::kFast) {
  auto m = load_golden_model([&] { return open_source(Env::real(), "tests/golden/models/" + path); }, ops, CpuPath::kAuto, 1,
                             auto_kv_dtype(ops));
  EXPECT_TRUE(m) << m.error().text();
  return m ? *std::move(m) : nullptr;
}

std::vector<int32_t> some_tokens(int n) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(3 + i * 37 % 500);
  return tokens;
}

/// Memory that faults once it is given back.
class Mapping {
 public:
  explicit Mapping(size_t n_bytes) : size_((n_bytes + 4095) / 4096 * 4096) {
    void* p = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data_ = p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
    std::memset(data_, 0xFF, size_);
  }
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, size_);
  }
  Mapping(Mapping&& o) noexcept : data_(std::exchange(o.data_, nullptr)), size_(o.size_) {}
  Mapping& operator=(Mapping&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// A sequence that never keeps anything where it was: every step finds its pages, slot, page tables and row lists at new addresses; the old
/// ones are gone, so that whoever remembered one faults.
class Nomad {
 public:
  explicit Nomad(const ModelState& model) : model_(model), pages_(model.groups.size()), slot_(std::max<size_t>(model.slot_bytes, 1)) {
    std::memset(slot_.data(), 0, slot_.size());
  }

  const float* run(GraphRunner& runner, std::span<const int32_t> tokens, std::span<const int32_t> outputs) {
    move_in(static_cast<int>(tokens.size()));
    const std::vector<int32_t> ids(tokens.begin(), tokens.end()), wanted(outputs.begin(), outputs.end()), seq_of(tokens.size(), 0);
    std::vector<int32_t> positions;
    for (size_t i = 0; i < ids.size(); ++i) positions.push_back(n_past_ + static_cast<int32_t>(i));
    std::vector<std::vector<std::byte*>> columns(pages_.size());
    std::vector<std::byte* const*> rows;
    for (size_t g = 0; g < pages_.size(); ++g) {
      for (const Mapping& page : pages_[g]) {
        columns[g].push_back(model_.groups[g].kind == StateKind::kRecurrent ? nullptr : page.data());
      }
      rows.push_back(columns[g].data());
    }
    const SeqStep step{0, static_cast<int32_t>(ids.size()), n_past_, rows, slot_.data()};
    const Batch batch{step.n_tokens, model_.block_size, ids, positions, seq_of, std::span(&step, 1), wanted};
    const auto logits = runner.run(batch, plain_layout(model_));
    EXPECT_TRUE(logits);
    n_past_ += step.n_tokens;
    return logits ? *logits : nullptr;
  }

 private:
  static void move(Mapping& m) {
    Mapping fresh(m.size());
    std::memcpy(fresh.data(), m.data(), m.size());
    m = std::move(fresh);  // and what was in m is unmapped
  }
  void move_in(int n_tokens) {
    move(slot_);
    const auto n_blocks = static_cast<size_t>((n_past_ + n_tokens + model_.block_size - 1) / model_.block_size);
    for (size_t g = 0; g < pages_.size(); ++g) {
      for (Mapping& page : pages_[g]) move(page);
      while (pages_[g].size() < n_blocks) pages_[g].emplace_back(page_bytes(model_.groups[g], model_.block_size));
    }
  }

  const ModelState& model_;
  std::vector<std::vector<Mapping>> pages_;  // [group][block]
  Mapping slot_;
  int n_past_ = 0;
};

TEST(StepPlans, AThousandStepsOfMixedSizesNeedNoMorePlansThanBuckets) {
  for (const char* path : {"llama", "deepseek_v4/tiny_a", "lfm2"}) {
    const auto model = load(path);
    ASSERT_TRUE(model);
    GraphRunner runner(&model->graph, model->ops.get(), {.max_tokens = 24, .max_seqs = 1, .max_outputs = 4},
                       plain_layout(model->graph.state));
    std::mt19937 random(7);
    const std::vector<int32_t> tokens = some_tokens(24), rows = {0, 1, 2, 3};
    std::optional<PlainSequence> sequence;
    for (int step = 0; step < 1000; ++step) {
      if (step % 20 == 0) sequence.emplace(&model->graph.state);
      const size_t n = 1 + random() % 24, n_outputs = std::min<size_t>(n, random() % 5);
      sequence->run(runner, std::span(tokens).first(n), std::span(rows).first(n_outputs));
      sequence->commit();
    }
    constexpr uint64_t kTokenBuckets = 6, kOutputBuckets = 4;  // 1 2 4 8 16 24; 0 1 2 4
    EXPECT_EQ(runner.counts().replays, 1000u);
    EXPECT_LE(runner.counts().plans, kTokenBuckets * kOutputBuckets) << path;
    EXPECT_GE(runner.counts().plans, kTokenBuckets) << path;
    EXPECT_EQ(runner.counts().replans, 0u);
  }
}

TEST(StepPlans, AStepOfAnotherLayoutOrEpochIsRefusedAndTouchesNothing) {
  const auto model = load("gemma3_text");
  ASSERT_TRUE(model);
  const ModelState& state = model->graph.state;
  const LayoutStamp now = plain_layout(state);
  GraphRunner runner(&model->graph, model->ops.get(), 8);
  PlainSequence sequence(&state);
  const std::vector<int32_t> tokens = some_tokens(8), last = {7};
  const float* logits = sequence.run(runner, tokens, last);
  const std::vector<float> want(logits, logits + model->graph.vocab);
  const Digest planned = runner.fingerprint();

  PlainSequence untouched(&state);
  const Batch& batch = untouched.begin(tokens, last);
  const auto page = [&] {
    const auto* at = batch.seqs[0].pages[0][0];
    return std::vector<std::byte>(at, at + page_bytes(state.groups[0], state.block_size));
  };
  const auto before = page();
  for (const LayoutStamp& other : {LayoutStamp{now.page_layout_id, now.epoch + 1}, LayoutStamp{now.page_layout_id + " wider", now.epoch}}) {
    const auto refused = runner.run(batch, other);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kUnavailable);
    for (const std::string& part : {std::string("stale-graph"), "\"" + now.page_layout_id + "\" of epoch " + std::to_string(now.epoch),
                                    "\"" + other.page_layout_id + "\" of epoch " + std::to_string(other.epoch), std::string("anew")})
      EXPECT_NE(refused.error().text().find(part), std::string::npos) << part << " in " << refused.error().text();
  }
  EXPECT_EQ(runner.counts().refused, 2u);
  EXPECT_EQ(page(), before);

  const LayoutStamp next{now.page_layout_id, now.epoch + 1};
  runner.replan(next);
  EXPECT_EQ(runner.layout(), next);
  const auto ran = runner.run(batch, next);
  ASSERT_TRUE(ran);
  EXPECT_EQ(std::memcmp(*ran, want.data(), want.size() * sizeof(float)), 0);
  EXPECT_NE(runner.fingerprint(), planned) << "the epoch is part of it";
  EXPECT_EQ(runner.counts().replans, 1u);
  EXPECT_EQ(runner.counts().plans, 2u);
  EXPECT_FALSE(runner.run(batch, now)) << "the way back is a change, too";
  runner.replan(now);
  ASSERT_TRUE(runner.run(batch, now));
  EXPECT_EQ(runner.fingerprint(), planned);
}

TEST(StepPlans, FingerprintIsOfGraphSizesAndPlaces) {
  const auto model = load("llama"), other = load("qwen3");
  ASSERT_TRUE(model && other);
  const auto print = [](const GoldenModel& m, int n_tokens, bool logits) {
    GraphRunner runner(&m.graph, m.ops.get(), 16);
    PlainSequence sequence(&m.graph.state);
    const std::vector<int32_t> tokens = some_tokens(n_tokens), first = {0};
    sequence.run(runner, tokens, std::span(first).first(logits ? 1 : 0));
    return runner.fingerprint();
  };
  EXPECT_EQ(print(*model, 3, true), print(*model, 4, true)) << "one bucket";
  EXPECT_NE(print(*model, 3, true), print(*model, 5, true));
  EXPECT_NE(print(*model, 3, true), print(*model, 3, false));
  EXPECT_NE(print(*model, 3, true), print(*other, 3, true));
}

// Pages of a sequence that lie apart, in no order, with pages of others between them: a plan knows no address but what the table says.
TEST(Cases, case_state_b26) {
  for (const char* path : {"llama", "gemma3_text", "deepseek_v4/tiny_a"}) {
    const auto model = load(path);
    ASSERT_TRUE(model);
    const ModelState& state = model->graph.state;
    constexpr int kSeqs = 3, kTokens = 150;
    const std::vector<int32_t> tokens = some_tokens(kTokens * 2);
    const auto n_blocks = static_cast<size_t>((kTokens + state.block_size - 1) / state.block_size);
    std::vector<Mapping> pools, slots;
    std::vector<std::vector<std::vector<std::byte*>>> table(kSeqs);  // [sequence][group][block]
    std::vector<std::vector<std::byte* const*>> rows(kSeqs);
    for (const StateSpec& g : state.groups) {
      const size_t bytes = page_bytes(g, state.block_size);
      pools.emplace_back(bytes * n_blocks * kSeqs);
      for (size_t s = 0; s < kSeqs; ++s) {
        auto& columns = table[s].emplace_back();
        for (size_t b = 0; b < n_blocks; ++b) columns.push_back(pools.back().data() + ((n_blocks - 1 - b) * kSeqs + s) * bytes);
      }
    }
    for (size_t s = 0; s < kSeqs; ++s) {
      slots.emplace_back(std::max<size_t>(state.slot_bytes, 1));
      for (const auto& columns : table[s]) rows[s].push_back(columns.data());
    }
    GraphRunner runner(&model->graph, model->ops.get(), {.max_tokens = 16 * kSeqs, .max_seqs = kSeqs, .max_outputs = kSeqs},
                       plain_layout(state));
    std::vector<std::vector<float>> got(kSeqs);
    for (int at = 0; at < kTokens; at += 15) {
      std::vector<int32_t> ids, positions, seq_of, outputs;
      std::vector<SeqStep> seqs;
      for (int s = 0; s < kSeqs; ++s) {
        seqs.push_back({static_cast<int32_t>(ids.size()), 15, at, rows[static_cast<size_t>(s)], slots[static_cast<size_t>(s)].data()});
        for (int i = 0; i < 15; ++i) {
          ids.push_back(tokens[static_cast<size_t>(at + i + 11 * s)]);
          positions.push_back(at + i);
          seq_of.push_back(s);
        }
        outputs.push_back(static_cast<int32_t>(ids.size()) - 1);
      }
      const Batch batch{static_cast<int32_t>(ids.size()), state.block_size, ids, positions, seq_of, seqs, outputs};
      const auto logits = runner.run(batch, plain_layout(state));
      ASSERT_TRUE(logits);
      for (int s = 0; s < kSeqs; ++s)
        got[static_cast<size_t>(s)].assign(*logits + s * model->graph.vocab, *logits + (s + 1) * model->graph.vocab);
    }
    for (int s = 0; s < kSeqs; ++s) {
      PlainSequence alone(&state);
      const std::vector<int32_t> last = {kTokens - 1};
      const std::vector<int> steps = {kTokens};
      const auto want = run_tokens(*model, std::span(tokens).subspan(static_cast<size_t>(11 * s), kTokens), steps, last, alone);
      EXPECT_EQ(std::memcmp(want.data(), got[static_cast<size_t>(s)].data(), want.size() * sizeof(float)), 0) << path << " sequence " << s;
    }
  }
}

// A page table wider than planned, and one narrower than the step before.
TEST(Cases, case_state_b27) {
  const auto model = load("llama");
  ASSERT_TRUE(model);
  Graph& graph = model->graph;
  const int block = graph.state.block_size;
  const std::vector<int32_t> tokens = some_tokens(2 * block + 1), last = {2 * block};
  PlainSequence wide(&graph.state), narrow(&graph.state);
  const std::vector<int> one_step = {2 * block + 1};
  const auto want = run_tokens(*model, tokens, one_step, last, wide);

  graph.max_positions = 2 * block;  // two columns are planned, the third is one too many
  GraphRunner runner(&graph, model->ops.get(), 2 * block);
  narrow.run(runner, std::span(tokens).first(tokens.size() - 1), {});
  narrow.commit();
  EXPECT_EQ(runner.counts().replans, 0u);
  const std::vector<int32_t> first = {0};
  const float* logits = narrow.run(runner, std::span(tokens).last(1), first);
  EXPECT_EQ(runner.counts().replans, 1u) << "planned anew, not read beyond the table";
  EXPECT_EQ(std::memcmp(logits, want.data(), want.size() * sizeof(float)), 0);

  // A short sequence after a long one: what the long one had is not to be found in the unused columns.
  StepInputs inputs(graph, {.max_tokens = 4 * block, .max_seqs = 1, .max_outputs = 1}, 3);
  PlainSequence long_one(&graph.state), short_one(&graph.state);
  const Batch& before = long_one.begin(tokens, last);
  ASSERT_TRUE(inputs.holds(before));
  inputs.fill(before);
  for (size_t b = 0; b < 3; ++b) EXPECT_EQ(inputs.batch().seqs[0].pages[0][b], before.seqs[0].pages[0][b]);
  const Batch& after = short_one.begin(std::span(tokens).first(5), first);
  inputs.fill(after);
  EXPECT_EQ(inputs.batch().seqs[0].pages[0][0], after.seqs[0].pages[0][0]);
  for (size_t b = 1; b < 3; ++b) EXPECT_EQ(inputs.batch().seqs[0].pages[0][b], inputs.guard()) << "column " << b;
  EXPECT_DEATH((void)*static_cast<const volatile std::byte*>(inputs.batch().seqs[0].pages[0][1]), "");
  const std::vector<int32_t> too_many = some_tokens(4 * block);
  PlainSequence wider(&graph.state);
  EXPECT_FALSE(inputs.holds(wider.begin(too_many, first)));
}

// Nothing that a step was given is remembered: pages, slots, tables and row lists move before every step and their old memory is unmapped.
TEST(Cases, case_state_b29) {
  for (const char* path : {"llama", "gemma3_text", "deepseek_v4/tiny_a", "deepseek_v4/tiny_b", "lfm2", "qwen3_next"}) {
    for (const OpSet ops : {OpSet::kExact, OpSet::kFast}) {
      const auto model = load(path, ops);
      ASSERT_TRUE(model);
      const std::vector<int32_t> tokens = some_tokens(160), first = {0};
      GraphRunner runner(&model->graph, model->ops.get(), 32), other(&model->graph, model->ops.get(), 32);
      Nomad nomad(model->graph.state);
      PlainSequence settled(&model->graph.state);
      int chunk = 0;
      for (size_t at = 0; at < tokens.size();) {
        const size_t n = std::min<size_t>(tokens.size() - at, std::array<size_t, 4>{31, 1, 1, 20}[static_cast<size_t>(chunk++ % 4)]);
        const float* want = settled.run(other, std::span(tokens).subspan(at, n), first);
        const float* got = nomad.run(runner, std::span(tokens).subspan(at, n), first);
        ASSERT_NE(got, nullptr);
        ASSERT_EQ(std::memcmp(got, want, static_cast<size_t>(model->graph.vocab) * sizeof(float)), 0) << path << " at " << at;
        settled.commit();
        at += n;
      }
    }
  }
}

}  // namespace
}  // namespace carrel
