// Added tokens: spellings that are one token wherever they stand in a text. Immutable after it is built; any thread.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/regex.h"
#include "engine/text/vocab.h"

namespace carrel::tok {

struct AddedToken {
  int32_t id = kNoToken;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in the normalized text
  bool special = false;      // a control token: only where the text may have one
};

/// A stretch of text in which control tokens may or may not be written.
struct Run {
  size_t end = 0;  // bytes; the next run begins there
  bool allow_special = false;
};

/// A stretch of text (id == kNoToken) or an added token.
struct Segment {
  int32_t id = kNoToken;
  Span span;  // bytes
};

/// Finds added tokens, leftmost first, the longest of those that start there.
class AddedTokenMatcher {
 public:
  void add(AddedToken token) { tokens_.push_back(std::move(token)); }
  void build();
  bool empty() const { return tokens_.empty(); }
  /// Cuts the text. `runs` cover it, ascending. A control token is found only if it lies within a run as a whole, and is taken as ordinary
  /// text (but passed over as a whole, as in the reference) when the run does not allow it.
  std::vector<Segment> split(std::string_view text, std::span<const Run> runs) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t at, size_t special_end) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<Span, 256> by_first_byte_{};
};

}  // namespace carrel::tok
