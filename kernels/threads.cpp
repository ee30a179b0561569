// A team of threads for loops over output elements. Each member owns one contiguous share and works through it in claims of half of what is
// left, so that little is being worked on when others run out; one that has finished takes over what a late member (asleep, or on a core
// that is busy with something else) has not claimed, so that a loop never waits for a thread that has not begun. Which thread computes an
// element does not change it, so claims need no order. Must not be entered from inside fn.
#include "kernels/threads.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace carrel {
namespace {

constexpr int kSpins = 800;           // pauses before a thread sleeps: 10-40 µs, about the serial gap between two loops of a step
constexpr int64_t kLeastShares = 16;  // a claim is at least this part of a member's share

/// Units [next, end) that nobody has claimed, in one word: a claim that succeeds is valid for the job installed at that moment, and keeps
/// it open.
struct alignas(64) Share {
  std::atomic<uint64_t> range{0};
};

uint64_t pack(int64_t next, int64_t end) {
  return (static_cast<uint64_t>(next) << 32) | static_cast<uint64_t>(end);
}

}  // namespace

struct ThreadTeam::Impl {
  explicit Impl(int n) : shares(static_cast<size_t>(std::max(1, n))) {
    for (size_t i = 1; i < shares.size(); i++) workers.emplace_back([this, i] { work(i); });
  }

  ~Impl() {
    stop.store(true);
    epoch.fetch_add(1);
    signal(wake);
    for (std::thread& t : workers) t.join();
  }

  void signal(std::condition_variable& cv) {
    {
      const std::lock_guard lock(mutex);  // a waiter is before its check or inside wait, never between
    }
    cv.notify_all();
  }

  void work(size_t me) {
    uint32_t seen = 0;
    while (true) {
      seen = next_epoch(seen);
      if (stop.load()) return;
      drain(me);
    }
  }

  uint32_t next_epoch(uint32_t seen) {
    for (int i = 0; i < kSpins; i++) {
      const uint32_t now = epoch.load();
      if (now != seen) return now;
      _mm_pause();
    }
    std::unique_lock lock(mutex);
    sleepers.fetch_add(1);
    wake.wait(lock, [&] { return epoch.load() != seen; });
    sleepers.fetch_sub(1);
    return epoch.load();
  }

  void drain(size_t me) {
    for (size_t i = 0; i < shares.size(); i++) {
      Share& s = shares[(me + i) % shares.size()];
      uint64_t range = s.range.load();
      while (static_cast<uint32_t>(range >> 32) < static_cast<uint32_t>(range)) {
        const int64_t next = static_cast<int64_t>(range >> 32), end = static_cast<uint32_t>(range);
        const int64_t until = std::min(end, next + std::max((end - next + 1) / 2, least.load(std::memory_order_relaxed)));
        if (!s.range.compare_exchange_weak(range, pack(until, end))) continue;
        (*fn)(next* grain, std::min(until * grain, total));
        if (remaining.fetch_sub(until - next) == until - next && caller_sleeps.load()) signal(done);
        range = s.range.load();
      }
    }
  }

  void run(int64_t n, int64_t grain_in, const std::function<void(int64_t, int64_t)>& f) {
    const int64_t units = (n + grain_in - 1) / grain_in;
    const auto members = static_cast<int64_t>(shares.size());
    if (units <= 1 || members == 1) {
      if (n > 0) f(0, n);
      return;
    }
    fn = &f;
    grain = grain_in;
    total = n;
    least.store(std::max<int64_t>(1, units / (members * kLeastShares)), std::memory_order_relaxed);
    remaining.store(units);
    for (int64_t i = 0; i < members; i++) shares[static_cast<size_t>(i)].range.store(pack(units * i / members, units * (i + 1) / members));
    epoch.fetch_add(1);
    if (sleepers.load() > 0) signal(wake);
    drain(0);
    await();
  }

  void await() {
    for (int i = 0; i < kSpins; i++) {
      if (remaining.load() == 0) return;
      _mm_pause();
    }
    std::unique_lock lock(mutex);
    caller_sleeps.store(true);
    done.wait(lock, [&] { return remaining.load() == 0; });
    caller_sleeps.store(false);
  }

  // The job: written by run() while no range is open, read after a claim, which keeps the job from ending.
  const std::function<void(int64_t, int64_t)>* fn = nullptr;
  int64_t grain = 1, total = 0;
  std::vector<Share> shares;

  std::atomic<int64_t> least{1};      // units of a claim
  std::atomic<int64_t> remaining{0};  // units not yet computed
  std::atomic<uint32_t> epoch{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> stop{false};
  std::mutex mutex;  // guards the two waits only; their conditions are atomics
  std::condition_variable wake, done;
  std::vector<std::thread> workers;
};

ThreadTeam::ThreadTeam(int n_threads) : impl_(std::make_unique<Impl>(n_threads)) {}
ThreadTeam::~ThreadTeam() = default;

int ThreadTeam::size() const {
  return static_cast<int>(impl_->shares.size());
}

void ThreadTeam::run(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& fn) {
  impl_->run(n, grain, fn);
}

}  // namespace carrel
