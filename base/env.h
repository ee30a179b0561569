// The only door to files, clocks and randomness, so that tests can inject faults and time.
//
// Threads: every method may be called from any thread. File objects are used by one thread at a time, except read_at,
// which may run concurrently. Ownership: Env outlives the files it opened.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace carrel {

using Bytes = std::vector<std::byte>;

class File {
 public:
  virtual ~File() = default;
  /// Reads up to out.size() bytes at the offset; fewer only at the end of the file.
  virtual Result<size_t> read_at(uint64_t offset, std::span<std::byte> out) = 0;
  virtual Status write_at(uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual Status truncate(uint64_t size) = 0;
  /// Data and size are durable when this returns.
  virtual Status sync() = 0;
  virtual Result<uint64_t> size() = 0;
  /// The first `size` bytes, mapped read-only for as long as the File lives; empty where the File cannot map: read it then. Nobody may
  /// cut the file meanwhile.
  virtual std::span<const std::byte> map(uint64_t size) {
    (void)size;
    return {};
  }
  /// The file is at least `size` bytes long and its blocks exist, so that a later write below it finds space. kExhausted: the disk is full.
  virtual Status reserve(uint64_t size) {
    CARREL_ASSIGN(const uint64_t now, this->size());
    return now >= size ? Status{} : truncate(size);
  }
  /// The system's descriptor, for block queues; -1 where there is none.
  virtual int descriptor() const { return -1; }
  /// Goes past the page cache: offsets, lengths and buffers are multiples of 4 KiB.
  virtual bool direct() const { return false; }
  /// From now on through the page cache, for a file system that took O_DIRECT and then refuses the access.
  virtual void leave_direct() {}
};

enum class Open { kRead, kReadWrite, kCreate /* read-write, made when absent */, kCreateNew /* fails when present */ };

class BlockQueue;

class Env {
 public:
  virtual ~Env() = default;

  virtual Result<std::unique_ptr<File>> open(const std::string& path, Open mode) = 0;
  /// As open, but never through a symbolic link (kDenied), and past the page cache where the file system can: File::direct.
  virtual Result<std::unique_ptr<File>> open_blocks(const std::string& path, Open mode) { return open(path, mode); }
  /// For at most `depth` operations at once. plain: without io_uring even where the kernel has it.
  virtual std::unique_ptr<BlockQueue> block_queue(size_t depth, bool plain);
  /// Space that this process could still fill on the file system of the folder; an environment without a limit says 2^63.
  virtual Result<uint64_t> free_bytes(const std::string& /*dir*/) { return uint64_t{1} << 63; }
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  virtual Status remove(const std::string& path) = 0;
  virtual Status remove_all(const std::string& path) = 0;
  virtual Status make_dirs(const std::string& path) = 0;
  /// Makes renames and creations in the folder durable.
  virtual Status sync_dir(const std::string& path) = 0;
  virtual Result<std::vector<std::string>> list(const std::string& dir) = 0;  // names, sorted
  virtual bool exists(const std::string& path) = 0;
  virtual bool is_dir(const std::string& path) = 0;
  /// Permission bits; an environment without permissions accepts and ignores them.
  virtual Status set_mode(const std::string& /*path*/, int /*mode*/) { return {}; }
  /// Absolute, without links; an environment without links answers what it was given. The path must exist.
  virtual Result<std::string> canonical(const std::string& path) { return path; }

  virtual int64_t wall_ms() = 0;  // Unix time; for showing and expiry
  virtual int64_t mono_ns() = 0;  // for ages and deadlines
  virtual void sleep_ms(int64_t ms) = 0;
  virtual void random(std::span<std::byte> out) = 0;  // cryptographic

  /// The real machine. Lives for the whole process.
  static Env* real();
};

/// A whole file; refuses one larger than max_bytes.
Result<std::string> read_file(Env* env, const std::string& path, uint64_t max_bytes = uint64_t{1} << 30);
/// Temporary file, sync, rename, sync of the folder: after a crash the old or the new content is there, whole.
Status write_file_atomic(Env* env, const std::string& path, std::string_view content, int mode = 0600);

/// make_dirs, and every new folder's name is durable.
Status make_dirs_durable(Env* env, const std::string& path);
/// "a" of "a/b", "." of "b", "/" of "/b".
std::string folder_of(const std::string& path);

}  // namespace carrel
