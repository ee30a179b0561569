// Text <-> token ids, as published models do it.
//
// Tokenizer owns the vocabulary, the pipeline (normalizer, pre-tokenizer, BPE, post-processor) and the sets of control and end tokens. It is
// immutable after loading: every method is const and may be called from any thread. It reads no files; the caller hands over their text.
// Files are not trusted: whatever is wrong with one ends in an Error that names the field. Exceptions do not leave this folder.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/hash.h"

namespace carrel {

/// The tokenizer keys of a GGUF file ("tokenizer.ggml.*"), filled by whoever reads the file.
struct GgufVocab {
  enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

  std::string model;                // "gpt2": byte-level BPE with merges; "llama": SentencePiece BPE with scores
  std::string pre;                  // name of the split; empty means "default"
  std::vector<std::string> tokens;  // by id
  std::vector<float> scores;        // by id; needed for "llama"
  std::vector<int32_t> token_types; // by id; empty means all normal
  std::vector<std::string> merges;  // "left right", best first; needed for "gpt2"
  std::optional<int32_t> bos_id, eos_id, unk_id, eot_id, eom_id, pad_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

/// What belongs to a tokenizer.json; every text may be empty.
struct TokenizerFiles {
  std::string_view tokenizer_json;
  std::string_view tokenizer_config_json;    // bos/eos, add_bos_token, tokens that tokenizer.json lacks
  std::string_view special_tokens_map_json;  // older form of the same
};

struct EncodeOptions {
  bool add_special = false;    // with BOS/EOS where the model's files ask for them
  bool parse_special = false;  // control tokens written out in the text become control tokens; never for text of a user
};

/// A piece of a prompt: template text may hold control tokens, text of a user may not.
struct TextPart {
  std::string_view text;
  bool allow_special = false;
};

class Tokenizer {
 public:
  /// `end_ids`: further end-of-generation tokens (generation_config.json, eos_token_id).
  static Result<std::shared_ptr<const Tokenizer>> from_json(const TokenizerFiles& files, std::span<const int32_t> end_ids = {});
  static Result<std::shared_ptr<const Tokenizer>> from_gguf(const GgufVocab& vocab, std::span<const int32_t> end_ids = {});
  ~Tokenizer();

  /// kInvalidArgument when the text is not well-formed UTF-8; kExhausted when it is larger than 256 MiB or a split takes too many steps.
  Result<std::vector<int32_t>> encode(std::string_view utf8, EncodeOptions options = {}) const;
  /// The ids of the parts' concatenation (merges go across the borders), control tokens only where a part, or adjacent parts, allow them.
  Result<std::vector<int32_t>> encode_parts(std::span<const TextPart> parts, bool add_special = false) const;
  /// Well-formed UTF-8: U+FFFD for each maximal ill-formed part. Ids out of range give nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;

  int32_t vocab_size() const;  // largest id + 1, unused ids included
  /// What the token adds to the text; bytes, not always whole characters. Empty for an id out of range.
  std::string_view token_bytes(int32_t id) const;
  /// Spelling in the vocabulary ("Ġthe", "<0x0A>"); for people.
  std::string_view token_text(int32_t id) const;
  std::optional<int32_t> find_token(std::string_view spelling) const;
  bool is_special(int32_t id) const;
  bool is_end(int32_t id) const;                      // generation stops here
  const std::vector<int32_t>& end_ids() const;        // sorted
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  bool adds_bos() const;                              // what add_special puts in front begins with bos_id
  bool strips_leading_space() const;                  // the decoded text loses one leading space
  /// SHA-256 of what defines the ids: the files (or GGUF keys), prefix, suffix and end tokens. Equal digests encode equally.
  const Digest& fingerprint() const;

  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);

 private:
  std::unique_ptr<const Impl> impl_;
};

}  // namespace carrel
