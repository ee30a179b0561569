// A step, planned: the groups of nodes of a graph in order, each a call whose buffers are bound to addresses in the arena. Replaying it
// looks up nothing, allocates nothing and decides nothing. What changes from step to step lies in input buffers whose addresses never
// change: ids, positions, rows, page tables, rope tables. So a replay can only see what this step was given: unused columns of the page
// tables name a guard page that faults on every access.
//
// Threads: one (the step thread). The graph, the ops and the arena are borrowed and outlive the plan.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "base/hash.h"
#include "engine/model/graph.h"
#include "engine/model/graph_arena.h"
#include "engine/model/graph_groups.h"

namespace carrel {

/// An address range that nobody may read or write, as long as the largest page of a model; takes no memory.
class GuardPage {
 public:
  explicit GuardPage(size_t n_bytes);
  ~GuardPage();
  GuardPage(const GuardPage&) = delete;
  GuardPage& operator=(const GuardPage&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Columns of a page table that holds the model's longest sequence.
int table_columns(const Graph& graph);

/// Input buffers of all plans of one runner.
class StepInputs {
 public:
  /// n_blocks: columns of a page table.
  StepInputs(const Graph& graph, const StepLimits& limits, int n_blocks);

  bool holds(const Batch& step) const;
  /// Copies a step that they hold, pointers of page tables included, and makes its rope tables.
  void fill(const Batch& step);

  const Batch& batch() const { return batch_; }  // what ops are given: all spans lie in these buffers
  const RopeTable& rope(int table) const { return ropes_[static_cast<size_t>(table)]; }
  int n_rows(Rows rows) const { return rows == Rows::kTokens ? batch_.n_tokens : static_cast<int>(batch_.outputs.size()); }
  /// Of buffers for these limits.
  static size_t bytes_for(const Graph& graph, const StepLimits& limits, int n_blocks);
  const std::byte* guard() const { return guard_.data(); }

 private:
  void fill_table(size_t seq, const SeqStep& from);
  std::byte** columns(size_t seq, size_t group) { return table_.data() + (seq * n_groups_ + group) * n_blocks_; }

  const Graph& graph_;
  const size_t n_groups_, n_blocks_;
  GuardPage guard_;
  std::vector<int32_t> ids_, positions_, seq_of_, outputs_;
  std::vector<SeqStep> seqs_;
  std::vector<std::byte*> table_;              // [sequence][group][column]
  std::vector<std::byte* const*> table_rows_;  // [sequence][group]: where its columns begin; never changes
  std::vector<size_t> used_;                   // [sequence] columns that an earlier step may have written
  std::vector<RopeTable> ropes_;
  Batch batch_;
};

struct StepPlan {
  struct Op {
    std::function<void(const StepInputs&)> run;
    size_t first_node = 0;
  };
  Digest fingerprint{};  // graph, sizes, places in the arena, page layout and epoch
  std::vector<Op> ops;
  std::vector<std::byte*> values;  // [value] its address; null where there are no output rows
};

/// Makes the plans of one graph.
class StepPlanner {
 public:
  StepPlanner(const Graph* graph, Ops* ops);

  const ArenaPlan& arena() const { return arena_; }
  /// What a plan is made for.
  struct Wanted {
    int token_rows = 1, output_rows = 0;              // of the buckets: value v lies at row_offset_bytes[v] * rows of its kind's arena
    std::byte *tokens = nullptr, *outputs = nullptr;  // the arenas
    const LayoutStamp* layout = nullptr;
    bool one_by_one = false;  // every node by itself, for a probe
  };
  /// Nodes on output rows are left out of a plan without output rows.
  StepPlan plan(const Wanted& wanted) const;

 private:
  Digest graph_digest() const;

  const Graph* graph_;
  Ops* ops_;
  const ArenaPlan arena_;
  const std::vector<NodeGroup> groups_;
  const Digest digest_;  // of nodes, operands and places in the arena
};

}  // namespace carrel
