// The parser of regex.h: a pattern as a list of raw PCRE2 text and character sets. Used by regex.cpp only.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/text/unicode.h"

namespace carrel::tok {

/// One piece of the output pattern: text that PCRE2 takes as it is, or a set of code points.
struct RegexPiece {
  std::string raw;
  int set = -1;  // index into ParsedRegex::sets; -1 for raw text
};

struct ParsedRegex {
  std::vector<RegexPiece> pieces;
  std::vector<CodeSet> sets;  // distinct
};

Result<ParsedRegex> parse_regex(std::u32string_view pattern);

}  // namespace carrel::tok
