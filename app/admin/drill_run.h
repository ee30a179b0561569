// One go of drills: which ones, over which prompt, with which verdict, told as a table for people and as one JSON document. The command
// line and the admin route call the same.
//
// Threads: run_drill_set works on the caller's thread; the rest is pure. Errors: kInvalidArgument for a name that is no drill.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/drill/drill.h"
#include "engine/model/model.h"

namespace carrel {

struct DrillSet {
  std::vector<std::string> names;   // empty: all
  std::optional<bool> show_damage;  // what the damaged state would have answered; unset: where the prompt is made for it
};

struct DrillRun {
  std::string model;
  int64_t n_prompt_tokens = 0, block_tokens = 0;
  bool show_damage = false;
  bool complete = true;  // false: stopped in between
  std::vector<DrillReport> reports;
  int64_t ms = 0;

  size_t count(DrillVerdict verdict) const;
  bool passed() const { return complete && count(DrillVerdict::kFailed) == 0; }
};

/// Called before each drill with its number from 0 and how many there are; false: stop here.
using DrillBegin = std::function<bool(const std::string& name, size_t i, size_t n)>;

/// Each once, in the order of its first naming.
std::vector<std::string> distinct_names(std::vector<std::string> names);
/// kInvalidArgument names what there is.
Status check_drill_names(const std::vector<std::string>& names);

/// demo: the embedded model, whose prompt shows lost state in words. The model is only read.
Result<DrillRun> run_drill_set(Env* env, const Model& model, bool demo, const DrillSet& set, const DrillBegin& begin);

std::string drills_json(const DrillRun& run);  // one document, no line break at its end
std::string drills_text(const DrillRun& run);
/// The table of drills.
std::string drill_list_json();
std::string drill_list_text();

}  // namespace carrel
