// Binds the nodes of a graph to addresses; see the header.
#include "engine/model/step_plan.h"

#include <cstring>

#include "base/codec.h"
#include "engine/model/graph_values.h"

namespace carrel {

namespace {

using Run = std::function<void(const StepInputs&)>;

/// How many elements a value has in a step.
struct Elements {
  Rows rows;
  int width;
  int64_t operator()(const StepInputs& s) const { return int64_t{s.n_rows(rows)} * width; }
};

/// Turns a node into a call. Nodes are captured by pointer: the graph outlives its plans.
class Binder {
 public:
  Binder(const Graph& graph, Ops& ops, const std::vector<std::byte*>& values) : graph_(graph), ops_(&ops), values_(values) {}

  Run bind(const NodeGroup& g) const {
    if (g.end == g.begin + 1) return std::visit(*this, graph_.nodes[g.begin]);
    if (g.kind == NodeGroup::Kind::kGatedLinears) return gated_linears(g);
    if (g.kind == NodeGroup::Kind::kFeedForward) return feed_forward(g);
    return linears(g);
  }

  Run operator()(const node::Embed& n) const {
    return [o = ops_, &n, y = f(n.y)](const StepInputs& s) { o->embed(n.table, s.batch().ids, n.scale, y); };
  }
  Run operator()(const node::Linear& n) const {
    return [o = ops_, &n, x = f(n.x) + n.x_begin, x_width = width(n.x), rows = kind(n.x), y = f(n.y) + n.y_begin,
            y_width = width(n.y)](const StepInputs& s) { o->linear(n.w, n.bias, x, x_width, s.n_rows(rows), y, y_width); };
  }
  Run operator()(const node::RmsNorm& n) const {
    return [o = ops_, &n, x = f(n.x), per_row = width(n.x) / n.dim, rows = kind(n.x), y = f(n.y)](const StepInputs& s) {
      o->rms_norm(x, n.weight, n.eps, int64_t{s.n_rows(rows)} * per_row, n.dim, y, n.n_weights);
    };
  }
  Run operator()(const node::Rope& n) const {
    return [o = ops_, &n, x = f(n.x), rows = kind(n.x)](const StepInputs& s) { o->rope(x, n.args, s.rope(n.table), s.n_rows(rows)); };
  }
  Run operator()(const node::Gated& n) const {
    return [o = ops_, &n, gate = f(n.gate), up = f(n.up), count = counter(n.y), y = f(n.y)](const StepInputs& s) {
      o->gated(n.act, gate, up, n.limit, count(s), y);
    };
  }
  Run operator()(const node::Add& n) const {
    return [o = ops_, &n, a = f(n.a), b = f(n.b), count = counter(n.y), y = f(n.y)](const StepInputs& s) {
      o->add(a, b, n.scale, count(s), y);
    };
  }
  Run operator()(const node::Scale& n) const {
    return [o = ops_, &n, x = f(n.x), count = counter(n.x)](const StepInputs& s) { o->scale(n.s, count(s), x); };
  }
  Run operator()(const node::GateRows& n) const {
    return [o = ops_, g = f(n.g), x = f(n.x), rows = kind(n.x), w = width(n.x), y = f(n.y)](const StepInputs& s) {
      o->gate_rows(g, x, s.n_rows(rows), w, y);
    };
  }
  Run operator()(const node::ShortConv& n) const {
    return [o = ops_, &n, x = f(n.x), y = f(n.y)](const StepInputs& s) { o->short_conv(x, n.args, n.columns, s.batch(), y); };
  }
  Run operator()(const node::DeltaScan& n) const {
    return [o = ops_, &n, qkv = f(n.qkv), a = f(n.a), b = f(n.b), y = f(n.y)](const StepInputs& s) {
      o->delta_scan(qkv, a, b, n.args, n.state, s.batch(), y);
    };
  }
  Run operator()(const node::SsmScan& n) const {
    return [o = ops_, &n, xbc = f(n.xbc), dt = f(n.dt), y = f(n.y)](const StepInputs& s) {
      o->ssm_scan(xbc, dt, n.args, n.state, s.batch(), y);
    };
  }
  Run operator()(const node::Softcap& n) const {
    return [o = ops_, &n, x = f(n.x), count = counter(n.x)](const StepInputs& s) { o->softcap(n.cap, count(s), x); };
  }
  Run operator()(const node::Repeat& n) const {
    return [&n, x = f(n.x), w = static_cast<size_t>(width(n.x)), rows = kind(n.x), begin = f(n.y)](const StepInputs& s) {
      float* y = begin;
      for (int r = 0; r < s.n_rows(rows); ++r) {
        for (int t = 0; t < n.times; ++t, y += w) std::memcpy(y, x + static_cast<size_t>(r) * w, w * sizeof(float));
      }
    };
  }
  Run operator()(const node::GatherOutputs& n) const {
    return [x = f(n.x), w = static_cast<size_t>(width(n.x)), begin = f(n.y)](const StepInputs& s) {
      float* y = begin;
      for (const int32_t row : s.batch().outputs) {
        std::memcpy(y, x + static_cast<size_t>(row) * w, w * sizeof(float));
        y += w;
      }
    };
  }
  Run operator()(const node::Route& n) const {
    return [o = ops_, &n, scores = f(n.scores), ids = i(n.ids), weights = f(n.weights)](const StepInputs& s) {
      o->route(n.args, scores, s.batch().ids, ids, weights);
    };
  }
  Run operator()(const node::Experts& n) const {
    return [o = ops_, &n, x = f(n.x), ids = i(n.ids), weights = f(n.weights), rows = kind(n.x), y = f(n.y)](const StepInputs& s) {
      o->experts(n.experts, n.act, n.limit, x, ids, weights, n.top_k, s.n_rows(rows), y);
    };
  }
  Run operator()(const node::StoreRows& n) const {
    return [o = ops_, &n, x = f(n.x), w = width(n.x)](const StepInputs& s) { o->store_rows(x, w, n.col, n.rows, s.batch()); };
  }
  Run operator()(const node::Attention& n) const {
    return [o = ops_, &n, q = f(n.q), y = f(n.y)](const StepInputs& s) { o->attention(q, n.kv, n.args, s.batch(), y); };
  }
  Run operator()(const node::Compress& n) const {
    return [o = ops_, &n, c = f(n.c), z = f(n.z)](const StepInputs& s) { o->compress(c, z, n.args, n.ring, n.rows, n.tail, s.batch()); };
  }
  Run operator()(const node::IndexTopk& n) const {
    return [o = ops_, &n, q = f(n.q), w = f(n.w), selected = i(n.selected)](const StepInputs& s) {
      o->index_topk(q, w, n.n_heads, n.dim, n.top_k, n.keys, s.batch(), selected);
    };
  }
  Run operator()(const node::SparseAttention& n) const {
    return [o = ops_, &n, q = f(n.q), compressed = n.has_compressed ? &n.compressed : nullptr,
            selected = n.selected == kNoValue ? nullptr : i(n.selected),
            y = f(n.y)](const StepInputs& s) { o->sparse_attention(q, n.window, compressed, selected, n.top_k, n.args, s.batch(), y); };
  }
  Run operator()(const node::HcPre& n) const {
    return [o = ops_, &n, x = f(n.x), rows = kind(n.x), y = f(n.y), post = f(n.post), comb = f(n.comb)](const StepInputs& s) {
      o->hc_pre(x, n.args, s.n_rows(rows), y, post, comb);
    };
  }
  Run operator()(const node::HcPost& n) const {
    return [o = ops_, &n, in = f(n.f), x = f(n.x), post = f(n.post), comb = f(n.comb), rows = kind(n.x), y = f(n.y)](const StepInputs& s) {
      o->hc_post(in, x, post, comb, n.n_streams, n.width, s.n_rows(rows), y);
    };
  }
  Run operator()(const node::HcHead& n) const {
    return [o = ops_, &n, x = f(n.x), rows = kind(n.x), y = f(n.y)](const StepInputs& s) { o->hc_head(x, n.args, s.n_rows(rows), y); };
  }

 private:
  const Value& value(ValueId v) const { return graph_.values[static_cast<size_t>(v)]; }
  int width(ValueId v) const { return value(v).width; }
  Rows kind(ValueId v) const { return value(v).rows; }
  float* f(ValueId v) const { return reinterpret_cast<float*>(values_[static_cast<size_t>(v)]); }
  int32_t* i(ValueId v) const { return reinterpret_cast<int32_t*>(values_[static_cast<size_t>(v)]); }
  Elements counter(ValueId v) const { return {kind(v), width(v)}; }
  template <class T>
  const T& at(size_t i) const {
    return std::get<T>(graph_.nodes[i]);
  }

  LinearOut out_of(const node::Linear& n) const { return {n.w, n.bias, f(n.y) + n.y_begin, width(n.y)}; }
  void add_to(LinearOut& out, const node::Linear& n, const node::Add& add) const {
    out.add = f(add.a == n.y ? add.b : add.a);
    out.sum = f(add.y);
  }

  Run gated_linears(const NodeGroup& g) const {
    const auto& first = at<node::Linear>(g.begin);
    const auto& n = at<node::Gated>(g.begin + 2);
    return [o = ops_, &n, gate = out_of(first), up = out_of(at<node::Linear>(g.begin + 1)), x = f(first.x) + first.x_begin,
            x_width = width(first.x), rows = kind(first.x),
            y = f(n.y)](const StepInputs& s) { o->gated_linears(gate, up, n.act, n.limit, x, x_width, s.n_rows(rows), y); };
  }
  Run feed_forward(const NodeGroup& g) const {
    const auto& first = at<node::Linear>(g.begin);
    const auto& n = at<node::Gated>(g.begin + 2);
    const auto& down = at<node::Linear>(g.begin + 3);
    LinearOut out = out_of(down);
    if (g.end == g.begin + 5) add_to(out, down, at<node::Add>(g.begin + 4));
    return [o = ops_, &n, gate = out_of(first), up = out_of(at<node::Linear>(g.begin + 1)), out, x = f(first.x) + first.x_begin,
            x_width = width(first.x), rows = kind(first.x),
            y = f(n.y)](const StepInputs& s) { o->feed_forward(gate, up, n.act, n.limit, out, x, x_width, s.n_rows(rows), y); };
  }
  Run linears(const NodeGroup& g) const {
    const auto& first = at<node::Linear>(g.begin);
    std::vector<LinearOut> outs;
    for (size_t k = g.begin; k < g.end; ++k) {
      if (const auto* add = std::get_if<node::Add>(&graph_.nodes[k])) {
        add_to(outs[0], first, *add);
      } else {
        outs.push_back(out_of(at<node::Linear>(k)));
      }
    }
    return [o = ops_, outs = std::move(outs), x = f(first.x) + first.x_begin, x_width = width(first.x),
            rows = kind(first.x)](const StepInputs& s) { o->linears(outs, x, x_width, s.n_rows(rows)); };
  }

  const Graph& graph_;
  Ops* const ops_;
  const std::vector<std::byte*>& values_;
};

/// Writes what a node reads and writes beside its values: matrices and states.
struct OperandWriter {
  ByteWriter& w;

  void matrix(const Matrix& m) const {
    w.u8(static_cast<uint8_t>(m.form));
    w.i64(m.n_rows);
    w.i64(m.n_cols);
  }
  void layout(int group, int layer, const RowLayout& l) const {
    for (const int n : {group, layer, static_cast<int>(l.dtype), l.row_elems, l.rows_per_page, l.ratio}) w.i64(n);
    w.u64(l.row_stride_bytes);
    w.u64(l.layer_stride_bytes);
  }
  void rows(const StateRows& r) const { layout(r.group, r.layer, r.layout); }
  void registers(const Registers& r) const {
    layout(r.group, r.layer, r.layout);
    w.u64(r.slot_offset_bytes);
  }

  template <class T>
  void operator()(const T&) const {}
  void operator()(const node::Embed& n) const { matrix(n.table); }
  void operator()(const node::Linear& n) const {
    matrix(n.w);
    w.i64(n.x_begin);
    w.i64(n.y_begin);
  }
  void operator()(const node::Experts& n) const {
    for (const Expert& e : n.experts) {
      for (const Matrix* m : {&e.gate, &e.up, &e.down}) matrix(*m);
    }
  }
  void operator()(const node::StoreRows& n) const {
    w.i64(n.col);
    rows(n.rows);
  }
  void operator()(const node::Attention& n) const { rows(n.kv); }
  void operator()(const node::Compress& n) const {
    rows(n.rows);
    rows(n.tail);
    w.u64(n.ring.offset_bytes);
  }
  void operator()(const node::IndexTopk& n) const { rows(n.keys); }
  void operator()(const node::SparseAttention& n) const {
    rows(n.window);
    if (n.has_compressed) rows(n.compressed);
  }
  void operator()(const node::ShortConv& n) const { registers(n.columns); }
  void operator()(const node::DeltaScan& n) const { registers(n.state); }
  void operator()(const node::SsmScan& n) const { registers(n.state); }
};

}  // namespace

StepPlanner::StepPlanner(const Graph* graph, Ops* ops)
    : graph_(graph), ops_(ops), arena_(plan_arena(*graph)), groups_(group_nodes(*graph)), digest_(graph_digest()) {}

Digest StepPlanner::graph_digest() const {
  ByteWriter w;
  w.field("carrel graph 1");
  for (size_t v = 0; v < graph_->values.size(); ++v) {
    w.i64(graph_->values[v].width);
    w.u8(graph_->values[v].rows == Rows::kTokens ? 0 : 1);
    w.u64(arena_.row_offset_bytes[v]);
  }
  for (const Node& node : graph_->nodes) {
    w.u64(node.index());
    const auto operand = [&](ValueId v) { w.i64(v); };
    visit_values(node, operand, operand);
    std::visit(OperandWriter{w}, node);
  }
  return sha256(w.bytes());
}

StepPlan StepPlanner::plan(const Wanted& wanted) const {
  StepPlan plan;
  ByteWriter w;
  w.field("carrel step plan 1");
  w.raw(digest_);
  w.field(wanted.layout->page_layout_id);
  w.u64(wanted.layout->epoch);
  for (const int n : {wanted.token_rows, wanted.output_rows, wanted.one_by_one ? 1 : 0}) w.i64(n);
  plan.fingerprint = sha256(w.bytes());

  for (size_t v = 0; v < graph_->values.size(); ++v) {
    const bool tokens = graph_->values[v].rows == Rows::kTokens;
    const auto rows = static_cast<size_t>(tokens ? wanted.token_rows : wanted.output_rows);
    plan.values.push_back(rows == 0 ? nullptr : (tokens ? wanted.tokens : wanted.outputs) + arena_.row_offset_bytes[v] * rows);
  }
  const auto idle = [&](const Node& node) {
    bool any = false;
    const auto ignore = [](ValueId) {};
    visit_values(node, ignore, [&](ValueId v) { any = any || plan.values[static_cast<size_t>(v)] == nullptr; });
    return any;
  };
  const Binder binder(*graph_, *ops_, plan.values);
  for (const NodeGroup& g : groups_) {
    if (idle(graph_->nodes[g.begin])) continue;
    if (!wanted.one_by_one) {
      plan.ops.push_back({binder.bind(g), g.begin});
      continue;
    }
    for (size_t n = g.begin; n < g.end; ++n) plan.ops.push_back({binder.bind({NodeGroup::Kind::kNode, n, n + 1}), n});
  }
  return plan;
}

}  // namespace carrel
