// What drills are made of: one prompt run again and again over state managers of their own. Private to this folder.
//
// Threads: one per Bench. Memory: budgets are a few times what the prompt needs, so that nothing is evicted but by a drill.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "engine/state/state_manager.h"

namespace carrel::drill {

/// What the model answered: greedy tokens, and the logits that each was chosen from.
struct Run {
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // [tokens][vocab]
  Match match;
};

class Bench {
 public:
  static Result<std::unique_ptr<Bench>> create(const Model& model, std::span<const int32_t> prompt, int n_new, bool reuse);
  ~Bench();

  const Model& model() const;
  const ModelState& state() const;
  std::span<const int32_t> prompt() const;
  /// The last boundary strictly below the prompt's end, in blocks: where a second sighting resumes.
  int64_t n_blocks() const;
  /// An empty manager; of another model when `stranger`.
  Result<std::unique_ptr<StateManager>> fresh(bool stranger = false) const;
  AdmitRequest ask() const;
  std::string words(std::span<const int32_t> tokens) const;

  Result<Run> run(StateManager& manager);
  Result<Run> run(StateManager& manager, std::span<const int32_t> prompt, bool reuse, bool store);
  Result<Run> run(StateManager& manager, const AdmitRequest& request);
  /// While it is on, steps over a changed layout or epoch are not planned anew, and so refused.
  void hold_plans(bool on);
  const GraphRunner::Counts& graph_counts() const;
  /// Without reuse, with the state of these groups blanked at the last boundary: what a wrong hit would have answered.
  Result<Run> run_blanked(const std::vector<size_t>& groups);

 private:
  struct Impl;
  explicit Bench(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

bool equal_logits(const Run& a, const Run& b);

}  // namespace carrel::drill
