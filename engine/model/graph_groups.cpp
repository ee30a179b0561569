// Looks at each node and the ones behind it; see the header.
#include "engine/model/graph_groups.h"

#include "engine/model/graph_values.h"

namespace carrel {

namespace {

class Grouping {
 public:
  explicit Grouping(const Graph& graph) : g_(graph), n_reads_(graph.values.size()) {
    for (const Node& node : g_.nodes) {
      visit_values(node, [&](ValueId v) { n_reads_[static_cast<size_t>(v)]++; }, [](ValueId) {});
    }
    if (g_.logits != kNoValue) n_reads_[static_cast<size_t>(g_.logits)]++;
  }

  NodeGroup at(size_t i) const {
    const auto* first = as<node::Linear>(i);
    if (first == nullptr) return {NodeGroup::Kind::kNode, i, i + 1};
    if (gated(i)) {
      const auto& mid = *as<node::Gated>(i + 2);
      const auto* down = as<node::Linear>(i + 3);
      if (down == nullptr || down->x != mid.y || down->x_begin != 0 || down->w.n_cols != first->w.n_rows ||
          n_reads_[static_cast<size_t>(mid.y)] != 1)
        return {NodeGroup::Kind::kGatedLinears, i, i + 3};
      return {NodeGroup::Kind::kFeedForward, i, adds(i + 3) ? i + 5 : i + 4};
    }
    size_t end = i + 1;
    while (same_x(*first, as<node::Linear>(end)) && !gated(end)) end++;
    if (end == i + 1 && adds(i)) end++;
    return {NodeGroup::Kind::kLinears, i, end};
  }

 private:
  template <class T>
  const T* as(size_t i) const {
    return i < g_.nodes.size() ? std::get_if<T>(&g_.nodes[i]) : nullptr;
  }
  static bool same_x(const node::Linear& a, const node::Linear* b) {
    return b != nullptr && a.x == b->x && a.x_begin == b->x_begin && a.w.n_cols == b->w.n_cols;
  }
  bool whole_and_read_once(const node::Linear& n) const {
    const auto y = static_cast<size_t>(n.y);
    return n.y_begin == 0 && n.w.n_rows == g_.values[y].width && n_reads_[y] == 1;
  }
  /// Node i is a Linear, the next one the Add that alone reads it.
  bool adds(size_t i) const {
    const auto& n = *as<node::Linear>(i);
    const auto* add = as<node::Add>(i + 1);
    return add != nullptr && add->scale == 1.0f && add->a != add->b && (add->a == n.y || add->b == n.y) && whole_and_read_once(n);
  }
  bool gated(size_t i) const {
    const auto *a = as<node::Linear>(i), *b = as<node::Linear>(i + 1);
    const auto* mid = as<node::Gated>(i + 2);
    if (a == nullptr || mid == nullptr || !same_x(*a, b) || a->w.n_rows != b->w.n_rows) return false;
    return mid->gate == a->y && mid->up == b->y && whole_and_read_once(*a) && whole_and_read_once(*b);
  }

  const Graph& g_;
  std::vector<int> n_reads_;
};

}  // namespace

std::vector<NodeGroup> group_nodes(const Graph& graph) {
  const Grouping grouping(graph);
  std::vector<NodeGroup> groups;
  for (size_t i = 0; i < graph.nodes.size(); i = groups.back().end) groups.push_back(grouping.at(i));
  return groups;
}

}  // namespace carrel
