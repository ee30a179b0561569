// The decoder that every family but deepseek_v4 is an instance of (architectures reference, 3 to 7): per layer a mixer (attention over all
// keys or a window, or the family's recurrent layer), then a gated MLP or experts, with norms before (and for Gemma also behind) each.
// A family reads its config into a DecoderSpec; what only it has comes as hooks over decoder_parts.h.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/model/config_reader.h"
#include "engine/model/family.h"

namespace carrel {

class DecoderParts;
class GraphBuilder;

constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxPositions = 1 << 30;
constexpr int kNoRope = -1;

/// A tensor of a layer: behind "<prefix>layers.N." and behind "blk.N.".
struct NamePair {
  const char* hf;
  const char* gguf;
};

struct MlpNames {
  NamePair gate, up, down;          // without ".weight"
  const char* hf_joined = nullptr;  // when set: rows of gate, then of up, in one Hugging Face tensor
};

/// Hugging Face names of experts; GGUF has ffn_{gate,up,down}_exps.
struct ExpertNames {
  const char* each = "mlp.experts.";  // "<each>E.<gate>.weight"
  const char *gate = "gate_proj", *up = "up_proj", *down = "down_proj";
  const char *joined = "mlp.experts.gate_up_proj", *joined_down = "mlp.experts.down_proj";  // [E, gate rows | up rows, H], [E, H, I]
};

struct DecoderNames {
  NamePair attn_norm = {"input_layernorm.weight", "attn_norm.weight"}, ffn_norm = {"post_attention_layernorm.weight", "ffn_norm.weight"};
  NamePair attn_branch_norm = {"post_attention_layernorm.weight", "post_attention_norm.weight"},
           ffn_branch_norm = {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"};  // of DecoderSpec::branch_norms
  NamePair q = {"self_attn.q_proj", "attn_q"}, k = {"self_attn.k_proj", "attn_k"}, v = {"self_attn.v_proj", "attn_v"},
           o = {"self_attn.o_proj", "attn_output"};
  NamePair q_norm = {"self_attn.q_norm.weight", "attn_q_norm.weight"}, k_norm = {"self_attn.k_norm.weight", "attn_k_norm.weight"};
  NamePair sinks = {"self_attn.sinks", "attn_sinks.weight"};
  MlpNames mlp = {{"mlp.gate_proj", "ffn_gate"}, {"mlp.up_proj", "ffn_up"}, {"mlp.down_proj", "ffn_down"}};
  MlpNames shared = {{"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
                     {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
                     {"mlp.shared_expert.down_proj", "ffn_down_shexp"}};
  NamePair shared_gate = {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"};
  NamePair router = {"mlp.gate", "ffn_gate_inp"};                                      // without ".weight"
  NamePair selection_bias = {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"};  // of DecoderSpec::selection_bias
  ExpertNames experts;
  NamePair final_norm = {"norm.weight", "output_norm.weight"};  // behind the prefix; whole
};

struct DecoderLayer {
  int window = 0;  // keys a query sees; 0 = all
  int rope = 0;    // index into DecoderSpec::ropes, or kNoRope
  bool moe = false;
  bool recurrent = false;  // the family's mixer instead of attention
};

/// Of projections: as the file has them, all of them, or none whatever the file has.
enum class Biases { kWherePresent, kAlways, kNever };

/// What a family has instead of attention in its recurrent layers.
class RecurrentMixer {
 public:
  virtual ~RecurrentMixer() = default;
  /// Declares the groups of its registers.
  virtual void declare(GraphBuilder& b, int n_layers) = 0;
  /// Layer i, the nth recurrent one: normed x to what is added to the residual stream. Values are named name + "…".
  virtual ValueId emit(DecoderParts& parts, int i, int nth, const std::string& name, ValueId x) = 0;
};

/// What a family has instead of experts that are plain matrices.
class ExpertReader {
 public:
  virtual ~ExpertReader() = default;
  virtual std::vector<Expert> read(DecoderParts& parts, int i) = 0;
};

struct DecoderSpec {
  bool gguf = false;
  std::string prefix = "model.";  // of Hugging Face names
  DecoderNames names;
  int hidden = 0, vocab = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, ffn_width = 0;
  int rope_dims = 0;  // rotated dimensions of a head, the first ones
  float eps = 1e-6f;
  float attention_scale = 0;
  float embed_scale = 1, residual_scale = 1, logit_scale = 1;
  float softcap = 0;          // of the logits
  float norm_offset = 0;      // added to every norm weight
  bool qk_norm = false;       // per head, before rope
  bool branch_norms = false;  // Gemma: norms on the branch outputs
  bool unpair = false;        // GGUF llama: rows of q and k come as adjacent rotary pairs
  bool output_gate = false;   // rows of q are [q | gate] per head; heads times sigmoid(gate)
  bool sinks = false;
  Biases attention_biases = Biases::kWherePresent, mlp_biases = Biases::kWherePresent;
  bool tied = false;
  Act act = Act::kSilu;
  RouteArgs route;  // n_experts, top_k and how; its bias per layer, where selection_bias says so
  bool router_bias = false, selection_bias = false;
  Act expert_act = Act::kSilu;
  float expert_limit = 0;
  int expert_width = 0;
  int shared_width = 0;      // of the expert that every token takes; 0: none
  bool shared_gate = false;  // times sigmoid of a projection to one
  int max_positions = 0;
  std::vector<RopeSpec> ropes;
  std::vector<DecoderLayer> layers;
  std::shared_ptr<RecurrentMixer> mixer;        // where any layer is recurrent
  std::shared_ptr<ExpertReader> expert_reader;  // null: plain matrices
};

/// What every Hugging Face config of these families says in the same words: sizes, eps, tying. n layers are made, all full attention.
/// Keys that differ between families are given by name.
struct HfKeys {
  const char* eps = "rms_norm_eps";
  const char* ffn_width = "intermediate_size";  // null: not read
  bool quantized = false;                       // the family reads a quantization_config itself
};
DecoderSpec read_decoder_hf(const ConfigReader& config, const HfKeys& keys = {});

/// The same from GGUF keys `<arch>.*`. What a family allows beyond the plain form:
struct GgufForm {
  bool partial_rotary = false;
  bool recurrent_by_kv_heads = false;  // head_count_kv per layer, 0 = recurrent
  bool ffn_width = true;               // feed_forward_length must be there
};
DecoderSpec read_decoder_gguf(const ConfigReader& config, const std::string& arch, Weights& weights, const GgufForm& form = {});

/// The single rope table of a Hugging Face config: `rope_parameters` (new style) or `rope_theta` + `rope_scaling`; over rope_dims.
RopeSpec read_rope_hf(const ConfigReader& config, const DecoderSpec& spec, double default_theta);
/// Windows by `layer_types` ("sliding_attention", "full_attention"); nothing when the key is absent.
void read_layer_types(const ConfigReader& config, int window, DecoderSpec& spec);
/// Recurrent layers by `layer_types`: each entry is one of the two words for either kind. False when the key is absent.
struct LayerWords {
  const char* recurrent[2];
  const char* attention[2];
};
bool read_recurrent_types(const ConfigReader& config, const std::string& key, const LayerWords& words, DecoderSpec& spec);
/// Refuses the key by name unless it is absent or has this value.
void require_text(const ConfigReader& config, const std::string& key, const std::string& value);
void require_flag(const ConfigReader& config, const std::string& key, bool value);
/// Where the text model's tensors begin: "model.", "model.language_model." or "language_model.model.".
std::string find_prefix(const Weights& weights);
/// The section that describes the text model. What stands outside of it must not ask for more than this version does.
ConfigReader text_section(const ConfigReader& root);

Result<Graph> build_decoder(const DecoderSpec& spec, Weights& weights, const BuildOptions& options);

}  // namespace carrel
