// A mutex, its lock and a condition variable that clang's thread-safety analysis understands: write CARREL_GUARDED_BY(mutex_)
// beside each member that a mutex guards, and clang refuses an access without the lock. Other compilers see plain code.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#if defined(__clang__)
#define CARREL_TSA(x) __attribute__((x))
#else
#define CARREL_TSA(x)
#endif
#define CARREL_GUARDED_BY(m) CARREL_TSA(guarded_by(m))
#define CARREL_REQUIRES(...) CARREL_TSA(requires_capability(__VA_ARGS__))
#define CARREL_EXCLUDES(...) CARREL_TSA(locks_excluded(__VA_ARGS__))

namespace carrel {

class CARREL_TSA(capability("mutex")) Mutex {
 public:
  void lock() CARREL_TSA(acquire_capability()) { mutex_.lock(); }
  void unlock() CARREL_TSA(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

/// Holds the mutex for the life of the object.
class CARREL_TSA(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CARREL_TSA(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() CARREL_TSA(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Waits may end early; call them in a loop over the condition.
class CondVar {
 public:
  void wait(Mutex& mutex) CARREL_REQUIRES(mutex) { cv_.wait(mutex); }
  void wait_ms(Mutex& mutex, int64_t ms) CARREL_REQUIRES(mutex) { cv_.wait_for(mutex, std::chrono::milliseconds(ms)); }
  void notify_one() { cv_.notify_one(); }
  void notify_all() { cv_.notify_all(); }

 private:
  std::condition_variable_any cv_;
};

}  // namespace carrel
