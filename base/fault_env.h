// An Env for tests: files in memory, a disk that forgets what was not synced, faults at a chosen call, a clock that the test moves.
//
// The model of the disk is harsher than a journaling file system. A write or resize is durable only after File::sync; a creation,
// rename, removal or new folder only after sync_dir of the folder that holds the name. Between those points a power loss keeps any
// part: none, all, or a random choice in which one write may reach the disk torn at 512-byte borders, and names of one folder
// change in their order up to a random point. A renamed folder takes along what its own sync_dir made durable. Handles from before a
// power loss fail for ever.
//
// Block queues: a submission is one call, a completion is another; what the operation does happens at its completion, and completions come
// in the opposite order. An operation that hangs happens when the clock has moved far enough, or (kHang at its completion) has happened and
// says so only then; waiting for it moves the clock.
//
// Counting: every call that touches a file or folder is one call; those that change something are also one mutation.
// Threads: any; one mutex guards everything. Never linked into the product's own paths: nothing outside tests makes one.
#pragma once
#include <map>
#include <random>
#include <set>

#include "base/env.h"
#include "base/mutex.h"

namespace carrel {

class FaultEnv final : public Env {
 public:
  enum class Fault { kIo, kNoSpace, kShortRead, kHang /* block queues: late by set_hang_ms */ };
  enum class Loss { kUnsynced /* power loss, nothing unsynced survives */, kNone /* the process died, the machine did not */, kRandom };

  explicit FaultEnv(uint64_t seed = 1);
  ~FaultEnv() override;

  /// The nth call from now (1 = the next) fails once with the fault. A fault that does not fit the call (kShortRead: reads;
  /// kNoSpace: writes, resizes, creations; exists and is_dir, which cannot say it) lets it pass and is then spent.
  void fail_at(uint64_t nth_call, Fault fault);
  /// The nth mutation from now fails, and every later call, until power_loss. When it is a write, its bytes are on their way to
  /// the disk like any unsynced ones; anything else did not happen.
  void crash_at(uint64_t nth_mutation);
  /// The machine comes back with what the loss left. Clears crash_at and fail_at.
  void power_loss(Loss loss);
  bool crashed() const;
  uint64_t n_calls() const;
  uint64_t n_mutations() const;
  /// Changes one stored bit behind everyone's back, durably.
  Status flip_bit(const std::string& path, uint64_t bit);

  /// How late an operation is that hangs from now on; without this, for ever.
  void set_hang_ms(int64_t ms);
  /// All files together may hold so many bytes; what would grow beyond fails with kExhausted. UINT64_MAX: no limit.
  void limit_space(uint64_t total_bytes);

  /// Both clocks go on.
  void advance_ms(int64_t ms);
  /// Somebody sets the wall clock; the monotonic one does not notice.
  void jump_wall_ms(int64_t ms);

  Result<std::unique_ptr<File>> open(const std::string& path, Open mode) override;
  std::unique_ptr<BlockQueue> block_queue(size_t depth, bool plain) override;
  Result<uint64_t> free_bytes(const std::string& dir) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Status remove_all(const std::string& path) override;
  Status make_dirs(const std::string& path) override;
  Status sync_dir(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& dir) override;
  bool exists(const std::string& path) override;
  bool is_dir(const std::string& path) override;
  int64_t wall_ms() override;
  int64_t mono_ns() override;
  void sleep_ms(int64_t ms) override;              // returns at once; both clocks have moved
  void random(std::span<std::byte> out) override;  // repeatable from the seed

 private:
  struct Change;  // one unsynced write or resize
  struct Node;    // a file's content: live, durable, changes between
  struct NameOp;  // one change of a name that its folder has not synced
  struct Names;   // path → Node, and the set of folders
  class Handle;
  class Queue;

  enum class Call { kLook, kChange, kGrow /* a change that needs space */ };
  Status enter(Call call, const std::string& path, Fault* soft = nullptr) CARREL_REQUIRES(mutex_);
  bool hangs_next() const CARREL_REQUIRES(mutex_);
  uint64_t used_bytes() const CARREL_REQUIRES(mutex_);
  void record(NameOp op) CARREL_REQUIRES(mutex_);
  void lose(Node& node, Loss loss) CARREL_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::unique_ptr<Names> live_ CARREL_GUARDED_BY(mutex_);
  std::unique_ptr<Names> durable_ CARREL_GUARDED_BY(mutex_);
  std::vector<NameOp> ops_ CARREL_GUARDED_BY(mutex_);
  std::mt19937_64 rng_ CARREL_GUARDED_BY(mutex_);
  uint64_t epoch_ CARREL_GUARDED_BY(mutex_) = 0;  // of power losses
  uint64_t calls_ CARREL_GUARDED_BY(mutex_) = 0;
  uint64_t mutations_ CARREL_GUARDED_BY(mutex_) = 0;
  uint64_t fail_call_ CARREL_GUARDED_BY(mutex_) = 0;       // 0: none
  uint64_t crash_mutation_ CARREL_GUARDED_BY(mutex_) = 0;  // 0: none
  Fault fault_ CARREL_GUARDED_BY(mutex_) = Fault::kIo;
  bool crashed_ CARREL_GUARDED_BY(mutex_) = false;
  int64_t hang_ms_ CARREL_GUARDED_BY(mutex_) = INT64_MAX;
  uint64_t space_bytes_ CARREL_GUARDED_BY(mutex_) = UINT64_MAX;
  int64_t wall_ms_ CARREL_GUARDED_BY(mutex_) = 1'800'000'000'000;
  int64_t mono_ns_ CARREL_GUARDED_BY(mutex_) = 1'000'000'000;
};

}  // namespace carrel
