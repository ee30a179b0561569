// How much memory a model takes for so many sequences of such a length, from its description alone: no weight is read. `carrel plan`, the
// refusal at start and the memory benchmark use this arithmetic.
//
// Weights, activations, input buffers, pages and slots are counted to the byte as they are allocated; kernels' scratch is an upper
// estimate; what the process itself takes is measured by the caller. Pure functions.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/graph.h"

namespace carrel {

struct PlanQuestion {
  int64_t context = 0;  // tokens of one sequence, prompt and answer; 0: the model's longest
  int64_t n_sequences = 1;
  int64_t prefill_chunk = 512;
  int64_t max_batch_size = 32;
  int64_t max_outputs = 0;  // rows of logits of one step; 0: one for each sequence
  int n_threads = 1;
  int64_t memory_bytes = 0;   // that all may take
  int64_t process_bytes = 0;  // taken already by code, texts and threads
};

/// One group of states.
struct GroupPlan {
  std::string name;
  StateKind kind = StateKind::kCompressedKv;
  DType dtype = DType::kF32;
  int n_layers = 0, ratio = 0, window = 0;
  double bytes_per_token = 0;      // of logical rows, all layers; 0 for registers
  int64_t page_bytes = 0;          // one block, all layers
  int64_t padding_bytes = 0;       // of these
  int64_t pages_per_sequence = 0;  // at most at a time, for the context asked for
  int64_t bytes_per_sequence = 0;  // these pages; of a recurrent group: the registers in the slot and two rotating captures
  int64_t bytes_per_point = 0;     // of a register group: kept at one state point
};

struct MemoryPlan {
  int64_t context = 0, n_sequences = 0, max_context = 0;  // max_context: the model's
  int block_size = 0;
  int64_t weight_bytes = 0, activation_bytes = 0, input_bytes = 0, scratch_bytes = 0, process_bytes = 0;
  std::vector<GroupPlan> groups;
  int64_t slot_bytes = 0;      // of one sequence: registers and open tails
  int64_t capture_bytes = 0;   // of one sequence: its two rotating captures
  int64_t ladder_tokens = 0;   // distance at which registers are kept; 0: no recurrent group
  int64_t sequence_bytes = 0;  // all state of one sequence of the context
  int64_t states_bytes = 0;    // of all sequences
  int64_t fixed_bytes = 0;     // everything but states
  int64_t total_bytes = 0, memory_bytes = 0;
  bool fits = false;
  int64_t largest_context = 0;      // of so many sequences, that would fit; 0: none
  int64_t largest_n_sequences = 0;  // of this context
  /// A prefix of the context's length that is kept for reuse: pages as they lie in memory; rows alone, as copies in host memory and on disk
  /// are.
  int64_t prefix_bytes = 0, prefix_row_bytes = 0;
  int64_t spare_bytes = 0;  // memory that is left for kept prefixes

  /// Tokens of such prefixes in n bytes of memory, of host memory or disk.
  int64_t prefix_tokens(int64_t n_bytes) const {
    return prefix_bytes == 0
               ? 0
               : static_cast<int64_t>(static_cast<double>(n_bytes) / static_cast<double>(prefix_bytes) * static_cast<double>(context));
  }
  int64_t copied_tokens(int64_t n_bytes) const {
    return prefix_row_bytes == 0
               ? 0
               : static_cast<int64_t>(static_cast<double>(n_bytes) / static_cast<double>(prefix_row_bytes) * static_cast<double>(context));
  }
};

constexpr int64_t kMostSequences = 1'000'000;  // that are planned for at a time

/// kInvalidArgument: a context longer than the model's, more than kMostSequences or bytes than can be counted, or nothing to plan for.
Result<MemoryPlan> plan_memory(const Graph& graph, int64_t weight_bytes, const PlanQuestion& question);
/// Of a plan that does not fit: what is needed, what is there, the way out.
std::string why_not(const MemoryPlan& plan);

/// Resident memory of this process now, or at most so far; 0 where the system does not say.
int64_t resident_bytes();
int64_t peak_resident_bytes();

/// "12.3 GB", as people read it: powers of 1000.
std::string bytes_for_people(int64_t n);
/// The same for one of two that are compared: to the byte where both would read alike.
std::string bytes_beside(int64_t n, int64_t other);

}  // namespace carrel
