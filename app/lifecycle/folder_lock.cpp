#include "app/lifecycle/folder_lock.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace carrel {

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

Result<FolderLock> FolderLock::take(const std::string& folder) {
  const std::string path = folder + "/serve.lock";
  FolderLock lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.fd_ < 0) return fail(Code::kIo, std::string("cannot open: ") + strerror(errno), path);
  if (::flock(lock.fd_, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return fail(Code::kIo, std::string("cannot lock: ") + strerror(errno), path);
  return fail(Code::kUnavailable,
              "another `carrel serve` runs on this data folder; stop it first, or give this one a folder of its own with --data", folder);
}

}  // namespace carrel
