// Vocabulary tables of a tokenizer: id -> bytes, bytes -> id, pair of ids -> merge. Built once, then read by any thread.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace carrel::tok {

inline constexpr int32_t kNoToken = -1;
inline constexpr int32_t kMaxTokenId = (1 << 22) - 1;  // more than any published vocabulary; bounds what a hostile file can allocate

/// Strings in one block of memory with a hash index.
class StringIndex {
 public:
  void reserve(size_t n);
  /// Adds the string under the id; false when the string is there already.
  bool add(std::string_view text, int32_t id);
  int32_t find(std::string_view text) const;
  size_t size() const { return n_; }
  size_t longest() const { return longest_; }

 private:
  struct Slot {
    uint64_t offset = 0;
    uint32_t length = 0;
    int32_t id = kNoToken;
  };
  static uint64_t hash(std::string_view text);
  void grow();

  std::string block_;
  std::vector<Slot> slots_;
  size_t n_ = 0;
  size_t longest_ = 0;
};

struct Merge {
  uint32_t rank = 0;
  int32_t id = kNoToken;  // of the joined token
};

/// (left id, right id) -> merge.
class MergeIndex {
 public:
  void reserve(size_t n);
  /// A later entry for the same pair replaces the earlier one, as in the reference.
  void add(int32_t left, int32_t right, Merge merge);
  const Merge* find(int32_t left, int32_t right) const;
  size_t size() const { return n_; }

 private:
  struct Slot {
    uint64_t key = ~uint64_t{0};
    Merge merge;
  };
  void grow();
  size_t place(uint64_t key) const;

  std::vector<Slot> slots_;
  size_t n_ = 0;
};

}  // namespace carrel::tok
