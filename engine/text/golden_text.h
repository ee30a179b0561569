// Holds the tokenizer against published vocabularies: folders as in golden/text/tokenizers (files packed by xz, read through the `xz` program).
// What `carrel golden` prints and what tests assert. Threads: none of its own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/error.h"

namespace carrel {

struct GoldenTextReport {
  int64_t n_checks = 0, n_failed = 0;
  std::vector<std::string> failures;  // the first few
};

/// The content of FILE or FILE.xz.
Result<std::string> read_packed(Env* env, const std::string& path);

/// One family: every id and text field of vectors.jsonl, every stream of stream.jsonl; with vocab.gguf, nothing further.
Result<GoldenTextReport> check_tokenizer_family(Env* env, const std::string& dir);
/// split_patterns.json(l): the pieces that each published split cuts the corpus into.
Result<GoldenTextReport> check_split_patterns(Env* env, const std::string& dir);

}  // namespace carrel
