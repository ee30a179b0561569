// Qwen3, dense and with experts (architectures reference, section 7): per-head norms of q and k before rope; softmax over all experts, then
// the best k.
#include <algorithm>

#include "engine/model/config_reader.h"
#include "engine/model/families/decoder.h"
#include "engine/model/families/families.h"
#include "engine/model/families/numbers.h"
#include "engine/model/families/rope.h"

namespace carrel {

namespace {

constexpr int kMaxCount = 1 << 20;

/// Layers from max_window_layers on have a window, where `use_sliding_window` is set and no layer_types say it.
void read_windows(const ConfigReader& c, DecoderSpec& s) {
  if (!c.flag_or("use_sliding_window", false) || !c.has("sliding_window")) return;
  const int window = static_cast<int>(c.integer("sliding_window", 1, 1 << 30));
  const auto from = static_cast<size_t>(c.integer_or("max_window_layers", 0, 0, kMaxCount));
  for (size_t i = from; i < s.layers.size(); ++i) s.layers[i].window = window;
  read_layer_types(c, window, s);
}

void read_experts_hf(const ConfigReader& c, DecoderSpec& s) {
  const char* count = c.has("num_experts") ? "num_experts" : "num_local_experts";
  s.route.n_experts = static_cast<int>(c.integer(count, 1, kMaxCount));
  s.route.top_k = static_cast<int>(c.integer("num_experts_per_tok", 1, kMaxCount));
  s.expert_width = static_cast<int>(c.integer("moe_intermediate_size", 1, kMaxCount));
  s.route.normalize = c.flag_or("norm_topk_prob", false);
  const auto step = static_cast<size_t>(c.integer_or("decoder_sparse_step", 1, 1, kMaxCount));
  const std::vector<int64_t> dense = c.integers("mlp_only_layers");
  for (size_t i = 0; i < s.layers.size(); ++i) {
    s.layers[i].moe = (i + 1) % step == 0 && std::find(dense.begin(), dense.end(), static_cast<int64_t>(i)) == dense.end();
  }
}

void read_experts_gguf(const ConfigReader& c, DecoderSpec& s) {
  s.route.n_experts = static_cast<int>(c.integer("qwen3moe.expert_count", 1, kMaxCount));
  s.route.top_k = static_cast<int>(c.integer("qwen3moe.expert_used_count", 1, kMaxCount));
  s.expert_width = static_cast<int>(c.integer("qwen3moe.expert_feed_forward_length", 1, kMaxCount));
  for (DecoderLayer& l : s.layers) l.moe = true;
}

Result<Graph> build(SourceFormat format, const std::string& config_json, Weights& weights, const BuildOptions& options) {
  CARREL_ASSIGN(const ConfigReader c, ConfigReader::parse(config_json));
  DecoderSpec s;
  if (format == SourceFormat::kGguf) {
    const std::string arch = c.text("general.architecture");
    s = read_decoder_gguf(c, arch, weights);
    s.ropes.push_back(rope_from_gguf(c, arch, rope_base_or(c, arch + ".rope.freq_base", 10000), s.head_dim, s.max_positions));
    if (arch == "qwen3moe") read_experts_gguf(c, s);
  } else {
    s = read_decoder_hf(c);
    s.ropes.push_back(read_rope_hf(c, s, 10000));
    read_windows(c, s);
    if (c.text("model_type") == "qwen3_moe") read_experts_hf(c, s);
  }
  s.qk_norm = true;
  CARREL_TRY(c.status());
  return build_decoder(s, weights, options);
}

}  // namespace

Family qwen3_family() {
  return {"qwen3", {"qwen3", "qwen3_moe"}, {"qwen3", "qwen3moe"}, build};
}

}  // namespace carrel
