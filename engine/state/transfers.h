// Moving state between the device and the tiers below it: what one restore and one write are, and the threads that do them.
//
// Both have three parts. Planned under the state manager's lock: pages taken, records leased, copies pinned. Run without it: bytes are
// read, opened, sealed, written; nothing that another thread could change is touched. Finished under the lock: published, attached, given
// back. Without threads (StateConfig::transfer_threads 0) the caller that wants a restore runs it, and copies are made when records are
// evicted; the table sees the same calls.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/state/block_extent.h"
#include "engine/state/page_pool.h"
#include "engine/state/record.h"
#include "engine/state/state_manager.h"
#include "storage/extent_store.h"

namespace carrel {

/// A prefix on its way back to the device: all of it or nothing.
struct Restore {
  struct Part {
    int group = 0;
    PageHandle page;
    Digest digest{};
    Status status;  // once run
  };
  struct Item {              // one extent
    Block* block = nullptr;  // while not revoked
    BlockToOpen what;
    std::shared_ptr<const AlignedBytes> host;  // or
    ExtentLease disk;
    std::vector<Part> parts;
  };
  int ns = 0;
  uint32_t epoch = 0;
  Match match;                // as it was found: making room may shorten what is nominal
  int64_t n_blocks = 0;       // that the request may then resume at
  Digest last{};              // key of the last of them
  std::vector<Item> items;    // the logs first, in the order of the prefix
  std::vector<Lease> leases;  // what was on the device already; then what was published
  std::shared_ptr<const ExtentKey> key;
  int64_t n_bytes = 0, n_disk_bytes = 0, n_tokens = 0;  // tokens: of blocks of which something is restored
  int64_t planned_ns = 0, deadline_ns = 0, run_ns = 0;
  bool revoked = false;  // a purge, an epoch or a quarantine came between: nothing of it is used
  enum class State { kPlanned, kReady, kFailed } state = State::kPlanned;
  int64_t expires_ns = 0;  // ready ones that nobody came for

  bool failed() const;
};

/// Reads and opens everything. Touches no block, no lease.
void run_restore(Restore& restore, const ModelState& model, ExtentStore* disk);

/// What moving and computing took so far: restore or compute is decided by it. Until something was measured a restore is thought quicker.
/// Guarded by its owner.
class TransferRates {
 public:
  void restored(int64_t n_bytes, int64_t ns, bool from_disk) { mix(from_disk ? disk_ : host_, n_bytes, ns); }
  void computed(int64_t n_tokens, int64_t ns) { mix(compute_, n_tokens, ns); }
  /// A restore was not tried: what made it look slow may pass, so that it is tried again some time.
  void declined() { host_ *= 0.9, disk_ *= 0.9; }
  double restore_ns(int64_t n_bytes, bool from_disk) const { return static_cast<double>(n_bytes) * (from_disk ? disk_ : host_); }
  double compute_ns(int64_t n_tokens) const { return compute_ == 0 ? 1e18 : static_cast<double>(n_tokens) * compute_; }

 private:
  static void mix(double& rate, int64_t n, int64_t ns) {
    if (n <= 0 || ns <= 0) return;
    const double now = static_cast<double>(ns) / static_cast<double>(n);
    rate = rate == 0 ? now : 0.8 * rate + 0.2 * now;
  }
  double host_ = 0, disk_ = 0, compute_ = 0;  // ns per byte, per token
};

/// Threads that call `work` while there is some. work() answers whether it did anything.
class TransferThreads {
 public:
  TransferThreads(int n, std::function<bool()> work);
  ~TransferThreads();  // ends after the work under way
  void wake();

 private:
  std::mutex mu_;  // guards rung_ and stopping_
  std::condition_variable bell_;
  uint64_t rung_ = 0;
  bool stopping_ = false;
  std::function<bool()> work_;
  std::vector<std::thread> threads_;
};

}  // namespace carrel
