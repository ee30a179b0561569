// What state a model keeps, declared by its family and read by everybody: the state manager (pages, checks), the graph (layouts), the
// planner.
//
// Words: group = layers that share kind, geometry and device. Log kinds grow (compressed_kv, indexer) and are needed for all of [0, p);
// register kinds (tail, window, recurrent) are a value at one position and needed exactly at p. Window rows lie in pages like log rows.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/batch.h"

namespace carrel {

enum class StateKind : uint8_t { kCompressedKv, kTail, kWindow, kIndexer, kRecurrent };  // one vocabulary for code, log, metrics, API
std::string_view to_string(StateKind kind);  // "compressed_kv", "tail", "window", "indexer", "recurrent"
inline constexpr StateKind kStateKinds[] = {StateKind::kCompressedKv, StateKind::kTail, StateKind::kWindow, StateKind::kIndexer,
                                            StateKind::kRecurrent};

struct StateSpec {
  std::string name;  // "kv", "window", "csa", "csa.index", "hca", "csa.tail", "conv", "delta", "ssm"
  StateKind kind = StateKind::kCompressedKv;
  int n_layers = 0;
  int ratio = 1;      // tokens per row; window: 1; tail, recurrent: 0
  int row_elems = 0;  // elements of one row of one layer
  int n_rows = 0;     // tail, recurrent: rows of one layer at one position; else 0 (block_size / ratio)
  int window = 0;     // window: W, the query's own position included
  DType dtype = DType::kF32;
};

/// All state of one model. Group g of the kernels is groups[g].
struct ModelState {
  std::vector<StateSpec> groups;
  int block_size = 0;     // B: least common multiple of the ratios, raised to a multiple of 64
  size_t slot_bytes = 0;  // rings of one live sequence (open tails) and its registers
};

/// B for these groups (design: state, "block").
int block_size_of(const std::vector<StateSpec>& groups);
/// Geometry of a page: rows padded to nothing, layers to 64 bytes.
RowLayout layout_of(const StateSpec& spec, int block_size);
size_t page_bytes(const StateSpec& spec, int block_size);
/// Order, dtype and packing of logical rows: part of block keys.
std::string row_layout_id(const ModelState& state);
/// Page size, stride, padding: of this process only (checks 2 and 4).
std::string page_layout_id(const ModelState& state);

/// How the pages that a step reads are laid out, and since when (I4): a plan carries the one it was made for and runs on no other.
struct LayoutStamp {
  std::string page_layout_id;
  uint32_t epoch = 0;
  bool operator==(const LayoutStamp&) const = default;
};
/// Of pages that no state manager owns.
LayoutStamp plain_layout(const ModelState& state);

}  // namespace carrel
