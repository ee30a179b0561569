// Qwen3-Next and Qwen3.5, dense and with experts (architectures reference, section 3): gated delta rule in most layers, gated grouped-query
// attention with partial rotary heads in every fourth; norms with unit offset but for the one behind the delta rule.
//
// Qwen3-Next stores q, k, v and the gate z of a key head together, Qwen3.5 each on its own. GGUF files hold 1 + w and -exp(A_log), and
// those of Qwen3.5 have the value heads in another order (DeltaArgs::tiled_heads). Draft layers (mtp.*) are not read.
#include <algorithm>
#include <cmath>

#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/families.h"
#include "engine/model/families/numbers.h"
#include "engine/model/families/recurrent.h"
#include "engine/model/families/rope.h"

namespace carrel {

namespace {

/// How a file stores the projections of a delta layer.
enum class Layout {
  kGrouped,    // Qwen3-Next: per key head [q | k | v | z] and [b | a]
  kGgufNext,   // Qwen3-Next GGUF: [q all | k all | v all], z, and b and a per key head as above
  kSeparate,   // Qwen3.5
  kGgufTiled,  // Qwen3.5 GGUF: value head j uses key head j % n_k
};

struct DeltaSizes {
  int n_k = 0, n_v = 0, k_dim = 0, v_dim = 0, kernel = 0;
  int q_width() const { return n_k * k_dim; }
  int v_width() const { return n_v * v_dim; }
  int conv_width() const { return 2 * q_width() + v_width(); }
};

constexpr NamePair kQkv = {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight"}, kZ = {"linear_attn.in_proj_z.weight", "attn_gate.weight"},
                   kA = {"linear_attn.in_proj_a.weight", "ssm_alpha.weight"}, kB = {"linear_attn.in_proj_b.weight", "ssm_beta.weight"},
                   kQkvz = {"linear_attn.in_proj_qkvz.weight", ""}, kBa = {"linear_attn.in_proj_ba.weight", "ssm_ba.weight"},
                   kConv = {"linear_attn.conv1d.weight", "ssm_conv1d.weight"}, kDecay = {"linear_attn.A_log", "ssm_a"},
                   kDtBias = {"linear_attn.dt_bias", "ssm_dt.bias"}, kNorm = {"linear_attn.norm.weight", "ssm_norm.weight"},
                   kOut = {"linear_attn.out_proj", "ssm_out"};

class DeltaMixer final : public RecurrentMixer {
 public:
  DeltaMixer(const DeltaSizes& sizes, Layout layout) : d_(sizes), layout_(layout) {}

  void declare(GraphBuilder& b, int n_layers) override {
    conv_group_ = b.add_group(conv_registers(n_layers, d_.conv_width(), d_.kernel));
    state_group_ = b.add_group({"delta", StateKind::kRecurrent, n_layers, 0, d_.v_dim, d_.n_v * d_.k_dim, 0, DType::kF32});
  }

  ValueId emit(DecoderParts& parts, int i, int nth, const std::string& name, ValueId x) override {
    GraphBuilder& b = parts.b;
    const Projected in = project(parts, i, name, x);
    ShortConvArgs conv;
    conv.n_channels = d_.conv_width();
    conv.kernel = d_.kernel;
    conv.weight = conv_taps(b, parts.at(i, kConv), conv.n_channels, conv.kernel);
    conv.silu = true;
    const ValueId u = b.short_conv(name + "conv", in.qkv, conv, b.registers(conv_group_, nth));
    DeltaArgs args;
    args.n_k_heads = d_.n_k;
    args.n_v_heads = d_.n_v;
    args.k_dim = d_.k_dim;
    args.v_dim = d_.v_dim;
    args.a = decay_rates(b, parts.at(i, kDecay), d_.n_v, !parts.s.gguf);
    args.dt_bias = b.vector(parts.at(i, kDtBias), d_.n_v);
    args.tiled_heads = layout_ == Layout::kGgufTiled;
    args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(d_.k_dim)));
    const ValueId o = b.delta_scan(name + "delta", u, in.a, in.b, args, b.registers(state_group_, nth));
    // The only norm without unit offset.
    const ValueId normed = b.rms_norm(name + "delta_norm", o, b.vector(parts.at(i, kNorm), d_.v_dim), parts.s.eps, d_.v_dim);
    const ValueId y = b.gated(name + "delta_gated", Act::kSilu, in.z, normed, 0);
    return parts.project(i, name + "attn_out", kOut, parts.s.hidden, d_.v_width(), y, Biases::kNever);
  }

 private:
  struct Projected {
    ValueId qkv = kNoValue, z = kNoValue, b = kNoValue, a = kNoValue;
  };

  Projected project(DecoderParts& parts, int i, const std::string& name, ValueId x) const {
    GraphBuilder& b = parts.b;
    const int hidden = parts.s.hidden, m = d_.n_v / d_.n_k;  // m: value heads of a key head
    Projected out;
    if (layout_ == Layout::kGrouped) {
      const std::string qkvz = parts.at(i, kQkvz);
      const int k = d_.k_dim, v = m * d_.v_dim, group = 2 * k + 2 * v;
      out.qkv = b.value(name + "qkv", d_.conv_width());
      b.linear_into(rows_of_groups(b, qkvz, hidden, group, 0, k), x, 0, out.qkv, 0);
      b.linear_into(rows_of_groups(b, qkvz, hidden, group, k, k), x, 0, out.qkv, d_.q_width());
      b.linear_into(rows_of_groups(b, qkvz, hidden, group, 2 * k, v), x, 0, out.qkv, 2 * d_.q_width());
      out.z = b.linear(name + "z", rows_of_groups(b, qkvz, hidden, group, 2 * k + v, v), x);
    } else {
      out.qkv = b.linear(name + "qkv", b.matrix(parts.at(i, kQkv), d_.conv_width(), hidden), x);
      out.z = b.linear(name + "z", b.matrix(parts.at(i, kZ), d_.v_width(), hidden), x);
    }
    if (layout_ == Layout::kGrouped || layout_ == Layout::kGgufNext) {
      const std::string ba = parts.at(i, kBa);
      out.b = b.linear(name + "beta", rows_of_groups(b, ba, hidden, 2 * m, 0, m), x);
      out.a = b.linear(name + "alpha", rows_of_groups(b, ba, hidden, 2 * m, m, m), x);
    } else {
      out.b = b.linear(name + "beta", b.matrix(parts.at(i, kB), d_.n_v, hidden), x);
      out.a = b.linear(name + "alpha", b.matrix(parts.at(i, kA), d_.n_v, hidden), x);
    }
    return out;
  }

  /// From each key head's group of rows, `take` rows from `begin` on.
  Matrix rows_of_groups(GraphBuilder& b, const std::string& tensor, int hidden, int group, int begin, int take) const {
    MatrixRequest r;
    r.tensor = tensor;
    r.row_begin = begin;
    r.n_rows = int64_t{d_.n_k} * take;
    r.n_cols = hidden;
    r.period = group;
    r.take = take;
    r.total_rows = int64_t{d_.n_k} * group;
    return b.matrix(r);
  }

  DeltaSizes d_;
  Layout layout_;
  int conv_group_ = 0, state_group_ = 0;
};

// ------------------------------------------------------------------ config

void every_nth_is_full(int64_t interval, DecoderSpec& s) {
  for (size_t i = 0; i < s.layers.size(); ++i) s.layers[i].recurrent = (static_cast<int64_t>(i) + 1) % interval != 0;
}

void check_sizes(const ConfigReader& c, const DeltaSizes& d, const char* key) {
  const int64_t q = int64_t{d.n_k} * d.k_dim, v = int64_t{d.n_v} * d.v_dim;
  if (d.n_v % d.n_k != 0) c.error(Code::kCorrupt, "the key heads do not divide the value heads", key);
  if (q > kMaxWidth || v > kMaxWidth || v * d.k_dim > kMaxRegisterElems)
    c.error(Code::kCorrupt, "heads times dimensions are out of range", key);
}

void read_experts_hf(const ConfigReader& c, bool next, DecoderSpec& s) {
  const auto count = [&](const char* key) { return static_cast<int>(c.integer(key, 1, kMaxWidth)); };
  s.route.n_experts = count("num_experts");
  s.route.top_k = count("num_experts_per_tok");
  s.expert_width = count("moe_intermediate_size");
  s.shared_width = count("shared_expert_intermediate_size");
  s.route.normalize = !next || c.flag_or("norm_topk_prob", true);
  const auto step = static_cast<size_t>(next ? c.integer_or("decoder_sparse_step", 1, 1, kMaxWidth) : 1);
  const std::vector<int64_t> dense = next ? c.integers("mlp_only_layers") : std::vector<int64_t>();
  for (size_t i = 0; i < s.layers.size(); ++i) {
    s.layers[i].moe = (i + 1) % step == 0 && std::find(dense.begin(), dense.end(), static_cast<int64_t>(i)) == dense.end();
  }
}

/// Heads rotate in their first dimensions; the three position rows of images are equal for text, so mrope keys change nothing.
void read_rope(const ConfigReader& c, DecoderSpec& s) {
  const double part = c.section("rope_parameters").number_or("partial_rotary_factor", c.number_or("partial_rotary_factor", 0.25));
  if (!(part > 0 && part <= 1)) c.error(Code::kCorrupt, "must be above 0 and at most 1", "partial_rotary_factor");
  s.rope_dims = static_cast<int>(s.head_dim * std::clamp(part, 0.0, 1.0));
  s.ropes.push_back(read_rope_hf(c, s, 10000));
}

DecoderSpec read_hf(const ConfigReader& root, const ConfigReader& c, Weights& weights, DeltaSizes& d, Layout& layout) {
  const std::string type = c.text_or("model_type", root.text("model_type"));
  const bool next = type == "qwen3_next", moe = next || type == "qwen3_5_moe_text" || type == "qwen3_5_moe";
  DecoderSpec s = read_decoder_hf(c, {.ffn_width = !moe || (next && c.has("intermediate_size")) ? "intermediate_size" : nullptr});
  s.prefix = find_prefix(weights);
  s.tied = c.flag_or("tie_word_embeddings", root.flag_or("tie_word_embeddings", false));
  s.norm_offset = 1;
  const LayerWords words = {{"linear_attention", "linear_attention"}, {"full_attention", "full_attention"}};
  if (!read_recurrent_types(c, "layer_types", words, s)) every_nth_is_full(c.integer_or("full_attention_interval", 4, 1, kMaxWidth), s);
  const auto count = [&](const char* key) { return static_cast<int>(c.integer(key, 1, kMaxWidth)); };
  d = {count("linear_num_key_heads"), count("linear_num_value_heads"), count("linear_key_head_dim"), count("linear_value_head_dim"),
       static_cast<int>(c.integer("linear_conv_kernel_dim", 2, kMaxTaps))};
  check_sizes(c, d, "linear_num_value_heads");
  layout = next ? Layout::kGrouped : Layout::kSeparate;
  if (moe) read_experts_hf(c, next, s);
  read_rope(c, s);
  require_text(c, "hidden_act", "silu");
  require_text(c, "mamba_ssm_dtype", "float32");
  require_flag(c, "attention_bias", false);
  require_flag(c, "attn_output_gate", true);
  return s;
}

DecoderSpec read_gguf(const ConfigReader& c, Weights& weights, DeltaSizes& d, Layout& layout) {
  const std::string arch = c.text("general.architecture"), p = arch + ".";
  const bool moe = arch != "qwen35";
  DecoderSpec s = read_decoder_gguf(c, arch, weights, {.partial_rotary = true, .ffn_width = !moe});
  const auto count = [&](const char* key) { return static_cast<int>(c.integer(p + key, 1, kMaxWidth)); };
  every_nth_is_full(c.integer_or(p + "full_attention_interval", 4, 1, kMaxWidth), s);
  d.n_k = count("ssm.group_count");
  d.n_v = count("ssm.time_step_rank");
  d.k_dim = count("ssm.state_size");
  d.v_dim = count("ssm.inner_size") / d.n_v;
  d.kernel = static_cast<int>(c.integer(p + "ssm.conv_kernel", 2, kMaxTaps));
  const std::string inner = p + "ssm.inner_size";
  if (d.v_dim < 1 || c.integer(inner, 1, kMaxWidth) % d.n_v != 0) {
    c.error(Code::kCorrupt, "is no multiple of the value heads", inner);
    d.v_dim = 1;
  }
  check_sizes(c, d, inner.c_str());
  layout = arch == "qwen3next" ? Layout::kGgufNext : Layout::kGgufTiled;
  if (moe) {
    s.route.n_experts = count("expert_count");
    s.route.top_k = count("expert_used_count");
    s.expert_width = count("expert_feed_forward_length");
    s.shared_width = count("expert_shared_feed_forward_length");
    for (DecoderLayer& l : s.layers) l.moe = true;
  }
  s.ropes.push_back(rope_from_gguf(c, arch, rope_base_or(c, p + "rope.freq_base", 10000), s.rope_dims, s.max_positions));
  return s;
}

Result<Graph> build(SourceFormat format, const std::string& config_json, Weights& weights, const BuildOptions& options) {
  CARREL_ASSIGN(const ConfigReader root, ConfigReader::parse(config_json));
  const ConfigReader c = text_section(root);
  DeltaSizes d;
  Layout layout = Layout::kSeparate;
  DecoderSpec s = format == SourceFormat::kGguf ? read_gguf(c, weights, d, layout) : read_hf(root, c, weights, d, layout);
  s.names.ffn_norm.gguf = "post_attention_norm.weight";
  s.qk_norm = true;
  s.output_gate = true;
  s.shared_gate = s.shared_width > 0;
  s.attention_biases = s.mlp_biases = Biases::kNever;
  s.route.score = RouteScore::kSoftmax;
  s.mixer = std::make_shared<DeltaMixer>(d, layout);
  CARREL_TRY(c.status());
  return build_decoder(s, weights, options);
}

}  // namespace

Family qwen3_next_family() {
  return {"qwen3_next",
          {"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"},
          {"qwen3next", "qwen35", "qwen35moe"},
          build};
}

}  // namespace carrel
