#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/cli/cli.h"
#include "app/lifecycle/appliance.h"
#include "base/log.h"

namespace carrel {
namespace {

Result<Config> load_config(const ServeArgs& args) {
  std::string text;
  if (!args.common.config_file.empty()) {
    CARREL_ASSIGN(text, read_file(Env::real(), args.common.config_file, 1 << 20));
  }
  std::map<std::string, std::string> flags;
  if (!args.listen.empty()) {
    const size_t colon = args.listen.rfind(':');
    if (colon == std::string::npos) return fail(Code::kInvalidArgument, "must be HOST:PORT", "--listen");
    std::string host = args.listen.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    flags["server.listen"] = host;
    flags["server.port"] = args.listen.substr(colon + 1);
  }
  if (!args.model.empty()) flags["model.path"] = args.model;
  if (!args.log_level.empty()) flags["observe.log_level"] = args.log_level;
  return Config::load(text, args.common.config_file, environment(), flags);
}

/// What a script waits for. With json it is one document: url, and ca and key where there are any.
void greet(const Appliance& a, bool json) {
  if (json) {
    nlohmann::ordered_json j{{"ready", a.url()}};
    if (!a.ca_file().empty()) j["ca"] = a.ca_file();
    if (a.first_key()) j["key"] = a.first_key()->key;
    std::printf("%s\n", j.dump().c_str());
    std::fflush(stdout);
    return;
  }
  if (a.first_key()) {
    std::printf("API key of tenant default, shown this once: %s\n", a.first_key()->key.c_str());
    std::printf("try: curl %s%s -H \"Authorization: Bearer %s\" %s/v1/models\n", a.ca_file().empty() ? "" : "--cacert ", a.ca_file().c_str(), a.first_key()->key.c_str(), a.url().c_str());
  }
  std::printf("ready %s%s%s\n", a.url().c_str(), a.ca_file().empty() ? "" : " ca=", a.ca_file().c_str());
  std::fflush(stdout);
}

}  // namespace

int cmd_serve(const ServeArgs& args) {
  auto config = load_config(args);
  if (!config) return report(config.error(), args.common);
  log_setup(config->text("observe.log_level"), config->text("observe.log_format") == "json" ? LogFormat::kJson : LogFormat::kText);

  // Signals are taken here by waiting; blocked before any thread starts, so that no thread is interrupted.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int s : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, s);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  auto appliance = Appliance::start(Env::real(), std::move(*config), args.common.data_dir);
  if (!appliance) return report(appliance.error(), args.common);
  greet(**appliance, args.common.json);
  for (;;) {
    const timespec second{1, 0};
    const int got = sigtimedwait(&signals, nullptr, &second);
    if (got == SIGINT || got == SIGTERM) break;
    (*appliance)->tick();
  }
  spdlog::info("stopping: running requests may end");
  (*appliance)->drain();
  appliance->reset();
  spdlog::info("stopped");
  return 0;
}

}  // namespace carrel
