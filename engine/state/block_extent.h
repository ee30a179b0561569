// One block of a prefix as an extent of storage/extent.h: what is in it, and how rows get from pages into it and back.
//
// A block has at most two extents, because its parts are wanted in different numbers: the logs of every block of a kept prefix, the
// registers (windows, tails, recurrent) at state points alone. Each is written, read and dropped as a whole. The set of state kinds that is
// covered is exactly the registered one: `serialized` names each, so that a new kind does not compile until somebody has thought about it,
// and StateManager::create refuses a group that is not covered. Pure functions; any thread. Errors: kCorrupt.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "base/env.h"
#include "base/error.h"
#include "base/hash.h"
#include "engine/state/spec.h"
#include "storage/extent.h"

namespace carrel {

/// Its number is the generation of the extent: numbers reach disks, never change them.
enum class ExtentSet : uint8_t { kLogs = 0, kRegisters = 1 };
inline constexpr ExtentSet kExtentSets[] = {ExtentSet::kLogs, ExtentSet::kRegisters};

/// How the registers or rows of a kind are carried: as the logical rows of one page. False: they are not (no kind today).
constexpr bool serialized(StateKind kind) {
  switch (kind) {
    case StateKind::kCompressedKv:
    case StateKind::kTail:
    case StateKind::kWindow:
    case StateKind::kIndexer:
    case StateKind::kRecurrent:
      return true;
  }
  return false;
}
constexpr ExtentSet set_of(StateKind kind) {
  return kind == StateKind::kCompressedKv || kind == StateKind::kIndexer ? ExtentSet::kLogs : ExtentSet::kRegisters;
}
/// Bit per group.
uint64_t groups_of(const ModelState& model, ExtentSet set);
/// Of rows and arithmetic: ExtentIdentity::layout.
Digest extent_layout(const ModelState& model, const std::string& numerics_id);
/// ExtentIdentity::parent of a first block.
Digest prefix_root(const Digest& namespace_secret);

/// One record on its way into an extent: a page of this process.
struct ExtentSource {
  int group = 0;
  const std::byte* page = nullptr;
  Digest digest{};
};

/// A block and what is wanted of it, with nothing that another thread could change: pages are leased, `old` is shared.
struct BlockToSeal {
  ExtentIdentity identity;
  ExtentSet set = ExtentSet::kLogs;
  std::vector<int32_t> tokens;
  std::vector<ExtentSource> sources;        // ascending by group
  std::shared_ptr<const AlignedBytes> old;  // an older extent: what it has beside the sources is taken over
};
/// key null: not encrypted.
Result<AlignedBytes> seal_block(const ModelState& model, const BlockToSeal& block, const ExtentKey* key, uint64_t sequence, Env* random);

/// An extent that is wanted back.
struct BlockToOpen {
  ExtentIdentity identity;  // that it must have
  ExtentSet set = ExtentSet::kLogs;
  std::vector<int32_t> tokens;  // the same
};
/// Checks head, identity, groups and sizes; the rows are not opened. The bytes outlive the view.
Result<ExtentView> view_block(const ModelState& model, const BlockToOpen& block, std::span<const std::byte> bytes);
/// Bit per group that it has.
uint64_t groups_in(const ExtentView& view);

/// Opens one group into a page. One thread at a time.
class BlockOpener {
 public:
  /// Errors: those of view_block; kCorrupt: sealed with another key, or of other tokens.
  static Result<BlockOpener> create(const ModelState& model, const BlockToOpen& block, std::span<const std::byte> bytes,
                                    const ExtentKey* key);
  /// The page's padding is left as it is; after an error its rows are not to be used.
  Result<Digest> open(int group, std::byte* page);

 private:
  BlockOpener() = default;
  const ModelState* model_ = nullptr;
  std::unique_ptr<ExtentView> view_;
  std::unique_ptr<ExtentOpener> opener_;
  Bytes space_;
};

}  // namespace carrel
