// tokenizer.json read into memory: vocabulary and merges as flat lists, the small rest as a JSON value. Used by the loader only; the JSON
// library stays out of this header.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace carrel::tok {

struct TokenizerFile {
  std::vector<std::pair<std::string, int64_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;
  std::shared_ptr<nlohmann::json> rest;  // without model.vocab and model.merges
};

/// kCorrupt for anything that is not such a file; nesting and sizes are bounded.
Result<TokenizerFile> read_tokenizer_file(std::string_view text);

}  // namespace carrel::tok
