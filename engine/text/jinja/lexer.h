// Template source to tokens, with Jinja's rules for white space (trim_blocks and lstrip_blocks on, as transformers sets them).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace carrel::jinja {

enum class Tok : uint8_t { kText, kBlockBegin, kBlockEnd, kPrintBegin, kPrintEnd, kName, kString, kInt, kFloat, kOp, kEnd };

struct Token {
  Tok kind = Tok::kEnd;
  std::string text;  // of a string: its value; of an operator: its spelling
  uint32_t line = 1;
};

/// Where a message about the source points to.
std::string at_line(uint32_t line);

Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace carrel::jinja
