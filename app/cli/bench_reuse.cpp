// `carrel bench reuse`: effective hits beside nominal ones, in the shapes that applications have.
#include "app/cli/bench_reuse.h"

#include <cstdio>

#include "engine/drill/reuse.h"
#include "engine/model/model.h"

namespace carrel {

using Json = nlohmann::ordered_json;

Result<Json> bench_reuse(const Model& model) {
  CARREL_ASSIGN(const auto rows, measure_reuse(model));
  Json out{{"bench", "reuse"}, {"block_tokens", model.graph().state.block_size}, {"rows", Json::array()}};
  bool met = true;
  for (const ReuseRow& r : rows) {
    met = met && r.kept();
    out["rows"].push_back({{"scenario", r.scenario},
                           {"sighting", r.sighting},
                           {"prompt_tokens", r.prompt_tokens},
                           {"shared_tokens", r.shared_tokens},
                           {"nominal", r.nominal},
                           {"effective", r.effective},
                           {"promised", r.promised},
                           {"kept", r.kept()},
                           {"veto", r.veto}});
  }
  out["met"] = met;
  return out;
}

void print_reuse(const Json& reuse) {
  std::printf("%-26s %8s %8s %8s %8s %10s %9s  %s\n", "scenario", "sighting", "prompt", "shared", "nominal", "effective", "promised",
              "shortened by");
  for (const Json& r : reuse["rows"]) {
    const int sighting = r["sighting"].get<int>();
    const bool shown = r["scenario"] != "growing chat" || sighting <= 3 || sighting % 10 == 0 || !r["kept"].get<bool>() ||
                       !r["veto"].get<std::string>().empty();
    if (!shown) continue;  // every turn of the chat is in --json
    std::printf("%-26s %8d %8ld %8ld %8ld %10ld %9ld  %s%s\n", r["scenario"].get<std::string>().c_str(), sighting,
                r["prompt_tokens"].get<long>(), r["shared_tokens"].get<long>(), r["nominal"].get<long>(), r["effective"].get<long>(),
                r["promised"].get<long>(), r["veto"].get<std::string>().c_str(), r["kept"].get<bool>() ? "" : "  NOT KEPT");
  }
  std::printf("the promise of docs/state.md is %s\n", reuse["met"].get<bool>() ? "kept" : "NOT kept");
}

}  // namespace carrel
