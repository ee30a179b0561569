// The generated Unicode tables (unicode_tables.cpp, made by make_unicode_tables.py). Read-only data, any thread; use them through unicode.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/text/unicode.h"

namespace carrel::tok {

inline constexpr size_t kCategoryCount = 30;
extern const char* const kCategoryNames[kCategoryCount];  // "Cn", "Cc", ...

/// Code points from `first` up to the next run have this category (index into kCategoryNames).
struct CategoryRun {
  char32_t first;
  uint8_t category;
};
extern const CategoryRun kCategoryRuns[];
extern const size_t kCategoryRunCount;

/// Simple case folding: every code point that folds to another one, sorted by `from`.
struct FoldPair {
  char32_t from;
  char32_t to;
};
extern const FoldPair kFolds[];
extern const size_t kFoldCount;

/// Numbers of Unicode 17, which the Digits pre-tokenizer of the reference knows already.
extern const CodeRange kNumberExtra[];
extern const size_t kNumberExtraCount;

/// Code points that NFC leaves alone, because the reference's normalizer is older than they are.
extern const CodeRange kNfcUnknown[];
extern const size_t kNfcUnknownCount;

struct ScriptTable {
  const char* name;
  const CodeRange* ranges;
  size_t count;
};
extern const ScriptTable kScripts[];
extern const size_t kScriptCount;

}  // namespace carrel::tok
