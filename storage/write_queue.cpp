#include "storage/write_queue.h"

#include "base/log.h"

namespace carrel {

constexpr size_t kMostPerCommit = 128;

WriteQueue::WriteQueue(Env* env, Db db, int64_t tick_ms, Tick tick)
    : env_(env), db_(std::move(db)), tick_ms_(tick_ms), tick_(std::move(tick)), thread_([this] { loop(); }) {}

WriteQueue::~WriteQueue() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  thread_.join();
}

Status WriteQueue::run(Work work) {
  const auto mine = std::make_shared<Pending>();
  mine->job.work = std::move(work);
  MutexLock lock(mutex_);
  queue_.push_back(mine);
  wake_.notify_one();
  while (!mine->finished) finished_.wait(mutex_);
  return mine->result;
}

Status WriteQueue::health() const {
  MutexLock lock(mutex_);
  return health_;
}

Result<DbSettings> WriteQueue::settings() {
  DbSettings settings;
  CARREL_TRY(run([&](Db& db) -> Status {
    CARREL_ASSIGN(settings, db.settings());
    return {};
  }));
  return settings;
}

void WriteQueue::loop() {
  int64_t last_tick_ns = env_->mono_ns();
  for (bool stop = false; !stop;) {
    std::vector<std::shared_ptr<Pending>> batch;
    bool waited = false;
    {
      MutexLock lock(mutex_);
      if (queue_.empty() && !stopping_) {
        wake_.wait_ms(mutex_, tick_ms_);
        waited = queue_.empty();
      }
      while (!queue_.empty() && batch.size() < kMostPerCommit) {
        batch.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
      stop = stopping_ && queue_.empty();
    }
    if (waited || stop || env_->mono_ns() - last_tick_ns >= tick_ms_ * 1'000'000) {
      last_tick_ns = env_->mono_ns();
      if (auto job = tick_()) {
        batch.push_back(std::make_shared<Pending>());
        batch.back()->job = *std::move(job);
      }
    }
    if (!batch.empty()) execute(batch);
  }
}

void WriteQueue::execute(std::vector<std::shared_ptr<Pending>>& batch) {
  Status outcome = health();
  if (outcome) outcome = db_.check_in_place();
  if (outcome) outcome = transact(batch);
  const bool broken = db_.write_failed();
  if (broken && outcome) outcome = fail(Code::kIo, "a write failed underneath the transaction", "catalog.db");
  for (const auto& p : batch) {
    if (!outcome) p->result = outcome;
    if (p->job.done) p->job.done(p->result);
  }
  MutexLock lock(mutex_);
  if (broken && health_) {
    health_ =
        fail(Code::kUnavailable,
             "the catalog is read-only since a write failed (" + outcome.error().message + "); check the disk, then restart", "catalog.db");
    spdlog::error("{}", health_.error().text());
  }
  for (const auto& p : batch) p->finished = true;
  finished_.notify_all();
}

// An error means that no job of the batch happened; otherwise each has its own result.
Status WriteQueue::transact(std::vector<std::shared_ptr<Pending>>& batch) {
  CARREL_TRY(db_.script("BEGIN IMMEDIATE"));
  const auto abandon = [&](const Status& why) {
    if (db_.in_transaction()) (void)db_.script("ROLLBACK");
    return why;
  };
  for (const auto& p : batch) {
    if (Status s = db_.script("SAVEPOINT job"); !s) return abandon(s);
    p->result = p->job.work(db_);
    if (!db_.in_transaction()) return p->result ? fail(Code::kInternal, "the transaction ended early", "catalog.db") : p->result;
    if (Status s = db_.script(p->result ? "RELEASE job" : "ROLLBACK TO job; RELEASE job"); !s) return abandon(s);
  }
  Status s = db_.script("COMMIT");
  return s ? s : abandon(s);
}

}  // namespace carrel
