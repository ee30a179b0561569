// The sections of tokenizer.json (normalizer, pre_tokenizer, post_processor, decoder) turned into the steps of pipeline.h. Used by
// tokenizer_json.cpp only.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/text/pipeline.h"
#include "engine/text/vocab.h"

namespace carrel::tok {

/// A field of the expected type, or the fallback when it is absent or null; kCorrupt when it has another type.
Result<bool> bool_field(const nlohmann::json& j, const char* name, bool fallback);
Result<std::string> text_field(const nlohmann::json& j, const char* name, std::string fallback);

Status read_normalizer(const nlohmann::json& j, Normalizer& out, int depth = 0);
Status read_pre_tokenizer(const nlohmann::json& j, PreTokenizer& out, int depth = 0);

struct PostProcessor {
  std::vector<int32_t> prefix, suffix;
};
Status read_post_processor(const nlohmann::json& j, PostProcessor& out, int depth = 0);

struct TokenDecoder {
  bool byte_level = false;
  bool byte_fallback = false;
  bool spaces_between = false;  // no decoder: the reference joins tokens by spaces
  bool strip_leading_space = false;
  std::vector<ReplaceText> replacements;  // in each token's spelling

  /// What a token of this spelling adds to the text.
  Result<std::string> bytes_of(const std::string& spelling) const;
};
Status read_decoder(const nlohmann::json& j, TokenDecoder& out, int depth = 0);

}  // namespace carrel::tok
