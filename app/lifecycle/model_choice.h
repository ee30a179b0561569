// Which model a configuration means, and how it is to be loaded: one answer for serve, bench and every other command.
#pragma once
#include <string>

#include "app/config/config.h"
#include "base/env.h"
#include "engine/model/model.h"
#include "storage/catalog.h"

namespace carrel {

struct ModelChoice {
  ModelLocation location;
  ModelOptions options;
  std::string registered;  // name in the catalog, when it was imported
};

/// model.path: an imported name, a folder, a .gguf file; empty: the embedded demo model. kNotFound lists what there is.
Result<ModelChoice> choose_model(Env* env, const Config& config, const std::string& data_dir, Catalog& catalog);

/// Folder of the model store inside a data folder.
inline std::string store_dir(const std::string& data_dir) { return data_dir + "/models"; }

}  // namespace carrel
