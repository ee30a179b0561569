// Commands that only tell: routes and version.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <openssl/crypto.h>
#include <pcre2.h>
#include <sqlite3.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/api/api.h"
#include "app/assets/demo.h"
#include "app/cli/cli.h"
#include "engine/model/family.h"
#include "engine/model/model.h"
#include "kernels/cpu/linear.h"

namespace carrel {
namespace {

using Json = nlohmann::ordered_json;

std::string compiler() {
#ifdef __clang__
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

std::string pcre2_version() {
  char text[64] = {};
  pcre2_config(PCRE2_CONFIG_VERSION, text);
  return text;
}

/// Under these ids cache state is shared; another machine that prints the same computes the same bits.
Result<Json> demo_numerics() {
  Json out = Json::object();
  ModelLocation demo;
  demo.embedded = true;
  demo.files = demo_model_files();
  ModelOptions options;
  for (const auto& [name, set] : {std::pair{"fast", OpSet::kFast}, {"exact", OpSet::kExact}, {"reference", OpSet::kReference}}) {
    options.ops = set;
    CARREL_ASSIGN(const auto model, Model::load(Env::real(), demo, options));
    out[name] = model->numerics_id();
  }
  return out;
}

Result<Json> inside() {
  Json paths = Json::array(), names = Json::array();
  for (const cpu::Path p : {cpu::Path::kScalar, cpu::Path::kAvx2, cpu::Path::kAvx512}) paths.push_back({{"name", cpu::to_string(p)}, {"runs_here", cpu::path_available(p)}});
  for (const Family& f : families()) names.push_back(f.name);
  CARREL_ASSIGN(Json numerics, demo_numerics());
  return Json{{"name", "carrel"},
              {"version", CARREL_VERSION},
              {"instruction_paths", std::move(paths)},
              {"instruction_path", cpu::to_string(cpu::best_path())},
              {"op_sets", {"fast", "exact", "reference"}},
              {"families", std::move(names)},
              {"numerics", std::move(numerics)},
              {"libraries",
               {{"openssl", OpenSSL_version(OPENSSL_VERSION_STRING)},
                {"sqlite", sqlite3_libversion()},
                {"cpp-httplib", CARREL_HTTPLIB_VERSION},
                {"pcre2", pcre2_version()},
                {"yaml-cpp", CARREL_YAML_VERSION}}},
              {"compiler", compiler()}};
}

std::string words(const Json& list) {
  std::string out;
  for (const Json& j : list) out += (out.empty() ? "" : ", ") + (j.is_object() ? j["name"].get<std::string>() + (j["runs_here"].get<bool>() ? "" : " (not on this machine)") : j.get<std::string>());
  return out;
}

void print(const Json& j) {
  const auto line = [](const std::string& name, const std::string& value) { std::printf("%-18s %s\n", name.c_str(), value.c_str()); };
  std::printf("carrel %s\n", j["version"].get<std::string>().c_str());
  line("instruction paths", words(j["instruction_paths"]) + "; chosen: " + j["instruction_path"].get<std::string>());
  line("op sets", words(j["op_sets"]));
  line("families", words(j["families"]));
  for (const auto& [set, id] : j["numerics"].items()) line("numerics " + set, id.get<std::string>());
  for (const auto& [name, version] : j["libraries"].items()) line(name, version.get<std::string>());
  line("compiler", j["compiler"].get<std::string>());
}

}  // namespace

int cmd_routes(const CommonArgs& args) {
  if (args.json) {
    std::printf("%s", routes_json().c_str());
    return 0;
  }
  for (const Route& r : route_table())
    std::printf("%-7s %-24s %-7s %s\n", std::string(r.method).c_str(), std::string(r.path).c_str(), std::string(to_string(r.plane)).c_str(), std::string(r.what).c_str());
  return 0;
}

int cmd_version(const CommonArgs& args) {
  const auto all = inside();
  if (!all) return report(all.error(), args);
  if (args.json) std::printf("%s\n", all->dump(2).c_str());
  else print(*all);
  return 0;
}

}  // namespace carrel
