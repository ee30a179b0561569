// What a bench measures: an opened model, or a graph of weights that were drawn at random for a configuration's shape; and the counts that
// its bounds are stated on. Threads: the caller's. Nothing here is timed.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "engine/model/model.h"
#include "engine/model/weights.h"

namespace carrel {

/// Borrowed: lives no longer than what it was taken from.
struct BenchSubject {
  const Graph* graph = nullptr;
  Ops* ops = nullptr;
  ThreadTeam* team = nullptr;
  const Tokenizer* tokenizer = nullptr;  // null: no token is special
  int64_t file_bytes = 0, memory_bytes = 0;
};
BenchSubject subject_of(Model& model);

/// A graph that owns what it needs.
struct DrawnSubject {
  std::unique_ptr<ThreadTeam> team;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<LoadedWeights> weights;
  Graph graph;
  BenchSubject subject;
};
/// config: a config.json in the words of Hugging Face; weights: bf16, q8_0, q4_1; ops: empty for fast; threads: 0 for all cores.
Result<std::unique_ptr<DrawnSubject>> draw_subject(Env* env, const std::string& config, const std::string& weights, const std::string& ops,
                                                   int threads);

/// Token ids that a prompt could have: spread over the vocabulary, no control tokens.
std::vector<int32_t> plain_tokens(const Graph& graph, const Tokenizer* tokenizer, size_t n);
/// Multiply-adds of all linear layers for one token, the head left out (prefill computes it once).
double linear_macs(const Graph& graph);
/// Whether the linear layers are multiplied on integers: `fast` ops on weights that are quantized.
bool on_integers(const BenchSubject& of);
/// What has to be read for one token behind n_past others: weights as the file has them (of experts those that a token takes), rows of the
/// state, registers once in each direction.
double bytes_per_token(const BenchSubject& of, int64_t n_past);

}  // namespace carrel
