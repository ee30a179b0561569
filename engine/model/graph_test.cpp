// Placement of values, the runner's contract, and plain sequences.
#include "engine/model/graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/model/golden_run.h"
#include "engine/model/graph_arena.h"
#include "engine/model/graph_groups.h"
#include "engine/model/graph_values.h"

namespace carrel {
namespace {

std::unique_ptr<GoldenModel> load(const std::string& path, OpSet ops = OpSet::kExact) {
  auto m = load_golden_model([&] { return open_source(Env::real(), "tests/golden/models/" + path); }, ops, CpuPath::kAuto, 1, DType::kF32);
  EXPECT_TRUE(m) << m.error().text();
  return m ? *std::move(m) : nullptr;
}

TEST(GraphArena, ValuesAliveTogetherNeverShareBytes) {
  for (const char* path : {"deepseek_v4/tiny_a", "gemma3_text", "qwen3_moe"}) {
    const auto model = load(path);
    ASSERT_TRUE(model);
    const Graph& g = model->graph;
    const ArenaPlan plan = plan_arena(g);
    std::vector<int> first(g.values.size(), -1), last(g.values.size(), -1);
    for (size_t i = 0; i < g.nodes.size(); ++i) {
      const auto touch = [&](ValueId v) {
        if (first[static_cast<size_t>(v)] < 0) first[static_cast<size_t>(v)] = static_cast<int>(i);
        last[static_cast<size_t>(v)] = static_cast<int>(i);
      };
      visit_values(g.nodes[i], touch, touch);
    }
    size_t sum = 0;
    for (size_t a = 0; a < g.values.size(); ++a) {
      const size_t a_begin = plan.row_offset_bytes[a], a_end = a_begin + static_cast<size_t>(g.values[a].width) * 4;
      EXPECT_EQ(a_begin % 64, 0u);
      EXPECT_GE(first[a], 0) << g.values[a].name << " is never written";
      if (g.values[a].rows == Rows::kTokens) sum += a_end - a_begin;
      EXPECT_LE(a_end, g.values[a].rows == Rows::kTokens ? plan.token_row_bytes : plan.output_row_bytes);
      for (size_t b = 0; b < a; ++b) {
        const size_t b_begin = plan.row_offset_bytes[b], b_end = b_begin + static_cast<size_t>(g.values[b].width) * 4;
        const bool together = g.values[a].rows == g.values[b].rows && first[a] <= last[b] && first[b] <= last[a];
        EXPECT_TRUE(!together || a_end <= b_begin || b_end <= a_begin) << g.values[a].name << " and " << g.values[b].name;
      }
    }
    EXPECT_LT(plan.token_row_bytes * 4, sum) << "reuse should save most of the bytes";
  }
}

TEST(GraphRunner, ProbeSeesEveryValueAndChangesNothing) {
  const auto model = load("deepseek_v4/tiny_a");
  ASSERT_TRUE(model);
  const std::vector<int32_t> tokens = {3, 4, 5, 6, 7, 8, 9}, wanted = {0, 6};
  const std::vector<int> one = {7};
  PlainSequence a(&model->graph.state), b(&model->graph.state);
  std::map<std::string, int> rows;
  const auto probed = run_tokens(*model, tokens, one, wanted, a, [&](const Value& v, const void*, int n) { rows[v.name] = n; });
  const auto plain = run_tokens(*model, tokens, one, wanted, b);
  EXPECT_EQ(std::memcmp(probed.data(), plain.data(), plain.size() * 4), 0);
  for (const Value& v : model->graph.values) EXPECT_EQ(rows[v.name], v.rows == Rows::kTokens ? 7 : 2) << v.name;
}

TEST(GraphGroups, NeighboursThatShareAnInputOrFeedEachOtherRunAsOne) {
  const auto model = load("llama");
  ASSERT_TRUE(model);
  const Graph& g = model->graph;
  int n_together = 0, n_feeds = 0, n_sums = 0;
  size_t next = 0;
  for (const NodeGroup& group : group_nodes(g)) {
    EXPECT_EQ(group.begin, next);
    next = group.end;
    const size_t n = group.end - group.begin;
    if (group.kind == NodeGroup::Kind::kFeedForward) n_feeds++;
    if (group.kind == NodeGroup::Kind::kLinears && n == 3) n_together++;
    if (n > 1 && std::holds_alternative<node::Add>(g.nodes[group.end - 1])) n_sums++;
  }
  EXPECT_EQ(next, g.nodes.size());
  int n_layers = 0;
  for (const Node& node : g.nodes) n_layers += std::holds_alternative<node::Attention>(node) ? 1 : 0;
  EXPECT_EQ(n_together, n_layers) << "q, k and v";
  EXPECT_EQ(n_feeds, n_layers);
  EXPECT_EQ(n_sums, 2 * n_layers) << "residuals of attention and mlp";
}

TEST(GraphRunner, NodesThatRunAsOneGiveTheBitsOfOneByOne) {
  for (const char* path : {"gguf/llama256-q456_k.gguf", "gguf/gemma3_text-mix.gguf", "models/qwen3", "models/deepseek_v4/tiny_b"}) {
    for (const OpSet ops : {OpSet::kReference, OpSet::kExact, OpSet::kFast}) {
      const auto m = load_golden_model([&] { return open_source(Env::real(), std::string("tests/golden/") + path); }, ops, CpuPath::kAuto,
                                       2, auto_kv_dtype(ops));
      ASSERT_TRUE(m) << m.error().text();
      std::vector<int32_t> tokens;
      for (int i = 0; i < 40; ++i) tokens.push_back(3 + i * 37 % 500);
      const std::vector<int> steps = {33, 5};
      const std::vector<int32_t> wanted = {32, 37, 38, 39};
      PlainSequence a(&(*m)->graph.state), b(&(*m)->graph.state);
      const auto together = run_tokens(**m, tokens, steps, wanted, a);
      const auto one_by_one = run_tokens(**m, tokens, steps, wanted, b, [](const Value&, const void*, int) {});
      EXPECT_EQ(std::memcmp(together.data(), one_by_one.data(), together.size() * sizeof(float)), 0) << path;
    }
  }
}

TEST(GraphRunner, ArenaStaysAfterTheFirstStepOfASize) {
  const auto model = load("llama");
  ASSERT_TRUE(model);
  GraphRunner runner(&model->graph, model->ops.get(), 8);
  PlainSequence sequence(&model->graph.state);
  const std::vector<int32_t> tokens = {3, 4, 5, 6, 7, 8, 9, 10}, last = {7}, none;
  sequence.run(runner, tokens, last);
  sequence.commit();
  const size_t bytes = runner.arena_bytes();
  for (int i = 0; i < 20; ++i) {
    sequence.run(runner, std::span(tokens).subspan(0, 1 + static_cast<size_t>(i) % 8), none);
    sequence.commit();
  }
  EXPECT_EQ(runner.arena_bytes(), bytes);
}

TEST(GraphRunner, SequencesInOneStepDoNotMeet) {
  const auto model = load("deepseek_v4/tiny_b", OpSet::kFast);
  ASSERT_TRUE(model);
  const ModelState& state = model->graph.state;
  const size_t vocab = static_cast<size_t>(model->graph.vocab);
  std::vector<int32_t> a_tokens, b_tokens;
  for (int i = 0; i < 90; ++i) a_tokens.push_back(3 + i * 7 % 500);
  for (int i = 0; i < 41; ++i) b_tokens.push_back(5 + i * 11 % 500);
  const std::vector<int32_t> a_last = {89}, b_last = {40};
  PlainSequence a(&state), b(&state), c(&state), d(&state);
  const std::vector<int> a_one = {90}, b_one = {41};
  const auto a_alone = run_tokens(*model, a_tokens, a_one, a_last, a), b_alone = run_tokens(*model, b_tokens, b_one, b_last, b);

  // The same two in one batch: rows of the second follow those of the first.
  const Batch &ca = c.begin(a_tokens, {}), &db = d.begin(b_tokens, {});
  std::vector<int32_t> ids = a_tokens, positions(ca.positions.begin(), ca.positions.end()), seq_of(90, 0), outputs = {89, 130};
  ids.insert(ids.end(), b_tokens.begin(), b_tokens.end());
  positions.insert(positions.end(), db.positions.begin(), db.positions.end());
  seq_of.insert(seq_of.end(), 41, 1);
  std::vector<SeqStep> seqs = {ca.seqs[0], db.seqs[0]};
  seqs[1].first_token = 90;
  const Batch both{131, state.block_size, ids, positions, seq_of, seqs, outputs};
  GraphRunner runner(&model->graph, model->ops.get(), 131);
  const float* logits = *runner.run(both, plain_layout(state));
  EXPECT_EQ(std::memcmp(logits, a_alone.data(), vocab * 4), 0);
  EXPECT_EQ(std::memcmp(logits + vocab, b_alone.data(), vocab * 4), 0);
}

TEST(GraphRunner, ThreadsAndInstructionPathsGiveTheSameBits) {
  for (const char* path : {"models/deepseek_v4/tiny_a", "gguf/gemma3_text-mix.gguf", "gguf/llama256-q456_k.gguf", "models/qwen3_moe"}) {
    for (const OpSet ops : {OpSet::kExact, OpSet::kFast}) {
      const auto logits = [&](CpuPath cpu, int threads, const std::vector<int>& steps) {
        const auto m = load_golden_model([&] { return open_source(Env::real(), std::string("tests/golden/") + path); }, ops, cpu, threads,
                                         auto_kv_dtype(ops));
        EXPECT_TRUE(m) << m.error().text();
        std::vector<int32_t> tokens, wanted;
        for (int i = 0; i < 150; ++i) tokens.push_back(3 + i * 37 % 500);
        for (int i = 0; i < 150; i += 7) wanted.push_back(i);
        PlainSequence sequence(&(*m)->graph.state);
        return run_tokens(**m, tokens, steps, wanted, sequence);
      };
      const auto base = logits(CpuPath::kAuto, 1, {150});
      for (const auto& other :
           {logits(CpuPath::kAvx2, 1, {150}), logits(CpuPath::kAuto, 3, {150}), logits(CpuPath::kAvx2, 2, {1, 63, 2, 64, 20})}) {
        EXPECT_EQ(std::memcmp(base.data(), other.data(), base.size() * sizeof(float)), 0) << path;
      }
    }
  }
}

TEST(PlainSequence, DropsWindowPagesAndPoisonsFresh) {
  const auto model = load("mistral");
  ASSERT_TRUE(model);
  PlainSequence s(&model->graph.state);
  std::vector<int32_t> tokens(200, 5);
  const Batch& step = s.begin(tokens, {});
  ASSERT_EQ(step.seqs[0].pages.size(), 1u);
  const auto* page = reinterpret_cast<const float*>(step.seqs[0].pages[0][3]);
  EXPECT_TRUE(std::isnan(page[0]));
  GraphRunner runner(&model->graph, model->ops.get(), 200);
  ASSERT_TRUE(runner.run(step, plain_layout(model->graph.state)));
  s.commit();
  const Batch& next = s.begin(std::span(tokens).first(1), {});
  EXPECT_EQ(next.seqs[0].pages[0][0], nullptr) << "positions 0..63 are behind a window of 16 at 200";
  EXPECT_EQ(next.seqs[0].pages[0][1], nullptr);
  EXPECT_NE(next.seqs[0].pages[0][2], nullptr) << "185..200 are seen: block 128..191 stays";
  EXPECT_FALSE(std::isnan(s.row(0, 0, 199)[0]));
}

}  // namespace
}  // namespace carrel
