#include "engine/state/rows.h"

#include <cstring>

namespace carrel {

namespace {

size_t layer_bytes(const RowLayout& layout) {
  return layout.row_stride_bytes * static_cast<size_t>(layout.rows_per_page);
}

}  // namespace

size_t rows_bytes(const StateSpec& spec, const RowLayout& layout) {
  return layer_bytes(layout) * static_cast<size_t>(spec.n_layers);
}

Digest digest_rows(const std::byte* page, const RowLayout& layout, int n_layers) {
  Sha256 h;
  for (int l = 0; l < n_layers; l++) h.update(std::span(page + static_cast<size_t>(l) * layout.layer_stride_bytes, layer_bytes(layout)));
  return h.finish();
}

void gather_rows(const std::byte* page, const RowLayout& layout, int n_layers, std::span<std::byte> rows) {
  const size_t n = layer_bytes(layout);
  for (size_t l = 0; l < static_cast<size_t>(n_layers); l++) std::memcpy(rows.data() + l * n, page + l * layout.layer_stride_bytes, n);
}

void scatter_rows(std::span<const std::byte> rows, const RowLayout& layout, int n_layers, std::byte* page) {
  const size_t n = layer_bytes(layout);
  for (size_t l = 0; l < static_cast<size_t>(n_layers); l++) std::memcpy(page + l * layout.layer_stride_bytes, rows.data() + l * n, n);
}

}  // namespace carrel
