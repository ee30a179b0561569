// See bpe.h.
#include "engine/text/bpe.h"

#include <algorithm>
#include <queue>

#include "engine/text/unicode.h"

namespace carrel::tok {

struct BpeModel::Symbol {
  int32_t id = kNoToken;  // kNoToken (scores only): a character that is not a piece, given out as bytes at the end
  uint32_t begin = 0;
  uint32_t length = 0;  // 0: merged into its left neighbour
  int32_t prev = -1;
  int32_t next = -1;
};

void BpeModel::units(std::string_view word, std::vector<Symbol>& out) const {
  bool unknown_open = false;
  auto add = [&out](int32_t id, size_t begin, size_t n) { out.push_back({id, static_cast<uint32_t>(begin), static_cast<uint32_t>(n)}); };
  for (size_t i = 0, n = 0; i < word.size(); i += n) {
    n = byte_level ? 1 : utf8_step(word, i).n_bytes;
    const std::string_view unit = word.substr(i, n);
    const int32_t id = vocab.find(unit);
    if (id != kNoToken || by_score) {
      add(id, i, n);
      unknown_open = false;
      continue;
    }
    const bool all_bytes = byte_fallback && std::all_of(unit.begin(), unit.end(), [this](char c) {
                             return byte_ids[static_cast<uint8_t>(c)] != kNoToken;
                           });
    if (all_bytes) {
      for (size_t k = 0; k < n; ++k) add(byte_ids[static_cast<uint8_t>(unit[k])], i + k, 1);
      continue;
    }
    if (unk_id == kNoToken) continue;
    if (unknown_open && fuse_unk) {
      out.back().length += static_cast<uint32_t>(n);
    } else {
      add(unk_id, i, n);
      unknown_open = true;
    }
  }
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].prev = static_cast<int32_t>(i) - 1;
    out[i].next = i + 1 < out.size() ? static_cast<int32_t>(i) + 1 : -1;
  }
}

/// Whether the two neighbours join, into which id, and with which priority (lower goes first).
bool BpeModel::joined(std::string_view word, const Symbol& left, const Symbol& right, float& priority, int32_t& id) const {
  if (!by_score) {
    const Merge* m = merges.find(left.id, right.id);
    if (m == nullptr) return false;
    priority = static_cast<float>(m->rank);  // ranks are below 2^24, exact
    id = m->id;
    return true;
  }
  id = vocab.find(word.substr(left.begin, left.length + right.length));
  if (id == kNoToken) return false;
  priority = -scores[static_cast<size_t>(id)];
  return true;
}

/// Repeatedly joins the best pair, the leftmost of equals: quadratic, the fastest way for the few symbols of an ordinary word.
void BpeModel::merge_short(std::string_view word, std::vector<Symbol>& symbols) const {
  struct Pair {
    float priority;
    int32_t id;  // kNoToken: does not join
  };
  std::vector<Pair> pairs(symbols.size());
  auto rate = [&](size_t i) {
    pairs[i].id = kNoToken;
    if (i + 1 < symbols.size() && !joined(word, symbols[i], symbols[i + 1], pairs[i].priority, pairs[i].id)) pairs[i].id = kNoToken;
  };
  for (size_t i = 0; i < symbols.size(); ++i) rate(i);
  for (;;) {
    size_t best = symbols.size();
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      if (pairs[i].id != kNoToken && (best == symbols.size() || pairs[i].priority < pairs[best].priority)) best = i;
    }
    if (best == symbols.size()) return;
    symbols[best].id = pairs[best].id;
    symbols[best].length += symbols[best + 1].length;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    rate(best);
    if (best > 0) rate(best - 1);
  }
}

void BpeModel::merge_long(std::string_view word, std::vector<Symbol>& symbols) const {
  struct Entry {
    float priority;
    int32_t left;
    int32_t right;
    uint32_t length;  // of both together: tells an entry of earlier symbols
    int32_t id;
    bool operator<(const Entry& o) const { return priority != o.priority ? priority > o.priority : left > o.left; }
  };
  std::vector<Entry> first;
  first.reserve(symbols.size());
  auto make = [&](int32_t l, int32_t r, auto&& take) {
    if (l < 0 || r < 0) return;
    const Symbol &left = symbols[static_cast<size_t>(l)], &right = symbols[static_cast<size_t>(r)];
    float priority = 0;
    int32_t id = kNoToken;
    if (joined(word, left, right, priority, id)) take(Entry{priority, l, r, left.length + right.length, id});
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    make(static_cast<int32_t>(i), static_cast<int32_t>(i) + 1, [&](Entry e) { first.push_back(e); });
  }
  std::priority_queue<Entry> queue(std::less<Entry>{}, std::move(first));
  while (!queue.empty()) {
    const Entry e = queue.top();
    queue.pop();
    Symbol &left = symbols[static_cast<size_t>(e.left)], &right = symbols[static_cast<size_t>(e.right)];
    if (left.length == 0 || right.length == 0 || left.next != e.right || left.length + right.length != e.length) continue;
    left.id = e.id;
    left.length = e.length;
    left.next = right.next;
    right.length = 0;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].prev = e.left;
    make(left.prev, e.left, [&](Entry x) { queue.push(x); });
    make(e.left, left.next, [&](Entry x) { queue.push(x); });
  }
}

void BpeModel::push_bytes(std::string_view bytes, std::vector<int32_t>& out) const {
  for (char c : bytes) {
    const int32_t id = byte_ids[static_cast<uint8_t>(c)];
    if (id != kNoToken) {
      out.push_back(id);
    } else if (unk_id != kNoToken) {
      out.push_back(unk_id);
    }
  }
}

void BpeModel::emit(std::string_view word, const std::vector<Symbol>& symbols, std::vector<int32_t>& out) const {
  for (const Symbol& s : symbols) {
    if (s.length == 0) continue;
    if (s.id != kNoToken) {
      out.push_back(s.id);
    } else {
      push_bytes(word.substr(s.begin, s.length), out);
    }
  }
}

void BpeModel::encode_by(std::string_view word, bool heap, std::vector<int32_t>& out) const {
  if (word.empty()) return;
  if (ignore_merges) {
    if (int32_t id = vocab.find(word); id != kNoToken) {
      out.push_back(id);
      return;
    }
  }
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  units(word, symbols);
  if (heap) {
    merge_long(word, symbols);
  } else {
    merge_short(word, symbols);
  }
  emit(word, symbols, out);
}

void BpeModel::encode(std::string_view word, std::vector<int32_t>& out) const { encode_by(word, word.size() > 48, out); }
void BpeModel::encode_with_heap(std::string_view word, std::vector<int32_t>& out) const { encode_by(word, true, out); }

}  // namespace carrel::tok
