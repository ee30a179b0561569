// Copies of blocks in host memory and on disk, as the table knows them: which there are, what they are worth, what host memory gives up.
// Part of PrefixIndex, and guarded like it. Bytes are moved elsewhere (write_back.cpp, restore.cpp).
#include <algorithm>
#include <cmath>

#include "engine/state/prefix_index.h"

namespace carrel {

namespace {
constexpr double kHalfLifeTicks = 256;  // as on the device
constexpr double kLeastHits = 1.0 / 64;
}  // namespace

uint64_t PrefixIndex::uncopied(const Block& block, ExtentSet set) const {
  uint64_t there = 0;
  for (size_t g = 0; g < block.records.size(); g++)
    if (block.records[g] && set_of_group(static_cast<int>(g)) == set) there |= uint64_t{1} << g;
  const LowerCopy& c = block.lower[static_cast<size_t>(set)];
  return c.exists() ? there & ~c.groups : there;
}

/// log2 of decayed hits of the point × tokens / bytes, as point_score is: what a copy saves per byte that it takes.
double PrefixIndex::copy_score(const Block& point, const LowerCopy& copy) const {
  const size_t n_bytes = copy.host ? copy.host->size() : 1;
  return std::log2(std::max(point.hits, kLeastHits)) + static_cast<double>(point.hits_tick) / kHalfLifeTicks +
         std::log2(static_cast<double>(model_.block_size) / static_cast<double>(n_bytes));
}

void PrefixIndex::touch_copies(Block* block, const Block& point) {
  for (const ExtentSet set : kExtentSets) {
    LowerCopy& c = block->lower[static_cast<size_t>(set)];
    if (!c.host) continue;
    host_queue_.erase(entry_of(block, set));
    c.score = std::max(c.score, copy_score(point, c));
    host_queue_.insert(entry_of(block, set));
  }
}

bool PrefixIndex::make_host_room(size_t n_bytes) {
  if (n_bytes > host_budget_bytes_) return false;
  for (auto at = host_queue_.begin(); at != host_queue_.end() && host_bytes_ + n_bytes > host_budget_bytes_;) {
    const HostEntry e = *at++;
    if (e.block->lower[static_cast<size_t>(e.set)].n_pins > 0) continue;
    drop_host(e.block, e.set);
    n_host_evicted_++;
  }
  return host_bytes_ + n_bytes <= host_budget_bytes_;
}

bool PrefixIndex::attach_host(Block* block, ExtentSet set, std::shared_ptr<const AlignedBytes> extent, uint64_t groups) {
  LowerCopy& c = block->lower[static_cast<size_t>(set)];
  const bool on_disk = c.on_disk;
  c.n_pins++;  // making room must not drop what is being replaced in another way
  if (c.host) {
    host_bytes_ -= c.host->size();
    host_queue_.erase(entry_of(block, set));
    c.host.reset();
  }
  const bool room = make_host_room(extent->size());
  c.n_pins--;
  if (!room) {
    if (!on_disk && c.groups != 0) {  // the older one is gone
      c.groups = 0;
      n_copies_--;
      lost_resident(block, false);
    }
    return false;
  }
  if (c.groups == 0) {
    n_copies_++;
    became_resident(block, false);
  }
  host_bytes_ += extent->size();
  c.host = std::move(extent);
  c.groups = on_disk ? c.groups | groups : groups;
  c.score = copy_score(*block, c);
  host_queue_.insert(entry_of(block, set));
  return true;
}

void PrefixIndex::attach_disk(Block* block, ExtentSet set, uint64_t groups) {
  LowerCopy& c = block->lower[static_cast<size_t>(set)];
  if (c.groups == 0) {
    n_copies_++;
    became_resident(block, false);
  }
  c.on_disk = true;
  c.groups |= groups;
}

void PrefixIndex::detach_disk(Block* block, ExtentSet set) {
  LowerCopy& c = block->lower[static_cast<size_t>(set)];
  if (!c.on_disk) return;
  c.on_disk = false;
  if (!c.host) forget_copy(block, set, -1, RecordState::kEvicted);
}

void PrefixIndex::drop_host(Block* block, ExtentSet set) {
  LowerCopy& c = block->lower[static_cast<size_t>(set)];
  if (!c.host) return;
  if (!c.on_disk) {
    forget_copy(block, set, -1, RecordState::kEvicted);
    return;
  }
  host_bytes_ -= c.host->size();
  host_queue_.erase(entry_of(block, set));
  c.host.reset();
}

bool PrefixIndex::forget_copy(Block* block, ExtentSet set, int group, RecordState why) {
  LowerCopy& c = block->lower[static_cast<size_t>(set)];
  if (c.groups == 0) return false;
  const uint64_t gone = group < 0 ? c.groups : c.groups & uint64_t{1} << group;
  for (size_t g = 0; g < block->records.size(); g++)
    if ((gone >> g & 1) != 0 && !block->records[g]) block->lost[g] = why;
  c.groups &= ~gone;
  if (c.groups != 0) return false;
  if (c.host) {
    host_bytes_ -= c.host->size();
    host_queue_.erase(entry_of(block, set));
    c.host.reset();
  }
  const bool was_on_disk = std::exchange(c.on_disk, false);
  c.digests.clear();
  n_copies_--;
  lost_resident(block, false);
  return was_on_disk;
}

}  // namespace carrel
