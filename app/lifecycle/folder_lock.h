// The lock that keeps a second server off a data folder. Held by the system, so that it ends with the process however that ends; commands
// do not ask for it. Not part of Env: it is between processes, which an environment of tests does not have. Threads: any.
#pragma once
#include <string>
#include <utility>

#include "base/error.h"

namespace carrel {

class FolderLock {
 public:
  FolderLock() = default;
  FolderLock(FolderLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FolderLock();

  /// The folder must exist. kUnavailable: another one holds it.
  static Result<FolderLock> take(const std::string& folder);

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace carrel
