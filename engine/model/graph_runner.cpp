// Keeps the plans of a graph and replays them; see graph.h. One step thread; owns the two activation arenas and the input buffers.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <optional>

#include "base/log.h"
#include "engine/model/graph.h"
#include "engine/model/graph_values.h"
#include "engine/model/step_plan.h"
#include "kernels/memory.h"

namespace carrel {

namespace {

/// The buckets of rows: 1, 2, 4 … and the most. Of output rows there is bucket 0, too.
int bucket_rows(int n, int most) {
  return n == 0 ? 0 : std::min(most, static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))));
}
size_t bucket_index(int n) {
  return n == 0 ? 0 : static_cast<size_t>(std::bit_width(static_cast<unsigned>(n - 1))) + 1;
}

/// Huge pages: outputs are written in columns, page after page.
HugeBuffer arena_of(size_t row_bytes, int rows) {
  auto buffer = HugeBuffer::allocate(row_bytes * static_cast<size_t>(rows));
  if (!buffer) std::abort();  // the planner admitted what does not fit; nothing sensible can follow inside a step
  return *std::move(buffer);
}

int blocks_for(const SeqStep& s, int block_size) {
  return static_cast<int>((int64_t{s.n_past} + s.n_tokens + block_size - 1) / block_size);
}

}  // namespace

struct GraphRunner::Impl {
  const Graph* graph;
  StepPlanner planner;
  StepLimits limits;
  int n_blocks;
  LayoutStamp layout;
  HugeBuffer tokens, outputs;
  std::optional<StepInputs> inputs;
  std::vector<std::optional<StepPlan>> plans;  // [bucket of token rows][bucket of output rows]
  Counts counts;
  Digest fingerprint{};
  Probe probe;

  Impl(const Graph* g, Ops* ops, const StepLimits& l, LayoutStamp stamp)
      : graph(g), planner(g, ops), limits(l), n_blocks(table_columns(*g)), layout(std::move(stamp)) {
    make_buffers();
  }

  /// Drops every plan: their addresses would be those of the old buffers.
  void make_buffers() {
    plans.clear();
    plans.resize((bucket_index(limits.max_tokens) + 1) * n_output_buckets());
    inputs.reset();
    tokens = HugeBuffer();
    outputs = HugeBuffer();
    tokens = arena_of(planner.arena().token_row_bytes, limits.max_tokens);
    outputs = arena_of(planner.arena().output_row_bytes, limits.max_outputs);
    inputs.emplace(*graph, limits, n_blocks);
  }
  size_t n_output_buckets() const { return bucket_index(limits.max_outputs) + 1; }

  void grow(const Batch& step) {
    const auto up = [](int& limit, size_t n) {
      if (n > static_cast<size_t>(limit)) limit = static_cast<int>(std::bit_ceil(n));
    };
    up(limits.max_tokens, static_cast<size_t>(step.n_tokens));
    up(limits.max_seqs, step.seqs.size());
    up(limits.max_outputs, step.outputs.size());
    for (const SeqStep& s : step.seqs) up(n_blocks, static_cast<size_t>(blocks_for(s, step.block_size)));
    make_buffers();
    counts.replans++;
    spdlog::debug("graph planned anew for steps of up to {} tokens, {} sequences, {} outputs, {} blocks", limits.max_tokens,
                  limits.max_seqs, limits.max_outputs, n_blocks);
  }

  StepPlan& plan_for(const Batch& step) {
    const auto n_outputs = static_cast<int>(step.outputs.size());
    std::optional<StepPlan>& plan = plans[bucket_index(step.n_tokens) * n_output_buckets() + bucket_index(n_outputs)];
    if (plan) return *plan;
    counts.plans++;
    plan = planner.plan({.token_rows = bucket_rows(step.n_tokens, limits.max_tokens),
                         .output_rows = bucket_rows(n_outputs, limits.max_outputs),
                         .tokens = tokens.data(),
                         .outputs = outputs.data(),
                         .layout = &layout,
                         .one_by_one = static_cast<bool>(probe)});
    return *plan;
  }

  void report(const StepPlan& plan, size_t node) const {
    const auto ignore = [](ValueId) {};
    visit_values(graph->nodes[node], ignore, [&](ValueId v) {
      const Value& value = graph->values[static_cast<size_t>(v)];
      probe(value, plan.values[static_cast<size_t>(v)], inputs->n_rows(value.rows));
    });
  }
};

GraphRunner::GraphRunner(const Graph* graph, Ops* ops, const StepLimits& limits, LayoutStamp layout)
    : impl_(std::make_unique<Impl>(graph, ops, limits, std::move(layout))) {}

GraphRunner::GraphRunner(const Graph* graph, Ops* ops, int max_tokens)
    : GraphRunner(graph, ops, {.max_tokens = max_tokens}, plain_layout(graph->state)) {}

GraphRunner::~GraphRunner() = default;

Result<const float*> GraphRunner::run(const Batch& batch, const LayoutStamp& layout) {
  Impl& m = *impl_;
  if (layout != m.layout) {
    m.counts.refused++;
    return fail(Code::kUnavailable,
                "stale-graph: planned for page layout \"" + m.layout.page_layout_id + "\" of epoch " + std::to_string(m.layout.epoch) +
                    ", the states are of \"" + layout.page_layout_id + "\" of epoch " + std::to_string(layout.epoch) +
                    "; the graph has to be planned anew",
                "graph");
  }
  if (!m.inputs->holds(batch)) m.grow(batch);
  const StepPlan& plan = m.plan_for(batch);
  m.inputs->fill(batch);
  m.fingerprint = plan.fingerprint;
  m.counts.replays++;
  for (const StepPlan::Op& op : plan.ops) {
    op.run(*m.inputs);
    if (m.probe) m.report(plan, op.first_node);
  }
  return m.graph->logits == kNoValue ? nullptr : reinterpret_cast<const float*>(plan.values[static_cast<size_t>(m.graph->logits)]);
}

void GraphRunner::replan(LayoutStamp layout) {
  Impl& m = *impl_;
  m.layout = std::move(layout);
  for (std::optional<StepPlan>& plan : m.plans) plan.reset();
  m.counts.replans++;
  spdlog::info("graph planned anew for page layout \"{}\" of epoch {} ({} times since the start)", m.layout.page_layout_id, m.layout.epoch,
               m.counts.replans);
}

const LayoutStamp& GraphRunner::layout() const {
  return impl_->layout;
}

const GraphRunner::Counts& GraphRunner::counts() const {
  return impl_->counts;
}

const Digest& GraphRunner::fingerprint() const {
  return impl_->fingerprint;
}

void GraphRunner::set_probe(Probe probe) {
  impl_->probe = std::move(probe);
  for (std::optional<StepPlan>& plan : impl_->plans) plan.reset();
}

size_t GraphRunner::arena_bytes() const {
  return impl_->tokens.size() + impl_->outputs.size();
}

size_t GraphRunner::input_bytes() const {
  return StepInputs::bytes_for(*impl_->graph, impl_->limits, impl_->n_blocks);
}

}  // namespace carrel
