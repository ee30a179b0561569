// Emits nodes with their sizes checked; see the header.
#include "engine/model/graph_builder.h"

#include <utility>

namespace carrel {

namespace {

constexpr size_t kSlotAlignment = 64;

}  // namespace

void GraphBuilder::error(Code code, const std::string& message, const std::string& where) {
  if (ok()) status_ = fail(code, message, where);
}

bool GraphBuilder::check(bool condition, const std::string& message, const std::string& where) {
  if (!condition) error(Code::kCorrupt, message, where);
  return ok();
}

// ------------------------------------------------------------------ constants

Matrix GraphBuilder::slice(const std::string& tensor, int64_t total_rows, int64_t row_begin, int64_t rows, int64_t cols) {
  MatrixRequest request;
  request.tensor = tensor;
  request.row_begin = row_begin;
  request.n_rows = rows;
  request.n_cols = cols;
  request.total_rows = total_rows;
  return matrix(request);
}

Matrix GraphBuilder::matrix(const MatrixRequest& request) {
  if (!ok()) return {};
  auto m = weights_->matrix(request);
  if (m) return *m;
  status_ = std::unexpected(std::move(m).error());
  return {};
}

Matrix GraphBuilder::matrix(const std::string& tensor, int64_t rows, int64_t cols, int64_t unpair_rows) {
  MatrixRequest request;
  request.tensor = tensor;
  request.n_rows = rows;
  request.n_cols = cols;
  request.unpair_rows = unpair_rows;
  request.total_rows = rows;
  return matrix(request);
}

const float* GraphBuilder::vector(const std::string& tensor, int64_t n, float add) {
  if (!ok()) return nullptr;
  auto v = weights_->vector(tensor, n, add);
  if (v) return *v;
  status_ = std::unexpected(std::move(v).error());
  return nullptr;
}

const float* GraphBuilder::optional_vector(const std::string& tensor, int64_t n, float add) {
  return weights_->has(tensor) ? vector(tensor, n, add) : nullptr;
}

const int32_t* GraphBuilder::table(const std::string& tensor, int64_t n) {
  if (!ok()) return nullptr;
  auto t = weights_->table(tensor, n);
  if (t) return *t;
  status_ = std::unexpected(std::move(t).error());
  return nullptr;
}

const float* GraphBuilder::keep(std::vector<float> values) {
  graph_.owned.push_back(std::make_unique<std::vector<float>>(std::move(values)));
  return graph_.owned.back()->data();
}

// ------------------------------------------------------------------ nodes

ValueId GraphBuilder::value(const std::string& name, int width, Rows rows, bool is_int) {
  graph_.values.push_back({name, width, is_int, rows});
  return static_cast<ValueId>(graph_.values.size()) - 1;
}

ValueId GraphBuilder::embed(const std::string& name, const Matrix& table, int width, float scale) {
  if (!ok()) return kNoValue;
  const ValueId y = value(name, width);
  emit(node::Embed{table, scale, y});
  return y;
}

ValueId GraphBuilder::linear(const std::string& name, const Matrix& w, ValueId x, const float* bias) {
  if (!ok() || !check(w.n_cols == width(x), "internal: width of the input differs from the matrix", name)) return kNoValue;
  const ValueId y = value(name, static_cast<int>(w.n_rows), rows_of(x));
  emit(node::Linear{w, bias, x, 0, y, 0});
  return y;
}

void GraphBuilder::linear_into(const Matrix& w, ValueId x, int x_begin, ValueId y, int y_begin) {
  if (!ok()) return;
  if (!check(x_begin + w.n_cols <= width(x) && y_begin + w.n_rows <= width(y), "internal: slice outside of a value")) return;
  emit(node::Linear{w, nullptr, x, x_begin, y, y_begin});
}

ValueId GraphBuilder::rms_norm(const std::string& name, ValueId x, const float* weight, float eps, int dim, int n_weights) {
  if (dim == 0) dim = width(x);
  if (!ok() || !check(dim > 0 && width(x) % (dim * n_weights) == 0, "internal: norm groups do not divide the row", name)) return kNoValue;
  const ValueId y = value(name, width(x), rows_of(x));
  emit(node::RmsNorm{x, weight, eps, dim, y, n_weights});
  return y;
}

void GraphBuilder::rms_norm_in_place(ValueId x, const float* weight, float eps, int dim) {
  if (!ok() || !check(dim > 0 && width(x) % dim == 0, "internal: norm groups do not divide the row")) return;
  emit(node::RmsNorm{x, weight, eps, dim, x});
}

void GraphBuilder::rope(ValueId x, const RopeArgs& args, int table) {
  if (!ok()) return;
  const bool fits = args.n_heads * args.head_dim == width(x) && args.begin + args.dims <= args.head_dim &&
                    static_cast<size_t>(args.dims) == 2 * rope_spec(table).inv_freq.size();
  if (check(fits, "the rotary dimensions do not fit the head")) emit(node::Rope{x, args, table});
}

ValueId GraphBuilder::gated(const std::string& name, Act act, ValueId gate, ValueId up, float limit) {
  if (!ok()) return kNoValue;
  const ValueId y = value(name, width(gate), rows_of(gate));
  emit(node::Gated{act, gate, up, limit, y});
  return y;
}

ValueId GraphBuilder::add(const std::string& name, ValueId a, ValueId b, float scale) {
  if (!ok() || !check(width(a) == width(b), "internal: sum of unequal widths", name)) return kNoValue;
  const ValueId y = value(name, width(a), rows_of(a));
  emit(node::Add{a, b, y, scale});
  return y;
}

void GraphBuilder::scale(ValueId x, float s) {
  if (ok() && s != 1.0f) emit(node::Scale{x, s});
}

ValueId GraphBuilder::gate_rows(const std::string& name, ValueId g, ValueId x) {
  if (!ok() || !check(width(g) == 1, "internal: one gate per row", name)) return kNoValue;
  const ValueId y = value(name, width(x), rows_of(x));
  emit(node::GateRows{g, x, y});
  return y;
}

ValueId GraphBuilder::short_conv(const std::string& name, ValueId x, const ShortConvArgs& args, const Registers& columns) {
  const RowLayout& l = columns.layout;
  if (!ok() || !check(width(x) == args.n_channels && l.row_elems == args.n_channels && l.rows_per_page == args.kernel - 1,
                      "internal: the convolution does not fit its registers", name)) {
    return kNoValue;
  }
  const ValueId y = value(name, width(x));
  emit(node::ShortConv{x, args, columns, y});
  return y;
}

ValueId GraphBuilder::delta_scan(const std::string& name, ValueId qkv, ValueId a, ValueId b, const DeltaArgs& args,
                                 const Registers& state) {
  const RowLayout& l = state.layout;
  const bool fits = args.n_k_heads > 0 && args.n_v_heads % args.n_k_heads == 0 && width(a) == args.n_v_heads &&
                    width(b) == args.n_v_heads && width(qkv) == 2 * args.n_k_heads * args.k_dim + args.n_v_heads * args.v_dim &&
                    l.dtype == DType::kF32 && l.row_elems == args.v_dim && l.rows_per_page == args.n_v_heads * args.k_dim;
  if (!ok() || !check(fits, "the delta rule's heads do not fit", name)) return kNoValue;
  const ValueId y = value(name, args.n_v_heads * args.v_dim);
  emit(node::DeltaScan{qkv, a, b, args, state, y});
  return y;
}

ValueId GraphBuilder::ssm_scan(const std::string& name, ValueId xbc, ValueId dt, const SsmArgs& args, const Registers& state) {
  const RowLayout& l = state.layout;
  const bool fits = args.n_groups > 0 && args.n_heads % args.n_groups == 0 && width(dt) == args.n_heads &&
                    width(xbc) == args.n_heads * args.head_dim + 2 * args.n_groups * args.state_dim && l.dtype == DType::kF32 &&
                    l.row_elems == args.head_dim && l.rows_per_page == args.n_heads * args.state_dim;
  if (!ok() || !check(fits, "the mixer's heads, groups and widths do not fit", name)) return kNoValue;
  const ValueId y = value(name, args.n_heads * args.head_dim);
  emit(node::SsmScan{xbc, dt, args, state, y});
  return y;
}

void GraphBuilder::softcap(ValueId x, float cap) {
  if (ok()) emit(node::Softcap{x, cap});
}

ValueId GraphBuilder::repeat(const std::string& name, ValueId x, int times) {
  if (!ok()) return kNoValue;
  const ValueId y = value(name, width(x) * times, rows_of(x));
  emit(node::Repeat{x, times, y});
  return y;
}

ValueId GraphBuilder::gather_outputs(const std::string& name, ValueId x) {
  if (!ok()) return kNoValue;
  const ValueId y = value(name, width(x), Rows::kOutputs);
  emit(node::GatherOutputs{x, y});
  return y;
}

GraphBuilder::Routing GraphBuilder::route(const std::string& name, const RouteArgs& args, ValueId scores) {
  if (!ok() || !check(args.top_k > 0 && args.top_k <= args.n_experts && width(scores) == args.n_experts,
                      "experts per token and number of experts do not fit", name)) {
    return {};
  }
  Routing r;
  r.ids = value(name + "route_ids", args.top_k, Rows::kTokens, true);
  r.weights = value(name + "route_weights", args.top_k);
  emit(node::Route{args, scores, r.ids, r.weights});
  return r;
}

ValueId GraphBuilder::experts(const std::string& name, std::vector<Expert> experts, Act act, float limit, int top_k, ValueId x,
                              const Routing& routing) {
  if (!ok()) return kNoValue;
  const ValueId y = value(name, width(x));
  emit(node::Experts{std::move(experts), act, limit, top_k, x, routing.ids, routing.weights, y});
  return y;
}

void GraphBuilder::store_rows(ValueId x, int col, const StateRows& rows) {
  if (!ok() || !check(col + width(x) <= rows.layout.row_elems, "internal: value wider than its state row")) return;
  emit(node::StoreRows{x, col, rows});
}

ValueId GraphBuilder::attention(const std::string& name, ValueId q, const StateRows& kv, const AttentionArgs& args) {
  if (!ok()) return kNoValue;
  const ValueId y = value(name, width(q));
  emit(node::Attention{q, kv, args, y});
  return y;
}

void GraphBuilder::compress(ValueId c, ValueId z, const CompressArgs& args, const Ring& ring, const StateRows& rows,
                            const StateRows& tail) {
  if (ok()) emit(node::Compress{c, z, args, ring, rows, tail});
}

ValueId GraphBuilder::index_topk(const std::string& name, ValueId q, ValueId w, int n_heads, int dim, int top_k, const StateRows& keys) {
  if (!ok() || !check(width(q) == n_heads * dim && width(w) == n_heads && top_k > 0, "the indexer's sizes do not fit", name))
    return kNoValue;
  const ValueId y = value(name, top_k, Rows::kTokens, true);
  emit(node::IndexTopk{q, w, n_heads, dim, top_k, keys, y});
  return y;
}

ValueId GraphBuilder::sparse_attention(const std::string& name, ValueId q, const StateRows& window, const StateRows* compressed,
                                       ValueId selected, int top_k, const SparseArgs& args) {
  if (!ok()) return kNoValue;
  const ValueId y = value(name, width(q));
  emit(node::SparseAttention{q, window, compressed != nullptr, compressed ? *compressed : StateRows{}, selected, top_k, args, y});
  return y;
}

GraphBuilder::HcMix GraphBuilder::hc_pre(const std::string& name, const HcArgs& args, ValueId x) {
  if (!ok() || !check(width(x) == args.n_streams * args.width, "internal: width of the residual streams", name)) return {};
  HcMix m;
  m.y = value(name + "y", args.width);
  m.post = value(name + "post", args.n_streams);
  m.comb = value(name + "comb", args.n_streams * args.n_streams);
  emit(node::HcPre{args, x, m.y, m.post, m.comb});
  return m;
}

ValueId GraphBuilder::hc_post(const std::string& name, ValueId f, ValueId x, const HcMix& mix, int n_streams) {
  if (!ok()) return kNoValue;
  const ValueId y = value(name, width(x));
  emit(node::HcPost{n_streams, width(f), f, x, mix.post, mix.comb, y});
  return y;
}

ValueId GraphBuilder::hc_head(const std::string& name, const HcArgs& args, ValueId x) {
  if (!ok()) return kNoValue;
  const ValueId y = value(name, args.width, rows_of(x));
  emit(node::HcHead{args, x, y});
  return y;
}

// ------------------------------------------------------------------ tables and state

int GraphBuilder::add_rope(RopeSpec spec) {
  graph_.ropes.push_back(std::move(spec));
  return static_cast<int>(graph_.ropes.size()) - 1;
}

int GraphBuilder::add_group(StateSpec spec) {
  graph_.state.groups.push_back(std::move(spec));
  return static_cast<int>(graph_.state.groups.size()) - 1;
}

void GraphBuilder::set_state_layout() {
  ModelState& state = graph_.state;
  state.block_size = block_size_of(state.groups);
  for (const StateSpec& g : state.groups) {
    register_offset_bytes_.push_back(state.slot_bytes);
    if (g.kind == StateKind::kRecurrent) state.slot_bytes += page_bytes(g, state.block_size);
  }
}

Registers GraphBuilder::registers(int group, int layer) const {
  const StateRows r = rows(group, layer);
  return {group, layer, r.layout, register_offset_bytes_[static_cast<size_t>(group)]};
}

StateRows GraphBuilder::rows(int group, int layer) const {
  StateRows r;
  r.group = group;
  r.layer = layer;
  r.layout = layout_of(graph_.state.groups[static_cast<size_t>(group)], graph_.state.block_size);
  return r;
}

Ring GraphBuilder::add_ring(int n_rows, int row_elems) {
  Ring ring;
  ring.offset_bytes = graph_.state.slot_bytes;
  ring.n_rows = n_rows;
  ring.row_elems = row_elems;
  const size_t bytes = static_cast<size_t>(n_rows) * static_cast<size_t>(row_elems) * sizeof(float);
  graph_.state.slot_bytes += (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  return ring;
}

Result<Graph> GraphBuilder::finish(ValueId logits, int max_positions) {
  if (!ok()) return std::unexpected(std::move(status_).error());
  graph_.logits = logits;
  graph_.vocab = width(logits);
  graph_.max_positions = max_positions;
  return std::move(graph_);
}

}  // namespace carrel
