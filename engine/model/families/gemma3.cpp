// Gemma 3, text (architectures reference, 5.1): five window layers to one full layer, a rope table each, norms with unit offset also behind
// the branches, scaled embeddings, tanh-GELU. GGUF files hold 1 + w already and miss some keys, whose meaning is fixed.
#include <cmath>

#include "engine/model/config_reader.h"
#include "engine/model/families/decoder.h"
#include "engine/model/families/families.h"
#include "engine/model/families/numbers.h"
#include "engine/model/families/rope.h"

namespace carrel {

namespace {

constexpr int kFullRope = 0, kWindowRope = 1;
constexpr int kPattern = 6;  // every sixth layer is full
constexpr int kMaxWindow = 1 << 30;

void set_pattern(DecoderSpec& s, int window, int pattern) {
  for (size_t i = 0; i < s.layers.size(); ++i) s.layers[i].window = (i + 1) % static_cast<size_t>(pattern) == 0 ? 0 : window;
}

float inverse_sqrt(double v) {
  return static_cast<float>(1 / std::sqrt(v));
}

DecoderSpec read_hf(const ConfigReader& c, Weights& weights) {
  DecoderSpec s = read_decoder_hf(c);
  s.prefix = find_prefix(weights);
  s.norm_offset = 1;
  s.tied = c.flag_or("tie_word_embeddings", true);
  s.attention_scale =
      inverse_sqrt(c.has("query_pre_attn_scalar") ? c.number_in("query_pre_attn_scalar", kSmallestScale, kLargestScale) : 256);
  s.softcap = limit_or_none(c, "final_logit_softcapping");
  if (c.text_or("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh")
    c.error(Code::kUnsupported, "must be gelu_pytorch_tanh", "hidden_activation");
  const int window = static_cast<int>(c.integer_or("sliding_window", 4096, 1, kMaxWindow));
  const char* pattern = c.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  set_pattern(s, window, static_cast<int>(c.integer_or(pattern, kPattern, 1, 1024)));
  read_layer_types(c, window, s);

  const ConfigReader params = c.section("rope_parameters");
  const ConfigReader full = params.section("full_attention"), local = params.section("sliding_attention");
  const bool nested = params.is_object("full_attention");
  const double theta = rope_base_or(full, "rope_theta", rope_base_or(c, "rope_theta", 1e6));
  s.ropes.push_back(rope_from_section(nested ? full : c.section("rope_scaling"), theta, s.head_dim, s.max_positions));
  const double local_theta = rope_base_or(local, "rope_theta", rope_base_or(c, "rope_local_base_freq", 10000));
  s.ropes.push_back(rope_from_section(local, local_theta, s.head_dim, s.max_positions));
  return s;
}

DecoderSpec read_gguf(const ConfigReader& c, Weights& weights) {
  DecoderSpec s = read_decoder_gguf(c, "gemma3", weights);
  // The 27B model (62 layers) is the only one whose query scale is not the head dimension; no key says so.
  s.attention_scale = inverse_sqrt(s.layers.size() == 62 ? static_cast<double>(s.hidden) / s.n_heads : s.head_dim);
  s.softcap = limit_or_none(c, "gemma3.final_logit_softcapping");
  const std::string key = "gemma3.attention.sliding_window_pattern";
  const int window = static_cast<int>(c.integer_or("gemma3.attention.sliding_window", 0, 0, kMaxWindow));
  if (c.is_array(key)) {
    const std::vector<bool> windows = c.flags(key);
    if (windows.size() < s.layers.size()) c.error(Code::kCorrupt, "has fewer entries than the model has layers", key);
    for (size_t i = 0; i < s.layers.size() && i < windows.size(); ++i) s.layers[i].window = windows[i] ? window : 0;
  } else {
    set_pattern(s, window, static_cast<int>(c.integer_or(key, kPattern, 1, 1024)));
  }
  s.ropes.push_back(rope_from_gguf(c, "gemma3", rope_base_or(c, "gemma3.rope.freq_base", 1e6), s.head_dim, s.max_positions));
  RopeSpec local;
  local.inv_freq = rope_frequencies(rope_base_or(c, "gemma3.rope.freq_base_swa", 10000), s.head_dim);
  s.ropes.push_back(local);
  return s;
}

Result<Graph> build(SourceFormat format, const std::string& config_json, Weights& weights, const BuildOptions& options) {
  CARREL_ASSIGN(const ConfigReader root, ConfigReader::parse(config_json));
  const ConfigReader c = text_section(root);
  DecoderSpec s = format == SourceFormat::kGguf ? read_gguf(c, weights) : read_hf(c, weights);
  CARREL_TRY(c.status());
  for (DecoderLayer& l : s.layers) l.rope = l.window > 0 ? kWindowRope : kFullRope;
  s.embed_scale = static_cast<float>(std::sqrt(static_cast<double>(s.hidden)));
  s.act = Act::kGeluTanh;
  s.qk_norm = true;
  s.branch_norms = true;
  s.names.ffn_norm = {"pre_feedforward_layernorm.weight", "ffn_norm.weight"};
  return build_decoder(s, weights, options);
}

}  // namespace

Family gemma3_family() {
  return {"gemma3", {"gemma3_text", "gemma3"}, {"gemma3"}, build};
}

}  // namespace carrel
