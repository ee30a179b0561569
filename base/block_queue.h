// Several reads, writes and syncs under way at once, with completions to wait for up to a deadline. io_uring where the kernel allows it,
// a few threads of plain pread and pwrite otherwise; made by Env::block_queue, so that tests inject faults at submission and completion.
//
// Threads: a queue belongs to one thread at a time. Ownership: a queue holds an operation's file and `keep` until the operation is
// complete, however long that takes, so that a buffer given up by its user is not reused under a device that still writes to it. A queue
// that dies with operations under way waits a moment for them, and then leaves their buffers allocated for ever.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/env.h"

namespace carrel {

struct BlockOp {
  enum class Kind { kRead, kWrite, kSync /* data and size, as File::sync */ };
  Kind kind = Kind::kRead;
  std::shared_ptr<File> file;
  uint64_t offset = 0;
  std::span<std::byte> bytes;        // only read from by kWrite; empty for kSync
  std::shared_ptr<const void> keep;  // owns the bytes
};

struct BlockDone {
  uint64_t id = 0;
  Result<size_t> n = size_t{0};  // bytes; may be fewer than asked for
};

class BlockQueue {
 public:
  virtual ~BlockQueue() = default;
  /// Takes the operation up; it may start with the next wait. The id is the caller's. kUnavailable: `depth` operations are under way.
  virtual Status submit(uint64_t id, BlockOp op) = 0;
  /// What has completed: at least one, unless the deadline (Env::mono_ns) passes first or nothing is under way.
  virtual Result<std::vector<BlockDone>> wait(int64_t deadline_ns) = 0;
  virtual size_t n_under_way() const = 0;
  /// "io_uring", "plain", …: for people.
  virtual const char* name() const = 0;
};

/// Does it here and now, through the calls of File. Answers the bytes read or written.
Result<size_t> execute(const BlockOp& op);

/// Threads over File::read_at, write_at and sync: works with any Env.
std::unique_ptr<BlockQueue> plain_block_queue(Env* env, size_t depth);
/// Null where the kernel refuses io_uring or one of the operations.
std::unique_ptr<BlockQueue> uring_block_queue(Env* env, size_t depth);

}  // namespace carrel
