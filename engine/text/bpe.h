// Byte-pair encoding of one word: with ranked merges (tokenizer.json, GGUF "gpt2") or with scores of the joined piece (SentencePiece,
// GGUF "llama"). Immutable after it is built; any thread. Time is n log n in the length of the word, memory linear.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/text/vocab.h"

namespace carrel::tok {

struct BpeModel {
  StringIndex vocab;        // pieces a merge may start from or (scores) end in; raw bytes when byte_level
  MergeIndex merges;        // empty with scores
  std::vector<float> scores;  // by id; used when by_score
  std::array<int32_t, 256> byte_ids{};  // <0x00> .. <0xFF>; kNoToken where absent
  int32_t unk_id = kNoToken;
  bool byte_level = false;     // the units of a word are bytes, otherwise UTF-8 characters
  bool byte_fallback = false;  // a character without a piece becomes its bytes
  bool fuse_unk = false;
  bool ignore_merges = false;  // a word that is a piece as a whole is that piece
  bool by_score = false;

  BpeModel() { byte_ids.fill(kNoToken); }

  /// Appends the ids of the word. A unit that has no id, no bytes and no unknown token is dropped, as in the reference.
  void encode(std::string_view word, std::vector<int32_t>& out) const;
  /// The same by the general way only (the heap), which encode takes for long words; for tests.
  void encode_with_heap(std::string_view word, std::vector<int32_t>& out) const;

 private:
  struct Symbol;
  void units(std::string_view word, std::vector<Symbol>& out) const;
  void push_bytes(std::string_view bytes, std::vector<int32_t>& out) const;
  bool joined(std::string_view word, const Symbol& left, const Symbol& right, float& priority, int32_t& id) const;
  void merge_short(std::string_view word, std::vector<Symbol>& symbols) const;
  void merge_long(std::string_view word, std::vector<Symbol>& symbols) const;
  void emit(std::string_view word, const std::vector<Symbol>& symbols, std::vector<int32_t>& out) const;
  void encode_by(std::string_view word, bool heap, std::vector<int32_t>& out) const;
};

}  // namespace carrel::tok
