// Commands that only tell: routes and version.
#include <cstdio>

#include "app/api/api.h"
#include "app/cli/cli.h"

namespace carrel {

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
  if (args.json) std::printf("{\"name\":\"carrel\",\"version\":\"%s\"}\n", CARREL_VERSION);
  else std::printf("carrel %s\n", CARREL_VERSION);
  return 0;
}

}  // namespace carrel
