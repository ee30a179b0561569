// One block of a prefix as bytes that can leave the device: the records of all groups that it has, with the identity of what they are.
//
// An extent is self-describing and trusts nothing: whoever reads one gives the identity that it must have, and every part carries the
// digest that its records were sealed with. The set of state kinds that is covered is exactly the registered one: `serialized` names each,
// so that a new kind does not compile until somebody has thought about it, and StateManager::create refuses a group that is not covered.
// Pure functions; any thread. Errors: kCorrupt.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "base/hash.h"
#include "engine/state/spec.h"

namespace carrel {

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

/// One record on its way into an extent.
struct ExtentSource {
  int group = 0;
  const std::byte* page = nullptr;       // a page of this process, or
  std::span<const std::byte> rows = {};  // the rows of an older extent
  Digest digest{};
};

/// key: of the block; layout: SHA-256 of row_layout_id.
Bytes encode_extent(const ModelState& model, const Digest& key, const Digest& layout, std::span<const ExtentSource> parts);

struct ExtentPart {
  int group = 0;
  Digest digest{};
  std::span<const std::byte> rows;  // borrowed from the extent
};

/// The parts, when the extent is of this block and layout and whole; their rows are not hashed yet.
Result<std::vector<ExtentPart>> decode_extent(const ModelState& model, const Digest& key, const Digest& layout,
                                              std::span<const std::byte> extent);
/// Whether the rows are what was sealed.
bool intact(const ExtentPart& part);

}  // namespace carrel
