#include "engine/state/extent.h"

#include "base/codec.h"
#include "engine/state/rows.h"

namespace carrel {

namespace {

constexpr uint32_t kMagic = 0x31545843;  // "CXT1"

// magic u32 | key 32 | layout 32 | n parts u32 | per part: group u32, bytes u64, digest 32 | SHA-256 of all that, 32 | rows
Bytes header(const Digest& key, const Digest& layout, std::span<const ExtentPart> parts) {
  ByteWriter w;
  w.u32(kMagic);
  w.raw(key);
  w.raw(layout);
  w.u32(static_cast<uint32_t>(parts.size()));
  for (const ExtentPart& p : parts) {
    w.u32(static_cast<uint32_t>(p.group));
    w.u64(p.rows.size());
    w.raw(p.digest);
  }
  const Digest sum = sha256(w.bytes());
  w.raw(sum);
  return w.take();
}

Result<Digest> read_digest(ByteReader& r) {
  CARREL_ASSIGN(const auto bytes, r.raw(sizeof(Digest)));
  Digest d;
  std::copy(bytes.begin(), bytes.end(), d.begin());
  return d;
}

std::unexpected<Error> corrupt(const std::string& what) {
  return fail(Code::kCorrupt, what, "extent");
}

}  // namespace

Bytes encode_extent(const ModelState& model, const Digest& key, const Digest& layout, std::span<const ExtentSource> sources) {
  std::vector<ExtentPart> parts;
  std::vector<Bytes> gathered(sources.size());
  for (size_t i = 0; i < sources.size(); i++) {
    const ExtentSource& s = sources[i];
    ExtentPart p{s.group, s.digest, s.rows};
    if (s.page != nullptr) {
      const StateSpec& spec = model.groups[static_cast<size_t>(s.group)];
      const RowLayout l = layout_of(spec, model.block_size);
      gathered[i].resize(rows_bytes(spec, l));
      gather_rows(s.page, l, spec.n_layers, gathered[i]);
      p.rows = gathered[i];
    }
    parts.push_back(p);
  }
  Bytes out = header(key, layout, parts);
  size_t n = out.size();
  for (const ExtentPart& p : parts) n += p.rows.size();
  out.reserve(n);
  for (const ExtentPart& p : parts) out.insert(out.end(), p.rows.begin(), p.rows.end());
  return out;
}

Result<std::vector<ExtentPart>> decode_extent(const ModelState& model, const Digest& key, const Digest& layout,
                                              std::span<const std::byte> extent) {
  ByteReader r(extent);
  CARREL_ASSIGN(const uint32_t magic, r.u32());
  if (magic != kMagic) return corrupt("does not begin like one");
  CARREL_ASSIGN(const Digest is_key, read_digest(r));
  CARREL_ASSIGN(const Digest is_layout, read_digest(r));
  CARREL_ASSIGN(const uint32_t n_parts, r.u32());
  if (n_parts > model.groups.size()) return corrupt("has more parts than the model has groups");
  std::vector<ExtentPart> parts;
  std::vector<uint64_t> sizes;
  for (uint32_t i = 0; i < n_parts; i++) {
    ExtentPart p;
    CARREL_ASSIGN(const uint32_t group, r.u32());
    CARREL_ASSIGN(const uint64_t size, r.u64());
    CARREL_ASSIGN(p.digest, read_digest(r));
    if (group >= model.groups.size() || (!parts.empty() && group <= static_cast<uint32_t>(parts.back().group)))
      return corrupt("names a group that is not there, or one twice");
    const StateSpec& spec = model.groups[group];
    if (size != rows_bytes(spec, layout_of(spec, model.block_size))) return corrupt("group " + spec.name + " has another size");
    p.group = static_cast<int>(group);
    parts.push_back(p);
    sizes.push_back(size);
  }
  const Digest sum = sha256(extent.first(r.at()));
  CARREL_ASSIGN(const Digest is_sum, read_digest(r));
  if (is_sum != sum) return corrupt("its header is damaged");
  if (is_key != key) return corrupt("is of another block");
  if (is_layout != layout) return corrupt("has rows of another layout");
  for (size_t i = 0; i < parts.size(); i++) {
    CARREL_ASSIGN(parts[i].rows, r.raw(sizes[i]));
  }
  if (r.left() != 0) return corrupt("is longer than its parts");
  return parts;
}

bool intact(const ExtentPart& part) {
  return sha256(part.rows) == part.digest;
}

}  // namespace carrel
