// What a checkpoint has and its graph did not ask for: a configuration that contradicts the file is found here, once for all families.
//
// Known kinds that a text model does not use (draft layers, towers of other senses, tables that are computed here) are told and left out.
// Everything else is refused: a layer or an expert that is left out gives answers, and they are wrong. Pure; any thread.
#pragma once
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/model/source.h"
#include "engine/model/weights.h"

namespace carrel {

/// tensors: of Weights::tensors, after the graph was built. One sentence for each kind that is left out. kCorrupt: the first tensor that
/// nothing explains, how many more there are, and the key of the configuration that is probably wrong.
Result<std::vector<std::string>> check_leftovers(SourceFormat format, const std::string& config_json,
                                                 const std::vector<TensorUse>& tensors);

}  // namespace carrel
