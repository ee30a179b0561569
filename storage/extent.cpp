#include "storage/extent.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <type_traits>

namespace carrel {
namespace {

static_assert(std::endian::native == std::endian::little, "the structures below are the bytes of the format");

constexpr std::array<char, 8> kMagic = {'C', 'A', 'R', 'R', 'E', 'L', 'X', 'T'};
constexpr uint32_t kVersion = 1;
constexpr uint32_t kFlagEncrypted = 1;
constexpr uint64_t kSegmentAlignment = 64;
constexpr std::string_view kKeyInfo = "carrel extent 1";

struct Prefix {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t flags = 0;
  uint64_t total_bytes = 0;
  uint32_t header_bytes = 0;
  uint16_t n_segments = 0;  // the tokens', then one per part
  uint16_t namespace_bytes = 0;
};
struct FixedHeader {
  Prefix prefix;
  uint64_t sequence = 0;
  uint32_t generation = 0;
  uint32_t n_tokens = 0;
  int64_t position = 0;
  Digest key{}, parent{}, model{}, layout{}, salt{};
  std::array<char, kMaxNamespaceIdBytes> namespace_id{};
};
struct Segment {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint16_t group = 0;
  uint8_t kind = 0;
  std::array<uint8_t, 5> zero{};
};
struct Tail {
  Digest checksum{};
  uint64_t total_bytes = 0;
};
static_assert(sizeof(Prefix) == 32 && sizeof(FixedHeader) == 280 && sizeof(Segment) == 24 && sizeof(Tail) == 40);
static_assert(std::has_unique_object_representations_v<FixedHeader> && std::has_unique_object_representations_v<Segment>);

using Check = std::array<std::byte, 32>;  // a tag in its first 16 bytes, or a SHA-256

uint64_t round_up(uint64_t n, uint64_t unit) {
  return (n + unit - 1) / unit * unit;
}

// Where the parts of a header lie.
struct HeaderLayout {
  bool encrypted;
  uint64_t n_segments;

  uint64_t check_bytes() const { return encrypted ? sizeof(GcmTag) : sizeof(Digest); }
  uint64_t checks_at() const { return sizeof(FixedHeader) + n_segments * sizeof(Segment); }  // what lies before is bound to each segment
  uint64_t checksum_at() const { return checks_at() + n_segments * check_bytes(); }
  uint64_t end() const { return checksum_at() + sizeof(Digest); }
  uint64_t bytes() const { return round_up(end(), kExtentUnitBytes); }
};

// Gives each segment the one place that it can have; returns the bytes of the whole extent.
uint64_t place(std::span<Segment> segments, uint64_t header_bytes) {
  uint64_t at = header_bytes;
  for (Segment& s : segments) {
    s.offset = round_up(at, kSegmentAlignment);
    at = s.offset + s.bytes;
  }
  return round_up(at + sizeof(Tail), kExtentUnitBytes);
}

template <class T>
T read(std::span<const std::byte> bytes, uint64_t at) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}
template <class T>
void write(std::span<std::byte> bytes, uint64_t at, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

bool all_zero(std::span<const std::byte> bytes) {
  return bytes.empty() || (bytes[0] == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

std::unexpected<Error> corrupt(std::string what, const Digest* key = nullptr) {
  return fail(Code::kCorrupt, std::move(what), key == nullptr ? "extent" : "extent " + to_hex(*key).substr(0, 16));
}

// The cipher of one extent; none where nothing is encrypted.
Result<std::optional<Aes256Gcm>> derive(const ExtentKey* key, const Digest& salt) {
  std::optional<Aes256Gcm> cipher;
  if (key == nullptr) return cipher;
  SecretKey own;
  hkdf_sha256(key->bytes(), salt, kKeyInfo, own.writable());
  CARREL_ASSIGN(cipher, Aes256Gcm::create(own));
  return cipher;
}

GcmNonce nonce_of(uint64_t segment) {
  GcmNonce n{};
  write(n, 0, segment);
  return n;
}

Digest hash_of(uint64_t segment, std::span<const std::byte> bound, std::span<const std::byte> content) {
  Sha256 h;
  h.update(bound);
  h.update(std::as_bytes(std::span(&segment, 1)));
  h.update(content);
  return h.finish();
}

Result<Check> seal_segment(std::optional<Aes256Gcm>& cipher, uint64_t segment, std::span<const std::byte> bound,
                           std::span<const std::span<const std::byte>> pieces, std::span<std::byte> out) {
  Check check{};
  if (cipher) {
    CARREL_ASSIGN(const GcmTag tag, cipher->seal(nonce_of(segment), bound, pieces, out));
    std::ranges::copy(tag, check.begin());
    return check;
  }
  size_t at = 0;
  for (const auto& piece : pieces) {
    std::ranges::copy(piece, out.begin() + static_cast<std::ptrdiff_t>(at));
    at += piece.size();
  }
  return hash_of(segment, bound, out);
}

Status open_segment(std::optional<Aes256Gcm>& cipher, uint64_t segment, std::span<const std::byte> bound, std::span<const std::byte> sealed,
                    const Check& check, std::span<const std::span<std::byte>> pieces) {
  if (cipher) {
    GcmTag tag;
    std::copy_n(check.begin(), tag.size(), tag.begin());
    return cipher->open(nonce_of(segment), bound, sealed, tag, pieces);
  }
  if (hash_of(segment, bound, sealed) != check) return fail(Code::kCorrupt, "was changed");
  size_t at = 0;
  for (const auto& piece : pieces) {
    std::ranges::copy(sealed.subspan(at, piece.size()), piece.begin());
    at += piece.size();
  }
  return {};
}

// No name that means something to a file system, a log or SQL.
bool is_namespace_id(std::string_view id) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  return !id.empty() && id.size() <= kMaxNamespaceIdBytes && std::ranges::all_of(id, good);
}

std::unexpected<Error> refuse(const std::string& what) {
  return fail(Code::kInvalidArgument, what, "extent");
}

Status refuse_identity(const ExtentIdentity& identity, std::span<const int32_t> tokens) {
  if (!is_namespace_id(identity.namespace_id)) return refuse("a namespace id has 1 to 64 letters, digits, - and _");
  if (identity.position < 0 || static_cast<uint64_t>(identity.position) < tokens.size())
    return refuse("a block ends at least as many tokens after the start as it has");
  return {};
}

Status refuse_sizes(std::span<const int32_t> tokens, std::span<const ExtentPartSource> parts) {
  if (tokens.empty()) return refuse("a block has tokens");
  if (parts.size() > kMaxExtentParts) return refuse("has more than " + std::to_string(kMaxExtentParts) + " parts");
  uint64_t sum = tokens.size_bytes();
  for (size_t i = 0; i < parts.size(); i++) {
    if (i > 0 && parts[i].group <= parts[i - 1].group) return refuse("its parts are not in ascending order of groups");
    sum += std::min(parts[i].rows.size(), kMaxExtentBytes);
  }
  // Room for the header, digests and gaps, and the tail.
  if (sum > kMaxExtentBytes - kMaxExtentHeaderBytes - 96 * (kMaxExtentParts + 1) - kExtentUnitBytes)
    return refuse("more than " + std::to_string(kMaxExtentBytes >> 20) + " MiB do not go into one extent");
  return {};
}

std::vector<Segment> segments_of(std::span<const int32_t> tokens, std::span<const ExtentPartSource> parts) {
  std::vector<Segment> out(1 + parts.size());
  out[0].bytes = tokens.size_bytes();
  for (size_t i = 0; i < parts.size(); i++) {
    out[i + 1].bytes = parts[i].rows.size() + sizeof(Digest);
    out[i + 1].group = parts[i].group;
    out[i + 1].kind = parts[i].kind;
  }
  return out;
}

FixedHeader make_header(const ExtentIdentity& identity, size_t n_tokens, const HeaderLayout& layout, uint64_t total_bytes,
                        uint64_t sequence, uint32_t generation, Env* random) {
  FixedHeader h;
  h.prefix.flags = layout.encrypted ? kFlagEncrypted : 0;
  h.prefix.total_bytes = total_bytes;
  h.prefix.header_bytes = static_cast<uint32_t>(layout.bytes());
  h.prefix.n_segments = static_cast<uint16_t>(layout.n_segments);
  h.prefix.namespace_bytes = static_cast<uint16_t>(identity.namespace_id.size());
  h.sequence = sequence;
  h.generation = generation;
  h.n_tokens = static_cast<uint32_t>(n_tokens);
  h.position = identity.position;
  h.key = identity.key;
  h.parent = identity.parent;
  h.model = identity.model;
  h.layout = identity.layout;
  std::ranges::copy(identity.namespace_id, h.namespace_id.begin());
  random->random(h.salt);
  return h;
}

}  // namespace

Result<uint64_t> sealed_bytes(std::span<const int32_t> tokens, std::span<const ExtentPartSource> parts, bool encrypted) {
  CARREL_TRY(refuse_sizes(tokens, parts));
  std::vector<Segment> segments = segments_of(tokens, parts);
  return place(segments, HeaderLayout{encrypted, segments.size()}.bytes());
}

Status seal_extent_into(const ExtentIdentity& identity, std::span<const int32_t> tokens, std::span<const ExtentPartSource> parts,
                        const ExtentKey* key, uint64_t sequence, uint32_t generation, Env* random, std::span<std::byte> out) {
  CARREL_TRY(refuse_identity(identity, tokens));
  CARREL_ASSIGN(const uint64_t total_bytes, sealed_bytes(tokens, parts, key != nullptr));
  if (out.size() != total_bytes)
    return fail(Code::kInvalidArgument, "takes " + std::to_string(total_bytes) + " bytes, no other room", "extent");
  std::vector<Segment> segments = segments_of(tokens, parts);
  const HeaderLayout layout{key != nullptr, segments.size()};
  place(segments, layout.bytes());
  const FixedHeader h = make_header(identity, tokens.size(), layout, total_bytes, sequence, generation, random);
  write(out, 0, h);
  std::memcpy(out.data() + sizeof(h), segments.data(), segments.size() * sizeof(Segment));
  const auto bound = out.first(layout.checks_at());
  CARREL_ASSIGN(auto cipher, derive(key, h.salt));
  uint64_t end = layout.bytes();
  for (size_t i = 0; i < segments.size(); i++) {
    const Segment& s = segments[i];
    std::ranges::fill(out.subspan(end, s.offset - end), std::byte{0});
    end = s.offset + s.bytes;
    const std::span<const std::byte> pieces[] = {i == 0 ? std::as_bytes(tokens) : parts[i - 1].rows,
                                                 i == 0 ? std::span<const std::byte>() : parts[i - 1].digest};
    CARREL_ASSIGN(const Check check, seal_segment(cipher, i, bound, pieces, out.subspan(s.offset, s.bytes)));
    std::memcpy(out.data() + layout.checks_at() + i * layout.check_bytes(), check.data(), layout.check_bytes());
  }
  const Tail tail{sha256(out.first(layout.checksum_at())), total_bytes};
  write(out, layout.checksum_at(), tail.checksum);
  std::ranges::fill(out.subspan(layout.end(), layout.bytes() - layout.end()), std::byte{0});
  std::ranges::fill(out.subspan(end), std::byte{0});
  write(out, out.size() - sizeof(Tail), tail);
  return {};
}

Result<AlignedBytes> seal_extent(const ExtentIdentity& identity, std::span<const int32_t> tokens, std::span<const ExtentPartSource> parts,
                                 const ExtentKey* key, uint64_t sequence, uint32_t generation, Env* random) {
  CARREL_ASSIGN(const uint64_t n_bytes, sealed_bytes(tokens, parts, key != nullptr));
  CARREL_ASSIGN(AlignedBytes out, AlignedBytes::allocate(n_bytes));
  CARREL_TRY(seal_extent_into(identity, tokens, parts, key, sequence, generation, random, out.span()));
  return out;
}

Result<ExtentLengths> peek_extent(std::span<const std::byte> start) {
  if (start.size() < sizeof(Prefix)) return corrupt("ends within its first bytes");
  const auto p = read<Prefix>(start, 0);
  if (p.magic != kMagic) return corrupt("does not begin like one");
  if (p.version != kVersion)
    return fail(Code::kUnsupported, "is of version " + std::to_string(p.version) + "; this program reads " + std::to_string(kVersion),
                "extent");
  if ((p.flags & ~kFlagEncrypted) != 0) return corrupt("has flags that version 1 does not have");
  if (p.n_segments < 1 || p.n_segments > kMaxExtentParts + 1) return corrupt("states " + std::to_string(p.n_segments) + " segments");
  const HeaderLayout layout{p.flags == kFlagEncrypted, p.n_segments};
  if (p.header_bytes != layout.bytes()) return corrupt("states a header length that it cannot have");
  if (p.total_bytes <= p.header_bytes || p.total_bytes > kMaxExtentBytes || p.total_bytes % kExtentUnitBytes != 0)
    return corrupt("states a length that it cannot have: " + std::to_string(p.total_bytes));
  return ExtentLengths{p.header_bytes, p.total_bytes};
}

namespace {

Status read_identity(const FixedHeader& h, ExtentHeader* out) {
  out->identity = {.key = h.key, .parent = h.parent, .model = h.model, .layout = h.layout, .namespace_id = {}, .position = h.position};
  const size_t n = h.prefix.namespace_bytes;
  if (n < 1 || n > h.namespace_id.size()) return corrupt("states a namespace id of " + std::to_string(n) + " bytes", &h.key);
  out->identity.namespace_id.assign(h.namespace_id.data(), n);
  if (!is_namespace_id(out->identity.namespace_id) || !all_zero(std::as_bytes(std::span(h.namespace_id)).subspan(n)))
    return corrupt("its namespace id is none, or not of the stated length", &h.key);
  if (h.n_tokens < 1 || h.position < static_cast<int64_t>(h.n_tokens))
    return corrupt("states " + std::to_string(h.n_tokens) + " tokens up to position " + std::to_string(h.position), &h.key);
  return {};
}

// Each segment has one place that it can have, given the lengths: overlaps, holes and lies about lengths are all other places.
Status read_segments(const FixedHeader& h, std::span<const std::byte> table, ExtentHeader* out) {
  std::vector<Segment> stated(h.prefix.n_segments);
  std::memcpy(stated.data(), table.data(), stated.size() * sizeof(Segment));
  std::vector<Segment> right(stated.size());
  for (size_t i = 0; i < stated.size(); i++) {
    const Segment& s = stated[i];
    if (s.bytes > kMaxExtentBytes || (i > 0 && s.bytes < sizeof(Digest)))
      return corrupt("states a segment of " + std::to_string(s.bytes) + " bytes", &h.key);
    if (i > 1 && s.group <= stated[i - 1].group) return corrupt("its groups are not in ascending order", &h.key);
    right[i].bytes = s.bytes;
    if (i == 0) continue;
    right[i].group = s.group;
    right[i].kind = s.kind;
  }
  if (stated[0].bytes != uint64_t{h.n_tokens} * sizeof(int32_t)) return corrupt("its tokens and their segment differ in number", &h.key);
  const uint64_t total_bytes = place(right, h.prefix.header_bytes);
  if (std::memcmp(stated.data(), right.data(), stated.size() * sizeof(Segment)) != 0)
    return corrupt("its segments do not lie where their lengths put them", &h.key);
  if (total_bytes != h.prefix.total_bytes) return corrupt("its segments do not add up to its length", &h.key);
  out->tokens_offset = right[0].offset;
  out->parts.reserve(right.size() - 1);
  for (size_t i = 1; i < right.size(); i++)
    out->parts.push_back({right[i].group, right[i].kind, right[i].offset, right[i].bytes - sizeof(Digest)});
  return {};
}

}  // namespace

Result<ExtentHeader> parse_extent_header(std::span<const std::byte> start) {
  CARREL_ASSIGN(const ExtentLengths lengths, peek_extent(start));
  if (start.size() < lengths.header_bytes) return corrupt("ends within its header");
  const auto h = read<FixedHeader>(start, 0);
  const HeaderLayout layout{h.prefix.flags == kFlagEncrypted, h.prefix.n_segments};
  ExtentHeader out;
  out.checksum = sha256(start.first(layout.checksum_at()));
  if (read<Digest>(start, layout.checksum_at()) != out.checksum) return corrupt("its header is damaged", &h.key);
  if (!all_zero(start.subspan(layout.end(), layout.bytes() - layout.end()))) return corrupt("has bytes after its header", &h.key);
  out.encrypted = layout.encrypted;
  out.n_tokens = h.n_tokens;
  out.sequence = h.sequence;
  out.generation = h.generation;
  out.salt = h.salt;
  out.header_bytes = lengths.header_bytes;
  out.total_bytes = lengths.total_bytes;
  CARREL_TRY(read_identity(h, &out));
  CARREL_TRY(read_segments(h, start.subspan(sizeof(h)), &out));
  return out;
}

bool extent_tail_matches(const ExtentHeader& header, std::span<const std::byte> last_unit) {
  if (last_unit.size() < sizeof(Tail)) return false;
  const auto tail = read<Tail>(last_unit, last_unit.size() - sizeof(Tail));
  return tail.checksum == header.checksum && tail.total_bytes == header.total_bytes;
}

Result<ExtentView> ExtentView::parse(std::span<const std::byte> bytes) {
  ExtentView v;
  CARREL_ASSIGN(v.header_, parse_extent_header(bytes));
  v.bytes_ = bytes;
  const ExtentHeader& h = v.header_;
  if (bytes.size() != h.total_bytes)
    return corrupt("has " + std::to_string(bytes.size()) + " bytes and states " + std::to_string(h.total_bytes), &h.identity.key);
  if (!extent_tail_matches(h, bytes)) return corrupt("its end belongs to another one, as after a torn write", &h.identity.key);
  uint64_t end = h.tokens_offset + uint64_t{h.n_tokens} * sizeof(int32_t);
  for (const ExtentPartInfo& p : h.parts) {
    if (!all_zero(bytes.subspan(end, p.offset - end))) return corrupt("has bytes between its segments", &h.identity.key);
    end = p.offset + p.rows_bytes + sizeof(Digest);
  }
  if (!all_zero(bytes.subspan(end, bytes.size() - sizeof(Tail) - end))) return corrupt("has bytes after its segments", &h.identity.key);
  return v;
}

Status check_identity(const ExtentIdentity& found, const ExtentIdentity& expected) {
  const auto other = [&](const std::string& what) { return corrupt("is of another " + what, &found.key); };
  if (found.key != expected.key) return other("block");
  if (found.namespace_id != expected.namespace_id) return other("namespace: " + found.namespace_id.substr(0, 16));
  if (found.model != expected.model) return other("model");
  if (found.layout != expected.layout) return other("row layout or numerics");
  if (found.parent != expected.parent) return other("parent block");
  if (found.position != expected.position) return other("position: " + std::to_string(found.position));
  return {};
}

Result<ExtentOpener> ExtentOpener::create(const ExtentView& view, const ExtentKey* key) {
  const ExtentHeader& h = view.header();
  if (h.encrypted && key == nullptr) return corrupt("is encrypted, and the store is not", &h.identity.key);
  if (!h.encrypted && key != nullptr) return corrupt("is not encrypted, and the store is", &h.identity.key);
  ExtentOpener o;
  o.view_ = &view;
  CARREL_ASSIGN(o.cipher_, derive(key, h.salt));
  return o;
}

Status ExtentOpener::open(size_t segment, std::span<const std::span<std::byte>> pieces) {
  const ExtentHeader& h = view_->header();
  const HeaderLayout layout{h.encrypted, 1 + h.parts.size()};
  const auto bytes = view_->bytes();
  Check check{};
  std::memcpy(check.data(), bytes.data() + layout.checks_at() + segment * layout.check_bytes(), layout.check_bytes());
  const uint64_t offset = segment == 0 ? h.tokens_offset : h.parts[segment - 1].offset;
  const uint64_t n = segment == 0 ? uint64_t{h.n_tokens} * sizeof(int32_t) : h.parts[segment - 1].rows_bytes + sizeof(Digest);
  const Status s = open_segment(cipher_, segment, bytes.first(layout.checks_at()), bytes.subspan(offset, n), check, pieces);
  if (s) return {};
  const std::string name =
      segment == 0 ? "the segment of the tokens " : "the segment of group " + std::to_string(h.parts[segment - 1].group) + " ";
  return fail(s.error().code, name + s.error().message, "extent " + to_hex(h.identity.key).substr(0, 16));
}

Status ExtentOpener::part(size_t part, std::span<std::byte> rows_out, Digest* state_digest) {
  const auto parts = view_->parts();
  Status s;
  if (part >= parts.size())
    s = refuse("has no part " + std::to_string(part));
  else if (rows_out.size() != parts[part].rows_bytes)
    s = refuse("room for " + std::to_string(rows_out.size()) + " bytes is not what part " + std::to_string(part) + " has");
  Digest digest{};
  const std::span<std::byte> pieces[] = {rows_out, digest};
  if (s) s = open(part + 1, pieces);
  if (!s) std::ranges::fill(rows_out, std::byte{0});
  if (s && state_digest != nullptr) *state_digest = digest;
  return s;
}

Result<std::vector<int32_t>> ExtentOpener::tokens() {
  std::vector<int32_t> out(view_->header().n_tokens);
  const std::span<std::byte> pieces[] = {std::as_writable_bytes(std::span(out))};
  CARREL_TRY(open(0, pieces));
  return out;
}

Status open_part(const ExtentView& view, size_t part, const ExtentKey* key, std::span<std::byte> rows_out, Digest* state_digest) {
  auto opener = ExtentOpener::create(view, key);
  if (opener) return opener->part(part, rows_out, state_digest);
  std::ranges::fill(rows_out, std::byte{0});
  return std::unexpected(std::move(opener).error());
}

Result<std::vector<int32_t>> open_tokens(const ExtentView& view, const ExtentKey* key) {
  CARREL_ASSIGN(ExtentOpener opener, ExtentOpener::create(view, key));
  return opener.tokens();
}

Status check_extent(std::span<const std::byte> bytes, const ExtentKey* key, const ExtentIdentity& expected) {
  CARREL_ASSIGN(const ExtentView view, ExtentView::parse(bytes));
  CARREL_TRY(check_identity(view.identity(), expected));
  CARREL_ASSIGN(ExtentOpener opener, ExtentOpener::create(view, key));
  CARREL_TRY(opener.tokens());
  Bytes rows;
  for (size_t i = 0; i < view.parts().size(); i++) {
    Digest digest{};
    rows.resize(view.parts()[i].rows_bytes);
    CARREL_TRY(opener.part(i, rows, &digest));
    if (sha256(rows) == digest) continue;
    return corrupt("the rows of group " + std::to_string(view.parts()[i].group) + " do not have their state digest", &expected.key);
  }
  return {};
}

}  // namespace carrel
