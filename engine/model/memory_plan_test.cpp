// The planner against what is really allocated: weights, arena, inputs, pages; and its verdicts at the edge.
#include "engine/model/memory_plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/model/golden_run.h"
#include "engine/state/needs.h"
#include "engine/state/state_manager.h"

namespace carrel {
namespace {

struct Sized {
  std::unique_ptr<ModelSource> source;
  std::unique_ptr<LoadedWeights> weights;
  Graph graph;
};

Sized load(const std::string& path, Ops& ops, LoadMatrices what) {
  Sized s;
  s.source = open_source(Env::real(), "tests/golden/" + path).value();
  s.weights = weights_from_source(*s.source, [&](Form f) { return ops.wanted_form(f); }, what);
  const Family* family = find_family(s.source->format(), s.source->config_json()).value();
  auto graph = family->build(s.source->format(), s.source->config_json(), *s.weights, {.kv_dtype = ops.kv_dtype()});
  EXPECT_TRUE(graph) << graph.error().text();
  if (graph) s.graph = *std::move(graph);
  return s;
}

const char* const kModels[] = {"models/llama",   "models/gemma3_text",        "models/deepseek_v4/tiny_a",
                               "models/lfm2",    "models/qwen3_next",         "models/granitemoehybrid",
                               "models/gpt_oss", "gguf/llama256-q456_k.gguf", "gguf/gemma3_text-mix.gguf"};

TEST(MemoryPlan, SizesWithoutWeightsAreThoseOfTheLoadedModel) {
  const auto ops = make_ops(OpSet::kFast, nullptr).value();
  for (const char* path : kModels) {
    const Sized sizes = load(path, *ops, LoadMatrices::kSizes), real = load(path, *ops, LoadMatrices::kAll);
    EXPECT_EQ(sizes.weights->memory_bytes(), real.weights->memory_bytes()) << path;
    EXPECT_EQ(sizes.weights->file_bytes(), real.weights->file_bytes()) << path;
    EXPECT_GT(sizes.weights->memory_bytes(), 0) << path;
    int n_matrices = 0;
    for (const Node& n : sizes.graph.nodes) {
      if (const auto* l = std::get_if<node::Linear>(&n)) {
        EXPECT_EQ(l->w.data, nullptr) << path << ": a weight was read";
        n_matrices++;
      }
    }
    EXPECT_GT(n_matrices, 0);

    const PlanQuestion q{.context = 200, .n_sequences = 3, .prefill_chunk = 48, .max_batch_size = 5, .memory_bytes = 1 << 30};
    const auto planned = plan_memory(sizes.graph, sizes.weights->memory_bytes(), q);
    ASSERT_TRUE(planned) << planned.error().text();
    GraphRunner runner(&real.graph, ops.get(), {.max_tokens = 48, .max_seqs = 5, .max_outputs = 5}, plain_layout(real.graph.state));
    EXPECT_GE(planned->activation_bytes, static_cast<int64_t>(runner.arena_bytes())) << path;
    EXPECT_LT(planned->activation_bytes, static_cast<int64_t>(runner.arena_bytes()) + (4 << 20)) << "two buffers, in whole huge pages";
    PlanQuestion longest = q;
    longest.context = real.graph.max_positions;
    EXPECT_EQ(plan_memory(sizes.graph, 0, longest).value().input_bytes, static_cast<int64_t>(runner.input_bytes())) << path;
    EXPECT_EQ(planned->total_bytes, planned->weight_bytes + planned->activation_bytes + planned->input_bytes + planned->scratch_bytes +
                                        planned->process_bytes + 3 * planned->sequence_bytes);
    int64_t groups = planned->slot_bytes;
    for (const GroupPlan& g : planned->groups) {
      groups += g.bytes_per_sequence;
      if (g.kind == StateKind::kRecurrent) groups -= g.page_bytes;  // its registers are in the slot
      EXPECT_EQ(g.page_bytes % 64, 0) << g.name;
      EXPECT_GE(g.padding_bytes, 0);
      EXPECT_LT(g.padding_bytes, 64 * g.n_layers);
    }
    EXPECT_EQ(groups, planned->sequence_bytes) << path;
  }
}

TEST(MemoryPlan, SequencesThatRunTakeWhatWasPlanned) {
  const auto ops = make_ops(OpSet::kFast, nullptr).value();
  for (const char* path : {"models/llama", "models/gemma3_text", "models/deepseek_v4/tiny_a", "models/lfm2"}) {
    const Sized m = load(path, *ops, LoadMatrices::kSizes);
    const ModelState& state = m.graph.state;
    constexpr int64_t kContext = 640, kStep = 64;
    const PlanQuestion q{.context = kContext, .n_sequences = 2, .prefill_chunk = kStep, .max_batch_size = 2, .memory_bytes = 1 << 30};
    const MemoryPlan plan = plan_memory(m.graph, 0, q).value();
    StateConfig c;
    c.model = state;
    c.kernel_layout_id = page_layout_id(state);
    c.budget_bytes = static_cast<size_t>(plan.states_bytes);
    c.max_step_tokens = kStep;
    const auto manager = StateManager::create(std::move(c)).value();
    std::vector<int32_t> tokens(kContext, 7);
    std::vector<Sequence> live;
    size_t most = 0;
    for (int s = 0; s < 2; s++) {
      tokens[0] = s;
      AdmitRequest r;
      r.tokens = tokens;
      r.reuse = r.store = false;
      live.push_back(std::move(*manager->admit(r).value().sequence));
    }
    for (int64_t at = 0; at < kContext; at += kStep) {
      for (Sequence& s : live) {
        ASSERT_TRUE(s.reserve(kStep)) << path;
        most = std::max(most, manager->stats().used_bytes);
      }
      for (int s = 0; s < 2; s++) {
        tokens[0] = s;
        ASSERT_TRUE(live[static_cast<size_t>(s)].advance(std::span(tokens).subspan(static_cast<size_t>(at), kStep)));
      }
    }
    EXPECT_LE(most, static_cast<size_t>(plan.states_bytes)) << path;
    EXPECT_GE(most, static_cast<size_t>(plan.states_bytes - 2 * plan.capture_bytes) * 7 / 10) << path;
  }
}

TEST(MemoryPlan, VerdictAndLargestFitAtTheEdge) {
  const auto ops = make_ops(OpSet::kFast, nullptr).value();
  for (const char* path : {"models/llama", "models/gemma3_text", "models/qwen3_next"}) {
    const Sized m = load(path, *ops, LoadMatrices::kSizes);
    PlanQuestion q{.context = 512, .n_sequences = 4, .prefill_chunk = 64, .max_batch_size = 4, .memory_bytes = int64_t{1} << 40};
    const auto ask = [&] { return plan_memory(m.graph, m.weights->memory_bytes(), q).value(); };
    const MemoryPlan ample = ask();
    EXPECT_TRUE(ample.fits);
    EXPECT_EQ(ample.largest_context, m.graph.max_positions);
    q.memory_bytes = ample.total_bytes;
    EXPECT_TRUE(ask().fits);
    EXPECT_GE(ask().largest_context, 512);
    EXPECT_EQ(ask().largest_n_sequences, 4);
    q.memory_bytes = ample.total_bytes - 1;
    const MemoryPlan tight = ask();
    EXPECT_FALSE(tight.fits);
    EXPECT_EQ(tight.largest_n_sequences, 3);
    ASSERT_GT(tight.largest_context, 0) << path;
    EXPECT_LT(tight.largest_context, 512) << path;
    for (const std::string& part : {std::to_string(tight.total_bytes) + " bytes", std::to_string(tight.memory_bytes) + " bytes",
                                    std::to_string(tight.largest_context)})
      EXPECT_NE(why_not(tight).find(part), std::string::npos) << why_not(tight);
    q.context = tight.largest_context;
    EXPECT_TRUE(ask().fits);
    q.context++;
    EXPECT_FALSE(ask().fits);
    q.context = 512;
    q.memory_bytes = ample.fixed_bytes - 1;
    EXPECT_EQ(ask().largest_context, 0);
    EXPECT_EQ(ask().largest_n_sequences, 0);
    EXPECT_NE(why_not(ask()).find("not one token"), std::string::npos);
  }
}

TEST(MemoryPlan, AnImpossibleQuestionIsRefusedWithTheModelsNumber) {
  const auto ops = make_ops(OpSet::kFast, nullptr).value();
  const Sized m = load("models/llama", *ops, LoadMatrices::kSizes);
  const auto far = plan_memory(m.graph, 0, {.context = 1'000'000'000});
  ASSERT_FALSE(far);
  EXPECT_EQ(far.error().code, Code::kInvalidArgument);
  EXPECT_NE(far.error().message.find(std::to_string(m.graph.max_positions)), std::string::npos);
  EXPECT_FALSE(plan_memory(m.graph, 0, {.n_sequences = 0}));
  EXPECT_TRUE(plan_memory(m.graph, 0, {.n_sequences = kMostSequences}));
  for (const int64_t n : {kMostSequences + 1, INT64_MAX}) {
    const auto many = plan_memory(m.graph, 0, {.n_sequences = n});
    ASSERT_FALSE(many) << n;
    EXPECT_EQ(many.error().code, Code::kInvalidArgument);
    EXPECT_EQ(many.error().where, "concurrency");
  }
  EXPECT_EQ(plan_memory(m.graph, 0, {}).value().context, m.graph.max_positions);
}

TEST(MemoryPlan, TooManyAtATimeAreToldHowManyFit) {
  MemoryPlan p;
  p.context = 8192;
  p.n_sequences = 1'000'000;
  p.largest_n_sequences = 17'334;
  EXPECT_TRUE(why_not(p).ends_with("; 17334 at a time would fit")) << why_not(p);
  p.largest_n_sequences = 0;
  EXPECT_NE(why_not(p).find("not one token fits"), std::string::npos);
}

TEST(MemoryPlan, TwoThatReadAlikeAreToldToTheByte) {
  EXPECT_EQ(bytes_beside(117'031'040, 117'000'000), "117031040 bytes");
  EXPECT_EQ(bytes_beside(117'000'000, 117'031'040), "117000000 bytes");
  EXPECT_EQ(bytes_beside(117'031'040, 118'000'000), "117 MB");
  EXPECT_EQ(bytes_beside(117'031'040, 117'031'040), "117 MB");
}

TEST(MemoryPlan, BytesForPeople) {
  EXPECT_EQ(bytes_for_people(0), "0 bytes");
  EXPECT_EQ(bytes_for_people(999), "999 bytes");
  EXPECT_EQ(bytes_for_people(1500), "1.50 kB");
  EXPECT_EQ(bytes_for_people(12'345'678), "12.3 MB");
  EXPECT_EQ(bytes_for_people(123'000'000'000), "123 GB");
  EXPECT_GT(resident_bytes(), 1 << 20);
  EXPECT_GE(peak_resident_bytes(), resident_bytes());
}

}  // namespace
}  // namespace carrel
