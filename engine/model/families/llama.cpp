// Llama and what shares its code (SmolLM2 …): architectures reference, section 7. llama3 scaling comes from the config, in GGUF from
// `rope_freqs.weight`.
#include "engine/model/config_reader.h"
#include "engine/model/families/decoder.h"
#include "engine/model/families/families.h"
#include "engine/model/families/numbers.h"
#include "engine/model/families/rope.h"

namespace carrel {

namespace {

/// GGUF holds what each frequency is divided by.
Status divide_by_rope_freqs(Weights& weights, RopeSpec& rope) {
  if (!weights.has("rope_freqs.weight")) return {};
  CARREL_ASSIGN(const float* by, weights.vector("rope_freqs.weight", static_cast<int64_t>(rope.inv_freq.size())));
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    if (!(by[i] > 0)) return fail(Code::kCorrupt, "must be positive", "rope_freqs.weight");
    rope.inv_freq[i] /= static_cast<double>(by[i]);
  }
  return {};
}

Result<Graph> build(SourceFormat format, const std::string& config_json, Weights& weights, const BuildOptions& options) {
  CARREL_ASSIGN(const ConfigReader c, ConfigReader::parse(config_json));
  DecoderSpec s;
  if (format == SourceFormat::kGguf) {
    s = read_decoder_gguf(c, "llama", weights);
    s.unpair = true;
    if (c.integer_or("llama.expert_count", 0, 0, 1 << 20) > 0)
      c.error(Code::kUnsupported, "experts are not part of this family", "llama.expert_count");
    s.ropes.push_back(rope_from_gguf(c, "llama", rope_base_or(c, "llama.rope.freq_base", 10000), s.head_dim, s.max_positions));
    CARREL_TRY(c.status());
    CARREL_TRY(divide_by_rope_freqs(weights, s.ropes[0]));
  } else {
    s = read_decoder_hf(c);
    s.ropes.push_back(read_rope_hf(c, s, 10000));
    if (c.text_or("hidden_act", "silu") != "silu") c.error(Code::kUnsupported, "must be silu", "hidden_act");
    CARREL_TRY(c.status());
  }
  return build_decoder(s, weights, options);
}

}  // namespace

Family llama_family() {
  return {"llama", {"llama"}, {"llama"}, build};
}

}  // namespace carrel
