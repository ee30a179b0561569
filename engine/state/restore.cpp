// A match made real: what is resident is leased, the rest is brought back from lower tiers first and published again.
#include <algorithm>
#include <set>

#include "base/log.h"
#include "engine/state/manager_impl.h"

namespace carrel {

namespace {
constexpr int64_t kKeepReadyNs = 10'000'000'000;  // for the request that asked, which is tried again at the latest after its step
constexpr double kDoubt = 1.5;                    // measured rates are rough: a restore must look so much slower to be left
constexpr int64_t kAvoidNs = 2'000'000'000;       // a tier that missed a deadline
}  // namespace

int64_t StateManager::Impl::first_read(int64_t group, int64_t n_blocks) const {
  if (spec(group).kind == StateKind::kRecurrent) return std::max<int64_t>(0, n_blocks - 1);  // the registers at the point itself, once
  return first_needed(group, n_blocks * block_size);
}

/// Leases everything resident that a resume at the point will read: before anything is allocated, so that no allocation can evict it.
void StateManager::Impl::pin(Sequence::Impl& seq, const Walk& walk, int64_t n_blocks) {
  seq.size_table(n_blocks);
  for (int64_t g = 0; g < n_groups(); g++) {
    seq.first_held[static_cast<size_t>(g)] = first_read(g, n_blocks);
    for (int64_t b = seq.first_held[static_cast<size_t>(g)]; b < n_blocks; b++) {
      Cell cell;
      cell.state = RecordState::kPublished;
      cell.lease = index.lease(walk.chain[static_cast<size_t>(b)]->records[static_cast<size_t>(g)].get());
      seq.set_cell(static_cast<size_t>(g), b, std::move(cell));
    }
  }
}

/// Whether all that a resume at the point reads is on the device.
bool StateManager::Impl::resident(const Walk& walk, int64_t n_blocks) const {
  if (!index.has_copies()) return true;
  for (int64_t g = 0; g < n_groups(); g++)
    for (int64_t b = first_read(g, n_blocks); b < n_blocks; b++)
      if (!walk.chain[static_cast<size_t>(b)]->records[static_cast<size_t>(g)]) return false;
  return true;
}

/// What identifies the extents of a block.
BlockToOpen StateManager::Impl::extent_of(const Block& block, ExtentSet set) const {
  const auto& [id, secret] = namespace_names[static_cast<size_t>(block.ns)];
  return {{block.key, block.parent == nullptr ? prefix_root(secret) : block.parent->key, config.model_digest, extent_rows, id,
           (block.depth + 1) * block_size},
          set,
          block.tokens};
}

ExtentId StateManager::Impl::id_of(const Block& block, ExtentSet set) const {
  return {block.key, config.model_digest, extent_rows, static_cast<uint32_t>(set)};
}

/// Takes leases and pages for all that is missing. kExhausted: no space now; nothing was taken.
Result<std::shared_ptr<Restore>> StateManager::Impl::plan_restore(const Walk& walk, int64_t n_blocks) {
  auto r = std::make_shared<Restore>();
  const Block& last = *walk.chain[static_cast<size_t>(n_blocks) - 1];
  r->ns = last.ns;
  r->epoch = epoch;
  r->n_blocks = n_blocks;
  r->last = last.key;
  r->key = data_key(last.ns);
  r->planned_ns = config.env->mono_ns();
  r->deadline_ns = r->planned_ns + config.restore_deadline_ms * 1'000'000;
  std::set<int64_t> blocks;
  for (const ExtentSet set : kExtentSets) {
    for (int64_t b = 0; b < n_blocks; b++) {
      Block* block = walk.chain[static_cast<size_t>(b)];
      Restore::Item item;
      for (int64_t g = 0; g < n_groups(); g++) {
        if (set_of(spec(g).kind) != set || b < first_read(g, n_blocks)) continue;
        if (Record* record = block->records[static_cast<size_t>(g)].get())
          r->leases.push_back(index.lease(record));
        else
          item.parts.push_back({static_cast<int>(g), {}, {}, {}});
      }
      if (item.parts.empty()) continue;
      LowerCopy& copy = block->lower[static_cast<size_t>(set)];
      copy.n_pins++;
      item.block = block;
      item.what = extent_of(*block, set);
      item.host = copy.host;
      blocks.insert(b);
      r->items.push_back(std::move(item));
    }
  }
  r->n_tokens = static_cast<int64_t>(blocks.size()) * block_size;
  Status space;
  for (Restore::Item& item : r->items) {
    for (Restore::Part& part : item.parts) {
      if (!(part.page = take(part.group)))
        space = fail(Code::kExhausted, "no space to restore " + std::to_string(r->n_tokens) + " tokens of the prefix", "cache.max_size_gb");
      if (!space) break;
      r->n_bytes += static_cast<int64_t>(pool.bytes_of_kind(part.group));
      if (!item.host) r->n_disk_bytes += static_cast<int64_t>(pool.bytes_of_kind(part.group));
    }
    if (item.host) continue;
    item.disk = disk->lease(id_of(*item.block, item.what.set));
    if (item.disk) continue;
    index.detach_disk(item.block, item.what.set);  // it has gone meanwhile: the match is made again
    space = fail(Code::kUnavailable, "an extent of the prefix has left the disk", "extents");
  }
  restores.insert(r);
  if (!space) {
    drop_restore(r);
    return std::unexpected(space.error());
  }
  return r;
}

/// Gives pins, leases and pages back.
void StateManager::Impl::drop_restore(const std::shared_ptr<Restore>& r) {
  for (Restore::Item& item : r->items) {
    if (!r->revoked && item.block != nullptr) item.block->lower[static_cast<size_t>(item.what.set)].n_pins--;
    item.block = nullptr;
    item.parts.clear();
    item.disk = {};
  }
  r->leases.clear();
  restores.erase(r);
}

/// A copy that cannot be used is never tried again.
void StateManager::Impl::condemn(const Restore::Item& item, const Restore::Part& part) {
  const Error& why = part.status.error();
  Block* block = item.block;
  LowerCopy& copy = block->lower[static_cast<size_t>(item.what.set)];
  const std::string where = config.label + ": group " + spec(part.group).name + " at token " + std::to_string(block->depth * block_size);
  counters.restore_failures[static_cast<size_t>(spec(part.group).kind)]++;
  if (why.code == Code::kDeadline) {
    copy.avoid_until = config.env->mono_ns() + kAvoidNs;
    spdlog::warn("{} was not restored in time ({} ms); it is computed again", where, config.restore_deadline_ms);
    return;
  }
  counters.quarantined++;
  spdlog::error("{} cannot be restored from {}: {}; the copy was dropped", where, item.host ? "host memory" : "disk", why.text());
  const bool whole = !item.host;  // a bad extent on disk is gone with all its groups
  if (whole && item.disk) disk->quarantine(item.disk, why);
  if (index.forget_copy(block, item.what.set, whole ? -1 : part.group, RecordState::kQuarantined))
    doomed.push_back(id_of(*block, item.what.set));
  block->lost[static_cast<size_t>(part.group)] = RecordState::kQuarantined;
}

/// Publishes what was restored, or drops what cannot be; all or nothing.
void StateManager::Impl::finish_restore(const std::shared_ptr<Restore>& r) {
  const int64_t now = config.env->mono_ns();
  if (r->revoked || r->failed()) {
    if (!r->revoked)
      for (const Restore::Item& item : r->items)
        for (const Restore::Part& part : item.parts)
          if (!part.status) condemn(item, part);
    counters.restores_failed++;
    counters.restore_failed_tokens += static_cast<uint64_t>(r->n_blocks * block_size);
    r->state = Restore::State::kFailed;
    drop_restore(r);
    return;
  }
  for (Restore::Item& item : r->items) {
    for (Restore::Part& part : item.parts) {
      const auto g = static_cast<size_t>(part.group);
      Record* record = item.block->records[g].get();  // somebody computed it meanwhile
      if (record == nullptr) {
        record = index.publish(item.block, part.group, std::move(part.page), part.digest, layouts[g].rows_per_page, layout, epoch);
        counters.restored++;
        if (!item.host) counters.restored_from_disk++;
      }
      r->leases.push_back(index.lease(record));
    }
    item.block->lower[static_cast<size_t>(item.what.set)].n_pins--;
    item.block = nullptr;
    item.host.reset();
    item.disk = {};
  }
  const double seconds = static_cast<double>(now - r->planned_ns) / 1e9;
  const bool from_disk = r->n_disk_bytes > 0;
  counters.restore_seconds[from_disk] += seconds;
  counters.restore_bytes[0] += static_cast<uint64_t>(r->n_bytes - r->n_disk_bytes);
  counters.restore_bytes[1] += static_cast<uint64_t>(r->n_disk_bytes);
  rates.restored(r->n_bytes, r->run_ns, from_disk);
  r->state = Restore::State::kReady;
  r->expires_ns = now + kKeepReadyNs;
  ready.push_back(r);
}

/// What came back for a prefix of this chain, with what it holds: its leases are given up when the request has its own.
std::vector<std::shared_ptr<Restore>> StateManager::Impl::take_ready(const Walk& walk, int64_t n_blocks, Match& match) {
  std::vector<std::shared_ptr<Restore>> mine;
  for (size_t i = 0; i < ready.size();) {
    const std::shared_ptr<Restore> r = ready[i];
    const bool wanted = r->n_blocks <= n_blocks && walk.chain[static_cast<size_t>(r->n_blocks) - 1]->key == r->last;
    if (!wanted) {
      i++;
      continue;
    }
    if (r->match.effective == match.effective) {
      match.nominal = r->match.nominal;
      match.vetoes = r->match.vetoes;
    }
    match.restored = std::max(match.restored, r->n_tokens);
    match.from_disk |= r->n_disk_bytes > 0;
    ready.erase(ready.begin() + static_cast<ptrdiff_t>(i));
    mine.push_back(r);
  }
  return mine;
}

/// Begins to bring back what the match wants from lower tiers, or cuts the match to what is on the device. True: wait.
Result<bool> StateManager::Impl::bring_back(const Walk& walk, Match& match, std::shared_ptr<Restore>* restore) {
  const int64_t n_blocks = match.effective / block_size;
  if (n_blocks == 0 || resident(walk, n_blocks)) return false;
  if (being_restored(walk, n_blocks)) {
    counters.waited++;
    return true;
  }
  std::vector<Record*> failed;
  Match here = this->match(walk, failed, true);
  const bool worth = worth_restoring(walk, n_blocks, here.effective / block_size);
  if (!worth) {
    counters.restores_declined++;
    rates.declined();
  }
  if (worth) {
    auto planned = plan_restore(walk, n_blocks);
    if (planned) {
      (*planned)->match = match;
      *restore = std::move(*planned);
      return true;
    }
    if (planned.error().code == Code::kUnavailable) return true;
    if (!live.empty()) return std::unexpected(planned.error());  // space comes back when others end
  }
  match = std::move(here);
  return false;
}

void StateManager::Impl::drop_ready(const std::function<bool(const Restore&)>& which) {
  std::vector<std::shared_ptr<Restore>> gone;
  std::erase_if(ready, [&](const std::shared_ptr<Restore>& r) {
    if (!which(*r)) return false;
    gone.push_back(r);
    return true;
  });
  for (const auto& r : gone) drop_restore(r);
}

bool StateManager::Impl::restore_some() {
  std::shared_ptr<Restore> r;
  {
    std::lock_guard lock(mu);
    const int64_t now = config.env->mono_ns();
    drop_ready([&](const Restore& ready) { return now >= ready.expires_ns; });  // nobody came for it
    if (to_restore.empty()) return false;
    r = std::move(to_restore.front());
    to_restore.pop_front();
  }
  const int64_t start = config.env->mono_ns();
  run_restore(*r, config.model, disk);
  r->run_ns = config.env->mono_ns() - start;
  std::function<void()> call;
  {
    std::lock_guard lock(mu);
    finish_restore(r);
    index.trim_ghosts();
    audit();
    call = wake;
  }
  if (call) call();
  return true;
}

/// A purge, an epoch or a quarantine: nothing that is under way for the namespace (ns < 0: for any) is used.
void StateManager::Impl::revoke_restores(int ns) {
  drop_ready([&](const Restore& r) { return ns < 0 || r.ns == ns; });
  for (const auto& r : restores) {
    if (r->revoked || (ns >= 0 && r->ns != ns)) continue;
    for (Restore::Item& item : r->items) {
      if (item.block != nullptr) item.block->lower[static_cast<size_t>(item.what.set)].n_pins--;
      item.block = nullptr;
    }
    r->leases.clear();
    r->revoked = true;
  }
}

/// Whether a block of the chain is on its way already: one flight for all who want it.
bool StateManager::Impl::being_restored(const Walk& walk, int64_t n_blocks) const {
  for (const auto& r : restores) {
    if (r->revoked || r->state == Restore::State::kReady) continue;
    for (const Restore::Item& item : r->items)
      for (int64_t b = 0; b < n_blocks; b++)
        if (walk.chain[static_cast<size_t>(b)] == item.block) return true;
  }
  return false;
}

/// Whether the copies of the lower tiers shall be used at all: not when computing again would be quicker, by measured rates.
bool StateManager::Impl::worth_restoring(const Walk& walk, int64_t n_blocks, int64_t resident_blocks) const {
  int64_t host_bytes = 0, disk_bytes = 0;
  for (int64_t g = 0; g < n_groups(); g++)
    for (int64_t b = first_read(g, n_blocks); b < n_blocks; b++) {
      const Block& block = *walk.chain[static_cast<size_t>(b)];
      if (block.records[static_cast<size_t>(g)]) continue;
      (block.lower[static_cast<size_t>(set_of(spec(g).kind))].host ? host_bytes : disk_bytes) +=
          static_cast<int64_t>(pool.bytes_of_kind(static_cast<int>(g)));
    }
  return rates.restore_ns(host_bytes, false) + rates.restore_ns(disk_bytes, true) <=
         kDoubt * rates.compute_ns((n_blocks - resident_blocks) * block_size);
}

}  // namespace carrel
