// The table's entries: a Block is one node of the tree of prefixes, a Record is what one group keeps of it, a Lease is somebody's right to
// read it.
//
// Ownership: the prefix index owns blocks, a block owns its records, a record owns its page. Threads: everything here is guarded by the
// state manager's lock, dropping a Lease included.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/hash.h"
#include "engine/state/block_extent.h"
#include "engine/state/page_pool.h"

namespace carrel {

/// Life of one (block, group): empty → writing → sealed → published → evicted | quarantined. Writing and sealed pages are private to a
/// sequence. What was evicted may still have a copy in a lower tier (LowerCopy), from which it is published again.
enum class RecordState : uint8_t { kEmpty, kWriting, kSealed, kPublished, kEvicted, kQuarantined };

constexpr std::string_view to_string(RecordState s) {
  constexpr std::string_view kNames[] = {"empty", "writing", "sealed", "published", "evicted", "quarantined"};
  return kNames[static_cast<size_t>(s)];
}

struct Block;

/// Place in the queue of what may be evicted; the least score goes first.
struct Candidate {
  bool queued = false;
  double score = 0;
};

struct Record {
  PageHandle page;
  std::byte* data = nullptr;  // what readers are given; the page's address
  Block* block = nullptr;     // null once it left the index and only leases keep it
  int group = 0;
  int n_rows = 0;       // rows written per layer
  uint32_t layout = 0;  // page layout it was written with
  uint32_t epoch = 0;   // epoch it was written in
  uint64_t generation = 0;
  RecordState state = RecordState::kPublished;
  int32_t n_leases = 0;
  Digest digest{};  // over logical rows, layer by layer
  Candidate candidate;
};

/// What host memory and disk keep of a block's groups of one set: the same extent (block_extent.h).
struct LowerCopy {
  std::shared_ptr<const AlignedBytes> host;  // null: not in host memory
  bool on_disk = false;
  bool queued = false;                          // is being written, or waits for it
  uint64_t groups = 0;                          // bit per group that can be restored from it
  std::vector<std::pair<int, Digest>> digests;  // of groups that this process copied
  double score = 0;                             // place in the queue of what host memory gives up
  int32_t n_pins = 0;                           // restores that will read it
  int64_t avoid_until = 0;                      // mono ns: its tier was too slow lately
  bool exists() const { return host != nullptr || on_disk; }
};

struct Block {
  Digest key{};
  Block* parent = nullptr;
  int64_t depth = 0;  // 0: the first block of a prefix
  int ns = 0;
  std::vector<int32_t> tokens;
  std::vector<std::unique_ptr<Record>> records;  // [group]
  std::vector<RecordState> lost;                 // [group] why there is no record
  LowerCopy lower[std::size(kExtentSets)];
  std::vector<Block*> children;
  size_t child_slot = 0;           // index in parent->children
  int n_resident = 0, n_logs = 0;  // n_resident: records, and one for each copy in a lower tier
  int n_log_children = 0;          // children that hold a log record
  double hits = 0;                 // decayed, as of hits_tick; of the state point at this block's end
  uint64_t hits_tick = 0;
  uint64_t id = 0;       // order of creation: breaks ties
  uint64_t ghosted = 0;  // order in which it became a ghost; 0: it is none
  Candidate logs;        // its log records leave together
};

class PrefixIndex;

/// Move-only right to read one record. Dropping it is the only release.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& o) noexcept
      : index_(std::exchange(o.index_, nullptr)), record_(std::exchange(o.record_, nullptr)), generation_(o.generation_) {}
  Lease& operator=(Lease&& o) noexcept {
    Lease taken(std::move(o));
    std::swap(index_, taken.index_);
    std::swap(record_, taken.record_);
    std::swap(generation_, taken.generation_);
    return *this;
  }
  ~Lease();
  explicit operator bool() const { return record_ != nullptr; }
  const Record* record() const { return record_; }
  uint64_t generation() const { return generation_; }

 private:
  friend class PrefixIndex;
  Lease(PrefixIndex* index, Record* record) : index_(index), record_(record), generation_(record->generation) {}
  PrefixIndex* index_ = nullptr;
  Record* record_ = nullptr;
  uint64_t generation_ = 0;
};

}  // namespace carrel
