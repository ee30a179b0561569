// What a family file writes a model with: one call per node, names of values, and checks of every size that came from a file.
//
// The first error sticks: later calls do nothing and return kNoValue, finish() returns it. So a family reads like the formulas.
// Threads: one loading thread. Weights are borrowed and must outlive the graph.
#pragma once
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/model/graph.h"
#include "engine/model/weights.h"

namespace carrel {

class GraphBuilder {
 public:
  explicit GraphBuilder(Weights* weights) : weights_(weights) {}

  // ---- constants
  /// Whole tensor as [rows][cols]: its shape must say the same (leading dimensions multiply to rows).
  Matrix matrix(const std::string& tensor, int64_t rows, int64_t cols, int64_t unpair_rows = 0);
  /// Any other part of a tensor, as weights.h says; its total_rows stands for the shape.
  Matrix matrix(const MatrixRequest& request);
  /// Rows [row_begin, row_begin + rows) of a tensor that has total_rows rows of cols.
  Matrix slice(const std::string& tensor, int64_t total_rows, int64_t row_begin, int64_t rows, int64_t cols);
  const float* vector(const std::string& tensor, int64_t n, float add = 0);
  /// The same, null when the tensor is absent.
  const float* optional_vector(const std::string& tensor, int64_t n, float add = 0);
  const int32_t* table(const std::string& tensor, int64_t n);
  /// Keeps a derived constant as long as the graph.
  const float* keep(std::vector<float> values);
  bool has(const std::string& tensor) const { return weights_->has(tensor); }
  Weights& weights() { return *weights_; }

  // ---- nodes; names become the names of values
  ValueId embed(const std::string& name, const Matrix& table, int width, float scale);
  ValueId linear(const std::string& name, const Matrix& w, ValueId x, const float* bias = nullptr);
  /// y[y_begin …] = w x[x_begin …] into an existing value.
  void linear_into(const Matrix& w, ValueId x, int x_begin, ValueId y, int y_begin);
  /// dim: width of one normalised group, 0 = the whole row. n_weights: groups of a row have their own weights each, [n_weights][dim].
  ValueId rms_norm(const std::string& name, ValueId x, const float* weight, float eps, int dim = 0, int n_weights = 1);
  void rms_norm_in_place(ValueId x, const float* weight, float eps, int dim);
  void rope(ValueId x, const RopeArgs& args, int table);
  ValueId gated(const std::string& name, Act act, ValueId gate, ValueId up, float limit);
  /// a + scale b
  ValueId add(const std::string& name, ValueId a, ValueId b, float scale = 1);
  void scale(ValueId x, float s);
  ValueId gate_rows(const std::string& name, ValueId g, ValueId x);
  ValueId short_conv(const std::string& name, ValueId x, const ShortConvArgs& args, const Registers& columns);
  ValueId delta_scan(const std::string& name, ValueId qkv, ValueId a, ValueId b, const DeltaArgs& args, const Registers& state);
  ValueId ssm_scan(const std::string& name, ValueId xbc, ValueId dt, const SsmArgs& args, const Registers& state);
  void softcap(ValueId x, float cap);
  ValueId repeat(const std::string& name, ValueId x, int times);
  ValueId gather_outputs(const std::string& name, ValueId x);
  struct Routing {
    ValueId ids = kNoValue, weights = kNoValue;
  };
  /// Values name + "route_ids", name + "route_weights".
  Routing route(const std::string& name, const RouteArgs& args, ValueId scores);
  ValueId experts(const std::string& name, std::vector<Expert> experts, Act act, float limit, int top_k, ValueId x, const Routing& routing);
  void store_rows(ValueId x, int col, const StateRows& rows);
  ValueId attention(const std::string& name, ValueId q, const StateRows& kv, const AttentionArgs& args);
  void compress(ValueId c, ValueId z, const CompressArgs& args, const Ring& ring, const StateRows& rows, const StateRows& tail);
  ValueId index_topk(const std::string& name, ValueId q, ValueId w, int n_heads, int dim, int top_k, const StateRows& keys);
  /// compressed may be null; selected may be kNoValue.
  ValueId sparse_attention(const std::string& name, ValueId q, const StateRows& window, const StateRows* compressed, ValueId selected,
                           int top_k, const SparseArgs& args);
  struct HcMix {
    ValueId y = kNoValue, post = kNoValue, comb = kNoValue;
  };
  /// Values name + "y", name + "post", name + "comb".
  HcMix hc_pre(const std::string& name, const HcArgs& args, ValueId x);
  ValueId hc_post(const std::string& name, ValueId f, ValueId x, const HcMix& mix, int n_streams);
  ValueId hc_head(const std::string& name, const HcArgs& args, ValueId x);

  ValueId value(const std::string& name, int width, Rows rows = Rows::kTokens, bool is_int = false);
  int width(ValueId v) const { return v < 0 ? 0 : graph_.values[static_cast<size_t>(v)].width; }

  // ---- tables and state
  int add_rope(RopeSpec spec);
  /// Declares a group; returns its number. Rows of it can be named after set_state_layout().
  int add_group(StateSpec spec);
  /// Fixes the block size; no group may follow.
  void set_state_layout();
  StateRows rows(int group, int layer) const;
  /// Of a recurrent group, whose registers have a place in the slot.
  Registers registers(int group, int layer) const;
  /// Takes n_rows rows of the slot of a sequence.
  Ring add_ring(int n_rows, int row_elems);
  const RopeSpec& rope_spec(int table) const { return graph_.ropes[static_cast<size_t>(table)]; }

  // ---- errors
  void error(Code code, const std::string& message, const std::string& where = {});
  /// Reports kCorrupt unless the condition holds.
  bool check(bool condition, const std::string& message, const std::string& where = {});
  bool ok() const { return status_.has_value(); }

  /// logits: value of Rows::kOutputs, width vocab.
  Result<Graph> finish(ValueId logits, int max_positions);

 private:
  Rows rows_of(ValueId v) const { return graph_.values[static_cast<size_t>(v)].rows; }
  void emit(Node node) { graph_.nodes.push_back(std::move(node)); }

  Weights* weights_;
  std::vector<size_t> register_offset_bytes_;  // [group] in the slot
  Graph graph_;
  Status status_;
};

}  // namespace carrel
