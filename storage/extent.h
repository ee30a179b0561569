// The sealed form of one block or state point of all groups: one blob, the same bytes in host memory and on disk. The format to the byte
// is docs/formats/extent.md.
//
// An extent is self-describing and trusts nothing: parse bounds every length before it is used, each segment is sealed with a tag (or,
// where nothing is encrypted, hashed) together with the header, and every byte of the blob is either covered by that or has one allowed
// value. Knows no model: a group is a number, a kind is a code that the engine maps. Pure functions of borrowed bytes; any thread. Errors:
// kCorrupt names what is wrong; kUnsupported: of another version.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/env.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/seal.h"

namespace carrel {

/// The data key of a namespace (Catalog::data_key). Wiped with its owner.
using ExtentKey = SecretKey;

constexpr size_t kExtentUnitBytes = 4096;                // header and whole are multiples of it
constexpr uint64_t kMaxExtentBytes = uint64_t{1} << 30;  // of a whole extent
constexpr size_t kMaxExtentParts = 512;                  // so that a header has at most kMaxExtentHeaderBytes
constexpr size_t kMaxExtentHeaderBytes = 8 * kExtentUnitBytes;
constexpr size_t kMaxNamespaceIdBytes = 64;

/// What the rows are of. All of it is in the clear in the header: key and parent are keyed hashes and say nothing about the tokens.
struct ExtentIdentity {
  Digest key{};     // of the block
  Digest parent{};  // key of the block before; of the first block: the namespace's root
  Digest model{};
  Digest layout{};           // of the rows and of the arithmetic: SHA-256 of row layout id and numerics id
  std::string namespace_id;  // 1 to 64 of a-z A-Z 0-9 - _
  int64_t position = 0;      // tokens up to the end of the block; at least the number of its own tokens

  bool operator==(const ExtentIdentity&) const = default;
};

/// One group's rows on their way into an extent, in logical order without padding.
struct ExtentPartSource {
  uint16_t group = 0;
  uint8_t kind = 0;
  Digest digest{};  // state digest: SHA-256 of the rows as they were when the state was computed; sealed with them
  std::span<const std::byte> rows;
};

/// Parts come in ascending order of their groups, each group at most once. key null: not encrypted, SHA-256 in place of tags.
/// random: source of the fresh salt. The result's size is a multiple of 4 KiB.
/// Errors: kInvalidArgument (an identity, order or size that the format does not have), kExhausted (memory).
Result<AlignedBytes> seal_extent(const ExtentIdentity& identity, std::span<const int32_t> tokens, std::span<const ExtentPartSource> parts,
                                 const ExtentKey* key, uint64_t sequence, uint32_t generation, Env* random);
/// The same into memory of the caller, which has exactly sealed_bytes: memory that is there already is sealed into at twice the speed.
Status seal_extent_into(const ExtentIdentity& identity, std::span<const int32_t> tokens, std::span<const ExtentPartSource> parts,
                        const ExtentKey* key, uint64_t sequence, uint32_t generation, Env* random, std::span<std::byte> out);
Result<uint64_t> sealed_bytes(std::span<const int32_t> tokens, std::span<const ExtentPartSource> parts, bool encrypted);

struct ExtentPartInfo {
  uint16_t group = 0;
  uint8_t kind = 0;
  uint64_t offset = 0;      // of the segment within the blob; a multiple of 64
  uint64_t rows_bytes = 0;  // what open_part writes
};

/// What the header says. Its checksum held; what an enemy could have written is found by the tags alone.
struct ExtentHeader {
  ExtentIdentity identity;
  bool encrypted = false;
  uint32_t n_tokens = 0;
  uint64_t sequence = 0;
  uint32_t generation = 0;
  Digest salt{};
  uint64_t header_bytes = 0;
  uint64_t total_bytes = 0;
  uint64_t tokens_offset = 0;
  std::vector<ExtentPartInfo> parts;  // ascending by group
  Digest checksum{};                  // over the header with all tags: names this very extent
};

struct ExtentLengths {
  uint64_t header_bytes = 0;
  uint64_t total_bytes = 0;
};

/// From the first 64 bytes or more: how much to read. Magic, version and bounds are checked, nothing else is.
Result<ExtentLengths> peek_extent(std::span<const std::byte> start);
/// From the first header_bytes or more, e.g. to rebuild an index without reading the rows.
Result<ExtentHeader> parse_extent_header(std::span<const std::byte> start);
/// Whether the last 4 KiB of a blob end as this header's extent does: false after a write that was torn before its end.
bool extent_tail_matches(const ExtentHeader& header, std::span<const std::byte> last_unit);

/// A whole extent, borrowed: the bytes outlive the view and do not change.
class ExtentView {
 public:
  /// Everything but the content of the segments is checked: header, lengths, gaps, tail.
  static Result<ExtentView> parse(std::span<const std::byte> bytes);

  const ExtentHeader& header() const { return header_; }
  const ExtentIdentity& identity() const { return header_.identity; }
  std::span<const ExtentPartInfo> parts() const { return header_.parts; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  ExtentHeader header_;
  std::span<const std::byte> bytes_;
};

/// kCorrupt names the first field that differs.
Status check_identity(const ExtentIdentity& found, const ExtentIdentity& expected);

/// The segments of one extent, its key derived once. Borrows the view. One thread at a time; several openers of one view may run at once.
class ExtentOpener {
 public:
  /// key null goes with extents that are not encrypted, and a key with those that are; anything else is kCorrupt, so that nobody can slip
  /// in an unsealed one.
  static Result<ExtentOpener> create(const ExtentView& view, const ExtentKey* key);
  /// Decrypts and checks in one pass, straight into rows_out, which has exactly parts()[part].rows_bytes; after an error it is zero.
  /// state_digest may be null.
  Status part(size_t part, std::span<std::byte> rows_out, Digest* state_digest);
  Result<std::vector<int32_t>> tokens();

 private:
  ExtentOpener() = default;
  Status open(size_t segment, std::span<const std::span<std::byte>> pieces);
  const ExtentView* view_ = nullptr;
  std::optional<Aes256Gcm> cipher_;
};

/// For one segment alone.
Status open_part(const ExtentView& view, size_t part, const ExtentKey* key, std::span<std::byte> rows_out, Digest* state_digest);
Result<std::vector<int32_t>> open_tokens(const ExtentView& view, const ExtentKey* key);

/// Everything at once, for verify: parse, identity, tokens, each part, and each part's rows against their state digest.
Status check_extent(std::span<const std::byte> bytes, const ExtentKey* key, const ExtentIdentity& expected);

}  // namespace carrel
