// Regular expressions of tokenizers (Oniguruma's Ruby syntax as the reference reads it), run by PCRE2.
//
// A pattern is parsed here and its character sets (classes, properties, literals, case closure) are computed from our own Unicode tables.
// Code points that no set of the pattern tells apart form one of at most 255 kinds; PCRE2 gets a pattern over those kinds, one byte each,
// and matches a text of kinds. So nothing depends on PCRE2's Unicode version, the compiled pattern stays far below its 64 KiB limit
// (the explicit ranges of one published pattern would not), and a class costs one bit test.
// Immutable after compile(); any thread. Steps, nesting and memory of a match are bounded: a hostile pattern ends in an Error.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace carrel::tok {

struct Span {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const Span&) const = default;
};

class Regex {
 public:
  /// kUnsupported names the construct that is not handled (back references, recursion ...); kInvalidArgument a malformed pattern.
  static Result<Regex> compile(std::string_view pattern);
  /// A pattern that matches exactly this text.
  static Result<Regex> literal(std::string_view text);

  /// The kind of each code point: what find_all matches on.
  std::vector<uint8_t> kinds(std::u32string_view text) const;
  /// All matches in the n kinds from `subject`, left to right, not overlapping, as a text of their own (look-behind sees nothing before).
  Result<std::vector<Span>> find_all(const uint8_t* subject, size_t n) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace carrel::tok
