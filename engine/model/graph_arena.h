// Places the values of a graph in one arena by liveness: values that are never alive together share bytes. Nodes that run
// as one (graph_groups.h) are one moment.
#pragma once
#include <cstddef>
#include <vector>

#include "engine/model/graph.h"

namespace carrel {

/// All values of one row kind have the same number of rows n in a step, so offsets are kept per row: the bytes of value v start at
/// n * row_offset_bytes[v] of its kind's arena. Row offsets are multiples of 64.
struct ArenaPlan {
  std::vector<size_t> row_offset_bytes;  // per value
  size_t token_row_bytes = 0;            // arena bytes per token row
  size_t output_row_bytes = 0;           // arena bytes per output row
};

ArenaPlan plan_arena(const Graph& graph);

}  // namespace carrel
