// The plain decoder that llama, mistral, qwen3 and gemma3 share (architectures reference, 5.1 and 7): per layer grouped-query attention
// over all keys or a window, then a gated MLP or experts, with norms before (and for Gemma also behind) each. A family reads its config
// into a DecoderSpec.
#pragma once
#include <string>
#include <vector>

#include "engine/model/config_reader.h"
#include "engine/model/family.h"

namespace carrel {

struct DecoderLayer {
  int window = 0;  // keys a query sees; 0 = all
  int rope = 0;    // index into DecoderSpec::ropes
  bool moe = false;
};

struct DecoderSpec {
  bool gguf = false;
  std::string prefix = "model.";  // of Hugging Face names
  int hidden = 0, vocab = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, ffn_width = 0;
  float eps = 1e-6f;
  float attention_scale = 0;
  float embed_scale = 1;
  float softcap = 0;          // of the logits
  float norm_offset = 0;      // added to every norm weight
  bool qk_norm = false;       // per head, before rope
  bool branch_norms = false;  // Gemma: norms on the branch outputs
  bool unpair = false;        // GGUF llama: rows of q and k come as adjacent rotary pairs
  bool tied = false;
  Act act = Act::kSilu;
  int n_experts = 0, top_k = 0, expert_width = 0;
  bool normalize_experts = true;
  int max_positions = 0;
  std::vector<RopeSpec> ropes;
  std::vector<DecoderLayer> layers;
};

/// What every Hugging Face config of these families says in the same words: sizes, eps, tying. n layers are made, all full attention.
DecoderSpec read_decoder_hf(const ConfigReader& config);
/// The same from GGUF keys `<arch>.*`.
DecoderSpec read_decoder_gguf(const ConfigReader& config, const std::string& arch, Weights& weights);
/// The single rope table of a Hugging Face config: `rope_parameters` (new style) or `rope_theta` + `rope_scaling`.
RopeSpec read_rope_hf(const ConfigReader& config, const DecoderSpec& spec, double default_theta);
/// Windows by `layer_types` ("sliding_attention", "full_attention"); nothing when the key is absent.
void read_layer_types(const ConfigReader& config, int window, DecoderSpec& spec);
/// Where the text model's tensors begin: "model.", "model.language_model." or "language_model.model.".
std::string find_prefix(const Weights& weights);

Result<Graph> build_decoder(const DecoderSpec& spec, Weights& weights, const BuildOptions& options);

}  // namespace carrel
