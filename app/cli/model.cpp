// Imported models: pack, list, verify, remove.
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/cli/cli.h"
#include "app/lifecycle/model_choice.h"
#include "engine/model/family.h"
#include "engine/model/store.h"
#include "storage/catalog.h"

namespace carrel {
namespace {

using Json = nlohmann::ordered_json;

/// A bar on standard error when it is a terminal; nothing otherwise.
ProgressFn progress_bar(const char* what) {
  if (isatty(2) == 0) return {};
  return [what](const StoreProgress& p) {
    constexpr int kWidth = 32;
    const double share = p.total_bytes > 0 ? static_cast<double>(p.done_bytes) / static_cast<double>(p.total_bytes) : 0;
    std::string bar(static_cast<size_t>(share * kWidth), '#');
    bar.resize(kWidth, '.');
    std::fprintf(stderr, "\r%s [%s] %3.0f %%  %-40.40s", what, bar.c_str(), share * 100, std::string(p.tensor).c_str());
    if (p.done_bytes >= p.total_bytes) std::fprintf(stderr, "\n");
    return true;
  };
}

Json to_json(const ModelRecord& m) {
  return {{"name", m.name}, {"family", m.family}, {"bytes", m.bytes}, {"tensors", m.n_tensors}, {"digest", m.store_digest}, {"source", m.source}, {"created_ms", m.created_ms}, {"status", to_string(m.status)}};
}

Result<int> import(const ModelArgs& args) {
  CARREL_ASSIGN(auto catalog, open_catalog(Env::real(), args.common.data_dir));
  const std::string name = args.name.empty() ? name_of_path(args.path) : args.name;
  if (const auto there = catalog->model(name)) return fail(Code::kAlreadyExists, "is imported already; choose another --name or remove it first", name);
  std::string family;
  ImportOptions options;
  options.name = name;
  options.progress = progress_bar("import");
  const BuildHook build = [&](SourceFormat format, const std::string& config, Weights& weights) -> Status {
    CARREL_ASSIGN(const Family* f, find_family(format, config));
    family = std::string(f->name);
    CARREL_ASSIGN(const Graph graph, f->build(format, config, weights, {}));
    return {};
  };
  CARREL_ASSIGN(const StoreEntry entry, import_model(Env::real(), args.path, store_dir(args.common.data_dir), options, build));
  ModelRecord record;
  record.name = name;
  record.source = args.path;
  record.store_digest = entry.digest;
  record.family = family;
  record.bytes = entry.packed_bytes;
  record.n_tensors = entry.n_tensors;
  CARREL_TRY(catalog->add_model(record, "cli"));
  if (args.common.json) std::printf("%s\n", to_json(record).dump(2).c_str());
  else std::printf("imported %s: family %s, %lld tensors, %lld MB; serve it with `carrel serve --model %s`\n", name.c_str(), family.c_str(), static_cast<long long>(entry.n_tensors),
                   static_cast<long long>(entry.packed_bytes / 1'000'000), name.c_str());
  return 0;
}

Result<int> list(const ModelArgs& args) {
  CARREL_ASSIGN(auto catalog, open_catalog(Env::real(), args.common.data_dir));
  CARREL_ASSIGN(const auto models, catalog->models());
  if (args.common.json) {
    Json j = Json::array();
    for (const ModelRecord& m : models) j.push_back(to_json(m));
    std::printf("%s\n", j.dump(2).c_str());
    return 0;
  }
  if (models.empty()) std::printf("no model is imported; `carrel model import PATH` imports one (the demo model is always inside)\n");
  for (const ModelRecord& m : models)
    std::printf("%-32s %-14s %8lld MB  %s  %s\n", m.name.c_str(), m.family.c_str(), static_cast<long long>(m.bytes / 1'000'000), to_string(m.status), m.store_digest.substr(0, 12).c_str());
  return 0;
}

Result<int> verify(const ModelArgs& args) {
  CARREL_ASSIGN(auto catalog, open_catalog(Env::real(), args.common.data_dir));
  CARREL_ASSIGN(const ModelRecord record, catalog->model(args.name));
  const auto report = verify_entry(Env::real(), store_dir(args.common.data_dir) + "/" + record.store_digest, progress_bar("verify"));
  std::vector<DamagedPiece> damage;
  if (report) damage = report->damage;
  else damage.push_back({report.error().where, report.error().message});
  CARREL_TRY(catalog->set_model_status(args.name, damage.empty() ? ModelStatus::kReady : ModelStatus::kDamaged, "cli"));
  if (args.common.json) {
    Json list = Json::array();
    for (const DamagedPiece& d : damage) list.push_back({{"object", d.object}, {"what", d.what}});
    std::printf("%s\n", Json{{"name", args.name}, {"ok", damage.empty()}, {"checked", report ? report->n_checked : 0}, {"damage", std::move(list)}}.dump(2).c_str());
  } else if (damage.empty()) {
    std::printf("%s is whole: %lld pieces, %lld MB\n", args.name.c_str(), static_cast<long long>(report->n_checked), static_cast<long long>(report->checked_bytes / 1'000'000));
  } else {
    for (const DamagedPiece& d : damage) std::printf("damaged: %s: %s\n", d.object.c_str(), d.what.c_str());
    std::printf("%s will not be served; remove it and import it again\n", args.name.c_str());
  }
  return damage.empty() ? 0 : 1;
}

Result<int> remove(const ModelArgs& args) {
  CARREL_ASSIGN(auto catalog, open_catalog(Env::real(), args.common.data_dir));
  CARREL_ASSIGN(const ModelRecord record, catalog->model(args.name));
  CARREL_TRY(catalog->remove_model(args.name, "cli"));
  // Another name may stand for the same content.
  CARREL_ASSIGN(const auto rest, catalog->models());
  bool shared = false;
  for (const ModelRecord& m : rest) shared = shared || m.store_digest == record.store_digest;
  if (!shared) CARREL_TRY(remove_entry(Env::real(), store_dir(args.common.data_dir), record.store_digest));
  if (args.common.json) std::printf("%s\n", Json{{"removed", args.name}}.dump().c_str());
  else std::printf("%s removed\n", args.name.c_str());
  return 0;
}

int finish(const Result<int>& done, const CommonArgs& args) { return done ? *done : report(done.error(), args); }

}  // namespace

int cmd_model_import(const ModelArgs& args) { return finish(import(args), args.common); }
int cmd_model_list(const ModelArgs& args) { return finish(list(args), args.common); }
int cmd_model_verify(const ModelArgs& args) { return finish(verify(args), args.common); }
int cmd_model_remove(const ModelArgs& args) { return finish(remove(args), args.common); }

}  // namespace carrel
