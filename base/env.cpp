#include "base/env.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>

#include "base/block_queue.h"

namespace carrel {
namespace {

std::unexpected<Error> sys_fail(const char* what, const std::string& path) {
  const int e = errno;
  const Code code = e == ENOENT                    ? Code::kNotFound
                    : e == EEXIST                  ? Code::kAlreadyExists
                    : (e == ENOSPC || e == EDQUOT) ? Code::kExhausted
                                                   : Code::kIo;
  return fail(code, std::string(what) + ": " + strerror(e), path);
}

class RealFile final : public File {
 public:
  RealFile(int fd, std::string path, bool direct) : fd_(fd), path_(std::move(path)), direct_(direct) {}
  ~RealFile() override {
    if (map_ != nullptr) ::munmap(map_, map_bytes_);
    ::close(fd_);
  }

  Result<size_t> read_at(uint64_t offset, std::span<std::byte> out) override {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n = ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && (errno == EINTR || retry_cached())) continue;
      if (n < 0) return sys_fail("cannot read", path_);
      if (n == 0) break;
      done += static_cast<size_t>(n);
    }
    return done;
  }
  Status write_at(uint64_t offset, std::span<const std::byte> bytes) override {
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n = ::pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && (errno == EINTR || retry_cached())) continue;
      if (n < 0) return sys_fail("cannot write", path_);
      done += static_cast<size_t>(n);
    }
    return {};
  }
  Status truncate(uint64_t size) override {
    if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) return sys_fail("cannot resize", path_);
    return {};
  }
  Status sync() override {
    if (::fdatasync(fd_) != 0) return sys_fail("cannot sync", path_);
    return {};
  }
  Result<uint64_t> size() override {
    struct stat s;
    if (::fstat(fd_, &s) != 0) return sys_fail("cannot stat", path_);
    return static_cast<uint64_t>(s.st_size);
  }
  std::span<const std::byte> map(uint64_t size) override {
    if (map_ != nullptr || size == 0) return {};
    void* p = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd_, 0);
    if (p == MAP_FAILED) return {};
    map_ = p;
    map_bytes_ = size;
    return {static_cast<const std::byte*>(p), size};
  }
  Status reserve(uint64_t size) override {
    CARREL_ASSIGN(const uint64_t now, this->size());
    if (now >= size) return {};
    int r = 0;
    do r = ::fallocate(fd_, 0, static_cast<off_t>(now), static_cast<off_t>(size - now));
    while (r != 0 && errno == EINTR);
    if (r == 0) return {};
    if (errno == EOPNOTSUPP || errno == ENOSYS) return truncate(size);
    auto failure = sys_fail("cannot reserve space", path_);
    (void)::ftruncate(fd_, static_cast<off_t>(now));  // a part may have been reserved
    return failure;
  }
  int descriptor() const override { return fd_; }
  bool direct() const override { return direct_; }
  void leave_direct() override {
    const int flags = ::fcntl(fd_, F_GETFL);
    if (flags >= 0 && ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT) == 0) direct_ = false;
  }

 private:
  bool retry_cached() {
    const int e = errno;
    const bool retry = e == EINVAL && direct_;
    if (retry) leave_direct();
    errno = e;
    return retry && !direct_;
  }

  int fd_;
  std::string path_;
  std::atomic<bool> direct_;
  void* map_ = nullptr;
  size_t map_bytes_ = 0;
};

class RealEnv final : public Env {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path, Open mode) override { return open_with(path, mode, 0, false); }
  Result<std::unique_ptr<File>> open_blocks(const std::string& path, Open mode) override { return open_with(path, mode, O_NOFOLLOW, true); }
  std::unique_ptr<BlockQueue> block_queue(size_t depth, bool plain) override {
    auto queue = plain ? nullptr : uring_block_queue(this, depth);
    return queue ? std::move(queue) : plain_block_queue(this, depth);
  }
  Result<uint64_t> free_bytes(const std::string& dir) override {
    struct statvfs s;
    if (::statvfs(dir.c_str(), &s) != 0) return sys_fail("cannot ask for free space", dir);
    return static_cast<uint64_t>(s.f_bavail) * s.f_frsize;
  }
  Status rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return sys_fail("cannot rename", from);
    return {};
  }
  Status remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return sys_fail("cannot remove", path);
    return {};
  }
  Status remove_all(const std::string& path) override {
    std::error_code ec;
    std::filesystem::remove_all(path, ec);
    if (ec) return fail(Code::kIo, "cannot remove: " + ec.message(), path);
    return {};
  }
  Status make_dirs(const std::string& path) override {
    std::error_code ec;
    std::filesystem::create_directories(path, ec);
    if (ec) return fail(Code::kIo, "cannot create folder: " + ec.message(), path);
    return {};
  }
  Status sync_dir(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return sys_fail("cannot open folder", path);
    const int r = ::fsync(fd);
    ::close(fd);
    if (r != 0) return sys_fail("cannot sync folder", path);
    return {};
  }
  Result<std::vector<std::string>> list(const std::string& dir) override {
    DIR* d = ::opendir(dir.c_str());
    if (d == nullptr) return sys_fail("cannot list", dir);
    std::vector<std::string> names;
    while (const dirent* e = ::readdir(d)) {
      const std::string name = e->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    ::closedir(d);
    std::sort(names.begin(), names.end());
    return names;
  }
  bool exists(const std::string& path) override {
    struct stat s;
    return ::stat(path.c_str(), &s) == 0;
  }
  bool is_dir(const std::string& path) override {
    struct stat s;
    return ::stat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode);
  }
  Status set_mode(const std::string& path, int mode) override {
    if (::chmod(path.c_str(), static_cast<mode_t>(mode)) != 0) return sys_fail("cannot set the permissions", path);
    return {};
  }
  Result<std::string> canonical(const std::string& path) override {
    std::error_code ec;
    const auto full = std::filesystem::canonical(path, ec);
    if (ec) return fail(Code::kIo, "cannot resolve: " + ec.message(), path);
    return full.string();
  }
  int64_t wall_ms() override { return now_ns(CLOCK_REALTIME) / 1'000'000; }
  int64_t mono_ns() override { return now_ns(CLOCK_MONOTONIC); }
  void sleep_ms(int64_t ms) override {
    timespec t{ms / 1000, (ms % 1000) * 1'000'000};
    while (::nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
  }
  void random(std::span<std::byte> out) override {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n = ::getrandom(out.data() + done, out.size() - done, 0);
      if (n > 0) done += static_cast<size_t>(n);
      if (n < 0 && errno != EINTR) abort();  // a machine without randomness must not issue keys
    }
  }

 private:
  static Result<std::unique_ptr<File>> open_with(const std::string& path, Open mode, int extra_flags, bool direct) {
    int flags =
        O_CLOEXEC | O_NOCTTY | O_NONBLOCK | extra_flags;  // a pipe without a writer must not hold the caller; plain files do not mind
    if (mode == Open::kRead) flags |= O_RDONLY;
    if (mode == Open::kReadWrite) flags |= O_RDWR;
    if (mode == Open::kCreate) flags |= O_RDWR | O_CREAT;
    if (mode == Open::kCreateNew) flags |= O_RDWR | O_CREAT | O_EXCL;
    const int fd = ::open(path.c_str(), flags, 0600);
    if (fd < 0 && errno == ELOOP && (extra_flags & O_NOFOLLOW) != 0)
      return fail(Code::kDenied, "is a symbolic link; put a plain file in its place", path);
    if (fd < 0) return sys_fail("cannot open", path);
    struct stat s;
    if (::fstat(fd, &s) != 0) {
      auto failure = sys_fail("cannot stat", path);
      ::close(fd);
      return failure;
    }
    if (S_ISREG(s.st_mode)) {
      direct = direct && ::fcntl(fd, F_SETFL, (flags & ~(O_CREAT | O_EXCL)) | O_DIRECT) == 0;
      return std::make_unique<RealFile>(fd, path, direct);
    }
    ::close(fd);
    return fail(Code::kInvalidArgument,
                S_ISDIR(s.st_mode) ? "is a folder, not a file" : "is a pipe, socket or device; put a plain file in its place", path);
  }
  static int64_t now_ns(clockid_t id) {
    timespec t;
    ::clock_gettime(id, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  }
};

}  // namespace

std::unique_ptr<BlockQueue> Env::block_queue(size_t depth, bool /*plain*/) {
  return plain_block_queue(this, depth);
}

Env* Env::real() {
  static RealEnv env;
  return &env;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

Status make_dirs_durable(Env* env, const std::string& path) {
  std::vector<std::string> fresh;
  for (std::string d = path; !env->is_dir(d) && d != "." && d != "/"; d = folder_of(d)) fresh.push_back(d);
  CARREL_TRY(env->make_dirs(path));
  for (const std::string& d : fresh) CARREL_TRY(env->sync_dir(folder_of(d)));
  return {};
}

Result<std::string> read_file(Env* env, const std::string& path, uint64_t max_bytes) {
  CARREL_ASSIGN(auto file, env->open(path, Open::kRead));
  CARREL_ASSIGN(const uint64_t size, file->size());
  if (size > max_bytes)
    return fail(Code::kInvalidArgument, "is " + std::to_string(size) + " bytes, more than the limit of " + std::to_string(max_bytes), path);
  std::string content(size, '\0');
  CARREL_ASSIGN(const size_t n, file->read_at(0, std::as_writable_bytes(std::span(content))));
  if (n != size) return fail(Code::kIo, "gave " + std::to_string(n) + " bytes of its " + std::to_string(size), path);
  return content;
}

Status write_file_atomic(Env* env, const std::string& path, std::string_view content, int mode) {
  static std::atomic<uint64_t> serial{0};
  const std::string temp = path + ".tmp" + std::to_string(::getpid()) + "." + std::to_string(serial++);
  {
    CARREL_ASSIGN(auto file, env->open(temp, Open::kCreateNew));
    Status s = file->write_at(0, std::as_bytes(std::span(content)));
    if (s) s = file->sync();
    if (!s) {
      (void)env->remove(temp);
      return s;
    }
  }
  Status s = mode == 0600 ? Status{} : env->set_mode(temp, mode);
  if (s) s = env->rename(temp, path);
  if (!s) {
    (void)env->remove(temp);
    return s;
  }
  return env->sync_dir(folder_of(path));
}

}  // namespace carrel
