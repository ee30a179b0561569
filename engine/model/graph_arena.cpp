// First fit over the life times of values; see the header.
#include "engine/model/graph_arena.h"

#include <algorithm>
#include <utility>

#include "engine/model/graph_groups.h"
#include "engine/model/graph_values.h"

namespace carrel {

namespace {

struct Life {
  int begin = -1, end = -1;  // groups of nodes, inclusive
};

std::vector<Life> lives_of(const Graph& graph) {
  std::vector<Life> lives(graph.values.size());
  const std::vector<NodeGroup> groups = group_nodes(graph);
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto touch = [&](ValueId v) {
      Life& l = lives[static_cast<size_t>(v)];
      if (l.begin < 0) l.begin = static_cast<int>(i);
      l.end = static_cast<int>(i);
    };
    for (size_t n = groups[i].begin; n < groups[i].end; ++n) visit_values(graph.nodes[n], touch, touch);
  }
  if (graph.logits != kNoValue) lives[static_cast<size_t>(graph.logits)].end = static_cast<int>(groups.size());
  return lives;
}

struct Placed {
  Life life;
  size_t begin = 0, end = 0;
};

/// Lowest gap of `bytes` among the placed values that live at the same time. placed is sorted by begin.
size_t first_fit(const std::vector<Placed>& placed, const Life& life, size_t bytes) {
  size_t at = 0;
  for (const Placed& p : placed) {
    if (p.life.end < life.begin || life.end < p.life.begin) continue;
    if (at + bytes <= p.begin) break;
    at = std::max(at, p.end);
  }
  return at;
}

}  // namespace

ArenaPlan plan_arena(const Graph& graph) {
  ArenaPlan plan;
  plan.row_offset_bytes.resize(graph.values.size());
  const std::vector<Life> lives = lives_of(graph);
  std::vector<Placed> placed[2];
  std::vector<size_t> order(graph.values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return std::pair(lives[a].begin, a) < std::pair(lives[b].begin, b); });
  for (const size_t i : order) {
    if (lives[i].begin < 0) continue;
    const bool outputs = graph.values[i].rows == Rows::kOutputs;
    const size_t bytes = (static_cast<size_t>(graph.values[i].width) * 4 + 63) / 64 * 64;
    auto& list = placed[outputs];
    const size_t at = first_fit(list, lives[i], bytes);
    plan.row_offset_bytes[i] = at;
    const Placed p{lives[i], at, at + bytes};
    list.insert(std::upper_bound(list.begin(), list.end(), p, [](const Placed& a, const Placed& b) { return a.begin < b.begin; }), p);
    size_t& total = outputs ? plan.output_row_bytes : plan.token_row_bytes;
    total = std::max(total, p.end);
  }
  return plan;
}

}  // namespace carrel
