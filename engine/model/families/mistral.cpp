// Mistral: Llama with a window in every layer, unless `sliding_window` is null (architectures reference, section 7). GGUF files of it say
// `llama`.
#include "engine/model/config_reader.h"
#include "engine/model/families/decoder.h"
#include "engine/model/families/families.h"

namespace carrel {

namespace {

Result<Graph> build(SourceFormat, const std::string& config_json, Weights& weights, const BuildOptions& options) {
  CARREL_ASSIGN(const ConfigReader c, ConfigReader::parse(config_json));
  DecoderSpec s = read_decoder_hf(c);
  s.ropes.push_back(read_rope_hf(c, s, 10000));
  const int window = static_cast<int>(c.integer_or("sliding_window", 0, 0, 1 << 30));
  for (DecoderLayer& l : s.layers) l.window = window;
  read_layer_types(c, window, s);
  CARREL_TRY(c.status());
  return build_decoder(s, weights, options);
}

}  // namespace

Family mistral_family() {
  return {"mistral", {"mistral"}, {}, build};
}

}  // namespace carrel
