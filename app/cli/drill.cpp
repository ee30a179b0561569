// Drills and the listing of states: a model is loaded, nothing is served.
#include <unistd.h>

#include <cstdio>

#include "app/admin/drill_run.h"
#include "app/admin/state_report.h"
#include "app/cli/cli.h"
#include "app/lifecycle/engine_room.h"
#include "base/log.h"

namespace carrel {

namespace {

Result<EngineRoom> open_room(const CommonArgs& common, const std::string& model, const char* log_level) {
  log_setup(log_level, LogFormat::kText);
  std::map<std::string, std::string> flags;
  if (!model.empty()) flags["model.path"] = model;
  return open_engine_room(Env::real(), common.data_dir, common.config_file, flags);
}

Result<int> drill(const DrillArgs& args) {
  if (args.all && !args.names.empty()) return fail(Code::kInvalidArgument, "stands for every drill; leave the names or --all out", "--all");
  CARREL_TRY(check_drill_names(args.names));
  // What the drills do on purpose is logged as errors of theirs; the table says it better.
  CARREL_ASSIGN(const EngineRoom room, open_room(args.common, args.model, "warn"));
  spdlog::set_level(spdlog::level::off);
  const bool terminal = isatty(2) != 0;
  const auto begin = [&](const std::string& name, size_t i, size_t n) {
    if (terminal) std::fprintf(stderr, "\r\033[Kdrill %zu of %zu: %s", i + 1, n, name.c_str());
    return true;
  };
  DrillSet set{args.names, std::nullopt};
  if (args.show_damage || args.hide_damage) set.show_damage = args.show_damage;
  auto run = run_drill_set(Env::real(), *room.model, room.embedded, set, begin);
  if (terminal) std::fprintf(stderr, "\r\033[K");
  if (!run) return std::unexpected(run.error());
  std::printf("%s", args.common.json ? (drills_json(*run) + "\n").c_str() : drills_text(*run).c_str());
  return run->passed() ? 0 : 1;
}

Result<int> state(const StateArgs& args) {
  CARREL_ASSIGN(const EngineRoom room, open_room(args.common, args.model, "warn"));
  const ModelState& model = room.model->graph().state;
  const StateStats stats = room.state->stats();
  std::printf("%s", args.common.json ? (state_json(room.model->name(), model, stats, false) + "\n").c_str()
                                     : state_text(room.model->name(), model, stats).c_str());
  return 0;
}

int finish(const Result<int>& done, const CommonArgs& args) {
  return done ? *done : report(done.error(), args);
}

}  // namespace

int cmd_drill(const DrillArgs& args) {
  if (!args.list) return finish(drill(args), args.common);
  std::printf("%s", args.common.json ? (drill_list_json() + "\n").c_str() : drill_list_text().c_str());
  return 0;
}

int cmd_state(const StateArgs& args) {
  return finish(state(args), args.common);
}

}  // namespace carrel
