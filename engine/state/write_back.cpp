// Copies on their way down: what is due, how it is sealed and stored, and what gives room for it. Written behind, by a thread of its own:
// nobody who allocates waits for a copy, and what must leave the device before it was copied is given up and counted.
#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "engine/state/manager_impl.h"

namespace carrel {

namespace {
constexpr size_t kBatchBytes = 4 << 20;  // of pages, sealed and written at a time
constexpr size_t kLookedAt = 64;         // records at the front of the eviction queue, above the threshold
constexpr double kDiskHalfLifeMs = 6 * 3600e3;
}  // namespace

std::shared_ptr<const ExtentKey> StateManager::Impl::data_key(int ns) const {
  return config.seal_key ? config.seal_key(namespace_names[static_cast<size_t>(ns)].first) : nullptr;
}

/// What of the block is on the device and in no copy; leases included. Nothing to do: no sources.
StateManager::Impl::Down StateManager::Impl::describe(Block* block, ExtentSet set) {
  Down d;
  LowerCopy& copy = block->lower[static_cast<size_t>(set)];
  if (index.uncopied(*block, set) == 0) return d;
  if (copy.exists() && !copy.host && (copy.groups & ~device_groups(*block, set)) != 0) return d;  // the disk's would be lost
  const BlockToOpen what = extent_of(*block, set);
  d.what = {what.identity, set, what.tokens, {}, copy.host};
  for (size_t g = 0; g < block->records.size(); g++) {
    Record* r = block->records[g].get();
    if (r == nullptr || set_of(spec(static_cast<int64_t>(g)).kind) != set) continue;
    d.what.sources.push_back({static_cast<int>(g), r->data, r->digest});
    d.groups |= uint64_t{1} << g;
    d.n_bytes += pool.bytes_of_kind(static_cast<int>(g));
  }
  if (copy.host) d.groups |= copy.groups;
  d.ns = block->ns;
  d.epoch = epoch;
  d.generation = purges_of(block->ns);
  d.replaces = copy.on_disk;
  return d;
}

uint64_t StateManager::Impl::device_groups(const Block& block, ExtentSet set) const {
  uint64_t mask = 0;
  for (size_t g = 0; g < block.records.size(); g++)
    if (block.records[g] && set_of(spec(static_cast<int64_t>(g)).kind) == set) mask |= uint64_t{1} << g;
  return mask;
}

uint64_t StateManager::Impl::purges_of(int ns) const {
  const auto at = purges.find(namespace_names[static_cast<size_t>(ns)].first);
  return at == purges.end() ? 0 : at->second;
}

void StateManager::Impl::keep_digests(Block* block, const Down& d) {
  auto& known = block->lower[static_cast<size_t>(d.what.set)].digests;
  for (const ExtentSource& s : d.what.sources) {
    std::erase_if(known, [&](const auto& k) { return k.first == s.group; });
    known.emplace_back(s.group, s.digest);
  }
}

/// Copies a block to host memory here and now: for managers without threads, at eviction. False: nothing was copied.
bool StateManager::Impl::copy_down_now(Block* block) {
  if (index.host_budget_bytes() == 0) return false;
  bool done = false;
  for (const ExtentSet set : kExtentSets) {
    const Down d = describe(block, set);
    if (d.what.sources.empty()) continue;
    const auto key = data_key(block->ns);
    if (key == nullptr && config.seal_key) return false;  // the namespace is gone: nothing of it is written any more
    auto extent = seal_block(config.model, d.what, key.get(), ++sealed, config.env);
    if (!extent || !index.attach_host(block, set, std::make_shared<const AlignedBytes>(std::move(*extent)), d.groups)) continue;
    keep_digests(block, d);
    done = true;
    counters.offloaded++;
  }
  return done;
}

/// The logs of a block that was published, and, at a state point, the registers that a resume there reads: due in some seconds.
void StateManager::Impl::queue_down(Block* node, bool point) {
  if (config.transfer_threads == 0 || !offloading()) return;
  const int64_t due = config.env->mono_ns() + config.write_delay_ms * 1'000'000;
  const auto add = [&](Block* b, ExtentSet set) {
    LowerCopy& copy = b->lower[static_cast<size_t>(set)];
    if (copy.queued || index.uncopied(*b, set) == 0) return;
    copy.queued = true;
    due_down.push_back({b->key, set, due});
  };
  add(node, ExtentSet::kLogs);
  if (!point) return;
  int64_t back = 1;
  for (const StateSpec& s : config.model.groups)
    if (!is_log(s.kind)) back = std::max(back, point_blocks(s, block_size));
  for (Block* at = node; at != nullptr && back > 0; back--, at = at->parent) add(at, ExtentSet::kRegisters);
}

/// Takes what is due, then, above the threshold, what would be evicted next. Under the lock.
std::vector<StateManager::Impl::Down> StateManager::Impl::take_down(bool all) {
  std::vector<Down> batch;
  size_t n_bytes = 0;
  const int64_t now = config.env->mono_ns();
  const auto take_one = [&](Block* block, ExtentSet set) {
    Down d = describe(block, set);
    if (d.what.sources.empty()) return;
    for (const ExtentSource& s : d.what.sources) d.leases.push_back(index.lease(block->records[static_cast<size_t>(s.group)].get()));
    n_bytes += d.n_bytes;
    batch.push_back(std::move(d));
  };
  while (!due_down.empty() && n_bytes < kBatchBytes && (all || due_down.front().due_ns <= now)) {
    const Due due = due_down.front();
    due_down.pop_front();
    Block* block = index.find(due.key);
    if (block == nullptr) continue;
    block->lower[static_cast<size_t>(due.set)].queued = false;
    take_one(block, due.set);
  }
  if (static_cast<double>(pool.used_bytes()) > config.offload_threshold * static_cast<double>(config.budget_bytes)) {
    std::vector<Block*> next;
    index.for_each_candidate(kLookedAt, [&](Block* b) {
      next.push_back(b);
      return true;
    });
    for (Block* b : next)
      for (const ExtentSet set : kExtentSets)
        if (n_bytes < kBatchBytes &&
            std::none_of(batch.begin(), batch.end(), [&](const Down& d) { return d.what.identity.key == b->key && d.what.set == set; }))
          take_one(b, set);
  }
  return batch;
}

/// One batch: taken, sealed, kept in host memory, stored on disk. False: nothing was due.
bool StateManager::Impl::write_some(bool all) {
  std::lock_guard one(writing);  // writers take turns; a purge waits for the one at work
  std::vector<Down>& batch = under_way;
  {
    std::lock_guard lock(mu);
    batch = take_down(all);
  }
  erase_doomed();
  if (batch.empty()) return false;
  for (Down& d : batch) {
    const auto key = data_key_unlocked(d.what.identity.namespace_id);
    auto extent = config.seal_key && key == nullptr
                      ? Result<AlignedBytes>(fail(Code::kNotFound, "its namespace has no key", d.what.identity.namespace_id))
                      : seal_block(config.model, d.what, key.get(), disk ? disk->next_sequence() : ++sealed, config.env);
    if (extent) d.extent = std::make_shared<const AlignedBytes>(std::move(*extent));
  }
  {
    std::lock_guard lock(mu);
    for (Down& d : batch) {
      d.leases.clear();
      Block* block = still_wanted(d);
      if (block == nullptr || d.extent == nullptr) continue;
      d.valid = true;
      if (index.host_budget_bytes() > 0 && index.attach_host(block, d.what.set, d.extent, d.groups)) counters.offloaded++;
      keep_digests(block, d);
    }
    audit();
  }
  if (disk != nullptr) store(batch);
  std::lock_guard lock(mu);
  batch.clear();
  return true;
}

/// The block, when nothing came between that forbids to keep a copy of it.
Block* StateManager::Impl::still_wanted(const Down& d) {
  Block* block = index.find(d.what.identity.key);
  return block != nullptr && d.epoch == epoch && d.generation == purges_of(d.ns) ? block : nullptr;
}

void StateManager::Impl::store(std::vector<Down>& batch) {
  std::vector<Down*> wanted;
  std::vector<std::shared_ptr<const AlignedBytes>> extents;
  std::vector<ExtentId> replaced;
  for (Down& d : batch) {
    if (!d.valid) continue;
    wanted.push_back(&d);
    extents.push_back(d.extent);
    if (d.replaces)
      replaced.push_back({d.what.identity.key, d.what.identity.model, d.what.identity.layout, static_cast<uint32_t>(d.what.set)});
  }
  if (wanted.empty()) return;
  if (!replaced.empty()) (void)disk->erase(replaced);
  auto results = disk->put(extents);
  if (std::any_of(results.begin(), results.end(), [](const auto& r) { return !r && r.error().code == Code::kExhausted; })) {
    size_t n = 0;
    for (size_t i = 0; i < results.size(); i++)
      if (!results[i] && results[i].error().code == Code::kExhausted) n += extents[i]->size();
    make_disk_room(n, results);
    std::vector<std::shared_ptr<const AlignedBytes>> again;
    std::vector<size_t> of;
    for (size_t i = 0; i < results.size(); i++)
      if (!results[i] && results[i].error().code == Code::kExhausted) again.push_back(extents[i]), of.push_back(i);
    auto second = disk->put(again);
    for (size_t i = 0; i < of.size(); i++) results[of[i]] = std::move(second[i]);
  }
  std::lock_guard lock(mu);
  for (size_t i = 0; i < wanted.size(); i++) {
    if (!results[i]) {
      counters.disk_write_failures++;
      continue;
    }
    Block* block = still_wanted(*wanted[i]);
    if (block == nullptr) {
      doomed.push_back({wanted[i]->what.identity.key, config.model_digest, extent_rows, static_cast<uint32_t>(wanted[i]->what.set)});
      continue;
    }
    index.attach_disk(block, wanted[i]->what.set, wanted[i]->groups);
    counters.stored_on_disk++;
    counters.stored_bytes += extents[i]->size();
  }
  audit();
}

/// Gives up what is worth least on disk: log2 of hits × tokens / bytes, halved every six hours without use. Of the namespace that is over
/// its limit when that is why; of any otherwise.
void StateManager::Impl::make_disk_room(size_t n_bytes, const std::vector<Result<PutOutcome>>& why) {
  std::string ns;
  for (const auto& r : why)
    if (!r && r.error().code == Code::kExhausted && namespace_ids.contains(r.error().where)) ns = r.error().where;
  std::vector<ExtentRow> rows = disk->rows(ns);
  const int64_t now = config.env->wall_ms();
  const auto score = [&](const ExtentRow& r) {
    return std::log2(1.0 + static_cast<double>(r.usage.hits)) + static_cast<double>(r.usage.last_used_ms) / kDiskHalfLifeMs +
           std::log2(static_cast<double>(block_size) / static_cast<double>(r.bytes));
  };
  std::erase_if(rows, [&](const ExtentRow& r) { return r.usage.pinned_until_ms > now; });
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < rows.size(); i++) order.emplace_back(score(rows[i]), i);
  std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : rows[a.second].position > rows[b.second].position;  // leaves before parents
  });
  std::vector<ExtentId> victims;
  size_t freed = 0;
  for (const auto& [s, i] : order) {
    if (freed >= 2 * n_bytes) break;
    freed += rows[i].bytes;
    victims.push_back(rows[i].id);
  }
  forget_on_disk(victims);
  (void)disk->erase(victims);
  std::lock_guard lock(mu);
  counters.disk_evicted += victims.size();
}

/// The table no longer counts on them; called before they are erased.
void StateManager::Impl::forget_on_disk(std::span<const ExtentId> ids) {
  std::lock_guard lock(mu);
  for (const ExtentId& id : ids) {
    if (const auto at = on_disk.find(id.key); at != on_disk.end()) at->second.groups[id.generation & 1] = 0;
    if (Block* block = index.find(id.key)) index.detach_disk(block, static_cast<ExtentSet>(id.generation & 1));
  }
}

void StateManager::Impl::erase_doomed() {
  std::vector<ExtentId> ids;
  {
    std::lock_guard lock(mu);
    ids.swap(doomed);
  }
  if (disk != nullptr && !ids.empty()) (void)disk->erase(ids);
}

}  // namespace carrel
