// Drills: damage to a private copy of the state, a real prompt through the real model, and the proof that nobody notices: tokens and logits
// equal to a cold run, and the counter that must move moved. The command line, the console and the test suite run this code.
//
// A drill that finds nothing to damage fails: with reuse off, no drill passes. Threads: run_drills works on the caller's thread (toctou
// starts its own) with kernels and state of its own, beside whatever serves; the model is only read. Memory: a few copies of the prompt's
// state.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/state/spec.h"

namespace carrel {

class Env;
class Model;

struct DrillInfo {
  std::string_view name;
  std::string_view what;  // for people: what is damaged and what must happen
};
/// All drills, in the order in which they are run.
std::span<const DrillInfo> drill_table();

enum class DrillVerdict { kPassed, kFailed, kNotApplicable };
std::string_view to_string(DrillVerdict verdict);  // "passed", "failed", "not applicable"

/// One damage of one drill.
struct DrillCase {
  std::string damage;                  // "csa.index: record at token 384 evicted"
  int64_t nominal = 0, effective = 0;  // of the run with the damage
  std::string counter;                 // that must move
  uint64_t before = 0, after = 0;
  bool tokens_equal = false, logits_equal = false;  // to the cold run
  std::string answer;                               // of the run with the damage; empty for a model without words
  std::string would_have_answered;                  // had the damaged state been used; empty where that cannot be shown
  std::string failure;                              // empty: passed
};

struct DrillReport {
  std::string name;
  DrillVerdict verdict = DrillVerdict::kFailed;
  std::string reason;  // of a failure, or why the drill is not applicable
  std::vector<DrillCase> cases;
  int64_t ms = 0;
};

struct DrillOptions {
  std::vector<std::string> names;                // empty: all
  bool reuse = true;                             // false: for the proof that a drill without hits fails
  int n_new = 12;                                // tokens of the answer that are compared
  bool show_damage = false;                      // compute would_have_answered
  std::function<void(const DrillReport&)> done;  // called after each drill
};

/// prompt: token ids of more than two blocks; see drill_prompt. kNotFound: a name that is no drill; kInvalidArgument: a prompt that is too
/// short; kUnsupported: prompt and answer are longer than the model's context.
Result<std::vector<DrillReport>> run_drills(Env* env, const Model& model, std::span<const int32_t> prompt, const DrillOptions& options);

/// A prompt for models that nothing better is known of: text where the model has words, else ids that are a function of their place.
/// kUnsupported: the model's context (max_sequence_length or its own) is too short for a drill.
Result<std::vector<int32_t>> drill_prompt(const Model& model);

}  // namespace carrel
