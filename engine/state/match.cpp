#include "engine/state/match.h"

#include <algorithm>

namespace carrel {

std::optional<Check> failed_check(const Record& record, const RecordRule& rule) {
  const RowLayout& layout = rule.layouts[static_cast<size_t>(record.group)];
  if (record.n_rows != layout.rows_per_page) return Check::kWholeBlocks;
  if (record.layout != rule.layout) return Check::kLayout;
  if (record.epoch != rule.epoch) return Check::kIntersection;
  if (reinterpret_cast<uintptr_t>(record.data) % PagePool::kAlignment != 0) return Check::kAlignment;
  return std::nullopt;
}

std::string_view residency(const Block& block, int group, const RecordRule& rule) {
  const Record* r = block.records[static_cast<size_t>(group)].get();
  if (r == nullptr) {
    const RecordState lost = block.lost[static_cast<size_t>(group)];
    return lost == RecordState::kEmpty ? "absent" : to_string(lost);
  }
  const auto failed = failed_check(*r, rule);
  if (!failed) return {};
  constexpr std::string_view kNames[] = {"half_block", "layout", "epoch", "alignment"};
  return kNames[static_cast<size_t>(*failed)];
}

Intersection intersect(const ModelState& model, int64_t n_blocks, const std::function<std::string_view(int, int64_t)>& lacks) {
  Intersection out;
  int64_t p = n_blocks;
  std::vector<bool> vetoed(model.groups.size());
  const auto veto = [&](size_t g, std::string_view why, int64_t lower) {
    if (!vetoed[g]) out.vetoes.push_back({model.groups[g].kind, model.groups[g].name, p * model.block_size, std::string(why)});
    vetoed[g] = true;
    p = lower;
  };
  for (size_t g = 0; g < model.groups.size(); g++) {
    if (!is_log(model.groups[g].kind)) continue;
    for (int64_t b = 0; b < p; b++)
      if (const auto why = lacks(static_cast<int>(g), b); !why.empty()) veto(g, why, b);
  }
  for (bool shortened = true; shortened;) {
    shortened = false;
    for (size_t g = 0; g < model.groups.size(); g++) {
      const StateSpec& spec = model.groups[g];
      if (is_log(spec.kind)) continue;
      const int64_t needed = point_blocks(spec, model.block_size);
      for (int64_t b = p - 1; b >= std::max<int64_t>(0, p - needed); b--) {
        if (const auto why = lacks(static_cast<int>(g), b); !why.empty()) {
          veto(g, why, b);
          shortened = true;
        }
      }
    }
  }
  out.n_blocks = p;
  return out;
}

Walk walk_chain(const PrefixIndex& index, const BlockKeys& keys, std::span<const int32_t> tokens, int ns, int block_size,
                int64_t n_blocks) {
  Walk out;
  out.chain.reserve(static_cast<size_t>(n_blocks));
  const Block* parent = nullptr;
  for (int64_t i = 0; i < n_blocks; i++) {
    Block* block = index.find(keys[static_cast<size_t>(i)]);
    if (block == nullptr) break;
    if (!PrefixIndex::confirms(*block, parent, ns,
                               tokens.subspan(static_cast<size_t>(i) * static_cast<size_t>(block_size), static_cast<size_t>(block_size)))) {
      out.collision = true;
      break;
    }
    out.chain.push_back(block);
    parent = block;
  }
  out.measure();
  return out;
}

void Walk::measure() {
  n_nominal = static_cast<int64_t>(chain.size());
  while (n_nominal > 0 && chain[static_cast<size_t>(n_nominal) - 1]->n_resident == 0) n_nominal--;
}

}  // namespace carrel
