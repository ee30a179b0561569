// A fixed team of threads for data-parallel loops. The split never changes a result: callers split by output elements only.
#pragma once
#include <functional>
#include <memory>

namespace carrel {

/// One caller at a time (the engine's step thread); workers spin briefly after work, then sleep, so that a busy neighbour core costs its
/// share and not more.
class ThreadTeam {
 public:
  explicit ThreadTeam(int n_threads);  // the caller counts as one
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const;
  /// Calls fn(begin, end) over [0, n) in contiguous pieces whose borders are multiples of `grain`; returns when all are done.
  void run(int64_t n, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& fn);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carrel
