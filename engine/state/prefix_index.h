// The tree of known prefixes: blocks by key, their published records, the queue of what may be evicted, ghosts.
//
// Owns every published page, and those that left the index while somebody still reads them. Decides what is worth keeping; does not decide
// what is a hit (match.h). Threads: guarded by the state manager's lock.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "engine/state/extent.h"
#include "engine/state/record.h"
#include "engine/state/spec.h"

namespace carrel {

struct DigestHash {
  size_t operator()(const Digest& d) const {  // any 8 bytes of a keyed hash are a bucket number; equality compares all 32
    uint64_t v = 0;
    std::memcpy(&v, d.data(), sizeof v);
    return v;
  }
};

/// Blocks before point p whose rows a window group must hold to resume at p (architectures 5.4): rows [p-W+1, p).
inline int64_t window_blocks(const StateSpec& spec, int block_size) {
  return (spec.window - 1 + block_size - 1) / block_size;
}
/// Blocks before point p that a register group must hold to resume at p.
inline int64_t point_blocks(const StateSpec& spec, int block_size) {
  return spec.kind == StateKind::kWindow ? window_blocks(spec, block_size) : 1;
}
inline bool is_log(StateKind kind) {
  return kind == StateKind::kCompressedKv || kind == StateKind::kIndexer;
}

class PrefixIndex {
 public:
  /// host_budget_bytes: of the host tier; 0: what is evicted is gone.
  PrefixIndex(const ModelState& model, int64_t max_ghosts, size_t host_budget_bytes);

  Block* find(const Digest& key) const;
  /// True when the block is what its key says: same namespace, same parent, same tokens.
  static bool confirms(const Block& block, const Block* parent, int ns, std::span<const int32_t> tokens);
  /// The block of the key, made when absent; null when the key belongs to another prefix.
  Block* ensure(const Digest& key, Block* parent, int ns, std::span<const int32_t> tokens);

  /// The only door in. The block must have no record of the group.
  Record* publish(Block* block, int group, PageHandle page, const Digest& digest, int n_rows, uint32_t layout, uint32_t epoch);
  /// Takes a record out of the index: its page is free at once, or when the last lease is dropped.
  void detach(Record* record, RecordState why);
  Lease lease(Record* record);

  /// Weight 1 for a point that a request used or ended at; less for points that merely came to be.
  void touch(Block* block, double weight, uint64_t tick);
  /// Frees the least valuable record (or block of log records) that nobody leases. False: there is none.
  bool evict_one();
  /// Frees the least valuable recurrent record of a namespace that nobody leases. False: there is none.
  bool evict_recurrent(int ns);
  /// Of published recurrent records of a namespace.
  size_t recurrent_bytes(int ns) const {
    const auto at = recurrent_.find(ns);
    return at == recurrent_.end() ? 0 : at->second.bytes;
  }
  // ---- host tier (host_tier.cpp)
  bool in_host(const Block& block, int group) const { return block.host && (block.host->groups >> group & 1) != 0; }
  /// Copies what the block has on the device, beside what the host has of it already. False: the copy does not fit the host budget.
  bool offload(Block* block);
  /// The part of a group, borrowed until the copy changes. kCorrupt: the copy is no extent of this block, or lacks the part.
  Result<ExtentPart> host_part(const Block& block, int group) const;
  /// Whether its rows are what was sealed; it counts as a use. False: the part was dropped.
  bool verify_host(Block* block, int group);
  /// All that the block has, wherever it is, as an extent; empty: nothing.
  Bytes encode(const Block& block) const;
  bool is_extent_of(const Digest& key, std::span<const std::byte> extent) const;
  /// Makes an extent of the block its copy, in the place of an older one. False: it does not fit the budget.
  bool attach(Block* block, Bytes extent);
  /// Forgets a part (group < 0: all of them).
  void drop_host(Block* block, int group);
  void pin_host(Block* block, int delta);
  /// Flips a bit in the rows of a part.
  void damage_host_for_test(Block* block, int group);
  size_t host_bytes() const { return host_bytes_; }
  size_t host_budget_bytes() const { return host_budget_bytes_; }
  int64_t n_host() const { return static_cast<int64_t>(host_order_.size()); }
  uint64_t n_offloaded() const { return n_offloaded_; }
  uint64_t n_host_evicted() const { return n_host_evicted_; }

  /// Forgets ghosts beyond the limit, oldest first. Blocks found before may be gone afterwards.
  void trim_ghosts();
  /// Forgets every block of a namespace (all: ns < 0), ghosts included. Returns the records dropped.
  int64_t erase(int ns);

  int64_t n_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t n_ghosts() const { return n_ghosts_; }
  uint64_t n_evicted() const { return n_evicted_; }
  int64_t n_leased(int group) const { return n_leased_[static_cast<size_t>(group)]; }
  int64_t n_idle(int group) const { return n_idle_[static_cast<size_t>(group)]; }  // resident and not leased
  int64_t n_resident(int group) const { return n_resident_[static_cast<size_t>(group)]; }
  /// The blocks of a namespace, parents before children. f(const Block&).
  template <class F>
  void for_each_block(int ns, F&& f) const {
    std::vector<const Block*> all;
    for (const auto& [key, block] : blocks_)
      if (block->ns == ns) all.push_back(block.get());
    std::sort(all.begin(), all.end(),
              [](const Block* a, const Block* b) { return a->depth != b->depth ? a->depth < b->depth : a->id < b->id; });
    for (const Block* b : all) f(*b);
  }
  /// Every record there is, attached or not. f(const Record&).
  template <class F>
  void for_each_record(F&& f) const {
    for (const auto& [key, block] : blocks_)
      for (const auto& r : block->records)
        if (r) f(*r);
    for (const auto& [r, owned] : orphans_) f(*r);
  }
  /// Text of the first breach of the index's own rules, or empty.
  std::string audit() const;

 private:
  friend class Lease;
  struct Entry {
    double score;
    uint64_t id;
    int group;  // -1: all log records of the block
    Block* block;
    bool operator<(const Entry& o) const {
      if (score != o.score) return score < o.score;
      if (id != o.id) return id < o.id;
      return group < o.group;
    }
  };

  using Queue = std::set<Entry>;
  /// What a namespace keeps of recurrent groups, beside the common queue: it has a budget of its own.
  struct Recurrent {
    size_t bytes = 0;
    Queue queue;
  };

  void release(Record* record, uint64_t generation);
  bool evict_first(const Queue& queue);
  void drop_block(Block* block);
  void became_resident(Block* block, bool log);
  void lost_resident(Block* block, bool log);
  void set_candidate(Candidate& c, Block* block, int group, bool wanted, double score);
  void refresh(Block* block);         // candidates of one block
  void refresh_around(Block* block);  // of all blocks whose points depend on this one
  bool logs_evictable(const Block& block) const;
  bool point_alive(const Block& block) const;
  double point_score(const Block& block) const;
  double window_score(const Block& block, int group) const;
  void evict_logs(Block* block);
  bool has(const Block& block, size_t group) const { return block.records[group] != nullptr || in_host(block, static_cast<int>(group)); }
  bool make_host_room(size_t n_bytes);
  void touch_host(Block* block);

  const ModelState& model_;
  const int64_t max_ghosts_;
  const size_t host_budget_bytes_;
  const Digest layout_;  // of row_layout_id
  int n_log_groups_ = 0;
  int64_t max_window_blocks_ = 1;
  std::vector<size_t> page_bytes_;  // [group]
  size_t log_bytes_ = 0;            // of one block

  std::unordered_map<Digest, std::unique_ptr<Block>, DigestHash> blocks_;
  std::unordered_map<const Record*, std::unique_ptr<Record>> orphans_;
  Queue queue_;
  std::unordered_map<int, Recurrent> recurrent_;  // by namespace
  std::map<uint64_t, Block*> idle_ghosts_;        // ghosts without children, by age
  int64_t n_ghosts_ = 0;
  uint64_t next_id_ = 1, next_generation_ = 1, next_ghost_ = 1;
  uint64_t n_evicted_ = 0, n_offloaded_ = 0, n_host_evicted_ = 0;
  size_t host_bytes_ = 0;
  std::map<uint64_t, Block*> host_order_;  // by last use
  uint64_t next_use_ = 1;
  std::vector<int64_t> n_leased_, n_resident_, n_idle_;  // [group]
};

}  // namespace carrel
