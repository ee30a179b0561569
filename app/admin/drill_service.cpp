#include "app/admin/drill_service.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"

namespace carrel {

using Json = nlohmann::ordered_json;

struct DrillService::Impl {
  Env* env;
  const Model* model;
  bool demo;
  Metrics* metrics;

  mutable std::mutex mu;  // guards all below; not held while a drill runs
  std::condition_variable ended;
  bool running = false, stopping = false;
  std::string at_work;  // name of the drill
  struct Go {
    bool ended = false;
    Result<std::string> document;
    int64_t ended_ms = 0;
  };
  std::shared_ptr<Go> last;  // that ended
  std::thread thread;

  Impl(Env* e, const Model* m, bool d, Metrics* x) : env(e), model(m), demo(d), metrics(x) {}

  void work(const DrillSet& set, const std::shared_ptr<Go>& go) {
    auto run = run_drill_set(env, *model, demo, set, [this](const std::string& name, size_t, size_t) {
      std::lock_guard lock(mu);
      at_work = name;
      return !stopping;
    });
    if (!run) spdlog::error("drills did not run: {}", run.error().text());
    for (const DrillReport& r : run ? run->reports : std::vector<DrillReport>{}) {
      metrics->add("carrel_drill_runs_total", {{"drill", r.name}, {"verdict", std::string(to_string(r.verdict))}});
      if (r.verdict == DrillVerdict::kFailed) spdlog::error("drill {} failed: {}", r.name, r.reason);
    }
    if (run)
      spdlog::info("drills of {}: {} passed, {} failed in {} ms", run->model, run->count(DrillVerdict::kPassed),
                   run->count(DrillVerdict::kFailed), run->ms);
    std::lock_guard lock(mu);
    if (run)
      go->document = drills_json(*run);
    else
      go->document = std::unexpected(run.error());
    go->ended_ms = env->wall_ms();
    go->ended = true;
    last = go;
    at_work.clear();
    running = false;
    ended.notify_all();
  }
};

DrillService::DrillService(Env* env, const Model* model, bool demo, Metrics* metrics)
    : impl_(std::make_unique<Impl>(env, model, demo, metrics)) {}

DrillService::~DrillService() {
  stop();
  if (impl_->thread.joinable()) impl_->thread.join();
}

Result<std::string> DrillService::run(const DrillSet& set, const std::function<Status()>& record, const std::function<bool()>& gone) {
  Impl& i = *impl_;
  CARREL_TRY(check_drill_names(set.names));
  std::unique_lock lock(i.mu);
  if (i.stopping) return fail(Code::kUnavailable, "the server is shutting down and begins no drills");
  if (i.running)
    return fail(Code::kAlreadyExists,
                "drills are running already (at work: " + i.at_work + "); GET /admin/v1/drills shows their results when they end");
  i.running = true;
  i.at_work = "about to begin";
  lock.unlock();
  const Status recorded = record();
  if (i.thread.joinable()) i.thread.join();  // of the go before, which has ended
  lock.lock();
  if (!recorded) {
    i.running = false;
    return std::unexpected(recorded.error());
  }
  const auto go = std::make_shared<Impl::Go>();
  i.thread = std::thread([&i, set, go] { i.work(set, go); });
  while (!go->ended) {
    if (i.stopping) return fail(Code::kUnavailable, "the server is shutting down");
    i.ended.wait_for(lock, std::chrono::milliseconds(100));
    lock.unlock();
    const bool left = gone();
    lock.lock();
    if (left && !go->ended) return fail(Code::kCancelled, "the client left; the drills go on, GET /admin/v1/drills shows their results");
  }
  return go->document;
}

std::string DrillService::list() const {
  const Impl& i = *impl_;
  std::lock_guard lock(i.mu);
  Json j{{"drills", Json::parse(drill_list_json())}, {"running", i.running ? Json(i.at_work) : Json(nullptr)}};
  j["last"] = i.last && i.last->document ? Json::parse(*i.last->document) : Json(nullptr);
  if (i.last && !i.last->document) j["last_error"] = i.last->document.error().text();
  if (i.last) j["last_ended_ms"] = i.last->ended_ms;
  return j.dump(2, ' ', false, Json::error_handler_t::replace);
}

void DrillService::stop() {
  std::lock_guard lock(impl_->mu);
  impl_->stopping = true;
  impl_->ended.notify_all();
}

}  // namespace carrel
