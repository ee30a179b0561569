// See the header.
#include "engine/model/families/decoder.h"

#include <algorithm>
#include <cmath>

#include "engine/model/families/rope.h"
#include "engine/model/graph_builder.h"

namespace carrel {

namespace {

constexpr int kMaxLayers = 1024, kMaxWidth = 1 << 20, kMaxVocab = 1 << 24, kMaxPositions = 1 << 30;

struct NamePair {
  const char* hf;
  const char* gguf;
};

// Behind "<prefix>layers.N." and "blk.N.".
constexpr NamePair kAttnNorm = {"input_layernorm.weight", "attn_norm.weight"};
constexpr NamePair kFfnNorm = {"post_attention_layernorm.weight", "ffn_norm.weight"};
constexpr NamePair kGemmaAttnPost = {"post_attention_layernorm.weight", "post_attention_norm.weight"};
constexpr NamePair kGemmaFfnNorm = {"pre_feedforward_layernorm.weight", "ffn_norm.weight"};
constexpr NamePair kGemmaFfnPost = {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"};
constexpr NamePair kQ = {"self_attn.q_proj", "attn_q"}, kK = {"self_attn.k_proj", "attn_k"}, kV = {"self_attn.v_proj", "attn_v"},
                   kO = {"self_attn.o_proj", "attn_output"};
constexpr NamePair kQNorm = {"self_attn.q_norm.weight", "attn_q_norm.weight"}, kKNorm = {"self_attn.k_norm.weight", "attn_k_norm.weight"};
constexpr NamePair kGate = {"mlp.gate_proj", "ffn_gate"}, kUp = {"mlp.up_proj", "ffn_up"}, kDown = {"mlp.down_proj", "ffn_down"};
constexpr NamePair kRouter = {"mlp.gate.weight", "ffn_gate_inp.weight"};

class DecoderBuilder {
 public:
  DecoderBuilder(const DecoderSpec& spec, Weights* weights, DType kv_dtype) : s_(spec), kv_dtype_(kv_dtype), b_(weights) {}

  Result<Graph> build() {
    for (const RopeSpec& r : s_.ropes) b_.add_rope(r);
    declare_state();
    const std::string embed_name = s_.gguf ? "token_embd.weight" : s_.prefix + "embed_tokens.weight";
    const Matrix table = b_.matrix(embed_name, s_.vocab, s_.hidden);
    ValueId h = b_.embed("embed", table, s_.hidden, s_.embed_scale);
    for (int i = 0; i < static_cast<int>(s_.layers.size()) && b_.ok(); ++i) h = layer(i, h);
    const ValueId out = b_.gather_outputs("head_in", h);
    const ValueId normed =
        b_.rms_norm("head_norm", out, norm(s_.gguf ? "output_norm.weight" : s_.prefix + "norm.weight", s_.hidden), s_.eps);
    const std::string head_name = s_.gguf ? "output.weight" : head_tensor();
    const bool tied = s_.tied && !b_.has(head_name);
    const ValueId logits = b_.linear("logits", tied ? table : b_.matrix(head_name, s_.vocab, s_.hidden), normed);
    if (s_.softcap > 0) b_.softcap(logits, s_.softcap);
    return b_.finish(logits, s_.max_positions);
  }

 private:
  std::string at(int i, const NamePair& name, const char* suffix = "") const {
    return (s_.gguf ? "blk." + std::to_string(i) + "." + name.gguf : s_.prefix + "layers." + std::to_string(i) + "." + name.hf) + suffix;
  }
  std::string head_tensor() const { return b_.has("language_model.lm_head.weight") ? "language_model.lm_head.weight" : "lm_head.weight"; }
  const float* norm(const std::string& tensor, int n) { return b_.vector(tensor, n, s_.norm_offset); }

  /// Layers of one window share a group, full layers the other.
  void declare_state() {
    const int row = 2 * s_.n_kv_heads * s_.head_dim;
    int n_full = 0, n_window = 0, window = 0;
    for (const DecoderLayer& l : s_.layers) {
      layer_in_group_.push_back(l.window > 0 ? n_window++ : n_full++);
      if (l.window > 0) window = l.window;
    }
    if (n_full > 0) full_group_ = b_.add_group({"kv", StateKind::kCompressedKv, n_full, 1, row, 0, 0, kv_dtype_});
    if (n_window > 0) window_group_ = b_.add_group({"window", StateKind::kWindow, n_window, 1, row, 0, window, kv_dtype_});
    b_.set_state_layout();
  }

  ValueId project(int i, const std::string& name, const NamePair& tensor, int rows, int cols, ValueId x, bool rotary = false) {
    const int unpair = rotary && s_.unpair ? s_.head_dim : 0;
    const Matrix w = b_.matrix(at(i, tensor, ".weight"), rows, cols, unpair);
    const float* bias = b_.optional_vector(at(i, tensor, ".bias"), rows);
    if (bias && unpair > 0) bias = unpaired(bias, rows);
    return b_.linear(name, w, x, bias);
  }

  /// Rows come as adjacent pairs (2i, 2i+1): put back to halves.
  const float* unpaired(const float* bias, int rows) {
    std::vector<float> out(static_cast<size_t>(rows));
    const int half = s_.head_dim / 2;
    for (int r = 0; r < rows; ++r) {
      const int in_head = r % s_.head_dim, head = r - in_head;
      out[static_cast<size_t>(r)] = bias[head + 2 * (in_head % half) + in_head / half];
    }
    return b_.keep(std::move(out));
  }

  ValueId layer(int i, ValueId h) {
    const std::string p = "layers." + std::to_string(i) + ".";
    ValueId x = b_.rms_norm(p + "attn_in", h, norm(at(i, kAttnNorm), s_.hidden), s_.eps);
    x = attention(i, p, x);
    if (s_.branch_norms) x = b_.rms_norm(p + "attn_branch", x, norm(at(i, kGemmaAttnPost), s_.hidden), s_.eps);
    h = b_.add(p + "attn_sum", h, x);
    x = b_.rms_norm(p + "ffn_in", h, norm(at(i, s_.branch_norms ? kGemmaFfnNorm : kFfnNorm), s_.hidden), s_.eps);
    x = s_.layers[static_cast<size_t>(i)].moe ? moe(i, p, x) : mlp(i, p, x);
    if (s_.branch_norms) x = b_.rms_norm(p + "ffn_branch", x, norm(at(i, kGemmaFfnPost), s_.hidden), s_.eps);
    return b_.add(p + "out", h, x);
  }

  ValueId attention(int i, const std::string& p, ValueId x) {
    const DecoderLayer& l = s_.layers[static_cast<size_t>(i)];
    const int q_width = s_.n_heads * s_.head_dim, kv_width = s_.n_kv_heads * s_.head_dim;
    const ValueId q = project(i, p + "q", kQ, q_width, s_.hidden, x, true);
    const ValueId k = project(i, p + "k", kK, kv_width, s_.hidden, x, true);
    const ValueId v = project(i, p + "v", kV, kv_width, s_.hidden, x);
    if (s_.qk_norm) {
      b_.rms_norm_in_place(q, norm(at(i, kQNorm), s_.head_dim), s_.eps, s_.head_dim);
      b_.rms_norm_in_place(k, norm(at(i, kKNorm), s_.head_dim), s_.eps, s_.head_dim);
    }
    b_.rope(q, {s_.n_heads, s_.head_dim, 0, s_.head_dim, false, false}, l.rope);
    b_.rope(k, {s_.n_kv_heads, s_.head_dim, 0, s_.head_dim, false, false}, l.rope);
    const StateRows rows = b_.rows(l.window > 0 ? window_group_ : full_group_, layer_in_group_[static_cast<size_t>(i)]);
    b_.store_rows(k, 0, rows);
    b_.store_rows(v, kv_width, rows);
    AttentionArgs a;
    a.n_heads = s_.n_heads;
    a.n_kv_heads = s_.n_kv_heads;
    a.head_dim = s_.head_dim;
    a.scale = s_.attention_scale;
    a.window = l.window;
    const ValueId heads = b_.attention(p + "heads", q, rows, a);
    return project(i, p + "attn_out", kO, s_.hidden, q_width, heads);
  }

  ValueId mlp(int i, const std::string& p, ValueId x) {
    const ValueId gate = project(i, p + "ffn_gate", kGate, s_.ffn_width, s_.hidden, x);
    const ValueId up = project(i, p + "ffn_up", kUp, s_.ffn_width, s_.hidden, x);
    return project(i, p + "ffn_out", kDown, s_.hidden, s_.ffn_width, b_.gated(p + "ffn_mid", s_.act, gate, up, 0));
  }

  ValueId moe(int i, const std::string& p, ValueId x) {
    RouteArgs r;
    r.n_experts = s_.n_experts;
    r.top_k = s_.top_k;
    r.score = RouteScore::kSoftmax;
    r.normalize = s_.normalize_experts;
    const ValueId scores = b_.linear(p + "route_scores", b_.matrix(at(i, kRouter), s_.n_experts, s_.hidden), x);
    return b_.experts(p + "ffn_out", experts(i), s_.act, 0, s_.top_k, x, b_.route(p, r, scores));
  }

  std::vector<Expert> experts(int i) {
    std::vector<Expert> out;
    const int64_t n = s_.n_experts, w = s_.expert_width, h = s_.hidden;
    const std::string hf = s_.prefix + "layers." + std::to_string(i) + ".mlp.experts.", gg = "blk." + std::to_string(i) + ".ffn_";
    const std::string fused = hf + "gate_up_proj";
    for (int64_t e = 0; e < n && b_.ok(); ++e) {
      const std::string one = hf + std::to_string(e) + ".";
      if (s_.gguf) {
        out.push_back({b_.slice(gg + "gate_exps.weight", n * w, e * w, w, h), b_.slice(gg + "up_exps.weight", n * w, e * w, w, h),
                       b_.slice(gg + "down_exps.weight", n * h, e * h, h, w)});
      } else if (b_.has(fused)) {
        out.push_back({b_.slice(fused, n * 2 * w, e * 2 * w, w, h), b_.slice(fused, n * 2 * w, e * 2 * w + w, w, h),
                       b_.slice(hf + "down_proj", n * h, e * h, h, w)});
      } else {
        out.push_back({b_.matrix(one + "gate_proj.weight", w, h), b_.matrix(one + "up_proj.weight", w, h),
                       b_.matrix(one + "down_proj.weight", h, w)});
      }
    }
    return out;
  }

  const DecoderSpec& s_;
  DType kv_dtype_;
  GraphBuilder b_;
  int full_group_ = 0, window_group_ = 0;
  std::vector<int> layer_in_group_;
};

Status check_sizes(const DecoderSpec& s) {
  const auto bad = [](const std::string& what) { return fail(Code::kCorrupt, what, "model configuration"); };
  if (s.n_heads % s.n_kv_heads != 0) return bad("the key/value heads do not divide the heads");
  if (s.head_dim % 2 != 0) return bad("the head dimension is odd");
  if (int64_t{s.n_heads} * s.head_dim > kMaxWidth) return bad("heads times head dimension is out of range");
  const bool any_moe = std::any_of(s.layers.begin(), s.layers.end(), [](const DecoderLayer& l) { return l.moe; });
  if (any_moe && (s.n_experts <= 0 || s.top_k <= 0 || s.top_k > s.n_experts || s.expert_width <= 0)) return bad("expert counts do not fit");
  return {};
}

}  // namespace

DecoderSpec read_decoder_hf(const ConfigReader& c) {
  DecoderSpec s;
  const auto dim = [&](const char* key) { return static_cast<int>(c.integer(key, 1, kMaxWidth)); };
  s.layers.resize(static_cast<size_t>(c.integer("num_hidden_layers", 1, kMaxLayers)));
  s.hidden = dim("hidden_size");
  s.vocab = static_cast<int>(c.integer("vocab_size", 1, kMaxVocab));
  s.n_heads = dim("num_attention_heads");
  s.n_kv_heads = static_cast<int>(c.integer_or("num_key_value_heads", s.n_heads, 1, kMaxWidth));
  s.head_dim = static_cast<int>(c.integer_or("head_dim", std::max(s.hidden / s.n_heads, 1), 1, kMaxWidth));
  s.ffn_width = dim("intermediate_size");
  s.eps = static_cast<float>(c.number("rms_norm_eps"));
  s.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim)));
  s.tied = c.flag_or("tie_word_embeddings", false);
  s.max_positions = static_cast<int>(c.integer("max_position_embeddings", 1, kMaxPositions));
  return s;
}

DecoderSpec read_decoder_gguf(const ConfigReader& c, const std::string& arch, Weights& weights) {
  DecoderSpec s;
  s.gguf = true;
  const std::string p = arch + ".";
  const auto dim = [&](const char* key) { return static_cast<int>(c.integer(p + key, 1, kMaxWidth)); };
  s.layers.resize(static_cast<size_t>(c.integer(p + "block_count", 1, kMaxLayers)));
  s.hidden = dim("embedding_length");
  const std::vector<int64_t> embed = weights.shape("token_embd.weight");
  s.vocab = embed.size() == 2 ? static_cast<int>(std::clamp<int64_t>(embed[0], 1, kMaxVocab)) : 1;
  s.n_heads = dim("attention.head_count");
  s.n_kv_heads = static_cast<int>(c.integer_or(p + "attention.head_count_kv", s.n_heads, 1, kMaxWidth));
  s.head_dim = static_cast<int>(c.integer_or(p + "attention.key_length", std::max(s.hidden / s.n_heads, 1), 1, kMaxWidth));
  if (c.integer_or(p + "attention.value_length", s.head_dim, 1, kMaxWidth) != s.head_dim) {
    c.error(Code::kUnsupported, "must equal attention.key_length", p + "attention.value_length");
  }
  if (c.integer_or(p + "rope.dimension_count", s.head_dim, 1, kMaxWidth) != s.head_dim) {
    c.error(Code::kUnsupported, "partial rotary heads are not part of this family", p + "rope.dimension_count");
  }
  s.ffn_width = dim("feed_forward_length");
  s.eps = static_cast<float>(c.number(p + "attention.layer_norm_rms_epsilon"));
  s.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim)));
  s.tied = true;
  s.max_positions = static_cast<int>(c.integer(p + "context_length", 1, kMaxPositions));
  return s;
}

RopeSpec read_rope_hf(const ConfigReader& c, const DecoderSpec& s, double default_theta) {
  const ConfigReader params = c.section("rope_parameters");
  const double theta = params.number_or("rope_theta", c.number_or("rope_theta", default_theta));
  return rope_from_section(c.has("rope_parameters") ? params : c.section("rope_scaling"), theta, s.head_dim, s.max_positions);
}

void read_layer_types(const ConfigReader& c, int window, DecoderSpec& s) {
  const std::vector<std::string> types = c.texts("layer_types");
  if (types.empty()) return;
  if (types.size() < s.layers.size()) {
    c.error(Code::kCorrupt, "has fewer entries than the model has layers", "layer_types");
    return;
  }
  for (size_t i = 0; i < s.layers.size(); ++i) {
    if (types[i] != "sliding_attention" && types[i] != "full_attention") {
      c.error(Code::kUnsupported, "'" + types[i] + "' is not a layer type of this family", "layer_types");
    }
    s.layers[i].window = types[i] == "sliding_attention" ? window : 0;
  }
}

std::string find_prefix(const Weights& weights) {
  for (const char* p : {"model.", "model.language_model.", "language_model.model."}) {
    if (weights.has(std::string(p) + "embed_tokens.weight")) return p;
  }
  return "model.";
}

Result<Graph> build_decoder(const DecoderSpec& spec, Weights& weights, const BuildOptions& options) {
  CARREL_TRY(check_sizes(spec));
  return DecoderBuilder(spec, &weights, options.kv_dtype).build();
}

}  // namespace carrel
