// DeepSeek-V4 (architectures reference, section 2): four or so residual streams mixed by mHC; attention over a window in every layer plus
// compressed rows chosen by an indexer (CSA) or all of them (HCA); hash-routed and scored experts.
//
// Reads both config dialects, the three spellings of tensor names (2.2), each with plain weights or with e4m3 and packed e2m1 ones whose
// scales lie beside (2.3), and GGUF `deepseek4`. Which a weight is, its tensor says. `mtp.*` (draft layers) is not read.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "engine/model/config_reader.h"
#include "engine/model/families/families.h"
#include "engine/model/families/numbers.h"
#include "engine/model/families/rope.h"
#include "engine/model/graph_builder.h"
#include "kernels/packed_rows.h"

namespace carrel {

namespace {

enum class LayerKind { kWindow, kCsa, kHca };

struct Layer {
  LayerKind kind = LayerKind::kWindow;
  bool hash = false;
  float clamp = 0, shared_clamp = 0;
};

struct V4Config {
  int hidden = 0, vocab = 0, n_heads = 0, head_dim = 0, rope_dims = 0, q_rank = 0, o_groups = 0, o_rank = 0, window = 0;
  int index_heads = 0, index_dim = 0, index_topk = 0;
  int n_experts = 0, top_k = 0, expert_width = 0;
  bool normalize = true;
  float route_scale = 1;
  int n_streams = 4, sinkhorn = 20;
  float hc_eps = 1e-6f, eps = 1e-6f;
  int max_positions = 0;
  int csa_ratio = 4, hca_ratio = 128;
  bool tied = false;
  std::vector<Layer> layers;
  RopeSpec window_rope, compress_rope;
};

// ------------------------------------------------------------------ config

constexpr int kNoLayer = -1;
constexpr int kMaxLayers = 1024, kMaxWidth = 1 << 20, kMaxPositions = 1 << 30, kMaxRatio = 1 << 12, kMaxTopk = 1 << 14, kMaxBlock = 1 << 13;

/// Ratios by layer: 0 window, 4 CSA (overlap and indexer follow the kind), another HCA. Entries past the last layer belong to draft layers.
void kinds_from_ratios(const ConfigReader& c, const std::string& key, int n_layers, V4Config& out) {
  const std::vector<int64_t> ratios = c.integers(key);
  if (ratios.size() < static_cast<size_t>(n_layers)) {
    c.error(Code::kCorrupt, "has fewer entries than the model has layers", key);
    return;
  }
  int hca = 0;
  for (int i = 0; i < n_layers; ++i) {
    const int64_t r = ratios[static_cast<size_t>(i)];
    if (r < 0 || r > kMaxRatio || (r > 4 && hca != 0 && r != hca) || (r > 0 && r < 4)) {
      c.error(Code::kUnsupported, "only 0, 4 and one larger ratio can be mixed", key);
      return;
    }
    out.layers[static_cast<size_t>(i)].kind = r == 0 ? LayerKind::kWindow : r == 4 ? LayerKind::kCsa : LayerKind::kHca;
    if (r > 4) hca = static_cast<int>(r);
  }
  out.csa_ratio = 4;
  if (hca != 0) out.hca_ratio = hca;
}

void kinds_from_types(const ConfigReader& c, int n_layers, V4Config& out) {
  const std::vector<std::string> types = c.texts("layer_types");
  if (types.size() < static_cast<size_t>(n_layers)) {
    c.error(Code::kCorrupt, "has fewer entries than the model has layers", "layer_types");
    return;
  }
  for (int i = 0; i < n_layers; ++i) {
    const std::string& t = types[static_cast<size_t>(i)];
    LayerKind& kind = out.layers[static_cast<size_t>(i)].kind;
    if (t == "sliding_attention") {
      kind = LayerKind::kWindow;
    } else if (t == "compressed_sparse_attention") {
      kind = LayerKind::kCsa;
    } else if (t == "heavily_compressed_attention") {
      kind = LayerKind::kHca;
    } else {
      c.error(Code::kUnsupported, "'" + t + "' is not a layer type of deepseek_v4", "layer_types");
    }
  }
  const ConfigReader rates = c.section("compress_rates");
  out.csa_ratio = static_cast<int>(rates.integer_or("compressed_sparse_attention", 4, 1, kMaxRatio));
  out.hca_ratio = static_cast<int>(rates.integer_or("heavily_compressed_attention", 128, 1, kMaxRatio));
}

void hash_layers_from_hf(const ConfigReader& c, int n_layers, V4Config& out) {
  const std::vector<std::string> types = c.texts("mlp_layer_types");
  const int64_t n_hash = c.integer_or("num_hash_layers", 0, 0, kMaxLayers);
  if (!types.empty() && types.size() < static_cast<size_t>(n_layers)) {
    c.error(Code::kCorrupt, "has fewer entries than the model has layers", "mlp_layer_types");
    return;
  }
  for (int i = 0; i < n_layers; ++i) {
    out.layers[static_cast<size_t>(i)].hash = types.empty() ? i < n_hash : types[static_cast<size_t>(i)] == "hash_moe";
  }
}

/// What the published checkpoints say of their weights; anything else would be read wrongly.
void check_quantization(const ConfigReader& c) {
  const std::string experts = c.text_or("expert_dtype", "fp8");
  if (experts != "fp4" && experts != "fp8")
    c.error(Code::kUnsupported, "'" + experts + "' is no type of experts that is read", "expert_dtype");
  if (!c.has("quantization_config")) return;
  const ConfigReader q = c.section("quantization_config");
  const auto only = [&](const char* key, std::initializer_list<std::string_view> known) {
    const std::string is = q.text_or(key, std::string(*known.begin()));
    if (std::find(known.begin(), known.end(), is) != known.end()) return;
    c.error(Code::kUnsupported,
            "'" + is +
                "' is not read, only fp8 weights of e4m3 in blocks of 128 x 128; use such a copy of the model, a "
                "BF16 copy or a GGUF file",
            "quantization_config." + std::string(key));
  };
  only("quant_method", {"fp8"});
  only("fmt", {"e4m3"});
  only("scale_fmt", {"ue8m0", "float"});
  only("activation_scheme", {"dynamic"});
  if (q.has("weight_block_size") && q.integers("weight_block_size") != std::vector<int64_t>{128, 128})
    c.error(Code::kUnsupported, "only blocks of 128 x 128 are read", "quantization_config.weight_block_size");
}

void ropes_from_hf(const ConfigReader& c, V4Config& out) {
  const ConfigReader params = c.section("rope_parameters");
  const double theta = rope_base_or(params.section("main"), "rope_theta", rope_base_or(c, "rope_theta", 10000));
  const double compress_theta = rope_base_or(params.section("compress"), "rope_theta", rope_base_or(c, "compress_rope_theta", 160000));
  out.window_rope.inv_freq = rope_frequencies(theta, out.rope_dims);
  const ConfigReader scaling = params.has("compress") ? params.section("compress") : c.section("rope_scaling");
  out.compress_rope = rope_from_section(scaling, compress_theta, out.rope_dims, out.max_positions);
  out.compress_rope.mscale = 1;  // 1.2: this family scales neither cos nor sin
}

V4Config read_hf(const ConfigReader& c) {
  V4Config o;
  check_quantization(c);
  const int n_layers = static_cast<int>(c.integer("num_hidden_layers", 1, kMaxLayers));
  o.layers.resize(static_cast<size_t>(n_layers));
  const auto dim = [&](const char* key) { return static_cast<int>(c.integer(key, 1, kMaxWidth)); };
  o.hidden = dim("hidden_size");
  o.vocab = static_cast<int>(c.integer("vocab_size", 1, 1 << 24));
  o.n_heads = dim("num_attention_heads");
  o.head_dim = dim("head_dim");
  o.rope_dims = c.has("qk_rope_head_dim") ? dim("qk_rope_head_dim")
                                          : static_cast<int>(std::lround(c.number_or("partial_rotary_factor", 0.125) * o.head_dim));
  o.q_rank = dim("q_lora_rank");
  o.o_groups = dim("o_groups");
  o.o_rank = dim("o_lora_rank");
  o.window = dim("sliding_window");
  o.max_positions = static_cast<int>(c.integer("max_position_embeddings", 1, kMaxPositions));
  if (c.has("layer_types")) {
    kinds_from_types(c, n_layers, o);
  } else {
    kinds_from_ratios(c, "compress_ratios", n_layers, o);
  }
  hash_layers_from_hf(c, n_layers, o);
  o.index_heads = static_cast<int>(c.integer_or("index_n_heads", 64, 1, kMaxWidth));
  o.index_dim = static_cast<int>(c.integer_or("index_head_dim", 128, 1, kMaxWidth));
  o.index_topk = static_cast<int>(c.integer_or("index_topk", 512, 1, kMaxTopk));
  o.n_experts = dim("n_routed_experts");
  o.top_k = dim("num_experts_per_tok");
  o.expert_width = dim("moe_intermediate_size");
  if (c.text_or("scoring_func", "sqrtsoftplus") != "sqrtsoftplus") c.error(Code::kUnsupported, "must be sqrtsoftplus", "scoring_func");
  if (c.integer_or("n_shared_experts", 1, 0, kMaxWidth) != 1) c.error(Code::kUnsupported, "must be 1", "n_shared_experts");
  o.normalize = c.flag_or("norm_topk_prob", true);
  o.route_scale = scale_or(c, "routed_scaling_factor", 1);
  for (Layer& l : o.layers) l.clamp = l.shared_clamp = limit_or_none(c, "swiglu_limit");
  o.n_streams = static_cast<int>(c.integer_or("hc_mult", 4, 1, 64));
  o.sinkhorn = static_cast<int>(c.integer_or("hc_sinkhorn_iters", 20, 1, 1000));
  o.hc_eps = eps_or(c, "hc_eps", 1e-6);
  o.eps = eps_of(c, "rms_norm_eps");
  o.tied = c.flag_or("tie_word_embeddings", false);
  ropes_from_hf(c, o);
  return o;
}

void clamps_from_gguf(const ConfigReader& c, const std::string& p, V4Config& o) {
  std::vector<double> exp = c.numbers(p + "swiglu_clamp_exp"), shared = c.numbers(p + "swiglu_clamp_shexp");
  if (shared.empty()) shared = exp;
  if (exp.empty()) return;
  if (exp.size() < o.layers.size() || shared.size() < o.layers.size()) {
    c.error(Code::kCorrupt, "has fewer entries than the model has layers", p + "swiglu_clamp_exp");
    return;
  }
  for (size_t i = 0; i < o.layers.size(); ++i) {
    for (const double limit : {exp[i], shared[i]})
      if (limit != 0 && !(limit >= kSmallestScale && limit <= kLargestScale))
        c.error(Code::kCorrupt, "holds a limit out of range", p + "swiglu_clamp_exp");
    o.layers[i].clamp = static_cast<float>(exp[i]);
    o.layers[i].shared_clamp = static_cast<float>(shared[i]);
  }
}

V4Config read_gguf(const ConfigReader& c, Weights& weights) {
  V4Config o;
  const std::string p = "deepseek4.", a = p + "attention.";
  const auto dim = [&](const std::string& key) { return static_cast<int>(c.integer(key, 1, kMaxWidth)); };
  const int n_layers = static_cast<int>(c.integer(p + "block_count", 1, kMaxLayers));
  o.layers.resize(static_cast<size_t>(n_layers));
  o.hidden = dim(p + "embedding_length");
  const std::vector<int64_t> embed = weights.shape("token_embd.weight");
  o.vocab = embed.size() == 2 ? static_cast<int>(std::min<int64_t>(embed[0], 1 << 24)) : 1;
  o.n_heads = dim(a + "head_count");
  o.head_dim = dim(a + "key_length");
  o.rope_dims = dim(p + "rope.dimension_count");
  o.q_rank = dim(a + "q_lora_rank");
  o.o_groups = dim(a + "output_group_count");
  o.o_rank = dim(a + "output_lora_rank");
  o.window = dim(a + "sliding_window");
  o.max_positions = static_cast<int>(c.integer(p + "context_length", 1, kMaxPositions));
  kinds_from_ratios(c, a + "compress_ratios", n_layers, o);
  const int64_t n_hash = c.integer_or(p + "hash_layer_count", 0, 0, kMaxLayers);
  for (int i = 0; i < n_layers; ++i) o.layers[static_cast<size_t>(i)].hash = i < n_hash;
  o.index_heads = dim(a + "indexer.head_count");
  o.index_dim = dim(a + "indexer.key_length");
  o.index_topk = static_cast<int>(c.integer(a + "indexer.top_k", 1, kMaxTopk));
  o.n_experts = dim(p + "expert_count");
  o.top_k = dim(p + "expert_used_count");
  o.expert_width = dim(p + "expert_feed_forward_length");
  if (c.integer_or(p + "expert_gating_func", 4, 0, 100) != 4)
    c.error(Code::kUnsupported, "must be 4 (sqrt softplus)", p + "expert_gating_func");
  if (c.integer_or(p + "expert_shared_count", 1, 0, kMaxWidth) != 1) c.error(Code::kUnsupported, "must be 1", p + "expert_shared_count");
  o.normalize = c.flag_or(p + "expert_weights_norm", false);
  o.route_scale = scale_or(c, p + "expert_weights_scale", 1);
  clamps_from_gguf(c, p, o);
  o.n_streams = static_cast<int>(c.integer_or(p + "hyper_connection.count", 4, 1, 64));
  o.sinkhorn = static_cast<int>(c.integer_or(p + "hyper_connection.sinkhorn_iterations", 20, 1, 1000));
  o.hc_eps = eps_or(c, p + "hyper_connection.epsilon", 1e-6);
  o.eps = eps_of(c, a + "layer_norm_rms_epsilon");
  o.tied = !weights.has("output.weight");
  o.window_rope.inv_freq = rope_frequencies(rope_base_or(c, p + "rope.freq_base", 10000), o.rope_dims);
  o.compress_rope = rope_from_gguf(c, "deepseek4", rope_base_or(c, a + "compress_rope_freq_base", 160000), o.rope_dims, o.max_positions);
  o.compress_rope.mscale = 1;
  return o;
}

Status check_sizes(const V4Config& o) {
  const auto bad = [](const std::string& what) { return fail(Code::kCorrupt, what, "deepseek_v4 configuration"); };
  if (o.rope_dims <= 0 || o.rope_dims % 2 != 0 || o.rope_dims > o.head_dim)
    return bad("the rotary dimensions do not fit the head dimension");
  if (o.rope_dims > o.index_dim) return bad("the rotary dimensions do not fit the indexer's head dimension");
  if (int64_t{o.n_heads} * o.head_dim > kMaxWidth * 16LL) return bad("heads times head dimension is out of range");
  if (o.n_heads % o.o_groups != 0) return bad("the output groups do not divide the heads");
  if (std::lcm(std::lcm(o.csa_ratio, o.hca_ratio), 64) > kMaxBlock)
    return bad("the compression ratios have no common block of 8192 tokens or less");
  if (o.top_k > o.n_experts) return bad("more experts per token than experts");
  return {};
}

/// The published row formats (2.3, 2.12), of one geometry.
Status check_packed(const V4Config& o) {
  const bool indexed = std::any_of(o.layers.begin(), o.layers.end(), [](const Layer& l) { return l.kind == LayerKind::kCsa; });
  if (o.rope_dims == kPackedRotary && packed_fits(DType::kPackedKv, o.head_dim) &&
      (!indexed || packed_fits(DType::kPackedIndex, o.index_dim)))
    return {};
  return fail(
      Code::kUnsupported,
      "packed rows need heads of 64 rotary dimensions and a multiple of 64 others, and an indexer of 32 to 1024 dimensions, a power of "
      "two; this model has " +
          std::to_string(o.rope_dims) + " of " + std::to_string(o.head_dim) + ", and " + std::to_string(o.index_dim) +
          "; use auto, f32 or bf16",
      "model.kv_dtype");
}

// ------------------------------------------------------------------ tensor names

struct Spelling {
  const char* published;
  const char* resaved;  // null: as published
  const char* module;
  const char* gguf;
};

// Behind "layers.N." (published), "model.layers.N." (both Hugging Face spellings), "blk.N." (GGUF).
constexpr Spelling kAttnNorm = {"attn_norm.weight", nullptr, "input_layernorm.weight", "attn_norm.weight"};
constexpr Spelling kFfnNorm = {"ffn_norm.weight", nullptr, "post_attention_layernorm.weight", "ffn_norm.weight"};
constexpr Spelling kHcAttn[] = {{"hc_attn_fn", nullptr, "attn_hc.fn", "hc_attn_fn.weight"},
                                {"hc_attn_scale", nullptr, "attn_hc.scale", "hc_attn_scale.weight"},
                                {"hc_attn_base", nullptr, "attn_hc.base", "hc_attn_base.weight"}};
constexpr Spelling kHcFfn[] = {{"hc_ffn_fn", nullptr, "ffn_hc.fn", "hc_ffn_fn.weight"},
                               {"hc_ffn_scale", nullptr, "ffn_hc.scale", "hc_ffn_scale.weight"},
                               {"hc_ffn_base", nullptr, "ffn_hc.base", "hc_ffn_base.weight"}};
constexpr Spelling kQa = {"attn.wq_a.weight", nullptr, "self_attn.q_a_proj.weight", "attn_q_a.weight"};
constexpr Spelling kQNorm = {"attn.q_norm.weight", nullptr, "self_attn.q_a_norm.weight", "attn_q_a_norm.weight"};
constexpr Spelling kQb = {"attn.wq_b.weight", nullptr, "self_attn.q_b_proj.weight", "attn_q_b.weight"};
constexpr Spelling kKv = {"attn.wkv.weight", nullptr, "self_attn.kv_proj.weight", "attn_kv.weight"};
constexpr Spelling kKvNorm = {"attn.kv_norm.weight", "attn.norm.weight", "self_attn.kv_norm.weight", "attn_kv_a_norm.weight"};
constexpr Spelling kOa = {"attn.wo_a.weight", nullptr, "self_attn.o_a_proj.weight", "attn_output_a.weight"};
constexpr Spelling kOb = {"attn.wo_b.weight", nullptr, "self_attn.o_b_proj.weight", "attn_output_b.weight"};
constexpr Spelling kSink = {"attn.attn_sink", nullptr, "self_attn.sinks", "attn_sinks.weight"};

struct CompressorNames {
  Spelling kv, gate, ape, norm;
};
constexpr CompressorNames kMain = {
    {"attn.compressor.wkv.weight", nullptr, "self_attn.compressor.kv_proj.weight", "attn_compressor_kv.weight"},
    {"attn.compressor.wgate.weight", nullptr, "self_attn.compressor.gate_proj.weight", "attn_compressor_gate.weight"},
    {"attn.compressor.ape", nullptr, "self_attn.compressor.position_bias", "attn_compressor_ape.weight"},
    {"attn.compressor.norm.weight", nullptr, "self_attn.compressor.kv_norm.weight", "attn_compressor_norm.weight"}};
constexpr CompressorNames kIndexer = {
    {"attn.indexer.compressor.wkv.weight", nullptr, "self_attn.compressor.indexer.kv_proj.weight", "indexer_compressor_kv.weight"},
    {"attn.indexer.compressor.wgate.weight", nullptr, "self_attn.compressor.indexer.gate_proj.weight", "indexer_compressor_gate.weight"},
    {"attn.indexer.compressor.ape", nullptr, "self_attn.compressor.indexer.position_bias", "indexer_compressor_ape.weight"},
    {"attn.indexer.compressor.norm.weight", nullptr, "self_attn.compressor.indexer.kv_norm.weight", "indexer_compressor_norm.weight"}};
constexpr Spelling kIndexQ = {"attn.indexer.wq_b.weight", nullptr, "self_attn.compressor.indexer.q_b_proj.weight",
                              "indexer.attn_q_b.weight"};
constexpr Spelling kIndexW = {"attn.indexer.weights_proj.weight", nullptr, "self_attn.compressor.indexer.scorer.weights_proj.weight",
                              "indexer.proj.weight"};
constexpr Spelling kRouter = {"ffn.gate.weight", nullptr, "mlp.gate.weight", "ffn_gate_inp.weight"};
constexpr Spelling kRouterBias = {"ffn.gate.bias", nullptr, "mlp.gate.e_score_correction_bias", "exp_probs_b.bias"};
constexpr Spelling kHashTable = {"ffn.gate.tid2eid", nullptr, "mlp.gate.tid2eid", "ffn_gate_tid2eid.weight"};
constexpr Spelling kShared[] = {{"ffn.shared_experts.w1.weight", nullptr, "mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"},
                                {"ffn.shared_experts.w3.weight", nullptr, "mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
                                {"ffn.shared_experts.w2.weight", nullptr, "mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"}};

// Whole names.
constexpr Spelling kEmbed = {"embed.weight", "model.embed_tokens.weight", "model.embed_tokens.weight", "token_embd.weight"};
constexpr Spelling kHead = {"head.weight", "head.weight", "lm_head.weight", "output.weight"};
constexpr Spelling kNorm = {"norm.weight", "model.norm.weight", "model.norm.weight", "output_norm.weight"};
constexpr Spelling kHcHead[] = {{"hc_head_fn", "model.hc_head.hc_fn", "model.hc_head.hc_fn", "output_hc_fn.weight"},
                                {"hc_head_scale", "model.hc_head.hc_scale", "model.hc_head.hc_scale", "output_hc_scale.weight"},
                                {"hc_head_base", "model.hc_head.hc_base", "model.hc_head.hc_base", "output_hc_base.weight"}};

// ------------------------------------------------------------------ the model

class V4Builder {
 public:
  V4Builder(Weights* weights, V4Config config, SourceFormat format, DType kv_dtype)
      : c_(std::move(config)), gguf_(format == SourceFormat::kGguf), kv_dtype_(kv_dtype), b_(weights) {}

  Result<Graph> build() {
    window_table_ = b_.add_rope(c_.window_rope);
    compress_table_ = b_.add_rope(c_.compress_rope);
    declare_state();
    const Matrix table = b_.matrix(global(kEmbed), c_.vocab, c_.hidden);
    const ValueId h = b_.embed("embed", table, c_.hidden, 1);
    ValueId x = b_.repeat("streams", h, c_.n_streams);
    for (int i = 0; i < static_cast<int>(c_.layers.size()) && b_.ok(); ++i) x = layer(i, x);
    const ValueId out = b_.gather_outputs("out_streams", x);
    const ValueId y = b_.hc_head("head_in", hc_args(kHcHead, kNoLayer, c_.n_streams, 1), out);
    const ValueId normed = b_.rms_norm("head_norm", y, b_.vector(global(kNorm), c_.hidden), c_.eps);
    const bool tied = c_.tied && !b_.has(global(kHead));
    const ValueId logits = b_.linear("logits", tied ? table : b_.matrix(global(kHead), c_.vocab, c_.hidden), normed);
    return b_.finish(logits, c_.max_positions);
  }

 private:
  std::string first_present(const std::array<std::string, 3>& hf) const {
    for (const std::string& name : hf) {
      if (b_.has(name)) return name;
    }
    return hf[0];
  }
  std::string global(const Spelling& s) const { return gguf_ ? s.gguf : first_present({s.published, s.resaved, s.module}); }
  /// Name of a tensor of layer i in whichever spelling the checkpoint uses.
  std::string at(int i, const Spelling& s) const {
    const std::string n = std::to_string(i) + ".";
    if (gguf_) return "blk." + n + s.gguf;
    return first_present(
        {"layers." + n + s.published, "model.layers." + n + (s.resaved ? s.resaved : s.published), "model.layers." + n + s.module});
  }

  /// The tensor of scales beside a weight, in either spelling; empty: there is none. It is looked for beside weights only: attn_hc.scale
  /// scales nothing.
  std::string scales_of(const std::string& weight) const {
    if (gguf_) return {};
    const std::string suffix = ".weight";
    std::string stem = weight;
    if (stem.ends_with(suffix)) stem.resize(stem.size() - suffix.size());
    for (const std::string& name : {stem + ".scale", weight + "_scale_inv"}) {
      if (b_.has(name)) return name;
    }
    return {};
  }
  /// Rows [row_begin, row_begin + rows) of a weight of total_rows rows of cols, plain or with scales.
  Matrix weight_rows(const std::string& tensor, int64_t total_rows, int64_t row_begin, int64_t rows, int64_t cols) {
    const std::string scales = b_.has(tensor) ? scales_of(tensor) : std::string();
    if (scales.empty()) return b_.slice(tensor, total_rows, row_begin, rows, cols);
    MatrixRequest r;
    r.tensor = tensor;
    r.scales = scales;
    r.row_begin = row_begin;
    r.n_rows = rows;
    r.n_cols = cols;
    r.total_rows = total_rows;
    return b_.matrix(r);
  }
  Matrix weight(const std::string& tensor, int64_t rows, int64_t cols) { return weight_rows(tensor, rows, 0, rows, cols); }

  void declare_state() {
    const auto count = [&](LayerKind kind) {
      return static_cast<int>(std::count_if(c_.layers.begin(), c_.layers.end(), [&](const Layer& l) { return l.kind == kind; }));
    };
    const int n_csa = count(LayerKind::kCsa), n_hca = count(LayerKind::kHca);
    const DType index_dtype = kv_dtype_ == DType::kPackedKv ? DType::kPackedIndex : kv_dtype_;
    window_group_ =
        b_.add_group({"window", StateKind::kWindow, static_cast<int>(c_.layers.size()), 1, c_.head_dim, 0, c_.window, kv_dtype_});
    if (n_csa > 0) {
      csa_group_ = b_.add_group({"csa", StateKind::kCompressedKv, n_csa, c_.csa_ratio, c_.head_dim, 0, 0, kv_dtype_});
      index_group_ = b_.add_group({"csa.index", StateKind::kIndexer, n_csa, c_.csa_ratio, c_.index_dim, 0, 0, index_dtype});
      // Seeds are what a pooled row is computed from: float32 always. Row: [c | z] of the low half.
      tail_group_ = b_.add_group({"csa.tail", StateKind::kTail, n_csa, 0, 2 * c_.head_dim, c_.csa_ratio, 0, DType::kF32});
      index_tail_group_ = b_.add_group({"csa.index.tail", StateKind::kTail, n_csa, 0, 2 * c_.index_dim, c_.csa_ratio, 0, DType::kF32});
    }
    if (n_hca > 0) hca_group_ = b_.add_group({"hca", StateKind::kCompressedKv, n_hca, c_.hca_ratio, c_.head_dim, 0, 0, kv_dtype_});
    b_.set_state_layout();
  }

  HcArgs hc_args(const Spelling (&names)[3], int layer, int n_mixes, int n_scales) {
    const auto name = [&](const Spelling& s) { return layer == kNoLayer ? global(s) : at(layer, s); };
    HcArgs a;
    a.n_streams = c_.n_streams;
    a.width = c_.hidden;
    a.n_iters = c_.sinkhorn;
    a.hc_eps = c_.hc_eps;
    a.norm_eps = c_.eps;
    a.fn = b_.vector(name(names[0]), int64_t{n_mixes} * c_.n_streams * c_.hidden);
    a.scale = b_.vector(name(names[1]), n_scales);
    a.base = b_.vector(name(names[2]), n_mixes);
    return a;
  }

  ValueId layer(int i, ValueId x) {
    const std::string p = "layers." + std::to_string(i) + ".";
    const int n_mixes = (2 + c_.n_streams) * c_.n_streams;
    auto mix = b_.hc_pre(p + "attn_hc.", hc_args(kHcAttn, i, n_mixes, 3), x);
    ValueId in = b_.rms_norm(p + "attn_in", mix.y, b_.vector(at(i, kAttnNorm), c_.hidden), c_.eps);
    x = b_.hc_post(p + "attn_streams", attention(i, p, in), x, mix, c_.n_streams);
    mix = b_.hc_pre(p + "ffn_hc.", hc_args(kHcFfn, i, n_mixes, 3), x);
    in = b_.rms_norm(p + "ffn_in", mix.y, b_.vector(at(i, kFfnNorm), c_.hidden), c_.eps);
    return b_.hc_post(p + "out_streams", moe(i, p, in), x, mix, c_.n_streams);
  }

  RopeArgs rope_args(int n_heads, int head_dim, bool inverse = false) const {
    return {n_heads, head_dim, head_dim - c_.rope_dims, c_.rope_dims, /*interleaved=*/true, inverse};
  }

  ValueId attention(int i, const std::string& p, ValueId x) {
    const LayerKind kind = c_.layers[static_cast<size_t>(i)].kind;
    const int table = kind == LayerKind::kWindow ? window_table_ : compress_table_;
    const int q_width = c_.n_heads * c_.head_dim;
    ValueId xq = b_.linear(p + "q_a", weight(at(i, kQa), c_.q_rank, c_.hidden), x);
    xq = b_.rms_norm(p + "q_latent", xq, b_.vector(at(i, kQNorm), c_.q_rank), c_.eps);
    const ValueId q = b_.linear(p + "q", weight(at(i, kQb), q_width, c_.q_rank), xq);
    b_.rms_norm_in_place(q, nullptr, c_.eps, c_.head_dim);
    b_.rope(q, rope_args(c_.n_heads, c_.head_dim), table);
    const ValueId kv = b_.linear(p + "kv", weight(at(i, kKv), c_.head_dim, c_.hidden), x);
    b_.rms_norm_in_place(kv, b_.vector(at(i, kKvNorm), c_.head_dim), c_.eps, c_.head_dim);
    b_.rope(kv, rope_args(1, c_.head_dim), table);
    const StateRows window = b_.rows(window_group_, i);
    b_.store_rows(kv, 0, window);

    SparseArgs args;
    args.n_heads = c_.n_heads;
    args.head_dim = c_.head_dim;
    args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c_.head_dim)));
    args.window = c_.window;
    args.sinks = b_.vector(at(i, kSink), c_.n_heads);
    ValueId o = kNoValue;
    if (kind == LayerKind::kWindow) {
      o = b_.sparse_attention(p + "heads", q, window, nullptr, kNoValue, 0, args);
    } else if (kind == LayerKind::kHca) {
      const StateRows rows = b_.rows(hca_group_, n_hca_++);
      compress(i, p, x, kMain, c_.hca_ratio, c_.head_dim, false, rows, rows);
      o = b_.sparse_attention(p + "heads", q, window, &rows, kNoValue, 0, args);
    } else {
      const StateRows rows = b_.rows(csa_group_, n_csa_);
      compress(i, p, x, kMain, c_.csa_ratio, c_.head_dim, true, rows, b_.rows(tail_group_, n_csa_));
      const ValueId selected = indexer(i, p, x, xq);
      o = b_.sparse_attention(p + "heads", q, window, &rows, selected, c_.index_topk, args);
      ++n_csa_;
    }
    b_.rope(o, rope_args(c_.n_heads, c_.head_dim, /*inverse=*/true), table);
    return output(i, p, o);
  }

  /// y = wo_b . concat_g(wo_a[g] . heads of group g)
  ValueId output(int i, const std::string& p, ValueId o) {
    const int in = c_.n_heads * c_.head_dim / c_.o_groups, rows = c_.o_groups * c_.o_rank;
    const ValueId u = b_.value(p + "o_latent", rows);
    for (int g = 0; g < c_.o_groups && b_.ok(); ++g) {
      b_.linear_into(weight_rows(at(i, kOa), rows, int64_t{g} * c_.o_rank, c_.o_rank, in), o, g * in, u, g * c_.o_rank);
    }
    return b_.linear(p + "attn_out", weight(at(i, kOb), c_.hidden, rows), u);
  }

  void compress(int i, const std::string& p, ValueId x, const CompressorNames& names, int ratio, int dim, bool overlap,
                const StateRows& rows, const StateRows& tail) {
    const int width = (overlap ? 2 : 1) * dim;
    const std::string what = p + (&names == &kIndexer ? "indexer." : "compressor.");
    const ValueId c = b_.linear(what + "c", weight(at(i, names.kv), width, c_.hidden), x);
    const ValueId z = b_.linear(what + "z", weight(at(i, names.gate), width, c_.hidden), x);
    CompressArgs a;
    a.ratio = ratio;
    a.dim = dim;
    a.overlap = overlap;
    a.ape = b_.vector(at(i, names.ape), int64_t{ratio} * width);
    a.norm = b_.vector(at(i, names.norm), dim);
    a.eps = c_.eps;
    a.rope_begin = dim - c_.rope_dims;
    a.rope_dims = c_.rope_dims;
    a.inv_freq = &b_.rope_spec(compress_table_).inv_freq;
    // Positions that a closing group may still need: its own, and with overlap the group before.
    b_.compress(c, z, a, b_.add_ring((overlap ? 2 : 1) * ratio, 2 * width), rows, tail);
  }

  ValueId indexer(int i, const std::string& p, ValueId x, ValueId xq) {
    const StateRows keys = b_.rows(index_group_, n_csa_);
    compress(i, p, x, kIndexer, c_.csa_ratio, c_.index_dim, true, keys, b_.rows(index_tail_group_, n_csa_));
    const ValueId q = b_.linear(p + "indexer_q", weight(at(i, kIndexQ), int64_t{c_.index_heads} * c_.index_dim, c_.q_rank), xq);
    b_.rope(q, rope_args(c_.index_heads, c_.index_dim), compress_table_);
    // The published factor dim^-0.5 heads^-0.5 on w is positive and the same for all rows: it moves no choice and is left out.
    const ValueId w = b_.linear(p + "indexer_w", weight(at(i, kIndexW), c_.index_heads, c_.hidden), x);
    return b_.index_topk(p + "indexer_topk", q, w, c_.index_heads, c_.index_dim, c_.index_topk, keys);
  }

  ValueId moe(int i, const std::string& p, ValueId x) {
    const Layer& layer = c_.layers[static_cast<size_t>(i)];
    const ValueId scores = b_.linear(p + "route_scores", weight(at(i, kRouter), c_.n_experts, c_.hidden), x);
    RouteArgs r;
    r.n_experts = c_.n_experts;
    r.top_k = c_.top_k;
    r.score = RouteScore::kSqrtSoftplus;
    r.normalize = c_.normalize;
    r.scale = c_.route_scale;
    if (layer.hash) {
      r.table = hash_table(i);
    } else {
      r.bias = b_.vector(at(i, kRouterBias), c_.n_experts);
    }
    const auto routing = b_.route(p, r, scores);
    const ValueId routed = b_.experts(p + "ffn_routed", experts(i), Act::kSilu, layer.clamp, c_.top_k, x, routing);
    const ValueId gate = b_.linear(p + "shared_gate", weight(at(i, kShared[0]), c_.expert_width, c_.hidden), x);
    const ValueId up = b_.linear(p + "shared_up", weight(at(i, kShared[1]), c_.expert_width, c_.hidden), x);
    const ValueId mid = b_.gated(p + "shared_mid", Act::kSilu, gate, up, layer.shared_clamp);
    const ValueId shared = b_.linear(p + "ffn_shared", weight(at(i, kShared[2]), c_.hidden, c_.expert_width), mid);
    return b_.add(p + "ffn_out", routed, shared);
  }

  const int32_t* hash_table(int i) {
    const int64_t n = int64_t{c_.vocab} * c_.top_k;
    const int32_t* table = b_.table(at(i, kHashTable), n);
    if (!table) return nullptr;
    const bool in_range = std::all_of(table, table + n, [&](int32_t e) { return e >= 0 && e < c_.n_experts; });
    b_.check(in_range, "names an expert that does not exist", at(i, kHashTable));
    return table;
  }

  std::vector<Expert> experts(int i) {
    std::vector<Expert> out;
    const int64_t n = c_.n_experts, w = c_.expert_width, h = c_.hidden;
    const std::string p = "model.layers." + std::to_string(i) + ".mlp.experts.", q = "blk." + std::to_string(i) + ".ffn_";
    const std::string fused = p + "gate_up_proj";
    for (int64_t e = 0; e < n && b_.ok(); ++e) {
      const std::string one = "ffn.experts." + std::to_string(e) + ".";
      const auto single = [&](const char* leaf, const char* module, int64_t rows, int64_t cols) {
        const std::string a = one + leaf, m = "mlp.experts." + std::to_string(e) + "." + module;
        return weight(at(i, {a.c_str(), nullptr, m.c_str(), ""}), rows, cols);
      };
      if (gguf_) {
        out.push_back({b_.slice(q + "gate_exps.weight", n * w, e * w, w, h), b_.slice(q + "up_exps.weight", n * w, e * w, w, h),
                       b_.slice(q + "down_exps.weight", n * h, e * h, h, w)});
      } else if (b_.has(fused)) {
        out.push_back({weight_rows(fused, n * 2 * w, e * 2 * w, w, h), weight_rows(fused, n * 2 * w, e * 2 * w + w, w, h),
                       weight_rows(p + "down_proj", n * h, e * h, h, w)});
      } else {
        out.push_back({single("w1.weight", "gate_proj.weight", w, h), single("w3.weight", "up_proj.weight", w, h),
                       single("w2.weight", "down_proj.weight", h, w)});
      }
    }
    return out;
  }

  V4Config c_;
  bool gguf_;
  DType kv_dtype_;
  GraphBuilder b_;
  int window_table_ = 0, compress_table_ = 0;
  int window_group_ = 0, csa_group_ = 0, index_group_ = 0, tail_group_ = 0, index_tail_group_ = 0, hca_group_ = 0;
  int n_csa_ = 0, n_hca_ = 0;  // layers of each kind met so far
};

Result<Graph> build(SourceFormat format, const std::string& config_json, Weights& weights, const BuildOptions& options) {
  CARREL_ASSIGN(const ConfigReader config, ConfigReader::parse(config_json));
  V4Config c = format == SourceFormat::kGguf ? read_gguf(config, weights) : read_hf(config);
  CARREL_TRY(config.status());
  CARREL_TRY(check_sizes(c));
  if (options.kv_dtype == DType::kPackedKv) CARREL_TRY(check_packed(c));
  (void)config.integer_or(format == SourceFormat::kGguf ? "deepseek4.nextn_predict_layers" : "num_nextn_predict_layers", 0, 0, kMaxLayers);
  CARREL_TRY(config.status());
  return V4Builder(&weights, std::move(c), format, options.kv_dtype).build();
}

}  // namespace

Family deepseek_v4_family() {
  return {"deepseek_v4", {"deepseek_v4"}, {"deepseek4"}, build};
}

}  // namespace carrel
