// What is done to JSON text of a model before a JSON library sees it, and what is asked of small files. Pure; no threads.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace carrel {

constexpr int kMaxJsonDepth = 64;

/// Turns what Python writes for non-finite numbers (bare Infinity, -Infinity, NaN; {"__float__": "Infinity"}) into null, and checks that
/// brackets nest no deeper than kMaxJsonDepth and that the text is UTF-8. Whether it is JSON, its reader decides. kCorrupt with `where`.
Result<std::string> clean_json(std::string_view text, const std::string& where);

/// `text` as a JSON string with its quotes; bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);
bool is_utf8(std::string_view text);

/// The template of tokenizer_config.json or chat_template.json: a string, or a list of {"name", "template"} of which "default" (else the
/// first) counts. Empty when there is none.
Result<std::string> chat_template_of(std::string_view json, const std::string& where);

/// model.safetensors.index.json: (tensor, file name) pairs in the order of the file. Refuses names twice and files outside of the folder.
struct ShardEntry {
  std::string tensor, file;
};
Result<std::vector<ShardEntry>> read_shard_index(std::string_view json, const std::string& where);

}  // namespace carrel
