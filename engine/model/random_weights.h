// Weights of no training: whatever matrix a family asks for, drawn at random, so that a model's speed on a machine can be measured from its
// configuration alone, before anybody fetches its files.
//
// A configuration in the words of Hugging Face. Values are finite and of the size that trained ones have, so that no kernel meets an
// infinity; what the model says is noise. Threads: one loading thread. Memory: owned by the object, like that of other loaders.
#pragma once
#include <memory>
#include <string>

#include "engine/model/weights.h"
#include "kernels/dtype.h"

namespace carrel {

/// stored: what plain matrices come as: kBF16, kQ8_0 or kQ4_1 (kBF16 where a row is no multiple of 32). A configuration that publishes
/// its weights in another form (e4m3, MXFP4) has that form. Errors: kCorrupt, a configuration that is no JSON object; kUnsupported, stored.
Result<std::unique_ptr<LoadedWeights>> random_weights(const std::string& config_json, DType stored, FormChooser choose);

}  // namespace carrel
