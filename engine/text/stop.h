// Stop strings over token borders. One object per stream, one thread at a time.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace carrel {

class StopMatcher {
 public:
  /// What may be sent, and whether a stop string has been met (then nothing follows).
  struct Out {
    std::string text;
    std::optional<size_t> stop;  // index of the stop string
  };

  static constexpr size_t kMaxStops = 64;
  static constexpr size_t kMaxStopBytes = 4096;

  /// kInvalidArgument for an empty stop string, more than 64 of them or one longer than 4096 bytes.
  static Result<StopMatcher> create(std::vector<std::string> stops);
  StopMatcher() = default;  // no stop strings: everything passes

  /// Text of one token. The text up to the earliest stop string is given out (of two that begin at the same place, the one that is complete
  /// first, then the one listed first); what may still become a stop string is held back. After a stop everything is dropped.
  Out push(std::string_view text);
  /// The end of the stream: what was held back is no stop string.
  std::string flush();
  bool stopped() const { return stopped_; }

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;  // longest proper border of each prefix
    size_t matched = 0;            // of text, at the end of what was seen
  };

  std::vector<Pattern> patterns_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace carrel
