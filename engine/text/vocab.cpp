// See vocab.h. Open addressing with linear probing, at most half full.
#include "engine/text/vocab.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace carrel::tok {
namespace {

uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0x9E3779B97F4A7C15u;
  return x ^ x >> 29;
}

}  // namespace

uint64_t StringIndex::hash(std::string_view text) {
  uint64_t h = text.size();
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    h = mix(h ^ word) * 0xD6E8FEB86659FD93u;
  }
  uint64_t tail = 0;
  if (i < text.size()) std::memcpy(&tail, text.data() + i, text.size() - i);
  return mix(h ^ tail) * 0xD6E8FEB86659FD93u ^ h;
}

void StringIndex::reserve(size_t n) {
  while (slots_.size() < 2 * n) grow();
}

void StringIndex::grow() {
  std::vector<Slot> old = std::move(slots_);
  slots_.assign(std::max<size_t>(64, old.size() * 2), {});
  for (const Slot& s : old) {
    if (s.id == kNoToken) continue;
    size_t i = hash({block_.data() + s.offset, s.length}) & (slots_.size() - 1);
    while (slots_[i].id != kNoToken) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = s;
  }
}

bool StringIndex::add(std::string_view text, int32_t id) {
  if (find(text) != kNoToken) return false;
  if (2 * (n_ + 1) > slots_.size()) grow();
  size_t i = hash(text) & (slots_.size() - 1);
  while (slots_[i].id != kNoToken) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {block_.size(), static_cast<uint32_t>(text.size()), id};
  block_.append(text);
  ++n_;
  longest_ = std::max(longest_, text.size());
  return true;
}

int32_t StringIndex::find(std::string_view text) const {
  if (slots_.empty() || text.size() > longest_) return kNoToken;
  for (size_t i = hash(text) & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
    const Slot& s = slots_[i];
    if (s.id == kNoToken) return kNoToken;
    if (s.length == text.size() && std::string_view(block_.data() + s.offset, s.length) == text) return s.id;
  }
}

void MergeIndex::reserve(size_t n) {
  while (slots_.size() < 2 * n) grow();
}

size_t MergeIndex::place(uint64_t key) const {
  size_t i = mix(key) & (slots_.size() - 1);
  while (slots_[i].merge.id != kNoToken && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
  return i;
}

void MergeIndex::grow() {
  std::vector<Slot> old = std::move(slots_);
  slots_.assign(std::max<size_t>(64, old.size() * 2), {});
  for (const Slot& s : old) {
    if (s.merge.id != kNoToken) slots_[place(s.key)] = s;
  }
}

void MergeIndex::add(int32_t left, int32_t right, Merge merge) {
  if (2 * (n_ + 1) > slots_.size()) grow();
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  Slot& s = slots_[place(key)];
  if (s.merge.id == kNoToken) ++n_;
  s = {key, merge};
}

const Merge* MergeIndex::find(int32_t left, int32_t right) const {
  if (slots_.empty()) return nullptr;
  const Slot& s = slots_[place(static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right))];
  return s.merge.id == kNoToken ? nullptr : &s.merge;
}

}  // namespace carrel::tok
