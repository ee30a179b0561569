// Imported models: pack, list, verify, remove.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/assets/demo.h"
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
  return {{"name", m.name}, {"family", m.family}, {"bytes", m.bytes}, {"tensors", m.n_tensors}, {"digest", m.store_digest}, {"source", m.source}, {"created_ms", m.created_ms}, {"status", to_string(m.status)}, {"embedded", false}};
}

/// The model that needs no import; a model imported under its name stands before it.
Result<Json> demo_json() {
  CARREL_ASSIGN(const auto source, open_folder_in_memory(demo_model_files()));
  CARREL_ASSIGN(const Family* family, find_family(source->format(), source->config_json()));
  int64_t bytes = 0;
  for (const auto& [name, content] : demo_model_files()) bytes += static_cast<int64_t>(content.size());
  const bool whole = damaged_demo_files().empty();
  return Json{{"name", kDemoModelName}, {"family", family->name}, {"bytes", bytes}, {"tensors", source->tensor_names().size()}, {"source", "embedded"},
              {"status", to_string(whole ? ModelStatus::kReady : ModelStatus::kDamaged)}, {"embedded", true}};
}

/// Without a tokenizer there is no way from text to the model and back.
Result<bool> has_tokenizer(const StoreEntry& entry) {
  CARREL_ASSIGN(const StoredModel stored, open_stored_model(Env::real(), entry.path, [](Form stored_form) { return stored_form; }, StoreVerify::kSampled));
  return !stored.source->tokenizer_json().empty() || stored.source->gguf_tokenizer() != nullptr;
}

Result<int> import(const ModelArgs& args) {
  CARREL_ASSIGN(auto catalog, open_catalog(Env::real(), args.common.data_dir));
  const std::string name = args.name.empty() ? name_of_path(args.path) : args.name;
  CARREL_TRY(check_model_name(name));  // before the packing: a refusal afterwards would leave an entry in the store that no command lists
  if (const auto there = catalog->model(name)) return fail(Code::kAlreadyExists, "is imported already; choose another --name or remove it first", name);
  std::string family;
  ImportOptions options;
  options.name = name;
  options.progress = progress_bar("import");
  const BuildHook build = [&](SourceFormat format, const std::string& config, Weights& weights) -> Status {
    CARREL_ASSIGN(const Family* f, find_family(format, config));
    family = std::string(f->name);
    std::vector<std::string> left_out;
    CARREL_ASSIGN(const Graph graph, build_graph(*f, format, config, weights, {}, &left_out));
    for (const std::string& what : left_out) std::fprintf(stderr, "carrel: %s does not use what the file has beside it: %s\n", name.c_str(), what.c_str());
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
  CARREL_ASSIGN(record, catalog->model(name));  // with the time that the catalog gave it
  CARREL_ASSIGN(const bool servable, has_tokenizer(entry));
  if (args.common.json) {
    Json j = to_json(record);
    j["servable"] = servable;
    std::printf("%s\n", j.dump(2).c_str());
  } else {
    std::printf("imported %s: family %s, %lld tensors, %lld MB%s\n", name.c_str(), family.c_str(), static_cast<long long>(entry.n_tensors),
                static_cast<long long>(entry.packed_bytes / 1'000'000), servable ? ("; serve it with `carrel serve --model " + name + "`").c_str() : "");
  }
  if (!servable)
    std::fprintf(stderr, "carrel: %s has no tokenizer: `carrel golden %s` can measure it against vectors that lie beside it, but it cannot be served; add tokenizer.json and import it again\n",
                 name.c_str(), args.path.c_str());
  return 0;
}

Result<int> list(const ModelArgs& args) {
  CARREL_ASSIGN(auto catalog, open_existing_catalog(Env::real(), args.common.data_dir));
  CARREL_ASSIGN(const auto models, catalog->models());
  Json all = Json::array();
  bool shadowed = false;
  for (const ModelRecord& m : models) all.push_back(to_json(m)), shadowed = shadowed || m.name == kDemoModelName;
  if (!shadowed) {
    CARREL_ASSIGN(Json demo, demo_json());
    all.push_back(std::move(demo));
  }
  if (args.common.json) {
    std::printf("%s\n", all.dump(2).c_str());
    return 0;
  }
  for (const Json& m : all)
    std::printf("%-32s %-14s %8lld MB  %s  %s\n", m["name"].get<std::string>().c_str(), m["family"].get<std::string>().c_str(), static_cast<long long>(m["bytes"].get<int64_t>() / 1'000'000),
                m["status"].get<std::string>().c_str(), m["embedded"].get<bool>() ? "embedded" : m["digest"].get<std::string>().substr(0, 12).c_str());
  return 0;
}

struct Verdict {
  std::string name;
  int64_t n_checked = 0, checked_bytes = 0;
  std::vector<DamagedPiece> damage = {};
};

Json to_json(const Verdict& v) {
  Json list = Json::array();
  for (const DamagedPiece& d : v.damage) list.push_back({{"object", d.object}, {"what", d.what}});
  return {{"name", v.name}, {"ok", v.damage.empty()}, {"checked", v.n_checked}, {"damage", std::move(list)}};
}

void print(const Verdict& v) {
  if (v.damage.empty())
    return void(std::printf("%s is whole: %lld pieces, %lld MB\n", v.name.c_str(), static_cast<long long>(v.n_checked), static_cast<long long>(v.checked_bytes / 1'000'000)));
  for (const DamagedPiece& d : v.damage) std::printf("damaged: %s: %s\n", d.object.c_str(), d.what.c_str());
  std::printf("%s will not be served; remove it and import it again\n", v.name.c_str());
}

Verdict verify_demo() {
  Verdict v{.name = kDemoModelName};
  for (const auto& [name, content] : demo_model_files()) v.n_checked++, v.checked_bytes += static_cast<int64_t>(content.size());
  for (const std::string& name : damaged_demo_files()) v.damage.push_back({name, "the binary holds other bytes than were built into it"});
  return v;
}

Result<Verdict> verify_imported(Catalog& catalog, const std::string& data_dir, const ModelRecord& record) {
  Verdict v{.name = record.name};
  const auto report = verify_entry(Env::real(), store_dir(data_dir) + "/" + record.store_digest, progress_bar("verify"));
  if (report) v.damage = report->damage, v.n_checked = report->n_checked, v.checked_bytes = report->checked_bytes;
  else v.damage.push_back({report.error().where, report.error().message});
  CARREL_TRY(catalog.set_model_status(record.name, v.damage.empty() ? ModelStatus::kReady : ModelStatus::kDamaged, "cli"));
  return v;
}

/// The model named, or for no name every imported one and the embedded one.
Result<std::vector<Verdict>> verdicts(const ModelArgs& args) {
  std::unique_ptr<Catalog> catalog;
  if (args.name != kDemoModelName || has_catalog(Env::real(), args.common.data_dir)) {
    CARREL_ASSIGN(catalog, open_existing_catalog(Env::real(), args.common.data_dir));
  }
  std::vector<Verdict> out;
  bool demo = args.name.empty() || args.name == kDemoModelName;
  if (catalog != nullptr) {
    CARREL_ASSIGN(const auto models, catalog->models());
    for (const ModelRecord& m : models) {
      if (!args.name.empty() && m.name != args.name) continue;
      CARREL_ASSIGN(Verdict v, verify_imported(*catalog, args.common.data_dir, m));
      out.push_back(std::move(v));
      demo = demo && m.name != kDemoModelName;
    }
  }
  if (demo) out.push_back(verify_demo());
  if (out.empty()) return fail(Code::kNotFound, "no model is imported under this name; `carrel model list` shows what there is", args.name);
  return out;
}

Result<int> verify(const ModelArgs& args) {
  CARREL_ASSIGN(const auto all, verdicts(args));
  const bool ok = std::all_of(all.begin(), all.end(), [](const Verdict& v) { return v.damage.empty(); });
  if (args.common.json && !args.name.empty()) {
    std::printf("%s\n", to_json(all[0]).dump(2).c_str());
  } else if (args.common.json) {
    Json list = Json::array();
    for (const Verdict& v : all) list.push_back(to_json(v));
    std::printf("%s\n", Json{{"ok", ok}, {"models", std::move(list)}}.dump(2).c_str());
  } else {
    for (const Verdict& v : all) print(v);
  }
  return ok ? 0 : 1;
}

Result<int> remove(const ModelArgs& args) {
  CARREL_ASSIGN(auto catalog, open_existing_catalog(Env::real(), args.common.data_dir));
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
