#include "storage/block_io.h"

#include <utility>

namespace carrel {
namespace {

constexpr int kMostTries = 4;
constexpr size_t kMostIdle = 8;  // queues

}  // namespace

struct BlockIo::Batch {
  std::vector<BlockOp> ops;
  std::vector<Status> results;
  std::vector<int> tries;
  size_t next = 0;  // not handed over yet
  size_t n_open = 0;
  std::vector<size_t> again;

  void settle(size_t i, Status status) {
    results[i] = std::move(status);
    n_open--;
  }
  void complete(size_t i, const Result<size_t>& n) {
    const bool interrupted = !n && n.error().code == Code::kUnavailable;
    const bool cut = n && *n < ops[i].bytes.size();
    if (!interrupted && !cut) return settle(i, n ? Status{} : std::unexpected(n.error()));
    if (++tries[i] < kMostTries) return again.push_back(i);
    if (interrupted) return settle(i, fail(Code::kIo, "the device kept on interrupting: " + n.error().message));
    settle(i, fail(ops[i].kind == BlockOp::Kind::kRead ? Code::kCorrupt : Code::kIo,
                   "the device gave " + std::to_string(*n) + " bytes of " + std::to_string(ops[i].bytes.size())));
  }
};

std::vector<Status> BlockIo::run(std::vector<BlockOp> ops, int64_t deadline_ns) {
  const size_t n = ops.size();
  Batch b;
  b.ops = std::move(ops);
  b.results.assign(n, fail(Code::kDeadline, "the device did not answer in time"));
  b.tries.assign(n, 0);
  b.n_open = n;
  if (n == 0) return {};
  std::unique_ptr<BlockQueue> queue = take();
  while (b.n_open != 0) {
    while (queue->n_under_way() < depth_ && (!b.again.empty() || b.next < n)) {
      size_t i = b.next;
      if (b.again.empty()) {
        b.next++;
      } else {
        i = b.again.back();
        b.again.pop_back();
      }
      if (Status s = queue->submit(i, b.ops[i]); !s) b.settle(i, std::move(s));
    }
    if (b.n_open == 0) break;
    auto done = queue->wait(deadline_ns);
    if (!done) {  // the ring itself fails: what it holds may still happen
      for (Status& s : b.results)
        if (!s && s.error().code == Code::kDeadline) s = fail(Code::kUnavailable, done.error().message);
      break;
    }
    if (done->empty()) break;
    for (const BlockDone& d : *done) b.complete(d.id, d.n);
  }
  b.ops.clear();
  give_back(std::move(queue));
  return std::move(b.results);
}

Status BlockIo::run_one(BlockOp op, int64_t deadline_ns) {
  std::vector<BlockOp> ops;
  ops.push_back(std::move(op));
  return std::move(run(std::move(ops), deadline_ns)[0]);
}

std::unique_ptr<BlockQueue> BlockIo::take() {
  {
    MutexLock lock(mutex_);
    look_after_hung();
    if (!idle_.empty()) {
      auto queue = std::move(idle_.back());
      idle_.pop_back();
      return queue;
    }
  }
  return env_->block_queue(depth_, plain_);
}

void BlockIo::give_back(std::unique_ptr<BlockQueue> queue) {
  std::unique_ptr<BlockQueue> surplus;  // ends outside the lock
  MutexLock lock(mutex_);
  stats_.name = queue->name();
  stats_.n_given_up += queue->n_under_way();
  auto& to = queue->n_under_way() != 0 ? hung_ : idle_;
  if (&to == &idle_ && idle_.size() >= kMostIdle) {
    surplus = std::move(queue);
  } else {
    to.push_back(std::move(queue));
  }
}

void BlockIo::look_after_hung() {
  for (auto& queue : hung_) {
    (void)queue->wait(0);  // lets go of what has completed
    if (queue->n_under_way() == 0) idle_.push_back(std::move(queue));
  }
  std::erase(hung_, nullptr);
}

BlockIo::Stats BlockIo::stats() {
  MutexLock lock(mutex_);
  look_after_hung();
  Stats s = stats_;
  for (const auto& queue : hung_) s.n_hung += queue->n_under_way();
  return s;
}

}  // namespace carrel
