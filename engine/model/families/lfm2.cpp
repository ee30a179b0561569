// LFM2 and LFM2.5, dense and with experts (architectures reference, section 4): a gated short convolution in most layers, grouped-query
// attention with per-head norms in the others. `embedding_norm` is the final norm.
#include <algorithm>

#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/families.h"
#include "engine/model/families/numbers.h"
#include "engine/model/families/recurrent.h"
#include "engine/model/families/rope.h"

namespace carrel {

namespace {

constexpr NamePair kIn = {"conv.in_proj.weight", "shortconv.in_proj.weight"}, kConv = {"conv.conv.weight", "shortconv.conv.weight"},
                   kOut = {"conv.out_proj", "shortconv.out_proj"};

class ShortConvMixer final : public RecurrentMixer {
 public:
  ShortConvMixer(int hidden, int kernel) : hidden_(hidden), kernel_(kernel) {}

  /// Registers: columns of B x, after the gate.
  void declare(GraphBuilder& b, int n_layers) override { group_ = b.add_group(conv_registers(n_layers, hidden_, kernel_)); }

  ValueId emit(DecoderParts& parts, int i, int nth, const std::string& name, ValueId x) override {
    GraphBuilder& b = parts.b;
    const int64_t h = hidden_;
    const std::string in = parts.at(i, kIn);
    const ValueId gate_in = b.linear(name + "conv_b", b.slice(in, 3 * h, 0, h, h), x);
    const ValueId value = b.linear(name + "conv_x", b.slice(in, 3 * h, 2 * h, h, h), x);
    const ValueId u = b.gated(name + "conv_in", Act::kIdentity, gate_in, value, 0);
    const ValueId gate_out = b.linear(name + "conv_c", b.slice(in, 3 * h, h, h, h), x);
    ShortConvArgs args;
    args.n_channels = hidden_;
    args.kernel = kernel_;
    args.weight = conv_taps(b, parts.at(i, kConv), hidden_, kernel_);
    const ValueId s = b.short_conv(name + "conv", u, args, b.registers(group_, nth));
    const ValueId y = b.gated(name + "conv_out", Act::kIdentity, gate_out, s, 0);
    return parts.project(i, name + "attn_out", kOut, hidden_, hidden_, y, Biases::kNever);
  }

 private:
  int hidden_, kernel_;
  int group_ = 0;
};

DecoderNames names() {
  DecoderNames n;
  n.attn_norm.hf = "operator_norm.weight";
  n.ffn_norm.hf = "ffn_norm.weight";
  n.o.hf = "self_attn.out_proj";
  n.q_norm.hf = "self_attn.q_layernorm.weight";
  n.k_norm.hf = "self_attn.k_layernorm.weight";
  n.mlp = {{"feed_forward.w1", "ffn_gate"}, {"feed_forward.w3", "ffn_up"}, {"feed_forward.w2", "ffn_down"}};
  n.router.hf = "feed_forward.gate";
  n.selection_bias.hf = "feed_forward.expert_bias";
  n.experts = {"feed_forward.experts.", "w1", "w3", "w2", "feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"};
  n.final_norm = {"embedding_norm.weight", "token_embd_norm.weight"};
  return n;
}

void dense_until(int64_t n_dense, DecoderSpec& s) {
  for (size_t i = 0; i < s.layers.size(); ++i) s.layers[i].moe = static_cast<int64_t>(i) >= n_dense;
}

/// The width as stored is that of a plain MLP; the gated one has two thirds, rounded up.
void adjust_width(const ConfigReader& c, DecoderSpec& s) {
  if (!c.flag_or("block_auto_adjust_ff_dim", true)) return;
  const auto multiple = c.integer_or("block_multiple_of", 256, 1, kMaxWidth);
  const double factor = c.number_or("block_ffn_dim_multiplier", 1.0);
  const double scaled = factor * static_cast<double>(2 * int64_t{s.ffn_width} / 3);
  if (!(scaled >= 1 && scaled <= kMaxWidth)) return c.error(Code::kCorrupt, "leaves no possible width", "block_ffn_dim_multiplier");
  s.ffn_width = static_cast<int>((static_cast<int64_t>(scaled) + multiple - 1) / multiple * multiple);
}

void read_experts_hf(const ConfigReader& c, DecoderSpec& s) {
  s.route.n_experts = static_cast<int>(c.integer("num_experts", 1, kMaxWidth));
  s.route.top_k = static_cast<int>(c.integer("num_experts_per_tok", 1, kMaxWidth));
  s.expert_width = static_cast<int>(c.integer("moe_intermediate_size", 1, kMaxWidth));
  s.route.scale = scale_or(c, "routed_scaling_factor", 1);
  require_flag(c, "use_expert_bias", true);
  require_flag(c, "norm_topk_prob", true);
  dense_until(c.integer_or("num_dense_layers", 2, 0, kMaxWidth), s);
}

void read_layers_hf(const ConfigReader& c, DecoderSpec& s) {
  if (read_recurrent_types(c, "layer_types", {{"conv", "conv"}, {"full_attention", "full_attention"}}, s)) return;
  if (!c.has("full_attn_idxs")) return;  // all are attention
  for (DecoderLayer& l : s.layers) l.recurrent = true;
  for (const int64_t i : c.integers("full_attn_idxs")) {
    if (i < 0 || i >= static_cast<int64_t>(s.layers.size()))
      return c.error(Code::kCorrupt, "names a layer that is not there", "full_attn_idxs");
    s.layers[static_cast<size_t>(i)].recurrent = false;
  }
}

DecoderSpec read_hf(const ConfigReader& root, const ConfigReader& c, Weights& weights, int& kernel) {
  DecoderSpec s = read_decoder_hf(c, {.eps = "norm_eps", .ffn_width = c.has("block_ff_dim") ? "block_ff_dim" : "intermediate_size"});
  s.prefix = find_prefix(weights);
  s.tied = c.flag_or("tie_word_embeddings", c.flag_or("tie_embedding", root.flag_or("tie_word_embeddings", true)));
  read_layers_hf(c, s);
  kernel = static_cast<int>(c.integer_or("conv_L_cache", 3, 2, kMaxTaps));
  require_flag(c, "conv_bias", false);
  s.ropes.push_back(read_rope_hf(c, s, rope_base_or(c, "theta", 1e6)));
  require_text(c, "hidden_act", "silu");
  if (c.text_or("model_type", root.text("model_type")) == "lfm2_moe") {
    read_experts_hf(c, s);
  } else {
    adjust_width(c, s);
  }
  return s;
}

DecoderSpec read_gguf(const ConfigReader& c, Weights& weights, int& kernel) {
  const std::string arch = c.text("general.architecture"), p = arch + ".";
  DecoderSpec s = read_decoder_gguf(c, arch, weights, {.recurrent_by_kv_heads = true});
  kernel = static_cast<int>(c.integer(p + "shortconv.l_cache", 2, kMaxTaps));
  s.ropes.push_back(rope_from_gguf(c, arch, rope_base_or(c, p + "rope.freq_base", 10000), s.head_dim, s.max_positions));
  if (arch != "lfm2moe") return s;
  s.route.n_experts = static_cast<int>(c.integer(p + "expert_count", 1, kMaxWidth));
  s.route.top_k = static_cast<int>(c.integer(p + "expert_used_count", 1, kMaxWidth));
  s.expert_width = static_cast<int>(c.integer(p + "expert_feed_forward_length", 1, kMaxWidth));
  s.route.scale = scale_or(c, p + "expert_weights_scale", 1);
  if (c.integer_or(p + "expert_gating_func", 1, 0, 100) != 2) c.error(Code::kUnsupported, "must be 2 (sigmoid)", p + "expert_gating_func");
  dense_until(c.integer_or(p + "leading_dense_block_count", 0, 0, kMaxWidth), s);
  return s;
}

Result<Graph> build(SourceFormat format, const std::string& config_json, Weights& weights, const BuildOptions& options) {
  CARREL_ASSIGN(const ConfigReader root, ConfigReader::parse(config_json));
  const ConfigReader c = text_section(root);
  int kernel = 0;
  DecoderSpec s = format == SourceFormat::kGguf ? read_gguf(c, weights, kernel) : read_hf(root, c, weights, kernel);
  s.names = names();
  s.qk_norm = true;
  s.attention_biases = s.mlp_biases = Biases::kNever;
  s.selection_bias = true;
  s.route.score = RouteScore::kSigmoid;
  s.route.normalize_eps = 1e-6f;
  s.mixer = std::make_shared<ShortConvMixer>(s.hidden, kernel);
  CARREL_TRY(c.status());
  return build_decoder(s, weights, options);
}

}  // namespace

Family lfm2_family() {
  return {"lfm2", {"lfm2", "lfm2_moe"}, {"lfm2", "lfm2moe"}, build};
}

}  // namespace carrel
