// Normalizer and pre-tokenizer of a tokenizer: text -> normalized text -> words. Immutable after it is built; any thread.
// The steps are those of tokenizer.json; a GGUF file's names are turned into the same steps (tokenizer_gguf.cpp).
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "engine/text/regex.h"
#include "engine/text/unicode.h"

namespace carrel::tok {

struct ReplaceText {
  std::string from;
  std::string to;
};
struct ReplaceRegex {
  Regex from;
  std::string to;
};
struct PrependText {
  std::string text;
};
struct StripSpace {
  bool left = true;
  bool right = true;
};
struct LowerCase {};
using NormalizerStep = std::variant<NormalForm, ReplaceText, ReplaceRegex, PrependText, StripSpace, LowerCase>;

class Normalizer {
 public:
  void add(NormalizerStep step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }
  size_t n_steps() const { return steps_.size(); }
  /// Well-formed UTF-8 in and out. An empty text stays empty. kExhausted when it grows more than 64-fold (beyond its first 4 KiB).
  Result<std::string> run(std::string_view text) const;

 private:
  std::vector<NormalizerStep> steps_;
};

/// What becomes of the matches of a split.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct SplitStep {
  Regex pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
};
struct DigitsStep {
  bool individual = false;
};
struct PunctuationStep {
  SplitBehavior behavior = SplitBehavior::kIsolated;
};
struct WhitespaceSplitStep {};
/// Maps the bytes of the text to the 256 printable characters of byte-level BPE.
struct ByteLevelStep {
  bool add_prefix_space = false;
};
struct MetaspaceStep {
  enum class Prepend { kAlways, kFirst, kNever };
  char32_t replacement = 0x2581;
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};
using SplitterStep = std::variant<SplitStep, DigitsStep, PunctuationStep, WhitespaceSplitStep, ByteLevelStep, MetaspaceStep>;

/// Words of a text; `byte_level` when the characters stand for bytes (see byte_of_char).
struct Words {
  std::u32string text;
  std::vector<Span> spans;  // code points of `text`, ascending, none empty
  bool byte_level = false;
};

class PreTokenizer {
 public:
  void add(SplitterStep step) { steps_.push_back(std::move(step)); }
  size_t n_steps() const { return steps_.size(); }
  bool byte_level() const;
  /// `at_start`: the piece begins the whole text (Metaspace with scheme "first").
  Result<Words> run(std::string_view normalized, bool at_start) const;

 private:
  std::vector<SplitterStep> steps_;
};

/// `text` with every `from` replaced, left to right; kExhausted when it grows beyond `max_bytes`.
Result<std::string> replace_all(std::string_view text, const ReplaceText& step, size_t max_bytes);
/// The growth that replacements of all steps together may cause.
constexpr size_t max_grown_bytes(size_t n_bytes) { return 64 * n_bytes + 4096; }

/// The 256 characters of byte-level BPE: printable Latin-1 stands for itself, the rest for U+0100 onward.
char32_t char_of_byte(uint8_t byte);
/// The byte a character stands for; -1 for a character that stands for none.
int byte_of_char(char32_t c);
/// The bytes a spelling of such characters stands for; nothing when one of them stands for none.
std::optional<std::string> bytes_of_chars(std::string_view spelling);

/// The published split of GPT-2, which ByteLevel with use_regex applies.
inline constexpr std::string_view kGpt2Split = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace carrel::tok
