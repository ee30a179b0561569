// Batches of block operations with one deadline for all: what the disk tier reads and writes its segment files with.
//
// Threads: any; each call takes a queue of its own from a pool. An operation that is not complete at the deadline is given up: its caller
// gets kDeadline, its queue leaves the pool until the device answers, and its buffer, file and whatever else `keep` owns live until then.
// Short and interrupted operations are tried again, as a whole, a few times.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "base/block_queue.h"
#include "base/mutex.h"

namespace carrel {

class BlockIo {
 public:
  BlockIo(Env* env, size_t depth, bool plain) : env_(env), depth_(depth), plain_(plain) {}

  /// One status per operation, in their order. kCorrupt: the file ends before the read does. kDeadline: given up. kUnavailable: the queue
  /// failed, the operation may still happen.
  /// deadline_ns as Env::mono_ns.
  std::vector<Status> run(std::vector<BlockOp> ops, int64_t deadline_ns);
  /// The same for one.
  Status run_one(BlockOp op, int64_t deadline_ns);

  struct Stats {
    const char* name = "none yet";  // of the queue
    uint64_t n_given_up = 0;        // operations, so far
    uint64_t n_hung = 0;            // of these, still under way
  };
  Stats stats();

 private:
  struct Batch;
  std::unique_ptr<BlockQueue> take();
  void give_back(std::unique_ptr<BlockQueue> queue);
  void look_after_hung() CARREL_REQUIRES(mutex_);

  Env* env_;
  const size_t depth_;
  const bool plain_;
  Mutex mutex_;
  std::vector<std::unique_ptr<BlockQueue>> idle_ CARREL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<BlockQueue>> hung_ CARREL_GUARDED_BY(mutex_);
  Stats stats_ CARREL_GUARDED_BY(mutex_);
};

}  // namespace carrel
