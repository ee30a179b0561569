// The hit rule: how much of a known prefix can be used, and which state shortened it.
//
// Owns the four checks of a record and the fixed-point intersection over groups. Reads the table, never changes it. Threads: under the
// state manager's lock; intersect itself is pure.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/state/prefix_index.h"
#include "engine/state/state_manager.h"

namespace carrel {

/// In the order in which they are made; index into StateStats::check_failures.
enum class Check : uint8_t { kWholeBlocks, kLayout, kIntersection, kAlignment };

/// What a record must look like to be read by this process.
struct RecordRule {
  std::span<const RowLayout> layouts;  // [group]
  uint32_t layout = 0;
  uint32_t epoch = 0;
};

std::optional<Check> failed_check(const Record& record, const RecordRule& rule);
/// Why the block cannot serve the group; empty: it can.
std::string_view residency(const Block& block, int group, const RecordRule& rule);

/// Intersects the groups to a fixed point: the largest p ≤ n_blocks at which every log group has blocks [0, p) and every register group
/// what it needs at p. lacks(group, block): empty when present, else the residency. Vetoes: per group the first point it refused. Linear in
/// n_blocks × groups; the length does not depend on the order of the groups.
struct Intersection {
  int64_t n_blocks = 0;
  std::vector<Veto> vetoes;
};
Intersection intersect(const ModelState& model, int64_t n_blocks, const std::function<std::string_view(int group, int64_t block)>& lacks);

/// The chain of known blocks of a prompt.
struct Walk {
  std::vector<Block*> chain;  // as far as keys are known, ghosts included
  int64_t n_nominal = 0;      // blocks up to the last one that still has data
  bool collision = false;     // ended at an equal key of another prefix

  void measure();  // n_nominal, from what the chain has now
};
Walk walk_chain(const PrefixIndex& index, const BlockKeys& keys, std::span<const int32_t> tokens, int ns, int block_size, int64_t n_blocks);

}  // namespace carrel
