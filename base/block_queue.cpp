#include "base/block_queue.h"

#include <atomic>
#include <deque>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace carrel {
namespace {

constexpr size_t kMostThreads = 4;
constexpr int64_t kGraceMs = 2000;  // a queue that ends waits this long for its operations

// What the queue and its threads share; the last of them frees it, so that a thread that hangs in the kernel outlives the queue.
struct PlainState {
  Mutex mutex;
  CondVar work, done;
  std::deque<std::pair<uint64_t, BlockOp>> waiting CARREL_GUARDED_BY(mutex);
  std::vector<BlockDone> complete CARREL_GUARDED_BY(mutex);
  size_t n_running CARREL_GUARDED_BY(mutex) = 0;
  size_t n_idle CARREL_GUARDED_BY(mutex) = 0;
  bool stopping CARREL_GUARDED_BY(mutex) = false;
};

void work_off(const std::shared_ptr<PlainState>& state) {
  for (;;) {
    std::pair<uint64_t, BlockOp> next;
    {
      MutexLock lock(state->mutex);
      state->n_idle++;
      while (state->waiting.empty() && !state->stopping) state->work.wait(state->mutex);
      state->n_idle--;
      if (state->waiting.empty()) return;
      next = std::move(state->waiting.front());
      state->waiting.pop_front();
      state->n_running++;
    }
    BlockDone done{next.first, execute(next.second)};
    next.second = {};  // buffer and file go before the completion is seen
    MutexLock lock(state->mutex);
    state->n_running--;
    state->complete.push_back(std::move(done));
    state->done.notify_all();
  }
}

class PlainQueue final : public BlockQueue {
 public:
  PlainQueue(Env* env, size_t depth) : env_(env), depth_(depth), state_(std::make_shared<PlainState>()) {}
  ~PlainQueue() override {
    bool hung = false;
    {
      MutexLock lock(state_->mutex);
      state_->stopping = true;
      state_->work.notify_all();
      for (int64_t waited = 0; state_->n_running + state_->waiting.size() != 0 && waited < kGraceMs; waited += 10)
        state_->done.wait_ms(state_->mutex, 10);
      hung = state_->n_running != 0;
      state_->waiting.clear();
    }
    for (std::thread& t : threads_) {
      if (hung) t.detach();
      if (!hung) t.join();
    }
  }

  Status submit(uint64_t id, BlockOp op) override {
    if (n_under_way_ >= depth_) return fail(Code::kUnavailable, "too many operations are under way");
    MutexLock lock(state_->mutex);
    state_->waiting.emplace_back(id, std::move(op));
    n_under_way_++;
    if (state_->n_idle < state_->waiting.size() && threads_.size() < std::min(depth_, kMostThreads))
      threads_.emplace_back([state = state_] { work_off(state); });
    state_->work.notify_one();
    return {};
  }

  Result<std::vector<BlockDone>> wait(int64_t deadline_ns) override {
    MutexLock lock(state_->mutex);
    while (state_->complete.empty() && n_under_way_ != 0) {
      const int64_t left_ns = deadline_ns - env_->mono_ns();
      if (left_ns <= 0) break;
      state_->done.wait_ms(state_->mutex, std::min<int64_t>(left_ns / 1'000'000 + 1, 1000));
    }
    n_under_way_ -= state_->complete.size();
    return std::exchange(state_->complete, {});
  }

  size_t n_under_way() const override { return n_under_way_; }
  const char* name() const override { return "plain"; }

 private:
  Env* env_;
  const size_t depth_;
  size_t n_under_way_ = 0;
  std::shared_ptr<PlainState> state_;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<size_t> execute(const BlockOp& op) {
  switch (op.kind) {
    case BlockOp::Kind::kRead:
      return op.file->read_at(op.offset, op.bytes);
    case BlockOp::Kind::kWrite:
      CARREL_TRY(op.file->write_at(op.offset, op.bytes));
      return op.bytes.size();
    case BlockOp::Kind::kSync:
      CARREL_TRY(op.file->sync());
      return size_t{0};
  }
  return fail(Code::kInternal, "an operation of no kind");
}

std::unique_ptr<BlockQueue> plain_block_queue(Env* env, size_t depth) {
  return std::make_unique<PlainQueue>(env, depth);
}

}  // namespace carrel
