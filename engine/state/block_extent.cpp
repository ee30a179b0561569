#include "engine/state/block_extent.h"

#include <algorithm>

#include "base/codec.h"
#include "engine/state/rows.h"

namespace carrel {

namespace {

/// Reaches disks: never change a number.
uint8_t code_of(StateKind kind) {
  switch (kind) {
    case StateKind::kCompressedKv:
      return 1;
    case StateKind::kTail:
      return 2;
    case StateKind::kWindow:
      return 3;
    case StateKind::kIndexer:
      return 4;
    case StateKind::kRecurrent:
      return 5;
  }
  return 0;
}

size_t rows_bytes_of(const ModelState& model, size_t group) {
  return rows_bytes(model.groups[group], layout_of(model.groups[group], model.block_size));
}

std::unexpected<Error> corrupt(const std::string& what) {
  return fail(Code::kCorrupt, what, "extent");
}

/// Whether a page is its logical rows and nothing between them: then they need no copy.
bool contiguous(const StateSpec& spec, const RowLayout& l) {
  return spec.n_layers == 1 || l.layer_stride_bytes * static_cast<size_t>(spec.n_layers) == rows_bytes(spec, l);
}

/// Rows of the groups that an older extent has and the sources have not.
Status take_over(const ModelState& model, const BlockToSeal& block, const ExtentKey* key, std::vector<Bytes>& rows,
                 std::vector<ExtentPartSource>& parts) {
  CARREL_ASSIGN(const ExtentView view, view_block(model, {block.identity, block.set, block.tokens}, block.old->span()));
  CARREL_ASSIGN(ExtentOpener opener, ExtentOpener::create(view, key));
  for (size_t i = 0; i < view.parts().size(); i++) {
    const ExtentPartInfo& p = view.parts()[i];
    if (std::any_of(block.sources.begin(), block.sources.end(), [&](const ExtentSource& s) { return s.group == p.group; })) continue;
    Digest digest;
    rows.emplace_back(p.rows_bytes);
    CARREL_TRY(opener.part(i, rows.back(), &digest));
    parts.push_back({p.group, p.kind, digest, rows.back()});
  }
  return {};
}

}  // namespace

uint64_t groups_of(const ModelState& model, ExtentSet set) {
  uint64_t mask = 0;
  for (size_t g = 0; g < model.groups.size(); g++)
    if (set_of(model.groups[g].kind) == set) mask |= uint64_t{1} << g;
  return mask;
}

Digest extent_layout(const ModelState& model, const std::string& numerics_id) {
  ByteWriter w;
  w.field("carrel extent layout 1");
  w.field(row_layout_id(model));
  w.field(numerics_id);
  return sha256(w.bytes());
}

Digest prefix_root(const Digest& namespace_secret) {
  return hmac_sha256(namespace_secret, std::as_bytes(std::span(std::string_view("carrel prefix root"))));
}

Result<AlignedBytes> seal_block(const ModelState& model, const BlockToSeal& block, const ExtentKey* key, uint64_t sequence, Env* random) {
  std::vector<Bytes> rows;
  rows.reserve(model.groups.size());  // parts point into them
  std::vector<ExtentPartSource> parts;
  for (const ExtentSource& s : block.sources) {
    const auto g = static_cast<size_t>(s.group);
    const StateSpec& spec = model.groups[g];
    const RowLayout l = layout_of(spec, model.block_size);
    std::span<const std::byte> from(s.page, rows_bytes(spec, l));
    if (!contiguous(spec, l)) {
      rows.emplace_back(rows_bytes(spec, l));
      gather_rows(s.page, l, spec.n_layers, rows.back());
      from = rows.back();
    }
    parts.push_back({static_cast<uint16_t>(g), code_of(spec.kind), s.digest, from});
  }
  if (block.old != nullptr) CARREL_TRY(take_over(model, block, key, rows, parts));
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.group < b.group; });
  return seal_extent(block.identity, block.tokens, parts, key, sequence, static_cast<uint32_t>(block.set), random);
}

Result<ExtentView> view_block(const ModelState& model, const BlockToOpen& block, std::span<const std::byte> bytes) {
  CARREL_ASSIGN(ExtentView view, ExtentView::parse(bytes));
  CARREL_TRY(check_identity(view.identity(), block.identity));
  if (view.header().generation != static_cast<uint32_t>(block.set)) return corrupt("is of another set of groups");
  for (const ExtentPartInfo& p : view.parts()) {
    if (p.group >= model.groups.size()) return corrupt("names a group that is not there");
    const StateSpec& spec = model.groups[p.group];
    if (p.kind != code_of(spec.kind) || set_of(spec.kind) != block.set) return corrupt("group " + spec.name + " is of another kind");
    if (p.rows_bytes != rows_bytes_of(model, p.group)) return corrupt("group " + spec.name + " has another size");
  }
  return view;
}

uint64_t groups_in(const ExtentView& view) {
  uint64_t mask = 0;
  for (const ExtentPartInfo& p : view.parts()) mask |= uint64_t{1} << p.group;
  return mask;
}

Result<BlockOpener> BlockOpener::create(const ModelState& model, const BlockToOpen& block, std::span<const std::byte> bytes,
                                        const ExtentKey* key) {
  CARREL_ASSIGN(ExtentView view, view_block(model, block, bytes));
  BlockOpener o;
  o.model_ = &model;
  o.view_ = std::make_unique<ExtentView>(std::move(view));
  CARREL_ASSIGN(ExtentOpener opener, ExtentOpener::create(*o.view_, key));
  o.opener_ = std::make_unique<ExtentOpener>(std::move(opener));
  CARREL_ASSIGN(const std::vector<int32_t> tokens, o.opener_->tokens());
  if (tokens != block.tokens) return corrupt("is of other tokens");
  return o;
}

Result<Digest> BlockOpener::open(int group, std::byte* page) {
  const StateSpec& spec = model_->groups[static_cast<size_t>(group)];
  const RowLayout l = layout_of(spec, model_->block_size);
  for (size_t i = 0; i < view_->parts().size(); i++) {
    if (view_->parts()[i].group != group) continue;
    Digest digest;
    if (contiguous(spec, l)) {
      CARREL_TRY(opener_->part(i, std::span(page, rows_bytes(spec, l)), &digest));
      return digest;
    }
    space_.resize(rows_bytes(spec, l));
    CARREL_TRY(opener_->part(i, space_, &digest));
    scatter_rows(space_, l, spec.n_layers, page);
    return digest;
  }
  return corrupt("lacks group " + spec.name);
}

}  // namespace carrel
