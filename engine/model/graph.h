// A model, described once: a family emits nodes from the closed vocabulary of kernels/ops.h over typed values with symbolic sizes
// (tokens, outputs), and declares its states. Everything else (plans and their replay, golden comparison node by node, the memory planner) reads this description.
//
// Threads: built by one thread, immutable afterwards; run by the step thread. Weights are borrowed from the Weights object.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "engine/state/spec.h"
#include "kernels/ops.h"

namespace carrel {

using ValueId = int;  // index into Graph::values
constexpr ValueId kNoValue = -1;

enum class Rows : uint8_t { kTokens, kOutputs };

struct Value {
  std::string name;  // "layers.3.attn_out": what `carrel golden --localise` prints
  int width = 0;     // float32 or int32 elements per row
  bool is_int = false;
  Rows rows = Rows::kTokens;
};

namespace node {
struct Embed { Matrix table; float scale = 1; ValueId y; };
struct Linear { Matrix w; const float* bias = nullptr; ValueId x; int x_begin = 0; ValueId y; int y_begin = 0; };
struct RmsNorm { ValueId x; const float* weight = nullptr; float eps = 0; int dim = 0; ValueId y; int n_weights = 1; };  // dim: width of one normalised group
struct Rope { ValueId x; RopeArgs args; int table = 0; };                                           // in place; table: index into Graph::ropes
struct Gated { Act act; ValueId gate, up; float limit = 0; ValueId y; };
struct Add { ValueId a, b, y; float scale = 1; };  // y = a + scale b
struct Scale { ValueId x; float s = 1; };            // in place
struct GateRows { ValueId g, x, y; };                // y = sigmoid(g) x, g of width 1
struct Softcap { ValueId x; float cap = 0; };
struct Repeat { ValueId x; int times = 1; ValueId y; };  // y = [x x …]: residual streams
struct GatherOutputs { ValueId x, y; };                  // token rows whose logits are wanted
struct Route { RouteArgs args; ValueId scores, ids, weights; };
struct Experts { std::vector<Expert> experts; Act act; float limit = 0; int top_k = 0; ValueId x, ids, weights, y; };
struct StoreRows { ValueId x; int col = 0; StateRows rows; };
struct Attention { ValueId q; StateRows kv; AttentionArgs args; ValueId y; };
struct Compress { ValueId c, z; CompressArgs args; Ring ring; StateRows rows, tail; };
struct IndexTopk { ValueId q, w; int n_heads = 0, dim = 0, top_k = 0; StateRows keys; ValueId selected; };
struct SparseAttention { ValueId q; StateRows window; bool has_compressed = false; StateRows compressed; ValueId selected = kNoValue; int top_k = 0; SparseArgs args; ValueId y; };
struct ShortConv { ValueId x; ShortConvArgs args; Registers columns; ValueId y; };
struct DeltaScan { ValueId qkv, a, b; DeltaArgs args; Registers state; ValueId y; };
struct SsmScan { ValueId xbc, dt; SsmArgs args; Registers state; ValueId y; };
struct HcPre { HcArgs args; ValueId x, y, post, comb; };
struct HcPost { int n_streams = 0, width = 0; ValueId f, x, post, comb, y; };
struct HcHead { HcArgs args; ValueId x, y; };
}  // namespace node

using Node = std::variant<node::Embed, node::Linear, node::RmsNorm, node::Rope, node::Gated, node::Add, node::Softcap, node::Repeat, node::GatherOutputs,
                          node::Route, node::Experts, node::StoreRows, node::Attention, node::Compress, node::IndexTopk, node::SparseAttention, node::HcPre,
                          node::HcPost, node::HcHead, node::Scale, node::GateRows, node::ShortConv, node::DeltaScan, node::SsmScan>;

struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<RopeSpec> ropes;
  ModelState state;
  ValueId logits = kNoValue;  // [outputs][vocab]
  int vocab = 0;
  int max_positions = 0;  // longest sequence the model was made for
  std::vector<std::unique_ptr<std::vector<float>>> owned;  // constants that a family derives
};

/// The largest step that plans are made for without growing.
struct StepLimits {
  int max_tokens = 1;
  int max_seqs = 1;
  int max_outputs = 1;
};

/// Runs steps of a graph from plans (step_plan.h): one per (bucket of token rows, bucket of output rows), made when first needed, replayed
/// afterwards. Owns the plans, their input buffers and the arena of activations, sized for the limits.
///
/// A plan is bound to a page layout and epoch. A step whose state carries another stamp is refused, never run; replan() makes the plans anew.
/// A step larger than the limits (more tokens, sequences, outputs, or a wider page table) grows the buffers and plans anew.
/// Threads: one; counts may be read by that thread alone.
class GraphRunner {
 public:
  GraphRunner(const Graph* graph, Ops* ops, const StepLimits& limits, LayoutStamp layout);
  /// For pages of PlainSequence, one sequence at a time.
  GraphRunner(const Graph* graph, Ops* ops, int max_tokens);
  ~GraphRunner();
  /// Runs a step over states of this layout; returns logits [batch.outputs.size()][vocab], valid until the next call.
  /// Errors: kUnavailable "stale-graph" when the plans are of another layout or epoch; nothing was read or written then.
  Result<const float*> run(const Batch& batch, const LayoutStamp& layout);
  /// Drops all plans; the next steps make new ones for this layout.
  void replan(LayoutStamp layout);
  const LayoutStamp& layout() const;

  struct Counts {
    uint64_t plans = 0;     // made
    uint64_t replans = 0;   // times that all plans were dropped: another layout or a step beyond the limits
    uint64_t replays = 0;   // steps run
    uint64_t refused = 0;   // steps of a stale layout
  };
  const Counts& counts() const;
  /// Of the plan that ran last: graph, sizes, places in the arena, layout and epoch.
  const Digest& fingerprint() const;

  /// Called after each node with every value it wrote (golden, localise); empty by default. Nodes run one by one then.
  using Probe = std::function<void(const Value& value, const void* data, int n_rows)>;
  void set_probe(Probe probe);
  /// Activations; input buffers of the steps.
  size_t arena_bytes() const;
  size_t input_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carrel
