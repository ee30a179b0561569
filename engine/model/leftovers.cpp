// See the header.
#include "engine/model/leftovers.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <map>
#include <set>
#include <string_view>

#include "engine/model/config_reader.h"

namespace carrel {
namespace {

constexpr int64_t kNoLayer = -1;

/// The number behind "layers." or "blk.".
int64_t layer_of(std::string_view tensor) {
  for (const std::string_view word : {"layers.", "blk."}) {
    const size_t at = tensor.find(word);
    if (at == std::string_view::npos || (at > 0 && tensor[at - 1] != '.')) continue;
    int64_t layer = kNoLayer;
    const char* digits = tensor.data() + at + word.size();
    if (std::from_chars(digits, tensor.data() + tensor.size(), layer).ec == std::errc()) return layer;
  }
  return kNoLayer;
}

/// Whether one of the words is a whole part between dots of the name.
bool has_part(std::string_view name, std::initializer_list<std::string_view> words) {
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    if (std::find(words.begin(), words.end(), name.substr(at, end - at)) != words.end()) return true;
    at = end + 1;
  }
  return false;
}

/// What only the layers that guess tokens ahead have.
bool is_draft_part(std::string_view tensor) {
  return has_part(tensor, {"mtp", "nextn", "eh_proj", "enorm", "hnorm", "shared_head"});
}

/// Kinds that a text model does not use; empty: none of them.
std::string_view known_kind(std::string_view tensor, const std::set<int64_t>& draft_layers) {
  if (is_draft_part(tensor) || draft_layers.contains(layer_of(tensor))) return "draft layers";
  if (has_part(tensor,
               {"visual", "vision_tower", "vision_model", "vision_encoder", "vision_embed_tokens", "multi_modal_projector", "mm"}) ||
      tensor.starts_with("v.") || tensor.starts_with("model.connector."))
    return "the vision tower";
  if (has_part(tensor, {"audio_tower", "audio_encoder", "audio_model"})) return "the audio tower";
  if (has_part(tensor, {"inv_freq", "cos_cached", "sin_cached"})) return "rotary tables, which are computed here";
  return {};
}

/// The first of the keys that the configuration or its text section has.
std::string present_key(const ConfigReader& c, std::initializer_list<const char*> keys, const char* otherwise) {
  const ConfigReader text = c.is_object("text_config") ? c.section("text_config") : c;
  for (const char* key : keys)
    if (c.has(key) || text.has(key)) return key;
  return otherwise;
}

std::string probable_key(const ConfigReader& c, bool gguf, std::string_view tensor, int64_t last_layer) {
  const std::string arch = gguf && c.is_text("general.architecture") ? c.text("general.architecture") : "";
  const int64_t layer = layer_of(tensor);
  if (layer > last_layer) return gguf ? arch + ".block_count" : "num_hidden_layers";
  if (tensor.find("exp") != std::string_view::npos || tensor.find("moe") != std::string_view::npos) {
    if (gguf) return arch + ".expert_count";
    return present_key(c, {"num_local_experts", "num_experts", "n_routed_experts"}, "num_experts");
  }
  if (gguf) return "general.architecture";
  if (tensor.ends_with(".bias")) return present_key(c, {"attention_bias", "mlp_bias"}, "model_type");
  return layer == kNoLayer ? "model_type" : present_key(c, {"layer_types", "layers_block_type", "full_attn_idxs"}, "model_type");
}

}  // namespace

Result<std::vector<std::string>> check_leftovers(SourceFormat format, const std::string& config_json,
                                                 const std::vector<TensorUse>& tensors) {
  int64_t last_layer = kNoLayer;  // that was asked for
  for (const TensorUse& t : tensors)
    if (t.asked) last_layer = std::max(last_layer, layer_of(t.name));
  std::set<int64_t> draft_layers;
  for (const TensorUse& t : tensors)
    if (!t.asked && layer_of(t.name) > last_layer && is_draft_part(t.name)) draft_layers.insert(layer_of(t.name));
  const std::string* first = nullptr;
  int64_t n_unknown = 0;
  std::map<std::string_view, std::vector<const std::string*>> known;
  for (const TensorUse& t : tensors) {
    if (t.asked) continue;
    if (const std::string_view kind = known_kind(t.name, draft_layers); !kind.empty()) {
      known[kind].push_back(&t.name);
    } else if (n_unknown++ == 0) {
      first = &t.name;
    }
  }
  if (first != nullptr) {
    CARREL_ASSIGN(const ConfigReader config, ConfigReader::parse(config_json));
    const std::string key = probable_key(config, format == SourceFormat::kGguf, *first, last_layer);
    return fail(Code::kCorrupt,
                "the file has the tensor '" + *first + "'" + (n_unknown > 1 ? " and " + std::to_string(n_unknown - 1) + " more" : "") +
                    " that a model of this configuration does not use; the configuration is another model's, most likely in this key",
                "config " + key);
  }
  std::vector<std::string> notes;
  for (const auto& [kind, names] : known)
    notes.push_back(std::string(kind) + ": " + std::to_string(names.size()) + " tensors, '" + *names.front() + "' first");
  return notes;
}

}  // namespace carrel
