// The lower tiers as a whole: beginning and end of their threads, what the disk has at start, uses, sweeping.
#include <algorithm>

#include "base/log.h"
#include "engine/state/manager_impl.h"

namespace carrel {

namespace {
constexpr int64_t kFlushAtEndMs = 10'000;
}

void StateManager::Impl::begin_tiers() {
  index.before_evict = [this](Block* block) {
    if (config.transfer_threads == 0) {
      (void)copy_down_now(block);
      return;
    }
    if (!offloading()) return;
    for (const ExtentSet set : kExtentSets)
      if (index.uncopied(*block, set) != 0) counters.dropped_uncopied++;
  };
  if (disk != nullptr) {
    spdlog::info("{}: {} extents on disk are of this model, arithmetic and layout", config.label, load_disk_rows());
    index.on_new_block = [this](Block* block) { meet_disk(block); };
  }
  if (config.transfer_threads == 0) return;
  restorers = std::make_unique<TransferThreads>(config.transfer_threads, [this] { return restore_some(); });
  if (offloading()) writer = std::make_unique<TransferThreads>(1, [this] { return write_some(false); });
}

/// What is due is written; what is under way is finished or given up.
void StateManager::Impl::end_tiers() {
  if (writer) {
    const int64_t deadline = config.env->mono_ns() + kFlushAtEndMs * 1'000'000;
    while (config.env->mono_ns() < deadline && write_some(true)) {
    }
  }
  restorers.reset();
  writer.reset();
  std::lock_guard lock(mu);
  to_restore.clear();
  ready.clear();
  while (!restores.empty()) drop_restore(*restores.begin());
}

int64_t StateManager::Impl::load_disk_rows() {
  int64_t n = 0;
  for (const ExtentRow& row : disk->rows()) {
    if (row.id.model != config.model_digest || row.id.layout != extent_rows || row.id.generation >= std::size(kExtentSets)) continue;
    uint64_t groups = 0;
    for (const ExtentPartBytes& p : row.parts) groups |= p.group < 64 ? uint64_t{1} << p.group : 0;
    on_disk[row.id.key].groups[row.id.generation] = groups;
    n++;
  }
  return n;
}

/// A block that the table did not know: the disk may. Its tokens are the request's, and are confirmed when the extent is opened.
void StateManager::Impl::meet_disk(Block* block) {
  const auto at = on_disk.find(block->key);
  if (at == on_disk.end()) return;
  for (const ExtentSet set : kExtentSets)
    if (const uint64_t groups = at->second.groups[static_cast<size_t>(set)]; groups != 0) index.attach_disk(block, set, groups);
}

Walk StateManager::Impl::walk(const BlockKeys& keys, std::span<const int32_t> tokens, int ns, int64_t n_blocks) {
  const auto n = static_cast<size_t>(block_size);
  Block* parent = nullptr;
  for (int64_t i = 0; i < n_blocks && !on_disk.empty(); i++) {
    const auto at = static_cast<size_t>(i);
    Block* block = index.find(keys[at]);
    if (block == nullptr && !on_disk.contains(keys[at])) break;
    if (block == nullptr) block = index.ensure(keys[at], parent, ns, tokens.subspan(at * n, n));
    if (block == nullptr) break;
    parent = block;
  }
  return walk_chain(index, keys, tokens, ns, block_size, n_blocks);
}

void StateManager::Impl::touch(const Walk& walk, int64_t n_blocks) {
  index.touch(walk.chain[static_cast<size_t>(n_blocks) - 1], 1, tick);
  if (!index.has_copies()) return;
  std::vector<ExtentId> used;
  for (int64_t b = 0; b < n_blocks; b++) {
    Block* block = walk.chain[static_cast<size_t>(b)];
    index.touch_copies(block, *walk.chain[static_cast<size_t>(n_blocks) - 1]);
    for (const ExtentSet set : kExtentSets)
      if (block->lower[static_cast<size_t>(set)].on_disk && (set == ExtentSet::kLogs || b + 1 == n_blocks))
        used.push_back(id_of(*block, set));
  }
  if (disk != nullptr) disk->touch(used);
}

void StateManager::sweep_disk() {
  if (impl_->disk == nullptr) return;
  if (const auto gone = impl_->disk->sweep())
    impl_->forget_on_disk(*gone);
  else
    spdlog::warn("{}: the disk tier could not be swept: {}", impl_->config.label, gone.error().text());
}

std::optional<ExtentVerify> StateManager::verify_disk() {
  if (impl_->disk == nullptr) return std::nullopt;
  auto report = impl_->disk->verify();
  if (report) return *std::move(report);
  ExtentVerify failed;
  failed.n_skipped = 1;
  failed.findings.push_back(report.error().text());
  return failed;
}

void StateManager::note_computed(int64_t n_tokens, int64_t ns) {
  std::lock_guard lock(impl_->mu);
  impl_->rates.computed(n_tokens, ns);
}

void StateManager::on_restored(std::function<void()> wake) {
  std::lock_guard lock(impl_->mu);
  impl_->wake = std::move(wake);
}

}  // namespace carrel
