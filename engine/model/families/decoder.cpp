// See the header.
#include "engine/model/families/decoder.h"

#include <algorithm>
#include <cmath>

#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/numbers.h"
#include "engine/model/families/rope.h"

namespace carrel {

namespace {

constexpr int kMaxLayers = 1024, kMaxVocab = 1 << 24;

class DecoderBuilder {
 public:
  DecoderBuilder(const DecoderSpec& spec, Weights* weights, DType kv_dtype) : parts_(spec, weights, kv_dtype), s_(spec), b_(parts_.b) {}

  Result<Graph> build() {
    for (const RopeSpec& r : s_.ropes) b_.add_rope(r);
    parts_.declare_state();
    const std::string embed_name = s_.gguf ? "token_embd.weight" : s_.prefix + "embed_tokens.weight";
    const Matrix table = b_.matrix(embed_name, s_.vocab, s_.hidden);
    ValueId h = b_.embed("embed", table, s_.hidden, s_.embed_scale);
    for (int i = 0; i < static_cast<int>(s_.layers.size()) && b_.ok(); ++i) h = layer(i, h);
    const ValueId out = b_.gather_outputs("head_in", h);
    const std::string norm_name = s_.gguf ? s_.names.final_norm.gguf : s_.prefix + s_.names.final_norm.hf;
    const ValueId normed = b_.rms_norm("head_norm", out, parts_.norm(norm_name, s_.hidden), s_.eps);
    const std::string head_name = s_.gguf ? "output.weight" : head_tensor();
    const bool tied = s_.tied && !b_.has(head_name);
    const ValueId logits = b_.linear("logits", tied ? table : b_.matrix(head_name, s_.vocab, s_.hidden), normed);
    b_.scale(logits, s_.logit_scale);
    if (s_.softcap > 0) b_.softcap(logits, s_.softcap);
    return b_.finish(logits, s_.max_positions);
  }

 private:
  std::string head_tensor() const { return b_.has("language_model.lm_head.weight") ? "language_model.lm_head.weight" : "lm_head.weight"; }

  ValueId normed(int i, const std::string& name, const NamePair& tensor, ValueId x) {
    return b_.rms_norm(name, x, parts_.norm(parts_.at(i, tensor), s_.hidden), s_.eps);
  }

  ValueId layer(int i, ValueId h) {
    const std::string p = "layers." + std::to_string(i) + ".";
    ValueId x = parts_.mixer(i, p, normed(i, p + "attn_in", s_.names.attn_norm, h));
    if (s_.branch_norms) x = normed(i, p + "attn_branch", s_.names.attn_branch_norm, x);
    h = b_.add(p + "attn_sum", h, x, s_.residual_scale);
    x = normed(i, p + "ffn_in", s_.names.ffn_norm, h);
    const bool moe = s_.layers[static_cast<size_t>(i)].moe;
    x = moe ? parts_.moe(i, p, x) : parts_.mlp(i, p + "ffn_", p + "ffn_out", s_.names.mlp, s_.ffn_width, x);
    if (s_.branch_norms) x = normed(i, p + "ffn_branch", s_.names.ffn_branch_norm, x);
    return b_.add(p + "out", h, x, s_.residual_scale);
  }

  DecoderParts parts_;
  const DecoderSpec& s_;
  GraphBuilder& b_;
};

Status check_sizes(const DecoderSpec& s) {
  const auto bad = [](const std::string& what) { return fail(Code::kCorrupt, what, "model configuration"); };
  const auto any = [&](auto is) { return std::any_of(s.layers.begin(), s.layers.end(), is); };
  if (s.n_heads % s.n_kv_heads != 0) return bad("the key/value heads do not divide the heads");
  if (s.head_dim % 2 != 0) return bad("the head dimension is odd");
  if (s.rope_dims < 2 || s.rope_dims % 2 != 0 || s.rope_dims > s.head_dim)
    return bad("the rotary dimensions do not fit the head dimension");
  if (int64_t{s.n_heads} * s.head_dim > kMaxWidth) return bad("heads times head dimension is out of range");
  if (any([](const DecoderLayer& l) { return !l.moe; }) && s.ffn_width <= 0) return bad("the width of the MLP is missing");
  if (any([](const DecoderLayer& l) { return l.moe; }) &&
      (s.route.n_experts <= 0 || s.route.top_k <= 0 || s.route.top_k > s.route.n_experts || s.expert_width <= 0))
    return bad("expert counts do not fit");
  if (!any([](const DecoderLayer& l) { return !l.recurrent; }))
    return fail(Code::kUnsupported, "a model without any attention layer is not part of this version", "model configuration");
  return {};
}

}  // namespace

// ------------------------------------------------------------------ Hugging Face

namespace {

void refuse_quantization(const ConfigReader& c) {
  if (!c.has("quantization_config")) return;
  const std::string method = c.section("quantization_config").text_or("quant_method", "unknown");
  c.error(Code::kUnsupported,
          "weights quantized by '" + method + "' are not read for this family; use a BF16 copy of the model or a GGUF file",
          "quantization_config");
}

}  // namespace

DecoderSpec read_decoder_hf(const ConfigReader& c, const HfKeys& keys) {
  DecoderSpec s;
  if (!keys.quantized) refuse_quantization(c);
  const auto dim = [&](const char* key) { return static_cast<int>(c.integer(key, 1, kMaxWidth)); };
  s.layers.resize(static_cast<size_t>(c.integer("num_hidden_layers", 1, kMaxLayers)));
  s.hidden = dim("hidden_size");
  s.vocab = static_cast<int>(c.integer("vocab_size", 1, kMaxVocab));
  s.n_heads = dim("num_attention_heads");
  s.n_kv_heads = static_cast<int>(c.integer_or("num_key_value_heads", s.n_heads, 1, kMaxWidth));
  s.head_dim = static_cast<int>(c.integer_or("head_dim", std::max(s.hidden / s.n_heads, 1), 1, kMaxWidth));
  s.rope_dims = s.head_dim;
  if (keys.ffn_width) s.ffn_width = dim(keys.ffn_width);
  s.eps = eps_of(c, keys.eps);
  s.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim)));
  s.tied = c.flag_or("tie_word_embeddings", false);
  s.max_positions = static_cast<int>(c.integer("max_position_embeddings", 1, kMaxPositions));
  return s;
}

RopeSpec read_rope_hf(const ConfigReader& c, const DecoderSpec& s, double default_theta) {
  const ConfigReader params = c.section("rope_parameters");
  const double theta = rope_base_or(params, "rope_theta", rope_base_or(c, "rope_theta", default_theta));
  return rope_from_section(c.has("rope_parameters") ? params : c.section("rope_scaling"), theta, s.rope_dims, s.max_positions);
}

namespace {

/// layer_types or what it is called; empty when absent or too short (an error then).
std::vector<std::string> layer_words(const ConfigReader& c, const std::string& key, size_t n_layers) {
  std::vector<std::string> types = c.texts(key);
  if (!types.empty() && types.size() < n_layers) {
    c.error(Code::kCorrupt, "has fewer entries than the model has layers", key);
    types.clear();
  }
  return types;
}

void unknown_word(const ConfigReader& c, const std::string& word, const std::string& key) {
  c.error(Code::kUnsupported, "'" + word + "' is not a layer type of this family", key);
}

}  // namespace

void read_layer_types(const ConfigReader& c, int window, DecoderSpec& s) {
  const std::vector<std::string> types = layer_words(c, "layer_types", s.layers.size());
  for (size_t i = 0; i < s.layers.size() && !types.empty(); ++i) {
    if (types[i] != "sliding_attention" && types[i] != "full_attention") unknown_word(c, types[i], "layer_types");
    s.layers[i].window = types[i] == "sliding_attention" ? window : 0;
  }
}

bool read_recurrent_types(const ConfigReader& c, const std::string& key, const LayerWords& words, DecoderSpec& s) {
  const std::vector<std::string> types = layer_words(c, key, s.layers.size());
  for (size_t i = 0; i < s.layers.size() && !types.empty(); ++i) {
    s.layers[i].recurrent = types[i] == words.recurrent[0] || types[i] == words.recurrent[1];
    if (!s.layers[i].recurrent && types[i] != words.attention[0] && types[i] != words.attention[1]) unknown_word(c, types[i], key);
  }
  return !types.empty();
}

void require_text(const ConfigReader& c, const std::string& key, const std::string& value) {
  const std::string is = c.text_or(key, value);
  if (is != value) c.error(Code::kUnsupported, "'" + is + "' is not part of this family in this version; it runs '" + value + "'", key);
}

void require_flag(const ConfigReader& c, const std::string& key, bool value) {
  if (c.flag_or(key, value) != value)
    c.error(Code::kUnsupported, std::string("must be ") + (value ? "true" : "false") + " in this version", key);
}

ConfigReader text_section(const ConfigReader& root) {
  if (!root.is_object("text_config")) return root;
  refuse_quantization(root);
  return root.section("text_config");
}

std::string find_prefix(const Weights& weights) {
  for (const char* p : {"model.", "model.language_model.", "language_model.model."}) {
    if (weights.has(std::string(p) + "embed_tokens.weight")) return p;
  }
  return "model.";
}

// ------------------------------------------------------------------ GGUF

namespace {

/// A number, or a list of one per layer, all of one value but where `zero_marks` allows 0; the value.
int same_in_all_layers(const ConfigReader& c, const std::string& key, int64_t fallback, size_t n_layers, std::vector<bool>* zero_marks) {
  if (!c.is_array(key)) return static_cast<int>(c.integer_or(key, fallback, 1, kMaxWidth));
  const std::vector<int64_t> list = c.integers(key);
  if (list.size() < n_layers) {
    c.error(Code::kCorrupt, "has fewer entries than the model has layers", key);
    return 1;
  }
  int64_t value = 0;
  for (size_t i = 0; i < n_layers; ++i) {
    if (list[i] < 0 || list[i] > kMaxWidth) c.error(Code::kCorrupt, "holds a number out of range", key);
    if (list[i] == 0 && zero_marks) {
      (*zero_marks)[i] = true;
    } else if (value != 0 && list[i] != value) {
      c.error(Code::kUnsupported, "differs between layers, which is not part of this family", key);
    } else {
      value = list[i];
    }
  }
  if (value <= 0) c.error(Code::kCorrupt, "is zero in every layer", key);
  return static_cast<int>(std::clamp<int64_t>(value, 1, kMaxWidth));
}

/// Blocks of the model itself: draft layers stand behind them.
size_t count_layers(const ConfigReader& c, const std::string& p) {
  const int64_t n = c.integer(p + "block_count", 1, kMaxLayers), drafts = c.integer_or(p + "nextn_predict_layers", 0, 0, kMaxLayers);
  if (drafts >= n) c.error(Code::kCorrupt, "leaves no layer of the model itself", p + "nextn_predict_layers");
  return static_cast<size_t>(std::max<int64_t>(n - drafts, 1));
}

}  // namespace

DecoderSpec read_decoder_gguf(const ConfigReader& c, const std::string& arch, Weights& weights, const GgufForm& form) {
  DecoderSpec s;
  s.gguf = true;
  const std::string p = arch + ".";
  const auto dim = [&](const char* key) { return static_cast<int>(c.integer(p + key, 1, kMaxWidth)); };
  s.layers.resize(count_layers(c, p));
  s.hidden = dim("embedding_length");
  const std::vector<int64_t> embed = weights.shape("token_embd.weight");
  s.vocab = embed.size() == 2 ? static_cast<int>(std::clamp<int64_t>(embed[0], 1, kMaxVocab)) : 1;
  s.n_heads = dim("attention.head_count");
  std::vector<bool> recurrent(s.layers.size());
  s.n_kv_heads =
      same_in_all_layers(c, p + "attention.head_count_kv", s.n_heads, s.layers.size(), form.recurrent_by_kv_heads ? &recurrent : nullptr);
  for (size_t i = 0; i < s.layers.size(); ++i) s.layers[i].recurrent = recurrent[i];
  s.head_dim = static_cast<int>(c.integer_or(p + "attention.key_length", std::max(s.hidden / s.n_heads, 1), 1, kMaxWidth));
  if (c.integer_or(p + "attention.value_length", s.head_dim, 1, kMaxWidth) != s.head_dim) {
    c.error(Code::kUnsupported, "must equal attention.key_length", p + "attention.value_length");
  }
  s.rope_dims = static_cast<int>(c.integer_or(p + "rope.dimension_count", s.head_dim, 1, kMaxWidth));
  if (s.rope_dims != s.head_dim && !form.partial_rotary) {
    c.error(Code::kUnsupported, "partial rotary heads are not part of this family", p + "rope.dimension_count");
  }
  const std::string ffn = p + "feed_forward_length";
  if (form.ffn_width && !c.has(ffn)) c.error(Code::kCorrupt, "is missing", ffn);
  if (form.ffn_width) s.ffn_width = same_in_all_layers(c, ffn, 1, s.layers.size(), nullptr);
  s.eps = eps_of(c, p + "attention.layer_norm_rms_epsilon");
  s.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim)));
  s.tied = true;
  s.max_positions = static_cast<int>(c.integer(p + "context_length", 1, kMaxPositions));
  return s;
}

Result<Graph> build_decoder(const DecoderSpec& spec, Weights& weights, const BuildOptions& options) {
  CARREL_TRY(check_sizes(spec));
  return DecoderBuilder(spec, &weights, options.kv_dtype).build();
}

}  // namespace carrel
