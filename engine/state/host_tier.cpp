// The host tier: copies of blocks in host memory, taken when device memory is needed for something else, least recently used ones given up
// first. Part of PrefixIndex, and guarded like it.
#include "engine/state/prefix_index.h"

namespace carrel {

void PrefixIndex::touch_host(Block* block) {
  host_order_.erase(block->host->used);
  block->host->used = next_use_++;
  host_order_.emplace(block->host->used, block);
}

void PrefixIndex::pin_host(Block* block, int delta) {
  block->host->n_pins += delta;
}

bool PrefixIndex::make_host_room(size_t n_bytes) {
  if (n_bytes > host_budget_bytes_) return false;
  for (auto at = host_order_.begin(); at != host_order_.end() && host_bytes_ + n_bytes > host_budget_bytes_;) {
    Block* block = at->second;
    ++at;
    if (block->host->n_pins > 0) continue;
    drop_host(block, -1);
    n_host_evicted_++;
  }
  return host_bytes_ + n_bytes <= host_budget_bytes_;
}

Bytes PrefixIndex::encode(const Block& block) const {
  std::vector<ExtentPart> old;
  if (block.host)
    if (auto parts = decode_extent(model_, block.key, layout_, block.host->extent)) old = *std::move(parts);
  std::vector<ExtentSource> sources;
  for (size_t g = 0; g < block.records.size(); g++) {
    const Record* r = block.records[g].get();
    if (r != nullptr) sources.push_back({r->group, r->data, {}, r->digest});  // the device's, where both have it
    for (const ExtentPart& p : old)
      if (r == nullptr && p.group == static_cast<int>(g) && in_host(block, p.group))
        sources.push_back({p.group, nullptr, p.rows, p.digest});
  }
  return sources.empty() ? Bytes() : encode_extent(model_, block.key, layout_, sources);
}

bool PrefixIndex::is_extent_of(const Digest& key, std::span<const std::byte> extent) const {
  return decode_extent(model_, key, layout_, extent).has_value();
}

bool PrefixIndex::offload(Block* block) {
  if (host_budget_bytes_ == 0) return false;
  bool fresh = false;
  for (size_t g = 0; g < block->records.size(); g++) fresh |= block->records[g] && !in_host(*block, static_cast<int>(g));
  if (!fresh) return block->host != nullptr;
  if (!attach(block, encode(*block))) return false;
  n_offloaded_++;
  return true;
}

bool PrefixIndex::attach(Block* block, Bytes extent) {
  const auto parts = decode_extent(model_, block->key, layout_, extent);
  if (!parts || parts->empty()) return false;
  drop_host(block, -1);
  if (!make_host_room(extent.size())) return false;
  auto copy = std::make_unique<HostCopy>();
  for (const ExtentPart& p : *parts) copy->groups |= uint64_t{1} << p.group;
  host_bytes_ += extent.size();
  copy->extent = std::move(extent);
  copy->used = next_use_++;
  host_order_.emplace(copy->used, block);
  block->host = std::move(copy);
  became_resident(block, false);
  return true;
}

Result<ExtentPart> PrefixIndex::host_part(const Block& block, int group) const {
  CARREL_ASSIGN(const auto parts, decode_extent(model_, block.key, layout_, block.host->extent));
  for (const ExtentPart& p : parts)
    if (p.group == group) return p;
  return fail(Code::kCorrupt, "the copy lacks group " + model_.groups[static_cast<size_t>(group)].name, "host memory");
}

bool PrefixIndex::verify_host(Block* block, int group) {
  touch_host(block);
  const auto part = host_part(*block, group);
  if (part && intact(*part)) return true;
  drop_host(block, part ? group : -1);
  block->lost[static_cast<size_t>(group)] = RecordState::kQuarantined;
  return false;
}

void PrefixIndex::damage_host_for_test(Block* block, int group) {
  const auto parts = decode_extent(model_, block->key, layout_, block->host->extent);
  if (!parts) return;
  for (const ExtentPart& p : *parts)
    if (p.group == group) block->host->extent[static_cast<size_t>(p.rows.data() - block->host->extent.data())] ^= std::byte{1};
}

void PrefixIndex::drop_host(Block* block, int group) {
  if (!block->host) return;
  const uint64_t gone = group < 0 ? ~uint64_t{0} : uint64_t{1} << group;
  for (size_t g = 0; g < block->records.size(); g++)
    if ((block->host->groups & gone) >> g & 1 && !block->records[g])
      block->lost[g] = group < 0 ? RecordState::kEvicted : RecordState::kQuarantined;
  block->host->groups &= ~gone;
  if (block->host->groups != 0) return;
  host_bytes_ -= block->host->extent.size();
  host_order_.erase(block->host->used);
  block->host.reset();
  lost_resident(block, false);
}

}  // namespace carrel
