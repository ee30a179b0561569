// The open connections and how long each may take for what it is doing. A peer that sends one byte now and then keeps every deadline between bytes and
// would hold its thread for ever; here the whole of a handshake, a request head or a body has one deadline, and a stop ends what is left.
//
// Threads: any. A connection is served by one thread from its first byte to its close, so the calling thread is its name. The one watcher thread
// shuts the socket down and never closes it: the thread that serves it sees the end of the stream and cleans up.
#pragma once
#include <chrono>
#include <thread>
#include <unordered_map>

#include "base/mutex.h"

namespace carrel {

class Connections {
 public:
  using Seconds = std::chrono::seconds;

  Connections();
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  /// This thread serves fd from now on; a second call for the same thread changes nothing. After close_all the socket is shut down at once.
  void add(int fd, Seconds limit) CARREL_EXCLUDES(mu_);
  /// What this thread's connection does next must end within the limit.
  void limit(Seconds limit) CARREL_EXCLUDES(mu_);
  /// What it does next has a deadline of its own (a request in work).
  void no_limit() CARREL_EXCLUDES(mu_);
  /// Called before the descriptor is closed: the number may then be another connection's.
  void remove() CARREL_EXCLUDES(mu_);
  void close_all() CARREL_EXCLUDES(mu_);

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    int fd;
    Clock::time_point deadline;
  };

  void watch() CARREL_EXCLUDES(mu_);
  void set(Clock::time_point deadline) CARREL_EXCLUDES(mu_);

  Mutex mu_;
  CondVar changed_;
  std::unordered_map<std::thread::id, Entry> open_ CARREL_GUARDED_BY(mu_);
  bool closing_ CARREL_GUARDED_BY(mu_) = false;
  bool stop_ CARREL_GUARDED_BY(mu_) = false;
  std::thread watcher_;
};

}  // namespace carrel
