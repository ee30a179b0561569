// What the files of the disk tier share: extent_store.cpp (opening, leases, reading, removal), extent_put.cpp, extent_scan.cpp. Nobody else
// includes it.
//
// Locks, in their order: write_mutex_ (who moves data or changes the set of segments), index_mutex_ (extents.db), mutex_ (everything in
// memory; never held over I/O). An entry is visible (in map_), or in graveyard_: first its row goes, then its header, then its space.
#pragma once
#include <atomic>
#include <set>
#include <thread>
#include <unordered_map>

#include "base/mutex.h"
#include "storage/extent.h"
#include "storage/extent_index.h"
#include "storage/extent_store.h"
#include "storage/segment_files.h"

namespace carrel {

struct ExtentEntry {
  std::atomic<int> n_leases{0};    // first: beside the reference count
  ExtentRow row;                   // its usage is the one at creation
  std::shared_ptr<Region> region;  // null: the row's bytes were not there at open
  // Guarded by Impl::mutex_:
  ExtentUsage usage;
  bool touched = false;   // usage differs from the index; in touched_
  bool row_gone = false;  // durably, or there never was one
};
using EntryPtr = std::shared_ptr<ExtentEntry>;

uint64_t stamp_of(const ExtentHeader& header);
ExtentRow row_of(const ExtentHeader& header, int64_t now_ms);
/// kCorrupt unless the header is that of the row.
Status check_header(const ExtentRow& row, const ExtentHeader& header);

class ExtentStore::Impl {
 public:
  Impl(Env* env, ExtentStoreConfig config);
  ~Impl();
  Status open();

  std::vector<Result<PutOutcome>> put(std::span<const std::shared_ptr<const AlignedBytes>> extents) CARREL_EXCLUDES(write_mutex_);
  std::optional<ExtentRow> find(const ExtentId& id);
  std::vector<ExtentRow> rows(const std::string& namespace_id);
  std::vector<ExtentLease> lease(std::span<const ExtentId> ids);
  std::vector<Result<ExtentBytes>> read(std::span<const ExtentLease> leases, int64_t deadline_ns);
  void quarantine(const EntryPtr& entry, const Error& why);
  Result<uint64_t> erase(std::span<const ExtentId> ids);
  Result<std::vector<ExtentId>> sweep();
  Result<ExtentPurge> purge(const std::string& namespace_id, int64_t deadline_ns);
  bool pin(const ExtentId& id, int64_t until_ms);
  void touch(std::span<const ExtentId> ids);
  void set_namespace_limit(const std::string& namespace_id, std::optional<uint64_t> bytes);
  uint64_t namespace_room(const std::string& namespace_id);
  Result<ExtentVerify> verify(const std::function<bool(uint64_t, uint64_t)>& progress);
  Status maintain();
  ExtentStoreStats stats();
  ExtentLedger ledger();
  uint64_t next_sequence() { return sequence_++; }

 private:
  struct Incoming;  // one extent on its way through put
  struct Run;       // neighbours that are read together
  struct Orphans {
    uint64_t n = 0, bytes = 0, scanned_bytes = 0, n_of_namespace = 0;
  };
  using Work = ExtentStoreStats::Work;

  // Opening.
  void adopt_rows(std::vector<ExtentRow> rows);
  void work_in_background();

  // Index and removal.
  Status bury_rows() CARREL_REQUIRES(index_mutex_);
  Status drain() CARREL_REQUIRES(write_mutex_);
  void scrub(std::span<const EntryPtr> entries);
  Status sync_scrubs() CARREL_EXCLUDES(mutex_);
  Status write_usage(size_t most) CARREL_EXCLUDES(index_mutex_, mutex_);
  void account(const ExtentRow& row, int sign) CARREL_REQUIRES(mutex_);
  void hide(const EntryPtr& entry) CARREL_REQUIRES(mutex_);
  void show(const EntryPtr& entry) CARREL_REQUIRES(mutex_);
  void note_use(const EntryPtr& entry, int64_t now_ms) CARREL_REQUIRES(mutex_);
  uint64_t dead_bytes() const CARREL_REQUIRES(mutex_);
  uint64_t room(const std::string& namespace_id) const CARREL_REQUIRES(mutex_);
  Work work();

  // put.
  Status ready_to_put() CARREL_REQUIRES(write_mutex_);
  Result<std::optional<PutOutcome>> admit(Incoming& in, std::set<std::pair<Digest, uint64_t>>& seen) CARREL_REQUIRES(write_mutex_);
  void place(std::vector<Incoming>& batch) CARREL_REQUIRES(write_mutex_);
  void write(std::vector<Incoming>& batch) CARREL_REQUIRES(write_mutex_);
  void commit(std::vector<Incoming>& batch) CARREL_REQUIRES(write_mutex_);
  void count(const Result<PutOutcome>& result, const std::string& namespace_id) CARREL_REQUIRES(mutex_);

  // Reading and scanning.
  std::vector<Run> plan_reads(std::span<const ExtentLease> leases);
  Result<std::shared_ptr<AlignedBytes>> read_place(const Place& place, int64_t deadline_ns);
  Status rebuild();
  Status rebuild_segment(uint32_t number, uint32_t n_units);
  std::vector<std::pair<uint32_t, ExtentHeader>> find_headers(uint32_t number, uint32_t n_units);
  Result<EntryPtr> try_extent(uint32_t number, uint32_t unit, const ExtentHeader& header);
  Orphans sweep_free_space(const std::string& namespace_id);
  void sweep_free_run(const std::shared_ptr<Region>& run, const std::string& namespace_id, uint32_t& counted, Orphans& found);
  void verify_row(const ExtentId& id, ExtentVerify& out);
  int64_t scan_deadline() { return env_->mono_ns() + config_.scan_deadline_ms * 1'000'000; }

  Env* env_;
  const ExtentStoreConfig config_;
  BlockIo io_;
  SegmentFiles files_;
  std::atomic<uint64_t> sequence_{1};
  std::atomic<bool> stopping_{false};
  bool opened_ = false;
  std::atomic<bool> unclean_{false};  // something may lie on disk that no row knows

  Mutex write_mutex_;
  Mutex index_mutex_;
  ExtentIndex index_ CARREL_GUARDED_BY(index_mutex_);
  Mutex mutex_;
  CondVar stop_;
  std::unordered_map<ExtentId, EntryPtr, ExtentIdHash> map_ CARREL_GUARDED_BY(mutex_);
  std::vector<EntryPtr> graveyard_ CARREL_GUARDED_BY(mutex_);
  std::set<uint32_t> unsynced_ CARREL_GUARDED_BY(mutex_);  // segments with overwritten headers
  std::vector<EntryPtr> touched_ CARREL_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> used_ CARREL_GUARDED_BY(mutex_);  // by namespace: visible and dead
  std::map<std::string, uint64_t> limits_ CARREL_GUARDED_BY(mutex_);
  std::set<std::string> purging_ CARREL_GUARDED_BY(mutex_);
  ExtentLedger ledger_ CARREL_GUARDED_BY(mutex_);  // of visible rows; the rest is filled in when asked
  ExtentStoreStats stats_ CARREL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace carrel
