// Neighbouring nodes that one call of the ops computes together, bit for bit as one after the other: products of one x (what is made of x
// is made once), a product and the residual added to it, gate and up with their gating and the product that reads it. Pure; any thread.
#pragma once
#include <vector>

#include "engine/model/graph.h"

namespace carrel {

/// Nodes [begin, end) of a graph. kLinears: one or more Linear of one x; a group of one Linear may end with the Add that alone reads it.
/// kGatedLinears: two Linear of one shape and the Gated that alone reads them. kFeedForward: these, the Linear that alone reads the Gated,
/// and the Add that alone reads that, if there is one.
struct NodeGroup {
  enum class Kind { kNode, kLinears, kGatedLinears, kFeedForward };
  Kind kind = Kind::kNode;
  size_t begin = 0, end = 0;
};

/// All nodes, in order.
std::vector<NodeGroup> group_nodes(const Graph& graph);

}  // namespace carrel
