// Logical rows of a page: layer by layer, row by row, without padding. What a digest is taken over and what leaves a page for another tier.
//
// Pure functions on the caller's memory; any thread.
#pragma once
#include <cstddef>
#include <span>

#include "base/hash.h"
#include "engine/state/spec.h"

namespace carrel {

/// Bytes of the logical rows of one page.
size_t rows_bytes(const StateSpec& spec, const RowLayout& layout);
/// SHA-256 over them.
Digest digest_rows(const std::byte* page, const RowLayout& layout, int n_layers);
/// Page → contiguous rows, and back; padding of the page is left as it is. rows.size() == rows_bytes().
void gather_rows(const std::byte* page, const RowLayout& layout, int n_layers, std::span<std::byte> rows);
void scatter_rows(std::span<const std::byte> rows, const RowLayout& layout, int n_layers, std::byte* page);

}  // namespace carrel
