// The tree of known prefixes: blocks by key, their published records, the queue of what may be evicted, ghosts.
//
// Owns every published page, and those that left the index while somebody still reads them. Decides what is worth keeping; does not decide
// what is a hit (match.h). Threads: guarded by the state manager's lock.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "engine/state/block_extent.h"
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
  /// Frees the least valuable recurrent record of a namespace that nobody leases, the newest points apart. False: there is none.
  bool evict_recurrent(int ns);
  /// The block ends at the newest point of its kind: 0, the last boundary of a prompt; 1, the end of an answer.
  void set_newest(Block* block, int kind) { recurrent_[block->ns].newest[kind] = block->id; }
  /// Of published recurrent records of a namespace.
  size_t recurrent_bytes(int ns) const {
    const auto at = recurrent_.find(ns);
    return at == recurrent_.end() ? 0 : at->second.bytes;
  }
  // ---- lower tiers (lower_tiers.cpp)
  LowerCopy& lower(Block* block, int group) const { return block->lower[static_cast<size_t>(set_of_group(group))]; }
  /// Whether the group could be restored from a copy.
  bool in_lower(const Block& block, int group) const {
    const LowerCopy& c = block.lower[static_cast<size_t>(set_of_group(group))];
    return c.exists() && (c.groups >> group & 1) != 0;
  }
  ExtentSet set_of_group(int group) const { return set_of(model_.groups[static_cast<size_t>(group)].kind); }
  /// Bit per group of the set that the block has on the device and in no copy.
  uint64_t uncopied(const Block& block, ExtentSet set) const;
  /// Host memory keeps an extent of these groups, in the place of an older one. False: it does not fit the budget.
  bool attach_host(Block* block, ExtentSet set, std::shared_ptr<const AlignedBytes> extent, uint64_t groups);
  /// The disk has one.
  void attach_disk(Block* block, ExtentSet set, uint64_t groups);
  /// It has none any more.
  void detach_disk(Block* block, ExtentSet set);
  /// Host memory gives its copy up; the disk keeps what it has.
  void drop_host(Block* block, ExtentSet set);
  /// Nothing is restored from a copy again: of one group, or (group < 0) of all groups of the set. True: the disk has an extent that nobody
  /// wants any more.
  bool forget_copy(Block* block, ExtentSet set, int group, RecordState why);
  /// A use by a request that resumed at the point: what the block keeps below is worth as much as that.
  void touch_copies(Block* block, const Block& point);
  size_t host_bytes() const { return host_bytes_; }
  size_t host_budget_bytes() const { return host_budget_bytes_; }
  /// Whether any block has a copy anywhere.
  bool has_copies() const { return n_copies_ > 0; }
  int64_t n_host() const { return static_cast<int64_t>(host_queue_.size()); }
  uint64_t n_host_evicted() const { return n_host_evicted_; }
  /// Called before something that is worth keeping is evicted from the device.
  std::function<void(Block*)> before_evict;
  /// Called when a block is first heard of: what the disk has of it is attached.
  std::function<void(Block*)> on_new_block;
  /// Called with blocks of the front of the queue of what may be evicted, best last: f(Block*) false ends it.
  template <class F>
  void for_each_candidate(size_t most, F&& f) const {
    size_t n = 0;
    for (const Entry& e : queue_)
      if (e.score > std::numeric_limits<double>::lowest() && (++n > most || !f(e.block))) return;
  }

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
  /// The blocks of a namespace, parents before children. f(Block&).
  template <class F>
  void for_each_block(int ns, F&& f) const {
    std::vector<Block*> all;
    for (const auto& [key, block] : blocks_)
      if (block->ns == ns) all.push_back(block.get());
    std::sort(all.begin(), all.end(),
              [](const Block* a, const Block* b) { return a->depth != b->depth ? a->depth < b->depth : a->id < b->id; });
    for (Block* b : all) f(*b);
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
    uint64_t newest[2] = {};  // ids of blocks; 0: none
  };

  void release(Record* record, uint64_t generation);
  bool evict_first(const Queue& queue, std::span<const uint64_t> spared = {});
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
  bool has(const Block& block, size_t group) const { return block.records[group] != nullptr || in_lower(block, static_cast<int>(group)); }
  bool make_host_room(size_t n_bytes);
  double copy_score(const Block& point, const LowerCopy& copy) const;
  struct HostEntry {
    double score;
    uint64_t id;
    ExtentSet set;
    Block* block;
    bool operator<(const HostEntry& o) const {
      if (score != o.score) return score < o.score;
      if (id != o.id) return id > o.id;  // of equals the younger, which is the deeper one
      return set > o.set;
    }
  };
  HostEntry entry_of(Block* block, ExtentSet set) const { return {block->lower[static_cast<size_t>(set)].score, block->id, set, block}; }

  const ModelState& model_;
  const int64_t max_ghosts_;
  const size_t host_budget_bytes_;
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
  uint64_t n_evicted_ = 0, n_host_evicted_ = 0;
  size_t host_bytes_ = 0;
  std::set<HostEntry> host_queue_;
  int64_t n_copies_ = 0;
  std::vector<int64_t> n_leased_, n_resident_, n_idle_;  // [group]
};

}  // namespace carrel
