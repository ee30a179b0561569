#include "app/lifecycle/model_choice.h"

#include "app/assets/demo.h"

namespace carrel {

Result<std::unique_ptr<Catalog>> open_catalog(Env* env, const std::string& data_dir) {
  CARREL_TRY(env->make_dirs(data_dir));
  return Catalog::open(env, data_dir, CatalogMode::kReadWrite);
}

bool has_catalog(Env* env, const std::string& data_dir) { return env->exists(data_dir + "/catalog.db"); }

Result<std::unique_ptr<Catalog>> open_existing_catalog(Env* env, const std::string& data_dir) {
  if (!has_catalog(env, data_dir))
    return fail(Code::kNotFound, env->exists(data_dir) ? "is no data folder: it holds no catalog; --data or CARREL_DATA names another"
                                                       : "there is no such data folder; `carrel serve`, `tenant create` and `model import` make one, --data or CARREL_DATA names another",
                data_dir);
  return Catalog::open(env, data_dir, CatalogMode::kReadWrite);
}

std::string name_of_path(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  path = path.substr(path.rfind('/') + 1);
  return path.ends_with(".gguf") ? path.substr(0, path.size() - 5) : path;
}

namespace {

std::unexpected<Error> no_such_model(const std::string& path, Catalog* catalog) {
  std::string known;
  if (catalog != nullptr)
    if (auto models = catalog->models())
      for (const ModelRecord& m : *models) known += m.name + ", ";
  return fail(Code::kNotFound, "is neither an imported model (" + (known.empty() ? "none is" : known.substr(0, known.size() - 2)) + "), the embedded " + kDemoModelName +
                                   ", nor a folder or .gguf file; `carrel model import PATH` imports one",
              path);
}

}  // namespace

Result<ModelChoice> choose_model(Env* env, const Config& config, const std::string& data_dir, Catalog* catalog) {
  ModelChoice c;
  const std::string& ops = config.text("devices.ops");
  c.options.ops = ops == "reference" ? OpSet::kReference : ops == "exact" ? OpSet::kExact : OpSet::kFast;
  c.options.threads = config.is_auto("devices.threads") ? 0 : static_cast<int>(config.integer("devices.threads"));
  c.options.kv_dtype = config.text("model.kv_dtype");
  c.options.chat_template_file = config.text("model.chat_template");
  c.options.max_sequence_length = config.is_auto("model.max_sequence_length") ? 0 : config.integer("model.max_sequence_length");
  c.options.verify_full = config.text("model.verify") == "full";
  c.options.name = config.text("model.name");

  const std::string& path = config.text("model.path");
  if (catalog != nullptr && !path.empty()) {
    if (auto record = catalog->model(path)) {
      if (record->status == ModelStatus::kDamaged)
        return fail(Code::kCorrupt, "was found damaged; `carrel model verify " + path + "` names the tensor, `carrel model remove " + path + "` and import it again", path);
      c.location.store_entry = store_dir(data_dir) + "/" + record->store_digest;
      c.registered = record->name;
      if (c.options.name.empty()) c.options.name = record->name;
      return c;
    }
  }
  const bool there = !path.empty() && env->exists(path);
  if (path.empty() || (path == kDemoModelName && !there)) {
    c.location.embedded = true;
    c.location.files = demo_model_files();
    if (c.options.name.empty()) c.options.name = kDemoModelName;
    return c;
  }
  if (!there) return no_such_model(path, catalog);
  c.location.path = path;
  if (c.options.name.empty()) c.options.name = name_of_path(path);
  return c;
}

}  // namespace carrel
