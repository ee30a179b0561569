// A look-up of the demo model on which lost state shows in words: facts, and a question about an early one, cut so that the last block
// boundary falls behind the question. Pure but for the model's text front end.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/model/model.h"

namespace carrel {

/// kInternal: the model's tokenizer finds no such cut (it is not the demo model's).
Result<std::vector<int32_t>> look_up_prompt(const Model& model);

}  // namespace carrel
