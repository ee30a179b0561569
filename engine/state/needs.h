// How much state sequences need: the arithmetic that admission, the planner and the refusal at start share. Pure functions.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/state/spec.h"

namespace carrel {

/// The most pages of a group that one sequence of n tokens must hold at a time when it runs alone, in steps of at most max_step_tokens.
/// None of a recurrent group: its registers are in the slot, and what is kept for others is never a reason to refuse.
int64_t peak_pages(const StateSpec& group, int block_size, int64_t n_tokens, int64_t max_step_tokens);
/// Bytes of the slot as it is allocated.
size_t slot_bytes(const ModelState& model);
/// Pages of all groups and the slot of such a sequence.
size_t sequence_bytes(const ModelState& model, int64_t n_tokens, int64_t max_step_tokens);
/// Registers at one state point.
size_t register_bytes(const ModelState& model);
/// Blocks between the rungs at which registers are kept: so many that registers cost no more than the log rows between two of them. Without
/// logs, about a thousand tokens; 0: the model has no recurrent group.
int64_t ladder_blocks(const ModelState& model);

}  // namespace carrel
