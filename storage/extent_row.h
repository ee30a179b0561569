// What the disk tier knows of one extent without reading it. Values; no threads.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/hash.h"
#include "storage/space_map.h"

namespace carrel {

/// Which state: two extents of one id hold the same.
struct ExtentId {
  Digest key{};  // of the block; keyed by its namespace's hash secret, so no two namespaces share one
  Digest model{};
  Digest layout{};
  uint32_t generation = 0;

  bool operator==(const ExtentId&) const = default;
};

struct ExtentIdHash {
  size_t operator()(const ExtentId& id) const {
    size_t h;
    std::memcpy(&h, id.key.data(), sizeof h);
    return h;
  }
};

struct ExtentPartBytes {
  uint16_t group = 0;
  uint8_t kind = 0;
  uint32_t rows_bytes = 0;

  bool operator==(const ExtentPartBytes&) const = default;
};

/// Changes while the extent lives. Wall clock, Unix time.
struct ExtentUsage {
  int64_t last_used_ms = 0;
  int64_t hits = 0;
  int64_t pinned_until_ms = 0;  // 0: not pinned; INT64_MAX: until unpinned
};

struct ExtentRow {
  ExtentId id;
  Digest parent{};
  std::string namespace_id;
  int64_t position = 0;  // tokens up to the end of the block
  uint64_t sequence = 0;
  uint64_t bytes = 0;  // of the whole extent, a multiple of 4 KiB
  int64_t created_ms = 0;
  uint64_t stamp = 0;  // first bytes of the header's checksum: this very extent
  Place place;
  std::vector<ExtentPartBytes> parts;
  ExtentUsage usage;
};

}  // namespace carrel
