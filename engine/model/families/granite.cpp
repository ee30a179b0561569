// Granite 4.0 H (architectures reference, 6.1 and 6.2): Mamba2 in most layers, attention with or without rope in the others, experts beside
// a shared MLP or that MLP alone, and four multipliers.
//
// GGUF: rows of q and k come as rotary pairs, `ssm_a` is -exp(A_log), `rope.scaling.finetuned` says whether there is rope, logits are
// divided by `logit_scale`, and without experts the shared MLP goes by the names of a plain one.
#include <algorithm>
#include <cmath>

#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/families.h"
#include "engine/model/families/numbers.h"
#include "engine/model/families/recurrent.h"
#include "engine/model/families/rope.h"

namespace carrel {

namespace {

struct SsmSizes {
  int n_heads = 0, head_dim = 0, n_groups = 0, state_dim = 0, kernel = 0;
  Biases biases = Biases::kWherePresent;  // of in and out
  int inner() const { return n_heads * head_dim; }
  int conv_width() const { return inner() + 2 * n_groups * state_dim; }
};

constexpr NamePair kIn = {"mamba.in_proj", "ssm_in"}, kConv = {"mamba.conv1d", "ssm_conv1d"}, kDecay = {"mamba.A_log", "ssm_a"},
                   kD = {"mamba.D", "ssm_d"}, kDtBias = {"mamba.dt_bias", "ssm_dt.bias"}, kNorm = {"mamba.norm.weight", "ssm_norm.weight"},
                   kOut = {"mamba.out_proj", "ssm_out"};

class SsmMixer final : public RecurrentMixer {
 public:
  explicit SsmMixer(const SsmSizes& sizes) : m_(sizes) {}

  void declare(GraphBuilder& b, int n_layers) override {
    conv_group_ = b.add_group(conv_registers(n_layers, m_.conv_width(), m_.kernel));
    state_group_ = b.add_group({"ssm", StateKind::kRecurrent, n_layers, 0, m_.head_dim, m_.n_heads * m_.state_dim, 0, DType::kF32});
  }

  ValueId emit(DecoderParts& parts, int i, int nth, const std::string& name, ValueId x) override {
    GraphBuilder& b = parts.b;
    const int hidden = parts.s.hidden, inner = m_.inner(), conv_width = m_.conv_width();
    // Rows of the input projection: z, then x, B and C, then dt.
    const int64_t n_rows = int64_t{inner} + conv_width + m_.n_heads;
    const std::string in = parts.at(i, kIn);
    const float* bias = parts.bias_of(in + ".bias", static_cast<int>(n_rows), m_.biases);
    const auto rows = [&](const char* what, int64_t begin, int64_t n) {
      return b.linear(name + what, b.slice(in + ".weight", n_rows, begin, n, hidden), x, bias ? bias + begin : nullptr);
    };
    const ValueId z = rows("z", 0, inner), xbc = rows("xbc", inner, conv_width), dt = rows("dt", inner + conv_width, m_.n_heads);
    ShortConvArgs conv;
    conv.n_channels = conv_width;
    conv.kernel = m_.kernel;
    conv.weight = conv_taps(b, parts.at(i, kConv, ".weight"), conv_width, m_.kernel);
    conv.bias = b.vector(parts.at(i, kConv, ".bias"), conv_width);
    conv.silu = true;
    const ValueId u = b.short_conv(name + "conv", xbc, conv, b.registers(conv_group_, nth));
    SsmArgs args;
    args.n_heads = m_.n_heads;
    args.head_dim = m_.head_dim;
    args.n_groups = m_.n_groups;
    args.state_dim = m_.state_dim;
    args.a = decay_rates(b, parts.at(i, kDecay), m_.n_heads, !parts.s.gguf);
    args.d = b.vector(parts.at(i, kD), m_.n_heads);
    args.dt_bias = b.vector(parts.at(i, kDtBias), m_.n_heads);
    const ValueId y = b.ssm_scan(name + "ssm", u, dt, args, b.registers(state_group_, nth));
    // Gate first, then a norm per group.
    const ValueId gated = b.gated(name + "ssm_gated", Act::kSilu, z, y, 0);
    const ValueId normed =
        b.rms_norm(name + "ssm_norm", gated, b.vector(parts.at(i, kNorm), inner), parts.s.eps, inner / m_.n_groups, m_.n_groups);
    return parts.project(i, name + "attn_out", kOut, hidden, inner, normed, m_.biases);
  }

 private:
  SsmSizes m_;
  int conv_group_ = 0, state_group_ = 0;
};

// ------------------------------------------------------------------ config

void check_sizes(const ConfigReader& c, const SsmSizes& m, const char* key) {
  const int64_t inner = int64_t{m.n_heads} * m.head_dim, groups = int64_t{m.n_groups} * m.state_dim;
  if (m.n_heads % m.n_groups != 0) c.error(Code::kCorrupt, "the groups do not divide the mixer's heads", key);
  if (inner > kMaxWidth || groups > kMaxWidth || inner * m.state_dim > kMaxRegisterElems)
    c.error(Code::kCorrupt, "heads times dimensions are out of range", key);
}

SsmSizes read_mixer_hf(const ConfigReader& c, int hidden) {
  SsmSizes m;
  const auto count = [&](const char* key, int64_t fallback) { return static_cast<int>(c.integer_or(key, fallback, 1, kMaxWidth)); };
  m.n_heads = count("mamba_n_heads", 128);
  m.n_groups = count("mamba_n_groups", 1);
  m.state_dim = count("mamba_d_state", 256);
  m.kernel = static_cast<int>(c.integer_or("mamba_d_conv", 4, 2, kMaxTaps));
  const int64_t inner = int64_t{count("mamba_expand", 2)} * hidden;
  const bool given = c.has("mamba_d_head") && !c.is_text("mamba_d_head");  // else "auto"
  m.head_dim = given ? count("mamba_d_head", 1) : static_cast<int>(std::clamp<int64_t>(inner / m.n_heads, 1, kMaxWidth));
  if (int64_t{m.n_heads} * m.head_dim != inner)
    c.error(Code::kCorrupt, "times mamba_n_heads is not mamba_expand times hidden_size", "mamba_d_head");
  m.biases = c.flag_or("mamba_proj_bias", false) ? Biases::kAlways : Biases::kNever;
  require_flag(c, "mamba_conv_bias", true);
  // Any other range is one thing to a prompt and another to the next token in the reference.
  const std::vector<double> limits = c.numbers("time_step_limit", INFINITY);
  if (!limits.empty() && limits != std::vector<double>{0, INFINITY})
    c.error(Code::kUnsupported, "must be [0, Infinity]", "time_step_limit");
  check_sizes(c, m, "mamba_n_heads");
  return m;
}

void read_mlp_hf(const ConfigReader& c, DecoderSpec& s) {
  const int n_experts = static_cast<int>(c.integer_or("num_local_experts", 0, 0, kMaxWidth));
  const int width = static_cast<int>(c.integer("shared_intermediate_size", 1, kMaxWidth));
  if (n_experts == 0) {
    s.ffn_width = width;
    return;
  }
  s.shared_width = width;
  s.route.n_experts = n_experts;
  s.route.top_k = static_cast<int>(c.integer("num_experts_per_tok", 1, kMaxWidth));
  s.expert_width = static_cast<int>(c.integer("intermediate_size", 1, kMaxWidth));
}

/// Smaller models of the family are attention alone, and their mixer's keys mean nothing.
bool any_recurrent(const DecoderSpec& s) {
  return std::any_of(s.layers.begin(), s.layers.end(), [](const DecoderLayer& l) { return l.recurrent; });
}

DecoderSpec read_hf(const ConfigReader& c, Weights& weights, SsmSizes& m) {
  DecoderSpec s = read_decoder_hf(c, {.ffn_width = nullptr});
  s.prefix = find_prefix(weights);
  const char* key = c.has("layer_types") ? "layer_types" : "layers_block_type";
  if (!read_recurrent_types(c, key, {{"mamba", "linear_attention"}, {"attention", "full_attention"}}, s))
    c.error(Code::kCorrupt, "is missing", "layer_types");
  if (any_recurrent(s)) m = read_mixer_hf(c, s.hidden);
  read_mlp_hf(c, s);
  s.attention_scale = scale_of(c, "attention_multiplier");
  s.embed_scale = scale_of(c, "embedding_multiplier");
  s.residual_scale = scale_of(c, "residual_multiplier");
  s.logit_scale = 1 / scale_of(c, "logits_scaling");
  s.attention_biases = c.flag_or("attention_bias", false) ? Biases::kAlways : Biases::kNever;
  const bool rope = c.text_or("position_embedding_type", "nope") == "rope";
  const RopeSpec table = read_rope_hf(c, s, 10000);  // checked where it is not used, too
  if (rope) s.ropes.push_back(table);
  for (DecoderLayer& l : s.layers) l.rope = rope ? 0 : kNoRope;
  require_text(c, "hidden_act", "silu");
  require_text(c, "normalization_function", "rmsnorm");
  return s;
}

SsmSizes read_mixer_gguf(const ConfigReader& c, const std::string& p) {
  SsmSizes m;
  const auto count = [&](const char* key) { return static_cast<int>(c.integer(p + key, 1, kMaxWidth)); };
  m.n_heads = count("ssm.time_step_rank");
  m.n_groups = count("ssm.group_count");
  m.state_dim = count("ssm.state_size");
  m.kernel = static_cast<int>(c.integer(p + "ssm.conv_kernel", 2, kMaxTaps));
  const std::string inner = p + "ssm.inner_size";
  m.head_dim = std::max(count("ssm.inner_size") / m.n_heads, 1);
  if (m.head_dim * int64_t{m.n_heads} != c.integer(inner, 1, kMaxWidth))
    c.error(Code::kCorrupt, "is no multiple of the mixer's heads", inner);
  check_sizes(c, m, inner.c_str());
  return m;
}

DecoderSpec read_gguf(const ConfigReader& c, Weights& weights, SsmSizes& m) {
  const std::string arch = "granitehybrid", p = "granitehybrid.";
  DecoderSpec s = read_decoder_gguf(c, arch, weights, {.recurrent_by_kv_heads = true});
  const auto count = [&](const char* key) { return static_cast<int>(c.integer(p + key, 1, kMaxWidth)); };
  if (any_recurrent(s)) m = read_mixer_gguf(c, p);
  s.route.n_experts = static_cast<int>(c.integer_or(p + "expert_count", 0, 0, kMaxWidth));
  if (s.route.n_experts > 0) {
    s.route.top_k = count("expert_used_count");
    s.expert_width = s.ffn_width;
    s.shared_width = count("expert_shared_feed_forward_length");
  } else if (c.has(p + "expert_shared_feed_forward_length")) {
    s.ffn_width = count("expert_shared_feed_forward_length");
  }
  s.attention_scale = scale_of(c, p + "attention.scale");
  s.embed_scale = scale_of(c, p + "embedding_scale");
  s.residual_scale = scale_of(c, p + "residual_scale");
  s.logit_scale = 1 / scale_of(c, p + "logit_scale");
  s.unpair = true;
  const bool rope = c.flag_or(p + "rope.scaling.finetuned", true);
  const RopeSpec table = rope_from_gguf(c, arch, rope_base_or(c, p + "rope.freq_base", 10000), s.head_dim, s.max_positions);
  if (rope) s.ropes.push_back(table);
  for (DecoderLayer& l : s.layers) l.rope = rope ? 0 : kNoRope;
  return s;
}

Result<Graph> build(SourceFormat format, const std::string& config_json, Weights& weights, const BuildOptions& options) {
  CARREL_ASSIGN(const ConfigReader c, ConfigReader::parse(config_json));
  SsmSizes m;
  DecoderSpec s = format == SourceFormat::kGguf ? read_gguf(c, weights, m) : read_hf(c, weights, m);
  const bool moe = s.route.n_experts > 0;
  const MlpNames shared = {{"", moe ? "ffn_gate_shexp" : "ffn_gate"},
                           {"", moe ? "ffn_up_shexp" : "ffn_up"},
                           {"shared_mlp.output_linear", moe ? "ffn_down_shexp" : "ffn_down"},
                           "shared_mlp.input_linear"};
  (moe ? s.names.shared : s.names.mlp) = shared;
  s.names.router.hf = "block_sparse_moe.router.layer";
  s.names.experts.joined = "block_sparse_moe.input_linear.weight";
  s.names.experts.joined_down = "block_sparse_moe.output_linear.weight";
  s.route.score = RouteScore::kSoftmaxOfChosen;
  s.mlp_biases = Biases::kNever;
  s.mixer = std::make_shared<SsmMixer>(m);
  for (DecoderLayer& l : s.layers) l.moe = moe;
  CARREL_TRY(c.status());
  return build_decoder(s, weights, options);
}

}  // namespace

Family granite_family() {
  return {"granitemoehybrid", {"granitemoehybrid"}, {"granitehybrid"}, build};
}

}  // namespace carrel
