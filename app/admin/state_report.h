// What state a model keeps and what the state manager holds of it now: JSON for machines, text for people, lines for the start log. Pure.
#pragma once
#include <string>
#include <vector>

#include "engine/state/state_manager.h"

namespace carrel {

/// One object: block, ladder, epoch, groups with their rules and figures, tiers, counters. live: with what is held now, counted and
/// measured.
std::string state_json(const std::string& model, const ModelState& state, const StateStats& stats, bool live);
/// For people; what the model registers.
std::string state_text(const std::string& model, const ModelState& state, const StateStats& stats);
/// For the start log: one line for all, one a group, one a kind.
std::vector<std::string> state_lines(const ModelState& state, const StateStats& stats);

}  // namespace carrel
