// Token ids -> text as it arrives: never half a character. One object per stream, one thread at a time.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "engine/text/tokenizer.h"

namespace carrel {

class Detokenizer {
 public:
  /// The tokenizer is borrowed and outlives the detokenizer. With skip_special, control tokens give no text.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special), strip_space_(tokenizer.strips_leading_space()) {}

  /// Every complete character so far; the beginning of one is held back. U+FFFD for each maximal ill-formed part.
  std::string push(int32_t id);
  /// The end of the stream: what is held back can no longer become a character and gives one U+FFFD.
  std::string flush();
  /// Bytes held back (0..3).
  size_t held_bytes() const { return held_.size(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool strip_space_;  // the first text that appears loses one leading space
  std::string held_;
};

}  // namespace carrel
