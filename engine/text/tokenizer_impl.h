// What a Tokenizer is made of, and the builder that both loaders (tokenizer_json.cpp, tokenizer_gguf.cpp) fill. Private to this folder.
#pragma once
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/added_tokens.h"
#include "engine/text/bpe.h"
#include "engine/text/pipeline.h"
#include "engine/text/tokenizer.h"

namespace carrel {

struct Tokenizer::Impl {
  struct Token {
    std::string text;   // spelling
    std::string bytes;  // decoded
    bool exists = false;
    bool special = false;
    bool end = false;
  };

  std::vector<Token> tokens;  // by id
  tok::StringIndex by_text;   // spelling -> id
  tok::Normalizer normalizer;
  tok::PreTokenizer pre_tokenizer;
  tok::BpeModel bpe;
  tok::AddedTokenMatcher raw;         // looked for before normalization
  tok::AddedTokenMatcher normalized;  // and after it
  tok::AddedTokenMatcher raw_mixed;   // raw with all control tokens: for texts whose parts differ, since runs do not survive normalization
  std::vector<int32_t> prefix, suffix;  // what add_special adds
  std::vector<int32_t> end_ids;
  std::optional<int32_t> bos, eos;
  bool strip_leading_space = false;
  Digest fingerprint{};

  Status encode(std::string_view text, std::span<const tok::Run> runs, std::vector<int32_t>& out) const;

  bool is_special_id(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < tokens.size() && tokens[static_cast<size_t>(id)].special; }

  // For the loaders.
  /// Places a token at its id; kCorrupt when the id is taken by another spelling or out of bounds.
  Status place(int32_t id, std::string_view text);
  std::optional<int32_t> find(std::string_view text) const;
  /// Builds the matchers, the set of end tokens and the fingerprint. `added` by rising id; `definition` is what the caller hashed so far.
  Status finish(const std::vector<tok::AddedToken>& added, std::span<const int32_t> more_ends, Sha256 definition);

 private:
  Status encode_words(std::string_view normalized_text, bool at_start, std::vector<int32_t>& out) const;
  void find_ends(std::span<const int32_t> more_ends);
};

/// The stages of a pre-tokenizer in the JSON of tokenizer.json: one stage, or a Sequence.
Result<tok::PreTokenizer> pre_tokenizer_from_json(std::string_view json);

}  // namespace carrel
