#include "app/config/config.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/cli/cli.h"

namespace carrel {

int cmd_config_check(const ConfigArgs& args) {
  const auto text = read_file(Env::real(), args.file, 1 << 20);
  if (!text) return report(text.error(), args.common);
  const auto config = Config::load(*text, args.file, {}, {});
  if (!config) return report(config.error(), args.common);
  if (args.common.json) {
    std::printf("%s\n", nlohmann::ordered_json{{"ok", true}, {"canonical", config->canonical_yaml()}, {"notes", config->notes()}}.dump().c_str());
    return 0;
  }
  for (const std::string& note : config->notes()) std::fprintf(stderr, "note: %s\n", note.c_str());
  std::printf("%s", config->canonical_yaml().c_str());
  return 0;
}

int cmd_config_schema(const ConfigArgs& args) {
  if (args.common.json) std::printf("%s", schema_json().c_str());
  else if (args.markdown) std::printf("%s", schema_markdown().c_str());
  else
    for (const Setting& s : settings())
      std::printf("%-44s %-10s default %-20s %s%s\n", std::string(s.key).c_str(), std::string(to_string(s.type)).c_str(), std::string(s.fallback).c_str(),
                  s.active ? "" : "(not active in this version) ", std::string(s.consequence).c_str());
  return 0;
}

}  // namespace carrel
