// A match made real: what it wants from lower tiers is verified, what is resident is leased, the rest is brought back and leased.
#include <algorithm>

#include "base/log.h"
#include "engine/state/manager_impl.h"
#include "engine/state/rows.h"

namespace carrel {

int64_t StateManager::Impl::first_read(int64_t group, int64_t n_blocks) const {
  if (spec(group).kind == StateKind::kRecurrent) return std::max<int64_t>(0, n_blocks - 1);  // the registers at the point itself, once
  return first_needed(group, n_blocks * block_size);
}

/// Whether all that the match wants from host memory is what was sealed. False: what is not was dropped, so that the match must be made
/// again.
bool StateManager::Impl::verify_host(const Walk& walk, const Match& match) {
  bool whole = true;
  for (int64_t g = 0; g < n_groups() && index.n_host() > 0; g++) {
    for (int64_t b = first_read(g, match.effective / block_size); b < match.effective / block_size; b++) {
      Block* block = walk.chain[static_cast<size_t>(b)];
      if (block->records[static_cast<size_t>(g)]) continue;
      if (index.in_host(*block, static_cast<int>(g)) && index.verify_host(block, static_cast<int>(g))) continue;
      whole = false;
      counters.restore_failures[static_cast<size_t>(spec(g).kind)]++;
      counters.quarantined++;
      spdlog::error("{}: group {} at token {} cannot be restored from host memory: its copy is damaged and was dropped", config.label,
                    spec(g).name, b * block_size);
    }
  }
  return whole;
}

/// Leases everything resident that a resume at the point will read: before anything is allocated, so that no allocation can evict it.
void StateManager::Impl::pin(Sequence::Impl& seq, const Walk& walk, int64_t n_blocks) {
  seq.size_table(n_blocks);
  for (int64_t g = 0; g < n_groups(); g++) {
    seq.first_held[static_cast<size_t>(g)] = first_read(g, n_blocks);
    for (int64_t b = seq.first_held[static_cast<size_t>(g)]; b < n_blocks; b++) {
      Record* r = walk.chain[static_cast<size_t>(b)]->records[static_cast<size_t>(g)].get();
      if (r == nullptr) continue;
      Cell cell;
      cell.state = RecordState::kPublished;
      cell.lease = index.lease(r);
      seq.set_cell(static_cast<size_t>(g), b, std::move(cell));
    }
  }
}

/// Brings back from host memory what pin did not find, verified before, and leases it. All of it or, where space is short, nothing is read.
Status StateManager::Impl::restore(Sequence::Impl& seq, const Walk& walk, int64_t n_blocks) {
  std::vector<std::pair<size_t, int64_t>> wanted;
  for (size_t g = 0; g < seq.cells.size(); g++)
    for (int64_t b = seq.first_held[g]; b < n_blocks; b++)
      if (seq.table[g][static_cast<size_t>(b)] == nullptr) wanted.emplace_back(g, b);
  for (const auto& [g, b] : wanted) index.pin_host(walk.chain[static_cast<size_t>(b)], 1);
  std::vector<PageHandle> pages;
  for (const auto& [g, b] : wanted) pages.push_back(take(static_cast<int>(g)));
  for (const auto& [g, b] : wanted) index.pin_host(walk.chain[static_cast<size_t>(b)], -1);
  if (std::any_of(pages.begin(), pages.end(), [](const PageHandle& p) { return !p; }))
    return fail(Code::kExhausted, "no space to restore " + std::to_string(wanted.size()) + " records of the prefix from host memory",
                "cache.max_size_gb");
  std::set<int64_t> blocks;
  for (size_t i = 0; i < wanted.size(); i++) {
    const auto [g, b] = wanted[i];
    Block* block = walk.chain[static_cast<size_t>(b)];
    const auto part = index.host_part(*block, static_cast<int>(g));
    if (!part) return std::unexpected(part.error());
    scatter_rows(part->rows, layouts[g], spec(static_cast<int64_t>(g)).n_layers, pages[i].data());
    Cell cell;
    cell.state = RecordState::kPublished;
    cell.lease =
        index.lease(index.publish(block, static_cast<int>(g), std::move(pages[i]), part->digest, layouts[g].rows_per_page, layout, epoch));
    seq.set_cell(g, b, std::move(cell));
    counters.restored++;
    blocks.insert(b);
  }
  seq.match.restored = static_cast<int64_t>(blocks.size()) * block_size;
  return {};
}

}  // namespace carrel
