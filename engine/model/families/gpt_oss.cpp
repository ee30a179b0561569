// gpt-oss (architectures reference, 5.3): window and full layers in turn, a sink per query head, biases everywhere, YaRN whose range is not
// rounded, experts with a clamped gate, the softmax of the router over the chosen ones.
//
// Hugging Face files join gate and up row by row: as BF16 with the input dimension first, or as MXFP4 blocks with scales beside. GGUF has
// them apart, and no key for the clamp, which is 7 there.
#include <cmath>

#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/families.h"
#include "engine/model/families/numbers.h"
#include "engine/model/families/rope.h"

namespace carrel {

namespace {

constexpr double kAlpha = 1.702;  // of Act::kSwigluOai
constexpr double kDefaultLimit = 7;
constexpr int kMaxWindow = 1 << 30;

class GptOssExperts final : public ExpertReader {
 public:
  std::vector<Expert> read(DecoderParts& parts, int i) override {
    const int64_t n = parts.s.route.n_experts, w = parts.s.expert_width, h = parts.s.hidden;
    const std::string layer = parts.at(i, {"mlp.experts.", "ffn_"});
    GraphBuilder& b = parts.b;
    std::vector<Expert> out(static_cast<size_t>(n));
    for (int64_t e = 0; e < n && b.ok(); ++e) {
      Expert& expert = out[static_cast<size_t>(e)];
      if (parts.s.gguf) {
        expert.gate = b.slice(layer + "gate_exps.weight", n * w, e * w, w, h);
        expert.up = b.slice(layer + "up_exps.weight", n * w, e * w, w, h);
        expert.down = b.slice(layer + "down_exps.weight", n * h, e * h, h, w);
      } else {
        expert.gate = b.matrix(part(b, layer + "gate_up_proj", e, 2 * w, w, h, 0, n));
        expert.up = b.matrix(part(b, layer + "gate_up_proj", e, 2 * w, w, h, 1, n));
        expert.down = b.matrix(part(b, layer + "down_proj", e, h, h, w, 0, n));
      }
    }
    add_biases(parts, layer, out);
    return out;
  }

 private:
  /// n_rows of the `of` rows of expert e: all, or every other one from `first` on.
  static MatrixRequest part(const GraphBuilder& b, const std::string& tensor, int64_t e, int64_t of, int64_t n_rows, int64_t n_cols,
                            int64_t first, int64_t n_experts) {
    MatrixRequest r;
    r.row_begin = e * of + first;
    r.n_rows = n_rows;
    r.n_cols = n_cols;
    r.total_rows = n_experts * of;
    if (of != n_rows) r.period = of / n_rows, r.take = 1;
    r.transposed = b.has(tensor);
    r.tensor = r.transposed ? tensor : tensor + "_blocks";
    if (!r.transposed) r.scales = tensor + "_scales";
    return r;
  }

  static void add_biases(DecoderParts& parts, const std::string& layer, std::vector<Expert>& out) {
    GraphBuilder& b = parts.b;
    const int64_t n = parts.s.route.n_experts, w = parts.s.expert_width, h = parts.s.hidden;
    const float *gate = nullptr, *up = nullptr, *down = nullptr;
    if (parts.s.gguf) {
      gate = b.vector(layer + "gate_exps.bias", n * w);
      up = b.vector(layer + "up_exps.bias", n * w);
      down = b.vector(layer + "down_exps.bias", n * h);
    } else {
      const float* both = b.vector(layer + "gate_up_proj_bias", n * 2 * w);
      down = b.vector(layer + "down_proj_bias", n * h);
      if (!b.ok()) return;
      std::vector<float> halves[2];
      for (int64_t k = 0; k < n * 2 * w; ++k) halves[k % 2].push_back(both[k]);
      gate = b.keep(std::move(halves[0]));
      up = b.keep(std::move(halves[1]));
    }
    if (!b.ok()) return;
    for (size_t e = 0; e < out.size(); ++e) {
      out[e].gate_bias = gate + static_cast<ptrdiff_t>(e) * w;
      out[e].up_bias = up + static_cast<ptrdiff_t>(e) * w;
      out[e].down_bias = down + static_cast<ptrdiff_t>(e) * h;
    }
  }
};

void windows_in_even_layers(int window, DecoderSpec& s) {
  for (size_t i = 0; i < s.layers.size(); i += 2) s.layers[i].window = window;
}

DecoderSpec read_hf(const ConfigReader& c, Weights& weights) {
  DecoderSpec s = read_decoder_hf(c, {.ffn_width = nullptr, .quantized = true});
  s.prefix = find_prefix(weights);
  const int window = static_cast<int>(c.integer("sliding_window", 1, kMaxWindow));
  windows_in_even_layers(window, s);
  read_layer_types(c, window, s);
  s.expert_width = static_cast<int>(c.integer("intermediate_size", 1, kMaxWidth));
  s.route.n_experts = static_cast<int>(c.integer("num_local_experts", 1, kMaxWidth));
  s.route.top_k = static_cast<int>(c.integer(c.has("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token", 1, kMaxWidth));
  s.expert_limit = scale_or(c, "swiglu_limit", kDefaultLimit);
  if (c.number_or("swiglu_alpha", kAlpha) != kAlpha) c.error(Code::kUnsupported, "must be 1.702", "swiglu_alpha");
  s.ropes.push_back(read_rope_hf(c, s, 150000));
  require_text(c, "hidden_act", "silu");
  require_flag(c, "attention_bias", true);
  require_text(c.section("quantization_config"), "quant_method", "mxfp4");
  return s;
}

DecoderSpec read_gguf(const ConfigReader& c, Weights& weights) {
  const std::string arch = "gpt-oss", p = "gpt-oss.";
  DecoderSpec s = read_decoder_gguf(c, arch, weights, {.ffn_width = false});
  windows_in_even_layers(static_cast<int>(c.integer(p + "attention.sliding_window", 1, kMaxWindow)), s);
  s.expert_width = static_cast<int>(c.integer(p + "expert_feed_forward_length", 1, kMaxWidth));
  s.route.n_experts = static_cast<int>(c.integer(p + "expert_count", 1, kMaxWidth));
  s.route.top_k = static_cast<int>(c.integer(p + "expert_used_count", 1, kMaxWidth));
  s.expert_limit = static_cast<float>(kDefaultLimit);
  s.ropes.push_back(rope_from_gguf(c, arch, rope_base_or(c, p + "rope.freq_base", 10000), s.head_dim, s.max_positions, /*truncate=*/false));
  return s;
}

Result<Graph> build(SourceFormat format, const std::string& config_json, Weights& weights, const BuildOptions& options) {
  CARREL_ASSIGN(const ConfigReader c, ConfigReader::parse(config_json));
  DecoderSpec s = format == SourceFormat::kGguf ? read_gguf(c, weights) : read_hf(c, weights);
  s.names.ffn_norm.gguf = "post_attention_norm.weight";
  s.names.router = {"mlp.router", "ffn_gate_inp"};
  s.sinks = true;
  s.attention_biases = Biases::kAlways;
  s.router_bias = true;
  s.route.score = RouteScore::kSoftmaxOfChosen;
  s.expert_act = Act::kSwigluOai;
  s.expert_reader = std::make_shared<GptOssExperts>();
  for (DecoderLayer& l : s.layers) l.moe = true;
  CARREL_TRY(c.status());
  return build_decoder(s, weights, options);
}

}  // namespace

Family gpt_oss_family() {
  return {"gpt_oss", {"gpt_oss"}, {"gpt-oss"}, build};
}

}  // namespace carrel
