// See the header.
#include "engine/model/families/decoder_parts.h"

namespace carrel {

void DecoderParts::declare_state() {
  const int row = 2 * s.n_kv_heads * s.head_dim;
  int n_full = 0, n_window = 0, n_recurrent = 0, window = 0;
  for (const DecoderLayer& l : s.layers) {
    nth_of_kind_.push_back(l.recurrent ? n_recurrent++ : l.window > 0 ? n_window++ : n_full++);
    if (l.window > 0) window = l.window;
  }
  if (n_full > 0) full_group_ = b.add_group({"kv", StateKind::kCompressedKv, n_full, 1, row, 0, 0, kv_dtype_});
  if (n_window > 0) window_group_ = b.add_group({"window", StateKind::kWindow, n_window, 1, row, 0, window, kv_dtype_});
  if (n_recurrent > 0) s.mixer->declare(b, n_recurrent);
  b.set_state_layout();
}

std::string DecoderParts::at(int i, const NamePair& name, const char* suffix) const {
  return (s.gguf ? "blk." + std::to_string(i) + "." + name.gguf : s.prefix + "layers." + std::to_string(i) + "." + name.hf) + suffix;
}

// ------------------------------------------------------------------ projections

/// Rows come as adjacent pairs (2i, 2i+1): put back to halves.
const float* DecoderParts::unpaired(const float* bias, int rows, int head_rows) {
  std::vector<float> out(static_cast<size_t>(rows));
  const int half = head_rows / 2;
  for (int r = 0; r < rows; ++r) {
    const int in_head = r % head_rows, head = r - in_head;
    out[static_cast<size_t>(r)] = bias[head + 2 * (in_head % half) + in_head / half];
  }
  return b.keep(std::move(out));
}

const float* DecoderParts::bias_of(const std::string& tensor, int rows, Biases biases, int head_rows) {
  if (biases == Biases::kNever) return nullptr;
  const float* bias = biases == Biases::kAlways ? b.vector(tensor, rows) : b.optional_vector(tensor, rows);
  return bias && head_rows > 0 && s.unpair ? unpaired(bias, rows, head_rows) : bias;
}

ValueId DecoderParts::project(int i, const std::string& name, const NamePair& tensor, int rows, int cols, ValueId x, Biases biases,
                              int head_rows) {
  const Matrix w = b.matrix(at(i, tensor, ".weight"), rows, cols, s.unpair ? head_rows : 0);
  return b.linear(name, w, x, bias_of(at(i, tensor, ".bias"), rows, biases, head_rows));
}

// ------------------------------------------------------------------ attention

ValueId DecoderParts::mixer(int i, const std::string& p, ValueId x) {
  const auto l = static_cast<size_t>(i);
  return s.layers[l].recurrent ? s.mixer->emit(*this, i, nth_of_kind_[l], p, x) : attention(i, p, x);
}

DecoderParts::Query DecoderParts::query(int i, const std::string& p, ValueId x) {
  const int width = s.n_heads * s.head_dim;
  if (!s.output_gate) return {project(i, p + "q", s.names.q, width, s.hidden, x, s.attention_biases, s.head_dim), kNoValue};
  MatrixRequest r;
  r.tensor = at(i, s.names.q, ".weight");
  r.n_rows = width;
  r.n_cols = s.hidden;
  r.total_rows = 2 * width;
  r.period = 2 * s.head_dim;
  r.take = s.head_dim;
  Query out;
  out.q = b.linear(p + "q", b.matrix(r), x);
  r.row_begin = s.head_dim;
  out.gate = b.linear(p + "heads_gate", b.matrix(r), x);
  return out;
}

ValueId DecoderParts::attention(int i, const std::string& p, ValueId x) {
  const DecoderLayer& l = s.layers[static_cast<size_t>(i)];
  const int q_width = s.n_heads * s.head_dim, kv_width = s.n_kv_heads * s.head_dim;
  const Query query_and_gate = query(i, p, x);
  const ValueId q = query_and_gate.q;
  const ValueId k = project(i, p + "k", s.names.k, kv_width, s.hidden, x, s.attention_biases, s.head_dim);
  const ValueId v = project(i, p + "v", s.names.v, kv_width, s.hidden, x, s.attention_biases);
  if (s.qk_norm) {
    b.rms_norm_in_place(q, norm(at(i, s.names.q_norm), s.head_dim), s.eps, s.head_dim);
    b.rms_norm_in_place(k, norm(at(i, s.names.k_norm), s.head_dim), s.eps, s.head_dim);
  }
  if (l.rope != kNoRope) {
    b.rope(q, {s.n_heads, s.head_dim, 0, s.rope_dims, false, false}, l.rope);
    b.rope(k, {s.n_kv_heads, s.head_dim, 0, s.rope_dims, false, false}, l.rope);
  }
  const StateRows rows = b.rows(l.window > 0 ? window_group_ : full_group_, nth_of_kind_[static_cast<size_t>(i)]);
  b.store_rows(k, 0, rows);
  b.store_rows(v, kv_width, rows);
  AttentionArgs a;
  a.n_heads = s.n_heads;
  a.n_kv_heads = s.n_kv_heads;
  a.head_dim = s.head_dim;
  a.scale = s.attention_scale;
  a.window = l.window;
  if (s.sinks) a.sinks = b.vector(at(i, s.names.sinks), s.n_heads);
  ValueId heads = b.attention(p + "heads", q, rows, a);
  if (s.output_gate) heads = b.gated(p + "heads_gated", Act::kSigmoid, query_and_gate.gate, heads, 0);
  return project(i, p + "attn_out", s.names.o, s.hidden, q_width, heads, s.attention_biases);
}

// ------------------------------------------------------------------ feed-forward

ValueId DecoderParts::mlp(int i, const std::string& p, const std::string& out, const MlpNames& names, int width, ValueId x) {
  ValueId gate, up;
  if (!s.gguf && names.hf_joined) {
    const std::string joined = at(i, {names.hf_joined, ""}, ".weight");
    gate = b.linear(p + "gate", b.slice(joined, 2 * int64_t{width}, 0, width, s.hidden), x);
    up = b.linear(p + "up", b.slice(joined, 2 * int64_t{width}, width, width, s.hidden), x);
  } else {
    gate = project(i, p + "gate", names.gate, width, s.hidden, x, s.mlp_biases);
    up = project(i, p + "up", names.up, width, s.hidden, x, s.mlp_biases);
  }
  return project(i, out, names.down, s.hidden, width, b.gated(p + "mid", s.act, gate, up, 0), s.mlp_biases);
}

ValueId DecoderParts::moe(int i, const std::string& p, ValueId x) {
  RouteArgs r = s.route;
  if (s.selection_bias) r.bias = b.vector(at(i, s.names.selection_bias), r.n_experts);
  const ValueId scores =
      project(i, p + "route_scores", s.names.router, r.n_experts, s.hidden, x, s.router_bias ? Biases::kAlways : Biases::kNever);
  const GraphBuilder::Routing routing = b.route(p, r, scores);
  std::vector<Expert> list = s.expert_reader ? s.expert_reader->read(*this, i) : experts(i);
  const std::string name = p + (s.shared_width > 0 ? "experts" : "ffn_out");
  const ValueId y = b.experts(name, std::move(list), s.expert_act, s.expert_limit, r.top_k, x, routing);
  if (s.shared_width == 0) return y;
  ValueId shared = mlp(i, p + "shared_", p + "shared_out", s.names.shared, s.shared_width, x);
  if (s.shared_gate) {
    const ValueId g = b.linear(p + "shared_gate_score", b.matrix(at(i, s.names.shared_gate), 1, s.hidden), x);
    shared = b.gate_rows(p + "shared_gated", g, shared);
  }
  return b.add(p + "ffn_out", y, shared);
}

std::vector<Expert> DecoderParts::experts(int i) {
  std::vector<Expert> out;
  const int64_t n = s.route.n_experts, w = s.expert_width, h = s.hidden;
  const ExpertNames& names = s.names.experts;
  const std::string hf = s.prefix + "layers." + std::to_string(i) + ".", gg = "blk." + std::to_string(i) + ".ffn_";
  const std::string joined = hf + names.joined;
  for (int64_t e = 0; e < n && b.ok(); ++e) {
    const std::string one = hf + names.each + std::to_string(e) + ".";
    if (s.gguf) {
      out.push_back({b.slice(gg + "gate_exps.weight", n * w, e * w, w, h), b.slice(gg + "up_exps.weight", n * w, e * w, w, h),
                     b.slice(gg + "down_exps.weight", n * h, e * h, h, w)});
    } else if (b.has(joined)) {
      out.push_back({b.slice(joined, n * 2 * w, e * 2 * w, w, h), b.slice(joined, n * 2 * w, e * 2 * w + w, w, h),
                     b.slice(hf + names.joined_down, n * h, e * h, h, w)});
    } else {
      out.push_back({b.matrix(one + names.gate + ".weight", w, h), b.matrix(one + names.up + ".weight", w, h),
                     b.matrix(one + names.down + ".weight", h, w)});
    }
  }
  return out;
}

}  // namespace carrel
