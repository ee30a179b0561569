// See the header.
#include "engine/model/source_text.h"

#include <optional>

namespace carrel {

GgufVocab gguf_vocab(const GgufTokenizer& t) {
  GgufVocab v;
  v.model = t.model;
  v.pre = t.pre;
  v.tokens = t.tokens;
  v.scores = t.scores;
  v.token_types = t.types;
  v.merges = t.merges;
  const auto id = [](int64_t x) { return x >= 0 && x <= INT32_MAX ? std::optional(static_cast<int32_t>(x)) : std::nullopt; };
  v.bos_id = id(t.bos), v.eos_id = id(t.eos), v.unk_id = id(t.unk), v.eot_id = id(t.eot), v.eom_id = id(t.eom), v.pad_id = id(t.pad);
  v.add_bos = t.add_bos, v.add_eos = t.add_eos, v.add_space_prefix = t.add_space_prefix;
  return v;
}

Result<std::shared_ptr<const Tokenizer>> tokenizer_of(const ModelSource& source, std::span<const int32_t> end_ids) {
  if (source.gguf_tokenizer() != nullptr) return Tokenizer::from_gguf(gguf_vocab(*source.gguf_tokenizer()), end_ids);
  if (source.tokenizer_json().empty())
    return fail(Code::kNotFound, "has no tokenizer (tokenizer.json); Carrel cannot serve it", source.path());
  return Tokenizer::from_json({source.tokenizer_json(), source.tokenizer_config_json(), source.special_tokens_map_json()}, end_ids);
}

}  // namespace carrel
