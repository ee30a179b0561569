#include "app/api/connections.h"

#include <sys/socket.h>

namespace carrel {

constexpr int64_t kTickMs = 250;

Connections::Connections() : watcher_([this] { watch(); }) {}

Connections::~Connections() {
  {
    MutexLock lock(mu_);
    stop_ = true;
  }
  changed_.notify_all();
  watcher_.join();
}

void Connections::add(int fd, Seconds limit) {
  MutexLock lock(mu_);
  const auto [entry, is_new] = open_.try_emplace(std::this_thread::get_id(), Entry{fd, Clock::now() + limit});
  if (is_new && closing_) ::shutdown(fd, SHUT_RDWR);
  if (open_.size() == 1) changed_.notify_all();
}

void Connections::set(Clock::time_point deadline) {
  MutexLock lock(mu_);
  if (const auto entry = open_.find(std::this_thread::get_id()); entry != open_.end()) entry->second.deadline = deadline;
}

void Connections::limit(Seconds limit) { set(Clock::now() + limit); }
void Connections::no_limit() { set(Clock::time_point::max()); }

void Connections::remove() {
  MutexLock lock(mu_);
  open_.erase(std::this_thread::get_id());
}

void Connections::close_all() {
  MutexLock lock(mu_);
  closing_ = true;
  for (const auto& [thread, entry] : open_) ::shutdown(entry.fd, SHUT_RDWR);
}

void Connections::watch() {
  MutexLock lock(mu_);
  while (!stop_) {
    if (open_.empty()) {
      changed_.wait(mu_);
      continue;
    }
    const auto now = Clock::now();
    for (auto& [thread, entry] : open_) {
      if (entry.deadline > now) continue;
      ::shutdown(entry.fd, SHUT_RDWR);
      entry.deadline = Clock::time_point::max();
    }
    changed_.wait_ms(mu_, kTickMs);
  }
}

}  // namespace carrel
