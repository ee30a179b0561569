// Holds the tokenizer against published vocabularies: folders as in golden/text/tokenizers (files packed by xz, read through the `xz`
// program). What `carrel golden` prints and what tests assert. Threads: none of its own.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "engine/text/tokenizer.h"

namespace carrel {

struct GoldenTextReport {
  int64_t n_checks = 0, n_failed = 0;
  std::vector<std::string> failures;  // the first few
};

/// The content of FILE or FILE.xz.
Result<std::string> read_packed(Env* env, const std::string& path);

/// One family: every id and text field of vectors.jsonl, every stream of stream.jsonl, piece by piece.
Result<GoldenTextReport> check_tokenizer_family(Env* env, const std::string& dir);
/// The same vectors and streams for a tokenizer loaded otherwise (vocab.gguf).
Result<GoldenTextReport> check_tokenizer(Env* env, const Tokenizer& tokenizer, const std::string& dir);
/// tokens.json of golden/real: one object with cases {text, ids, ids_plain, dec}. `skip` names texts where the file and tokenizer.json
/// differ.
Result<GoldenTextReport> check_token_cases(Env* env, const Tokenizer& tokenizer, const std::string& path,
                                           std::span<const std::string> skip = {});
/// split_patterns.json(l): the pieces that each published split cuts the corpus into.
Result<GoldenTextReport> check_split_patterns(Env* env, const std::string& dir);

}  // namespace carrel
