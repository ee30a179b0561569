// The one writer of a process: a thread that owns the write connection and runs closures, each inside a transaction.
//
// Callers on any thread wait in run() until their closure is committed and durable. Closures that wait together share one
// BEGIN IMMEDIATE … COMMIT (one sync), each in a savepoint of its own, so that one's failure does not touch the others.
// After a failed write or sync the state of the disk is unknown (a second fsync would lie): every later write is refused.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "base/mutex.h"
#include "storage/sqlite.h"

namespace carrel {

class WriteQueue {
 public:
  using Work = std::function<Status(Db&)>;
  struct Job {
    Work work;
    std::function<void(const Status&)> done;  // on the writer thread, after commit or rollback
  };
  /// Asked every tick and once at the end for work of the owner's own.
  using Tick = std::function<std::optional<Job>()>;

  WriteQueue(Env* env, Db db, int64_t tick_ms, Tick tick);
  ~WriteQueue();  // finishes what is queued

  /// Ok: committed. An error: nothing of it is visible (after kIo: unknown until the next open).
  Status run(Work work);
  /// Ok while writes are possible; afterwards the error that ended them.
  Status health() const;
  Result<DbSettings> settings();

 private:
  struct Pending {
    Job job;
    Status result;
    bool finished = false;
  };

  void loop();
  void execute(std::vector<std::shared_ptr<Pending>>& batch);
  Status transact(std::vector<std::shared_ptr<Pending>>& batch);

  Env* env_;
  Db db_;  // the writer thread's
  const int64_t tick_ms_;
  const Tick tick_;
  mutable Mutex mutex_;
  CondVar wake_, finished_;
  std::deque<std::shared_ptr<Pending>> queue_ CARREL_GUARDED_BY(mutex_);
  bool stopping_ CARREL_GUARDED_BY(mutex_) = false;
  Status health_ CARREL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: starts when everything else stands
};

}  // namespace carrel
