// What is done to the whole table: purge, epochs, verification, snapshots, statistics, damage for drills.
#include <algorithm>

#include "base/log.h"
#include "engine/state/manager_impl.h"
#include "engine/state/rows.h"

namespace carrel {

namespace {
constexpr int64_t kPurgeMs = 10'000;  // for readers of extents to end
}

int64_t StateManager::purge(const std::string& namespace_id) {
  Impl& m = *impl_;
  int64_t n = 0;
  {
    std::lock_guard lock(m.mu);
    for (const auto& [name, ns] : m.namespaces) {
      if (name.first != namespace_id) continue;
      for (Sequence::Impl* seq : m.live)
        if (seq->ns == ns) m.stop_storing(*seq);
      m.revoke_restores(ns);
      n += m.index.erase(ns);
    }
    m.counters.purged += static_cast<uint64_t>(n);
    m.purges[namespace_id]++;
    m.audit();
  }
  if (m.disk != nullptr) n += m.purge_disk(namespace_id);
  return n;
}

void StateManager::bump_epoch() {
  Impl& m = *impl_;
  std::lock_guard lock(m.mu);
  m.epoch++;
  for (Sequence::Impl* seq : m.live) m.stop_storing(*seq);
  m.revoke_restores(-1);
  m.counters.purged += static_cast<uint64_t>(m.index.erase(-1));
  m.audit();
}

uint64_t StateManager::generation(const std::string& namespace_id) const {
  std::lock_guard lock(impl_->mu);
  const auto at = impl_->purges.find(namespace_id);
  return (at == impl_->purges.end() ? 0 : at->second) + (uint64_t{impl_->epoch} << 32);
}

int64_t StateManager::quarantine_prefix(const AdmitRequest& request, int64_t n_tokens) {
  Impl& m = *impl_;
  const int64_t n_blocks = std::min(n_tokens, static_cast<int64_t>(request.tokens.size())) / m.block_size;
  BlockKeys keys;
  m.fill_keys(request, keys, static_cast<size_t>(n_blocks));
  std::lock_guard lock(m.mu);
  const auto ns = m.find_namespace(request);
  if (!ns) return 0;
  int64_t n = 0;
  m.revoke_restores(*ns);
  for (Block* block : m.walk(keys, request.tokens, *ns, n_blocks).chain) {
    for (const ExtentSet set : kExtentSets)
      if (m.index.forget_copy(block, set, -1, RecordState::kQuarantined)) m.doomed.push_back(m.id_of(*block, set));
    for (const auto& r : block->records) {
      if (!r) continue;
      m.index.detach(r.get(), RecordState::kQuarantined);
      m.counters.quarantined++;
      n++;
    }
  }
  m.audit();
  return n;
}

int64_t StateManager::verify() {
  Impl& m = *impl_;
  std::lock_guard lock(m.mu);
  std::vector<Record*> bad;
  m.index.for_each_record([&](const Record& r) {
    const auto g = static_cast<size_t>(r.group);
    if (r.block != nullptr && digest_rows(r.page.data(), m.layouts[g], m.spec(r.group).n_layers) != r.digest)
      bad.push_back(r.block->records[g].get());
  });
  for (Record* r : bad) {
    m.counters.digest_mismatches++;
    m.counters.quarantined++;
    spdlog::error("{}: a record of group {} at token {} is not what was published and was quarantined; check memory", m.config.label,
                  m.spec(r->group).name, r->block->depth * m.block_size);
    m.index.detach(r, RecordState::kQuarantined);
  }
  m.audit();
  return static_cast<int64_t>(bad.size());
}

LayoutStamp StateManager::layout_stamp() const {
  const Impl& m = *impl_;
  std::lock_guard lock(m.mu);
  return {m.config.kernel_layout_id, m.epoch};
}

StateStats StateManager::stats() const {
  const Impl& m = *impl_;
  ExtentStoreStats disk;
  if (m.disk != nullptr) disk = m.disk->stats();
  std::lock_guard lock(m.mu);
  StateStats s = m.counters;
  s.disk_budget_bytes = disk.max_bytes;
  s.disk_bytes = disk.row_bytes;
  s.n_disk_extents = static_cast<int64_t>(disk.n_rows);
  s.disk_alert = std::move(disk.alert);
  s.budget_bytes = m.pool.budget_bytes();
  s.used_bytes = m.pool.used_bytes();
  s.free_bytes = s.budget_bytes - s.used_bytes;
  s.slot_bytes = static_cast<size_t>(m.pool.n_used(m.pool.slot_kind())) * m.pool.bytes_of_kind(m.pool.slot_kind());
  for (int g = 0; g < static_cast<int>(m.n_groups()); g++)
    s.groups.push_back(
        {m.spec(g).name, m.spec(g).kind, m.pool.bytes_of_kind(g), m.pool.n_used(g), m.index.n_resident(g), m.index.n_leased(g)});
  s.n_ghosts = m.index.n_ghosts();
  s.n_blocks = m.index.n_blocks() - s.n_ghosts;
  s.n_sequences = static_cast<int64_t>(m.live.size());
  s.epoch = m.epoch;
  s.ladder_tokens = m.ladder_blocks * m.block_size;
  s.evicted = m.index.n_evicted();
  s.host_budget_bytes = m.index.host_budget_bytes();
  s.host_bytes = m.index.host_bytes();
  s.n_host_extents = m.index.n_host();
  s.n_write_queue = static_cast<int64_t>(m.due_down.size());
  s.host_evicted = m.index.n_host_evicted();
  return s;
}

const std::vector<std::string>& StateManager::warnings() const {
  return impl_->warnings;
}
const StateConfig& StateManager::config() const {
  return impl_->config;
}

Status StateManager::damage_for_test(const AdmitRequest& prefix, int64_t block, const std::string& group, Damage damage) {
  Impl& m = *impl_;
  BlockKeys keys;
  m.fill_keys(prefix, keys, prefix.tokens.size() / static_cast<size_t>(m.block_size));
  std::lock_guard lock(m.mu);
  const auto spec =
      std::find_if(m.config.model.groups.begin(), m.config.model.groups.end(), [&](const StateSpec& s) { return s.name == group; });
  if (spec == m.config.model.groups.end()) return fail(Code::kNotFound, "no such group", group);
  Block* at = block >= 0 && block < static_cast<int64_t>(keys.size()) ? m.index.find(keys[static_cast<size_t>(block)]) : nullptr;
  const auto g = static_cast<int>(spec - m.config.model.groups.begin());
  if (at != nullptr && (damage == Damage::kDropHost || damage == Damage::kFlipHostBit)) {
    if (!m.index.in_lower(*at, g)) return fail(Code::kNotFound, "no copy of block " + std::to_string(block) + " in host memory", group);
    if (damage == Damage::kDropHost)
      (void)m.index.forget_copy(at, m.index.set_of_group(g), g, RecordState::kEvicted);
    else
      m.flip_copy_for_test(at, g);
    return {};
  }
  Record* r = at == nullptr ? nullptr : at->records[static_cast<size_t>(g)].get();
  if (r == nullptr) return fail(Code::kNotFound, "no published record of block " + std::to_string(block), group);
  if (r->n_leases > 0) return fail(Code::kUnavailable, "block " + std::to_string(block) + " is leased", group);
  switch (damage) {
    case Damage::kEvict:
      m.index.detach(r, RecordState::kEvicted);
      break;
    case Damage::kHalfBlock:
      r->n_rows -= 1;
      break;
    case Damage::kLayout:
      r->layout += 1;
      break;
    case Damage::kEpoch:
      r->epoch -= 1;
      break;
    case Damage::kMisalign:
      r->data += 4;
      break;
    case Damage::kFlipBit:
      *r->data ^= std::byte{1};
      break;
    case Damage::kFlipSign: {
      const RowLayout& l = m.layouts[static_cast<size_t>(g)];
      const size_t sign = bytes_of(l.dtype, 1) - 1;
      for (size_t layer = 0; layer < static_cast<size_t>(m.spec(g).n_layers); layer++)
        for (size_t row = 0; row < static_cast<size_t>(l.rows_per_page); row++)
          r->data[layer * l.layer_stride_bytes + row * l.row_stride_bytes + sign] ^= std::byte{0x80};
      break;
    }
    case Damage::kOffload:
      if (!m.index.in_lower(*at, g) && (!m.copy_down_now(at) || !m.index.in_lower(*at, g)))
        return fail(Code::kUnavailable, "the host tier is off or too small", "cache.offload.host_memory_size");
      m.index.detach(r, RecordState::kEvicted);
      break;
    case Damage::kDropHost:
    case Damage::kFlipHostBit:
      break;
  }
  return {};
}

bool StateManager::evict_one_for_test() {
  Impl& m = *impl_;
  std::lock_guard lock(m.mu);
  const bool done = m.index.evict_one();
  m.index.trim_ghosts();
  m.audit();
  return done;
}

/// A bit of the sealed rows of a group, in a copy of the copy: extents are never changed in place.
void StateManager::Impl::flip_copy_for_test(Block* block, int group) {
  LowerCopy& copy = index.lower(block, group);
  if (!copy.host) return;
  const auto view = view_block(config.model, extent_of(*block, index.set_of_group(group)), copy.host->span());
  auto changed = AlignedBytes::allocate(copy.host->size());
  if (!view || !changed) return;
  std::copy(copy.host->span().begin(), copy.host->span().end(), changed->data());
  for (const ExtentPartInfo& p : view->parts())
    if (p.group == group) changed->data()[p.offset] ^= std::byte{1};
  copy.host = std::make_shared<const AlignedBytes>(std::move(*changed));
}

// ---- snapshots

/// All that the block has, wherever it is in memory, as extents.
std::vector<std::shared_ptr<const AlignedBytes>> StateManager::Impl::seal_all(Block* block) {
  std::vector<std::shared_ptr<const AlignedBytes>> out;
  for (const ExtentSet set : kExtentSets) {
    const LowerCopy& copy = block->lower[static_cast<size_t>(set)];
    const Down d = describe(block, set);
    if (d.what.sources.empty()) {
      if (copy.host) out.push_back(copy.host);
      continue;
    }
    const auto key = data_key(block->ns);
    if (key == nullptr && config.seal_key) return {};
    if (auto extent = seal_block(config.model, d.what, key.get(), ++sealed, config.env))
      out.push_back(std::make_shared<const AlignedBytes>(std::move(*extent)));
  }
  return out;
}

StateSnapshot StateManager::snapshot(const AdmitRequest& of) const {
  Impl& m = *impl_;
  StateSnapshot out;
  std::lock_guard lock(m.mu);
  const auto ns = m.find_namespace(of);
  if (!ns) return out;
  std::unordered_map<const Block*, int64_t> placed;
  m.index.for_each_block(*ns, [&](Block& block) {
    auto extents = m.seal_all(&block);
    if (extents.empty()) return;
    const auto parent = placed.find(block.parent);
    if (block.parent != nullptr && parent == placed.end()) return;  // what is above it is gone
    placed.emplace(&block, static_cast<int64_t>(out.blocks.size()));
    out.blocks.push_back({parent == placed.end() ? -1 : parent->second, block.tokens, std::move(extents)});
  });
  return out;
}

int64_t StateManager::adopt(const AdmitRequest& of, const StateSnapshot& snapshot) {
  Impl& m = *impl_;
  std::lock_guard lock(m.mu);
  const int ns = m.intern_namespace(of);
  std::vector<Block*> placed;
  int64_t n = 0;
  for (const StateSnapshot::Block& b : snapshot.blocks) {
    Block* parent = b.parent < 0 || b.parent >= static_cast<int64_t>(placed.size()) ? nullptr : placed[static_cast<size_t>(b.parent)];
    placed.push_back(nullptr);
    if ((b.parent >= 0 && parent == nullptr) || b.tokens.size() != static_cast<size_t>(m.block_size)) continue;
    const Digest key = m.config.key_fn ? m.config.key_fn(of.namespace_secret, m.context, parent ? &parent->key : nullptr, b.tokens)
                                       : block_key(of.namespace_secret, m.context, parent ? &parent->key : nullptr, b.tokens);
    Block* node = m.index.ensure(key, parent, ns, b.tokens);
    if (node == nullptr) continue;
    bool taken = false;
    for (const auto& extent : b.extents)
      taken |= m.adopt_extent(node, extent);  // of another model, tenant, arithmetic or layout, or damaged: not
    if (!taken) continue;
    placed.back() = node;
    n++;
  }
  m.index.trim_ghosts();
  m.audit();
  return n;
}

bool StateManager::Impl::adopt_extent(Block* block, const std::shared_ptr<const AlignedBytes>& extent) {
  for (const ExtentSet set : kExtentSets) {
    const auto view = view_block(config.model, extent_of(*block, set), extent->span());
    if (!view) continue;
    const LowerCopy& copy = block->lower[static_cast<size_t>(set)];
    if (copy.exists() && (copy.groups & ~groups_in(*view)) != 0) return false;  // what is here has more
    return index.attach_host(block, set, extent, groups_in(*view));
  }
  return false;
}

/// Erases the namespace's extents; whoever writes one now ends first. Returns the extents.
int64_t StateManager::Impl::purge_disk(const std::string& namespace_id) {
  std::lock_guard one(writing);
  const auto purged = disk->purge(namespace_id, config.env->mono_ns() + kPurgeMs * 1'000'000);
  {
    std::lock_guard lock(mu);
    on_disk.clear();
    load_disk_rows();
  }
  if (purged) return static_cast<int64_t>(purged->n_rows);
  spdlog::error("{}: extents of namespace {} could not be erased from disk: {}", config.label, namespace_id, purged.error().text());
  return 0;
}

}  // namespace carrel
