#include "engine/model/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "engine/model/graph_arena.h"
#include "engine/model/step_plan.h"
#include "engine/state/needs.h"

namespace carrel {

namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

int64_t whole_pages(size_t n) {
  return (static_cast<int64_t>(n) + kHugePage - 1) / kHugePage * kHugePage;
}

/// What kernels take beside the arena, at most: one op runs at a time, so the largest of each buffer counts.
class Scratch {
 public:
  explicit Scratch(const PlanQuestion& q)
      : context_(q.context), n_threads_(q.n_threads), n_tokens_(std::max(q.prefill_chunk, q.max_batch_size)) {}

  void operator()(const node::Linear& n) { coded(n.w.n_cols); }
  void operator()(const node::Experts& n) {
    if (n.experts.empty()) return;
    const Expert& e = n.experts[0];
    coded(e.gate.n_cols * n.top_k);
    step(n_tokens_ * n.top_k * (e.down.n_rows + e.gate.n_cols + 2 * e.gate.n_rows) * kFloat);
  }
  void operator()(const node::Attention& n) {
    // Partial sums of every stretch of 1,024 keys, for as many tiles as threads want.
    const int64_t group = n.args.n_heads / std::max(1, n.args.n_kv_heads);
    step(kTilesPerThread * n_threads_ * (context_ / kSplitKeys + 1) * kTileTokens * group * (n.args.head_dim + kPadding) * kFloat);
  }
  void operator()(const node::IndexTopk& n) {
    const int64_t n_keys = context_ / std::max(1, n.keys.layout.ratio) + 1;
    threads(n_keys * kTileTokens * kFloat + n_keys * static_cast<int64_t>(sizeof(uint64_t)));
  }
  void operator()(const node::DeltaScan& n) {
    step(2 * n_tokens_ * (int64_t{n.args.n_k_heads} * n.args.k_dim + n.args.n_v_heads) * kFloat);
  }
  void operator()(const node::SsmScan& n) { step(2 * n_tokens_ * n.args.n_heads * kFloat); }
  template <class T>
  void operator()(const T&) {}

  int64_t bytes() const { return coded_ + step_ + threads_ * n_threads_ + kThreadBytes * n_threads_; }

 private:
  static constexpr int64_t kFloat = sizeof(float), kTilesPerThread = 4, kTileTokens = 8, kSplitKeys = 1024, kPadding = 16;
  static constexpr int64_t kThreadBytes = 1 << 20;  // tiles of queries, keys and values of one thread
  /// Activations as integers with scales and sums, 48 bytes for 32, of a product and of the one behind it.
  void coded(int64_t n_cols) { coded_ = std::max(coded_, 2 * n_tokens_ * (n_cols + 31) / 32 * 48); }
  void step(int64_t n) { step_ = std::max(step_, n); }
  void threads(int64_t n) { threads_ = std::max(threads_, n); }

  int64_t context_, n_threads_, n_tokens_;
  int64_t coded_ = 0, step_ = 0, threads_ = 0;
};

GroupPlan plan_group(const StateSpec& g, int block_size, const PlanQuestion& q, int64_t step_tokens) {
  GroupPlan p;
  p.name = g.name;
  p.kind = g.kind;
  p.dtype = g.dtype;
  p.n_layers = g.n_layers;
  p.ratio = g.ratio;
  p.window = g.window;
  const RowLayout l = layout_of(g, block_size);
  const auto rows = static_cast<int64_t>(l.row_stride_bytes) * l.rows_per_page * g.n_layers;
  p.page_bytes = static_cast<int64_t>(page_bytes(g, block_size));
  p.padding_bytes = p.page_bytes - rows;
  p.pages_per_sequence = peak_pages(g, block_size, q.context, step_tokens);
  p.bytes_per_sequence = p.pages_per_sequence * p.page_bytes;
  if (g.ratio > 0) p.bytes_per_token = static_cast<double>(rows) / block_size;
  switch (g.kind) {
    case StateKind::kWindow:
      p.bytes_per_point = ((int64_t{g.window} - 1 + block_size - 1) / block_size) * p.page_bytes;
      break;
    case StateKind::kTail:
      p.bytes_per_point = p.page_bytes;
      break;
    case StateKind::kRecurrent:
      p.bytes_per_point = p.page_bytes;
      p.bytes_per_sequence = 3 * p.page_bytes;
      break;
    default:
      break;
  }
  return p;
}

/// A kept prefix of the context's length with one resume point at its end: logs, one tail a block, registers at the rungs, the last window.
void plan_prefix(MemoryPlan& plan) {
  const int64_t n_blocks = plan.context / plan.block_size;
  const int64_t n_rungs = plan.ladder_tokens == 0 ? 0 : plan.context / plan.ladder_tokens + 1;
  for (const GroupPlan& g : plan.groups) {
    int64_t n_pages = n_blocks;  // logs and tails
    if (g.kind == StateKind::kWindow) n_pages = std::min(n_blocks, g.bytes_per_point / std::max<int64_t>(1, g.page_bytes));
    if (g.kind == StateKind::kRecurrent) n_pages = n_rungs;
    plan.prefix_bytes += n_pages * g.page_bytes;
    plan.prefix_row_bytes += n_pages * (g.page_bytes - g.padding_bytes);
  }
}

/// Largest n in [0, most] for which fits(n) holds; fits is monotone.
template <class F>
int64_t largest(int64_t most, F fits) {
  int64_t low = 0, high = most;
  while (low < high) {
    const int64_t mid = low + (high - low + 1) / 2;
    if (fits(mid))
      low = mid;
    else
      high = mid - 1;
  }
  return low;
}

int64_t status_line(const char* name) {
  std::ifstream in("/proc/self/status");
  std::string key;
  while (in >> key) {
    int64_t kib = 0;
    if (key == name && in >> kib) return kib * 1024;
    in.ignore(1 << 16, '\n');
  }
  return 0;
}

}  // namespace

Result<MemoryPlan> plan_memory(const Graph& graph, int64_t weight_bytes, const PlanQuestion& question) {
  PlanQuestion q = question;
  if (q.context == 0) q.context = graph.max_positions;
  if (q.context < 1 || q.n_sequences < 1 || q.prefill_chunk < 1 || q.max_batch_size < 1)
    return fail(Code::kInvalidArgument, "context, concurrency and chunk must be at least 1", "plan");
  if (q.n_sequences > kMostSequences)
    return fail(
        Code::kInvalidArgument,
        "is " + std::to_string(q.n_sequences) + "; at most " + std::to_string(kMostSequences) + " sequences at a time are planned for",
        "concurrency");
  if (q.context > graph.max_positions)
    return fail(Code::kInvalidArgument,
                "a context of " + std::to_string(q.context) + " tokens is more than this model's " + std::to_string(graph.max_positions),
                "context");
  const ModelState& state = graph.state;
  const int64_t step_tokens = std::max(q.prefill_chunk, q.max_batch_size);
  const auto batch = static_cast<int>(q.max_batch_size), outputs = q.max_outputs > 0 ? static_cast<int>(q.max_outputs) : batch;
  const StepLimits limits{.max_tokens = static_cast<int>(step_tokens), .max_seqs = batch, .max_outputs = outputs};

  MemoryPlan p;
  p.context = q.context;
  p.n_sequences = q.n_sequences;
  p.max_context = graph.max_positions;
  p.block_size = state.block_size;
  p.memory_bytes = q.memory_bytes;
  p.process_bytes = q.process_bytes;
  p.weight_bytes = weight_bytes;
  const ArenaPlan arena = plan_arena(graph);
  p.activation_bytes = whole_pages(arena.token_row_bytes * static_cast<size_t>(limits.max_tokens)) +
                       whole_pages(arena.output_row_bytes * static_cast<size_t>(limits.max_outputs));
  const auto inputs = [&](int64_t n_tokens) {  // page tables as long as the context
    return static_cast<int64_t>(
        StepInputs::bytes_for(graph, limits, static_cast<int>((n_tokens + state.block_size - 1) / state.block_size)));
  };
  p.input_bytes = inputs(p.context);
  Scratch scratch(q);
  for (const Node& n : graph.nodes) std::visit(scratch, n);
  p.scratch_bytes = scratch.bytes();
  p.fixed_bytes = p.weight_bytes + p.activation_bytes + p.input_bytes + p.scratch_bytes + p.process_bytes;

  for (const StateSpec& g : state.groups) p.groups.push_back(plan_group(g, state.block_size, q, step_tokens));
  p.slot_bytes = static_cast<int64_t>(slot_bytes(state));
  p.capture_bytes = 2 * static_cast<int64_t>(register_bytes(state));
  p.ladder_tokens = ladder_blocks(state) * state.block_size;
  const auto per_sequence = [&](int64_t n_tokens) {
    return static_cast<int64_t>(carrel::sequence_bytes(state, n_tokens, step_tokens)) + p.capture_bytes;
  };
  p.sequence_bytes = per_sequence(p.context);
  if (__builtin_mul_overflow(p.sequence_bytes, p.n_sequences, &p.states_bytes) ||
      __builtin_add_overflow(p.fixed_bytes, p.states_bytes, &p.total_bytes))
    return fail(
        Code::kInvalidArgument,
        std::to_string(p.n_sequences) + " sequences of " + std::to_string(p.context) + " tokens take more bytes than can be counted",
        "concurrency");
  p.fits = p.total_bytes <= p.memory_bytes;
  p.spare_bytes = std::max<int64_t>(0, p.memory_bytes - p.total_bytes);
  const int64_t left = p.memory_bytes - p.fixed_bytes;
  p.largest_context =
      largest(p.max_context, [&](int64_t n) { return n == 0 || per_sequence(n) <= (left + p.input_bytes - inputs(n)) / p.n_sequences; });
  p.largest_n_sequences = std::max<int64_t>(0, left / p.sequence_bytes);
  plan_prefix(p);
  return p;
}

std::string why_not(const MemoryPlan& p) {
  std::string text = "needs " + bytes_beside(p.total_bytes, p.memory_bytes) + " (weights " + bytes_for_people(p.weight_bytes) +
                     ", activations " + bytes_for_people(p.activation_bytes + p.input_bytes + p.scratch_bytes) + ", process " +
                     bytes_for_people(p.process_bytes) + ", state " + bytes_for_people(p.states_bytes) + " for " +
                     std::to_string(p.n_sequences) + (p.n_sequences == 1 ? " sequence of " : " sequences of ") + std::to_string(p.context) +
                     " tokens), there are " + bytes_beside(p.memory_bytes, p.total_bytes);
  if (p.largest_context > 0) return text + "; it would fit with sequences of " + std::to_string(p.largest_context) + " tokens";
  if (p.largest_n_sequences > 0) return text + "; " + std::to_string(p.largest_n_sequences) + " at a time would fit";
  return text + "; not one token fits beside the weights: take a smaller model, stronger quantization or more memory";
}

int64_t resident_bytes() {
  return status_line("VmRSS:");
}

int64_t peak_resident_bytes() {
  return status_line("VmHWM:");
}

std::string bytes_for_people(int64_t n) {
  static constexpr const char* kUnits[] = {"bytes", "kB", "MB", "GB", "TB", "PB"};
  double x = static_cast<double>(n);
  size_t unit = 0;
  for (; std::abs(x) >= 1000 && unit + 1 < std::size(kUnits); ++unit) x /= 1000;
  char text[64];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : x < 10 ? "%.2f %s" : x < 100 ? "%.1f %s" : "%.0f %s", x, kUnits[unit]);
  return text;
}

std::string bytes_beside(int64_t n, int64_t other) {
  const std::string text = bytes_for_people(n);
  return n == other || text != bytes_for_people(other) ? text : std::to_string(n) + " bytes";
}

}  // namespace carrel
