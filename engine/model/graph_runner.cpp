// Walks a graph over an Ops set. One step thread; owns the two activation arenas and the rope tables of the step.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "engine/model/graph.h"
#include "engine/model/graph_arena.h"
#include "engine/model/graph_groups.h"
#include "engine/model/graph_values.h"
#include "kernels/memory.h"

namespace carrel {

namespace {

/// Grows only; contents do not survive growth. Huge pages: outputs are written in columns, page after page.
class Arena {
 public:
  void reserve(size_t n_bytes) {
    if (n_bytes <= buffer_.size()) return;
    buffer_ = HugeBuffer();
    auto grown = HugeBuffer::allocate(n_bytes);
    if (!grown) std::abort();  // the planner admitted what does not fit; nothing sensible can follow inside a step
    buffer_ = *std::move(grown);
  }
  std::byte* data() const { return buffer_.data(); }
  size_t bytes() const { return buffer_.size(); }

 private:
  HugeBuffer buffer_;
};

}  // namespace

struct GraphRunner::Impl {
  const Graph* graph;
  Ops* ops;
  ArenaPlan plan;
  std::vector<NodeGroup> groups;
  std::vector<LinearOut> outs;  // of the running group
  Arena tokens, outputs;
  std::vector<RopeTable> ropes;
  Probe probe;
  const Batch* batch = nullptr;  // of the running step

  int rows(ValueId v) const {
    return graph->values[static_cast<size_t>(v)].rows == Rows::kTokens ? batch->n_tokens : static_cast<int>(batch->outputs.size());
  }
  int width(ValueId v) const { return graph->values[static_cast<size_t>(v)].width; }
  int64_t elements(ValueId v) const { return int64_t{rows(v)} * width(v); }
  std::byte* data(ValueId v) const {
    const Arena& a = graph->values[static_cast<size_t>(v)].rows == Rows::kTokens ? tokens : outputs;
    return a.data() + plan.row_offset_bytes[static_cast<size_t>(v)] * static_cast<size_t>(rows(v));
  }
  float* f(ValueId v) const { return reinterpret_cast<float*>(data(v)); }
  int32_t* i(ValueId v) const { return reinterpret_cast<int32_t*>(data(v)); }

  void operator()(const node::Embed& n) { ops->embed(n.table, batch->ids, n.scale, f(n.y)); }
  void operator()(const node::Linear& n) {
    ops->linear(n.w, n.bias, f(n.x) + n.x_begin, width(n.x), rows(n.x), f(n.y) + n.y_begin, width(n.y));
  }
  void operator()(const node::RmsNorm& n) { ops->rms_norm(f(n.x), n.weight, n.eps, elements(n.x) / n.dim, n.dim, f(n.y), n.n_weights); }
  void operator()(const node::Rope& n) { ops->rope(f(n.x), n.args, ropes[static_cast<size_t>(n.table)], rows(n.x)); }
  void operator()(const node::Gated& n) { ops->gated(n.act, f(n.gate), f(n.up), n.limit, elements(n.y), f(n.y)); }
  void operator()(const node::Add& n) { ops->add(f(n.a), f(n.b), n.scale, elements(n.y), f(n.y)); }
  void operator()(const node::Scale& n) { ops->scale(n.s, elements(n.x), f(n.x)); }
  void operator()(const node::GateRows& n) { ops->gate_rows(f(n.g), f(n.x), rows(n.x), width(n.x), f(n.y)); }
  void operator()(const node::ShortConv& n) { ops->short_conv(f(n.x), n.args, n.columns, *batch, f(n.y)); }
  void operator()(const node::DeltaScan& n) { ops->delta_scan(f(n.qkv), f(n.a), f(n.b), n.args, n.state, *batch, f(n.y)); }
  void operator()(const node::SsmScan& n) { ops->ssm_scan(f(n.xbc), f(n.dt), n.args, n.state, *batch, f(n.y)); }
  void operator()(const node::Softcap& n) { ops->softcap(n.cap, elements(n.x), f(n.x)); }
  void operator()(const node::Repeat& n) {
    const size_t w = static_cast<size_t>(width(n.x));
    float* y = f(n.y);
    for (int r = 0; r < rows(n.x); ++r) {
      for (int t = 0; t < n.times; ++t, y += w) std::memcpy(y, f(n.x) + static_cast<size_t>(r) * w, w * sizeof(float));
    }
  }
  void operator()(const node::GatherOutputs& n) {
    const size_t w = static_cast<size_t>(width(n.x));
    float* y = f(n.y);
    for (const int32_t row : batch->outputs) {
      std::memcpy(y, f(n.x) + static_cast<size_t>(row) * w, w * sizeof(float));
      y += w;
    }
  }
  void operator()(const node::Route& n) { ops->route(n.args, f(n.scores), batch->ids, i(n.ids), f(n.weights)); }
  void operator()(const node::Experts& n) {
    ops->experts(n.experts, n.act, n.limit, f(n.x), i(n.ids), f(n.weights), n.top_k, rows(n.x), f(n.y));
  }
  void operator()(const node::StoreRows& n) { ops->store_rows(f(n.x), width(n.x), n.col, n.rows, *batch); }
  void operator()(const node::Attention& n) { ops->attention(f(n.q), n.kv, n.args, *batch, f(n.y)); }
  void operator()(const node::Compress& n) { ops->compress(f(n.c), f(n.z), n.args, n.ring, n.rows, n.tail, *batch); }
  void operator()(const node::IndexTopk& n) { ops->index_topk(f(n.q), f(n.w), n.n_heads, n.dim, n.top_k, n.keys, *batch, i(n.selected)); }
  void operator()(const node::SparseAttention& n) {
    ops->sparse_attention(f(n.q), n.window, n.has_compressed ? &n.compressed : nullptr, n.selected == kNoValue ? nullptr : i(n.selected),
                          n.top_k, n.args, *batch, f(n.y));
  }
  void operator()(const node::HcPre& n) { ops->hc_pre(f(n.x), n.args, rows(n.x), f(n.y), f(n.post), f(n.comb)); }
  void operator()(const node::HcPost& n) { ops->hc_post(f(n.f), f(n.x), f(n.post), f(n.comb), n.n_streams, n.width, rows(n.x), f(n.y)); }
  void operator()(const node::HcHead& n) { ops->hc_head(f(n.x), n.args, rows(n.x), f(n.y)); }

  LinearOut out_of(const node::Linear& n) const { return {n.w, n.bias, f(n.y) + n.y_begin, width(n.y)}; }
  void add_to(LinearOut& out, const node::Linear& n, const node::Add& add) const {
    out.add = f(add.a == n.y ? add.b : add.a);
    out.sum = f(add.y);
  }
  template <class T>
  const T& at(size_t i) const {
    return std::get<T>(graph->nodes[i]);
  }

  /// Several nodes as one.
  void together(const NodeGroup& g) {
    const auto& first = at<node::Linear>(g.begin);
    const float* x = f(first.x) + first.x_begin;
    if (g.kind == NodeGroup::Kind::kGatedLinears) {
      const auto& n = at<node::Gated>(g.begin + 2);
      ops->gated_linears(out_of(first), out_of(at<node::Linear>(g.begin + 1)), n.act, n.limit, x, width(first.x), rows(first.x), f(n.y));
      return;
    }
    if (g.kind == NodeGroup::Kind::kFeedForward) {
      const auto& n = at<node::Gated>(g.begin + 2);
      const auto& down = at<node::Linear>(g.begin + 3);
      LinearOut out = out_of(down);
      if (g.end == g.begin + 5) add_to(out, down, at<node::Add>(g.begin + 4));
      ops->feed_forward(out_of(first), out_of(at<node::Linear>(g.begin + 1)), n.act, n.limit, out, x, width(first.x), rows(first.x),
                        f(n.y));
      return;
    }
    outs.clear();
    for (size_t i = g.begin; i < g.end; ++i) {
      if (const auto* add = std::get_if<node::Add>(&graph->nodes[i])) {
        add_to(outs[0], first, *add);
      } else {
        outs.push_back(out_of(at<node::Linear>(i)));
      }
    }
    ops->linears(outs, x, width(first.x), rows(first.x));
  }

  /// Nodes on output rows have nothing to do when no logits are wanted.
  bool idle(const Node& node) const {
    bool any = false;
    const auto ignore = [](ValueId) {};
    visit_values(node, ignore, [&](ValueId v) { any = any || rows(v) == 0; });
    return any;
  }
  void report(const Node& node) const {
    const auto ignore = [](ValueId) {};
    visit_values(node, ignore, [&](ValueId v) { probe(graph->values[static_cast<size_t>(v)], data(v), rows(v)); });
  }
};

GraphRunner::GraphRunner(const Graph* graph, Ops* ops, int max_tokens) : impl_(std::make_unique<Impl>()) {
  impl_->graph = graph;
  impl_->ops = ops;
  impl_->plan = plan_arena(*graph);
  impl_->groups = group_nodes(*graph);
  impl_->tokens.reserve(impl_->plan.token_row_bytes * static_cast<size_t>(max_tokens));
  impl_->ropes.resize(graph->ropes.size());
}

GraphRunner::~GraphRunner() = default;

const float* GraphRunner::run(const Batch& batch) {
  Impl& m = *impl_;
  m.batch = &batch;
  m.tokens.reserve(m.plan.token_row_bytes * static_cast<size_t>(batch.n_tokens));
  m.outputs.reserve(m.plan.output_row_bytes * std::max<size_t>(batch.outputs.size(), 1));
  for (size_t t = 0; t < m.ropes.size(); ++t) make_rope_table(m.graph->ropes[t], batch.positions, m.ropes[t]);
  for (const NodeGroup& g : m.groups) {
    if (m.idle(m.graph->nodes[g.begin])) continue;
    if (g.end - g.begin > 1 && !m.probe) {
      m.together(g);
      continue;
    }
    for (size_t i = g.begin; i < g.end; ++i) {
      std::visit(m, m.graph->nodes[i]);
      if (m.probe) m.report(m.graph->nodes[i]);
    }
  }
  m.batch = nullptr;
  return m.graph->logits == kNoValue
             ? nullptr
             : reinterpret_cast<const float*>(m.outputs.data() +
                                              m.plan.row_offset_bytes[static_cast<size_t>(m.graph->logits)] * batch.outputs.size());
}

void GraphRunner::set_probe(Probe probe) {
  impl_->probe = std::move(probe);
}

size_t GraphRunner::arena_bytes() const {
  return impl_->tokens.bytes() + impl_->outputs.bytes();
}

}  // namespace carrel
