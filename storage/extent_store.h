// The disk tier: sealed extents in segment files, their rows in extents.db. Disposable and never wrong: what cannot be read, parsed or
// recognised is a miss and gone.
//
// Order of a write: data, sync, row, visible. Of a removal: invisible, row (durably), readers, header overwritten, space free. So each row
// that is visible after a crash has its bytes; bytes without a row are found after an unclean end, counted and overwritten.
//
// Threads: put by one thread at a time; everything else by any. put, erase, sweep and purge wait for each other; lease, find, rows, stats
// and quarantine wait for no data. With `background` a thread of its own does what an opening left to do (maintain). Ownership: leases die
// before the store. Times: deadlines as Env::mono_ns, life times as Env::wall_ms. Knows no keys: content is checked by who opens the parts,
// and by ExtentStoreConfig::check where that is set.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/env.h"
#include "storage/extent_row.h"

namespace carrel {

/// Whether the bytes are what the row says and open with their namespace's key. Any thread, several at once.
using ExtentCheck = std::function<Status(const ExtentRow&, std::span<const std::byte>)>;

struct ExtentStoreConfig {
  std::string dir;
  uint64_t max_bytes = 0;        // of all segment files: what the tier takes from the disk, the index apart
  uint64_t reserve_bytes = 0;    // of the file system, kept free by others' needs
  uint64_t namespace_bytes = 0;  // of each namespace, unless set_namespace_limit says otherwise; 0: no limit of its own
  int64_t ttl_ms = 0;            // since the last use; 0: for ever
  uint64_t segment_bytes = uint64_t{256} << 20;
  uint64_t growth_bytes = uint64_t{16} << 20;
  int64_t write_deadline_ms = 30'000;
  int64_t scan_deadline_ms = 30'000;  // of one read of a scan
  bool plain_io = false;              // no io_uring
  bool background = true;             // maintain() in a thread of the store's own
  ExtentCheck check;                  // for rebuild and verify
};

/// Bytes of one extent; several may share an owner.
struct ExtentBytes {
  std::shared_ptr<const AlignedBytes> owner;
  std::span<const std::byte> bytes;
};

enum class PutOutcome { kStored, kAdopted /* it was there already, or came first */ };

class ExtentStore;
struct ExtentEntry;

/// While it lives, its extent's bytes stay where they are, even when the row is gone. Move-only.
class ExtentLease {
 public:
  ExtentLease() = default;
  ExtentLease(ExtentLease&& o) noexcept : entry_(std::move(o.entry_)) {}
  ExtentLease& operator=(ExtentLease&& o) noexcept;
  ~ExtentLease();
  explicit operator bool() const { return entry_ != nullptr; }
  /// Its usage is that of the time when it was stored.
  const ExtentRow& row() const;

 private:
  friend class ExtentStore;
  explicit ExtentLease(std::shared_ptr<ExtentEntry> entry);
  std::shared_ptr<ExtentEntry> entry_;
};

struct ExtentVerify {
  uint64_t n_rows = 0, n_bytes = 0;  // read and checked
  uint64_t n_bad = 0;                // quarantined now
  uint64_t n_skipped = 0;            // gone meanwhile, or not read in time
  uint64_t n_orphans = 0, orphan_bytes = 0;
  int64_t n_index_rows = 0;           // of extents.db
  int64_t n_visible = 0;              // rows that the store shows, afterwards
  std::vector<std::string> findings;  // the first of what was bad
  std::vector<std::string> foreign;   // files in the folder that are not the store's
  bool clean() const { return n_bad == 0 && n_skipped == 0 && n_orphans == 0 && n_index_rows == n_visible; }
};

struct ExtentPurge {
  uint64_t n_rows = 0, n_bytes = 0;         // gone
  uint64_t n_leased = 0;                    // of these, still leased at the deadline: invisible, not yet overwritten
  uint64_t scanned_bytes = 0, n_found = 0;  // the proof: free space read for headers of the namespace
  int64_t n_index_rows = 0;                 // of the namespace, in extents.db afterwards
};

struct ExtentStoreStats {
  uint64_t n_rows = 0, row_bytes = 0;  // visible
  uint64_t dead_bytes = 0;             // invisible, not free yet: leased, or their rows not durably removed
  uint64_t file_bytes = 0;             // of all segment files; at most max_bytes
  uint64_t free_bytes = 0;             // in them
  uint64_t max_bytes = 0, disk_free_bytes = 0;
  uint64_t n_segments = 0;
  uint64_t n_stored = 0, n_adopted = 0, n_refused = 0 /* budget, limits */, n_no_space = 0, n_io_failed = 0;  // extents given to put
  uint64_t n_read = 0, read_bytes = 0, n_read_failed = 0, n_read_late = 0;
  uint64_t n_quarantined = 0, n_erased = 0, n_expired = 0;
  uint64_t n_lost_rows = 0;                  // at open: their segment or bytes were not there
  uint64_t n_orphans = 0, orphan_bytes = 0;  // found and overwritten
  uint64_t n_rebuilt = 0;                    // rows, from headers
  uint64_t n_scrubs_failed = 0;
  uint64_t n_io_given_up = 0, n_io_hung = 0;  // operations past their deadline; of these, still under way
  enum class Work { kNone, kRebuild, kReclaim } work = Work::kNone;
  uint64_t work_done_bytes = 0, work_total_bytes = 0;
  std::string alert;         // why the last attempt to write failed; empty after one that did not
  std::string index_broken;  // why the index was set aside at open
  std::vector<std::string> foreign;
  std::string io;  // "io_uring", "plain"
  bool direct = false;
};

/// Every byte of the segment files once: headers and padding of extents are under `overhead_bytes`.
struct ExtentLedger {
  std::map<std::string, uint64_t> by_namespace;  // whole extents, visible ones
  std::map<uint8_t, uint64_t> by_kind;           // rows of visible extents
  uint64_t overhead_bytes = 0;
  uint64_t dead_bytes = 0, free_bytes = 0, segment_header_bytes = 0;
  uint64_t file_bytes = 0;
};

class ExtentStore {
 public:
  /// Rows are there when this returns, unless the index must be rebuilt (then they appear as maintain finds them, and put refuses).
  /// Errors: kInvalidArgument (configuration), kUnavailable (another process has the store), kDenied (a link), kIo, kExhausted.
  static Result<std::unique_ptr<ExtentStore>> open(Env* env, ExtentStoreConfig config);
  /// Removals are finished and usage is written; the next open knows that nothing is orphaned.
  ~ExtentStore();

  /// For seal_extent: larger than that of any extent in the store.
  uint64_t next_sequence();

  /// Sealed extents, as seal_extent made them; one result each. The owners live until the device is done with them. Errors:
  /// kExhausted: `where` says of what: "max_bytes" or a namespace's id (make room, with erase), or the folder (the disk is full);
  /// kIo, kDeadline: nothing of it is visible, its space comes back; kUnavailable: the index is being rebuilt or cannot be written;
  /// kCancelled: its namespace is being purged; kInvalidArgument, kCorrupt: no extent.
  std::vector<Result<PutOutcome>> put(std::span<const std::shared_ptr<const AlignedBytes>> extents);

  std::optional<ExtentRow> find(const ExtentId& id);
  /// Everything visible, of one namespace or (empty) of all.
  std::vector<ExtentRow> rows(const std::string& namespace_id = {});
  /// Empty when there is no such row.
  ExtentLease lease(const ExtentId& id);
  /// From the first on, as long as they are there.
  std::vector<ExtentLease> lease(std::span<const ExtentId> ids);
  /// One result per lease; neighbours on disk are read together. The header is that of the row, nothing else is checked. An extent that
  /// cannot be read or is another is quarantined (kCorrupt, kIo); kDeadline: not in time, the row stays.
  std::vector<Result<ExtentBytes>> read(std::span<const ExtentLease> leases, int64_t deadline_ns);
  /// Gone at once and for good; `why` goes to the log.
  void quarantine(const ExtentLease& lease, const Error& why);

  /// How many were there. They are invisible when this returns, whatever the result; an error: their rows could not be removed
  /// durably and their space is not free yet (the next put, erase or sweep tries again).
  Result<uint64_t> erase(std::span<const ExtentId> ids);
  /// Removes what was not used for the TTL and is not pinned, and finishes earlier removals; answers what went. Writes usage.
  Result<std::vector<ExtentId>> sweep();
  /// Removes the namespace's extents, waits for their readers, overwrites and proves. While it runs, put refuses the namespace.
  Result<ExtentPurge> purge(const std::string& namespace_id, int64_t deadline_ns);
  /// False: there is no such row.
  bool pin(const ExtentId& id, int64_t until_ms);
  /// Use without reading, e.g. a hit in a tier above.
  void touch(std::span<const ExtentId> ids);

  /// 0: nothing is stored; nullopt: the configuration's namespace_bytes.
  void set_namespace_limit(const std::string& namespace_id, std::optional<uint64_t> bytes);
  /// Bytes that put could store for the namespace before its limit; UINT64_MAX: no limit.
  uint64_t namespace_room(const std::string& namespace_id);

  /// Reads and checks everything. Called after each extent with rows done and rows in all; false ends it early.
  Result<ExtentVerify> verify(const std::function<bool(uint64_t, uint64_t)>& progress = {});
  /// What the opening left to do: rebuilds the index, overwrites orphans. Only for stores without `background`; once is enough.
  Status maintain();

  ExtentStoreStats stats();
  ExtentLedger ledger();

 private:
  class Impl;
  explicit ExtentStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace carrel
