// Which model a configuration means, and how it is to be loaded: one answer for serve, bench and every other command.
#pragma once
#include <memory>
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

/// model.path: an imported name, a folder, a .gguf file; empty, or `demo` where nothing else is called so: the embedded demo model.
/// catalog: null where there is none yet. kNotFound lists what there is.
Result<ModelChoice> choose_model(Env* env, const Config& config, const std::string& data_dir, Catalog* catalog);

/// The catalog of a data folder, which is made when absent.
Result<std::unique_ptr<Catalog>> open_catalog(Env* env, const std::string& data_dir);

bool has_catalog(Env* env, const std::string& data_dir);
/// For commands that only look or change what is there: kNotFound instead of a new folder with new secrets.
Result<std::unique_ptr<Catalog>> open_existing_catalog(Env* env, const std::string& data_dir);

/// What a model is called when nobody names it: the last part of its path without .gguf.
std::string name_of_path(std::string path);

/// Folder of the model store inside a data folder.
inline std::string store_dir(const std::string& data_dir) { return data_dir + "/models"; }

}  // namespace carrel
