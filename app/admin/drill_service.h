// Drills beside a running server: one go at a time, on a thread of its own with kernels and state of its own, and the last go's results.
//
// Threads: all methods from any thread; what borrows it ends before it. Errors: kAlreadyExists while another go runs, kCancelled when the
// asker left (the go is finished all the same), kUnavailable at shutdown.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "app/admin/drill_run.h"
#include "app/observe/metrics.h"

namespace carrel {

class DrillService {
 public:
  /// All borrowed. demo: the model is the embedded one.
  DrillService(Env* env, const Model* model, bool demo, Metrics* metrics);
  ~DrillService();  // waits for the drill at work

  /// One go; its JSON document. record: called before it begins and may refuse it (audit). gone: asked now and then whether the asker left.
  Result<std::string> run(const DrillSet& set, const std::function<Status()>& record, const std::function<bool()>& gone);
  /// {"drills": the table, "running": name or null, "last": document or null}.
  std::string list() const;
  /// Ends a go after the drill at work and begins no other one; returns at once.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carrel
