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

bool PrefixIndex::offload(Block* block) {
  if (host_budget_bytes_ == 0) return false;
  uint64_t groups = block->host ? block->host->groups : 0;
  std::vector<ExtentPart> old;
  if (block->host) {
    auto parts = decode_extent(model_, block->key, layout_, block->host->extent);
    if (!parts) {
      drop_host(block, -1);
      groups = 0;
    } else {
      old = *std::move(parts);
    }
  }
  std::vector<ExtentSource> sources;
  bool fresh = false;
  for (size_t g = 0; g < block->records.size(); g++) {
    if (block->records[g]) {  // the device's, where both have it: it was verified when it came from the host
      sources.push_back({static_cast<int>(g), block->records[g]->data, {}, block->records[g]->digest});
      fresh |= (groups >> g & 1) == 0;
      continue;
    }
    for (const ExtentPart& p : old)
      if (p.group == static_cast<int>(g) && (groups >> g & 1) != 0) sources.push_back({p.group, nullptr, p.rows, p.digest});
  }
  if (!fresh) return groups != 0;
  auto copy = std::make_unique<HostCopy>();
  copy->extent = encode_extent(model_, block->key, layout_, sources);
  for (const ExtentSource& s : sources) copy->groups |= uint64_t{1} << s.group;
  if (block->host) drop_host(block, -1);
  if (!make_host_room(copy->extent.size())) return false;
  host_bytes_ += copy->extent.size();
  copy->used = next_use_++;
  host_order_.emplace(copy->used, block);
  block->host = std::move(copy);
  n_offloaded_++;
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
