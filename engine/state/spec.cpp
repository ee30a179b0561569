// Geometry of state pages and the two layout ids. Pure functions.
#include "engine/state/spec.h"

#include <numeric>

#include "kernels/packed_rows.h"

namespace carrel {

namespace {

constexpr size_t kLayerAlignment = 64;
constexpr int kBlockGrain = 64;

size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

}  // namespace

std::string_view to_string(StateKind kind) {
  switch (kind) {
    case StateKind::kCompressedKv:
      return "compressed_kv";
    case StateKind::kTail:
      return "tail";
    case StateKind::kWindow:
      return "window";
    case StateKind::kIndexer:
      return "indexer";
    case StateKind::kRecurrent:
      return "recurrent";
  }
  return "unknown";
}

int block_size_of(const std::vector<StateSpec>& groups) {
  int block = kBlockGrain;
  for (const StateSpec& g : groups) {
    if (g.ratio > 0) block = std::lcm(block, g.ratio);
  }
  return block;
}

RowLayout layout_of(const StateSpec& spec, int block_size) {
  RowLayout out;
  out.dtype = spec.dtype;
  out.row_elems = spec.row_elems;
  out.ratio = spec.ratio;
  out.rows_per_page = spec.ratio > 0 ? block_size / spec.ratio : spec.n_rows;
  out.row_stride_bytes = row_bytes(spec.dtype, spec.row_elems);
  out.layer_stride_bytes = round_up(out.row_stride_bytes * static_cast<size_t>(out.rows_per_page), kLayerAlignment);
  return out;
}

size_t page_bytes(const StateSpec& spec, int block_size) {
  return layout_of(spec, block_size).layer_stride_bytes * static_cast<size_t>(spec.n_layers);
}

std::string row_layout_id(const ModelState& state) {
  std::string id = "rows1 block=" + std::to_string(state.block_size);
  for (const StateSpec& g : state.groups) {
    id += "; " + g.name + " " + std::string(to_string(g.kind)) + " layers=" + std::to_string(g.n_layers) +
          " ratio=" + std::to_string(g.ratio) + " elems=" + std::to_string(g.row_elems) + " rows=" + std::to_string(g.n_rows) +
          " window=" + std::to_string(g.window) + " " + std::string(to_string(g.dtype));
  }
  return id;
}

std::string page_layout_id(const ModelState& state) {
  std::string id = "pages1 slot=" + std::to_string(state.slot_bytes);
  for (const StateSpec& g : state.groups) {
    const RowLayout l = layout_of(g, state.block_size);
    id += "; " + g.name + " row=" + std::to_string(l.row_stride_bytes) + " layer=" + std::to_string(l.layer_stride_bytes) +
          " page=" + std::to_string(page_bytes(g, state.block_size));
  }
  return id;
}

LayoutStamp plain_layout(const ModelState& state) {
  return {page_layout_id(state), 0};
}

}  // namespace carrel
