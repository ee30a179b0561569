// Code points: UTF-8, sets of code points, Unicode 16 properties, NFC. Pure functions over read-only tables; any thread.
//
// The text front end takes its character classes from here and not from PCRE2 (Unicode 14 in the package we link), because published
// tokenizers follow a newer Unicode: one wrong class is another token.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace carrel::tok {

inline constexpr char32_t kMaxCodePoint = 0x10FFFF;
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct CodeRange {
  char32_t first = 0;
  char32_t last = 0;  // inclusive
  bool operator==(const CodeRange&) const = default;
  auto operator<=>(const CodeRange&) const = default;
};

/// A set of code points as sorted, disjoint, non-adjacent ranges.
class CodeSet {
 public:
  CodeSet() = default;
  explicit CodeSet(std::vector<CodeRange> ranges);
  static CodeSet one(char32_t c) { return CodeSet({{c, c}}); }

  const std::vector<CodeRange>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  bool contains(char32_t c) const;
  CodeSet united(const CodeSet& other) const;
  CodeSet intersected(const CodeSet& other) const { return complement().united(other.complement()).complement(); }
  CodeSet complement() const;
  /// With every code point that equals one of the set up to simple case folding.
  CodeSet closed_under_case() const;
  auto operator<=>(const CodeSet&) const = default;

 private:
  std::vector<CodeRange> ranges_;
};

/// The set of a property as regular expressions name it: a category ("L", "Lu", "Letter"), a script ("Han", "Script=Han", "IsHan"), or
/// "Any", "Alphabetic", "White_Space". Nothing when the name is unknown.
std::optional<CodeSet> unicode_property(std::string_view name);
/// \w of the reference's regular expressions.
CodeSet word_set();
/// \s
CodeSet space_set();

bool is_white_space(char32_t c);
/// Letters, marks, numbers, connectors: what may not stand beside a token that wants to be a word of its own.
bool is_word_char(char32_t c);
/// Categories Nd, Nl, No, as the Digits pre-tokenizer counts them.
bool is_number(char32_t c);
/// Category P or ASCII punctuation and symbols.
bool is_punctuation(char32_t c);

void append_utf8(std::string& out, char32_t c);
std::string to_utf8(std::u32string_view text);
/// Code points of well-formed UTF-8; an error (kInvalidArgument) names the first bad byte's offset.
Result<std::u32string> from_utf8(std::string_view utf8);
/// Offset of the first byte that is not well-formed; npos when all is well.
size_t find_ill_formed(std::string_view utf8);

/// What stands at `at`: a whole character, a beginning that may still become one, or a maximal ill-formed part (each to be replaced by
/// one U+FFFD).
struct Utf8Step {
  enum Kind { kCharacter, kIncomplete, kIllFormed } kind = kIllFormed;
  size_t n_bytes = 1;
  char32_t code_point = 0xFFFD;
};
Utf8Step utf8_step(std::string_view bytes, size_t at);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
/// The normal form of well-formed UTF-8, as the reference's normalizer computes it: code points newer than that normalizer stay as they are.
Result<std::string> normalize(std::string_view utf8, NormalForm form);

}  // namespace carrel::tok
