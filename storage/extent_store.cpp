#include "storage/extent_store.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "storage/extent_store_impl.h"

namespace carrel {
namespace {

constexpr size_t kDepth = 32;  // operations under way per batch
constexpr int64_t kRetryMs = 1000;
constexpr uint64_t kSequenceGap = uint64_t{1} << 20;  // rows that a power loss took had numbers, too

SegmentConfig segment_config(const ExtentStoreConfig& c) {
  // Few enough files to keep them all open.
  const uint64_t wished = std::max(c.segment_bytes, c.max_bytes / 256);
  return {.dir = c.dir,
          .max_bytes = c.max_bytes,
          .reserve_bytes = c.reserve_bytes,
          .segment_bytes = std::min(wished, c.max_bytes) / kUnitBytes * kUnitBytes,
          .growth_bytes = c.growth_bytes,
          .deadline_ms = c.write_deadline_ms};
}

}  // namespace

uint64_t stamp_of(const ExtentHeader& header) {
  uint64_t stamp = 0;
  for (size_t i = 0; i < 8; i++) stamp |= static_cast<uint64_t>(header.checksum[i]) << (8 * i);
  return stamp;
}

ExtentRow row_of(const ExtentHeader& header, int64_t now_ms) {
  ExtentRow row;
  row.id = {header.identity.key, header.identity.model, header.identity.layout, header.generation};
  row.parent = header.identity.parent;
  row.namespace_id = header.identity.namespace_id;
  row.position = header.identity.position;
  row.sequence = header.sequence;
  row.bytes = header.total_bytes;
  row.created_ms = row.usage.last_used_ms = now_ms;
  row.stamp = stamp_of(header);
  for (const ExtentPartInfo& p : header.parts) row.parts.push_back({p.group, p.kind, static_cast<uint32_t>(p.rows_bytes)});
  return row;
}

Status check_header(const ExtentRow& row, const ExtentHeader& header) {
  const ExtentIdentity expected{row.id.key, row.parent, row.id.model, row.id.layout, row.namespace_id, row.position};
  CARREL_TRY(check_identity(header.identity, expected));
  const bool same = header.sequence == row.sequence && header.generation == row.id.generation && stamp_of(header) == row.stamp &&
                    header.total_bytes == row.bytes;
  return same ? Status{} : fail(Code::kCorrupt, "another extent of the same identity lies where the index says");
}

// --- Opening and closing ---

ExtentStore::Impl::Impl(Env* env, ExtentStoreConfig config)
    : env_(env),
      config_(std::move(config)),
      io_(env, kDepth, config_.plain_io),
      files_(env, &io_, segment_config(config_)),
      index_(env, config_.dir) {}

Status ExtentStore::Impl::open() {
  if (config_.dir.empty() || config_.max_bytes < 2 * kUnitBytes || config_.segment_bytes < 2 * kUnitBytes)
    return fail(Code::kInvalidArgument, "the disk tier needs a folder and at least two units of 4 KiB", config_.dir);
  CARREL_TRY(make_dirs_durable(env_, config_.dir));
  CARREL_TRY(env_->set_mode(config_.dir, 0700));
  ExtentIndex::Loaded loaded;
  {
    MutexLock index(index_mutex_);
    CARREL_ASSIGN(loaded, index_.open());  // first: nobody else has the store after this
  }
  CARREL_TRY(files_.open());
  const bool empty = files_.segments().empty();
  MutexLock write(write_mutex_);
  {
    MutexLock lock(mutex_);
    stats_.index_broken = loaded.broken;
    unclean_ = files_.n_refused() != 0;
    stats_.work = loaded.rebuild ? Work::kRebuild : loaded.clean || empty ? Work::kNone : Work::kReclaim;
    stats_.work_total_bytes = files_.bytes();
  }
  if (!loaded.rebuild) adopt_rows(std::move(loaded.rows));  // what an earlier rebuild found is found again
  if (!loaded.clean) sequence_ += kSequenceGap;
  MutexLock index(index_mutex_);
  if (loaded.rebuild) CARREL_TRY(index_.replace_all({}));
  if (loaded.rebuild && empty) {
    CARREL_TRY(index_.end_rebuild());
    MutexLock lock(mutex_);
    stats_.work = Work::kNone;
  }
  opened_ = true;
  (void)bury_rows();  // lost rows; where it fails, before the next put
  if (config_.background && work() != Work::kNone) thread_ = std::thread([this] { work_in_background(); });
  return {};
}

// The latest first: where two rows claim the same bytes or are of one id, an older one came back with a lost end of the index.
void ExtentStore::Impl::adopt_rows(std::vector<ExtentRow> rows) {
  std::sort(rows.begin(), rows.end(), [](const ExtentRow& a, const ExtentRow& b) { return a.sequence > b.sequence; });
  if (!rows.empty()) sequence_ = rows.front().sequence + 1;
  const int64_t now = env_->wall_ms();
  MutexLock lock(mutex_);
  map_.reserve(rows.size());
  for (ExtentRow& row : rows) {
    auto entry = std::make_shared<ExtentEntry>();
    row.usage.last_used_ms = std::min(row.usage.last_used_ms, now);  // the clock was set back
    entry->usage = row.usage;
    entry->row = std::move(row);
    entry->region = map_.contains(entry->row.id) ? nullptr : files_.at(entry->row.place);
    used_[entry->row.namespace_id] += entry->row.bytes;
    if (entry->region) {
      show(entry);
    } else {
      graveyard_.push_back(entry);
      stats_.n_lost_rows++;
      stats_.work = Work::kReclaim;  // a part of it may be there
    }
  }
}

void ExtentStore::Impl::work_in_background() {
  while (!stopping_) {
    const Status s = maintain();
    if (s) return;
    spdlog::warn("offload store: {}; tried again", s.error().text());
    MutexLock lock(mutex_);
    if (!stopping_) stop_.wait_ms(mutex_, kRetryMs);
  }
}

ExtentStore::Impl::~Impl() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    stop_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (!opened_) return;  // nothing in memory: it must not become the index
  MutexLock write(write_mutex_);
  bool clean = drain().has_value() && write_usage(SIZE_MAX).has_value();
  {
    MutexLock lock(mutex_);
    clean = clean && graveyard_.empty() && stats_.work == Work::kNone && !unclean_;
  }
  clean = clean && io_.stats().n_hung == 0 && sync_scrubs().has_value();
  MutexLock index(index_mutex_);
  if (clean) (void)index_.close_clean();
}

// --- Index and removal ---

ExtentStore::Impl::Work ExtentStore::Impl::work() {
  MutexLock lock(mutex_);
  return stats_.work;
}

void ExtentStore::Impl::account(const ExtentRow& row, int sign) {
  const auto add = [&](uint64_t& to, uint64_t bytes) { to = sign > 0 ? to + bytes : to - bytes; };
  add(stats_.n_rows, 1);
  add(stats_.row_bytes, row.bytes);
  uint64_t& of_namespace = ledger_.by_namespace[row.namespace_id];
  add(of_namespace, row.bytes);
  if (of_namespace == 0) ledger_.by_namespace.erase(row.namespace_id);
  uint64_t rows_bytes = 0;
  for (const ExtentPartBytes& p : row.parts) {
    add(ledger_.by_kind[p.kind], p.rows_bytes);
    rows_bytes += p.rows_bytes;
  }
  add(ledger_.overhead_bytes, row.bytes - rows_bytes);
}

void ExtentStore::Impl::show(const EntryPtr& entry) {
  map_[entry->row.id] = entry;
  account(entry->row, 1);
}

void ExtentStore::Impl::hide(const EntryPtr& entry) {
  map_.erase(entry->row.id);
  account(entry->row, -1);
  graveyard_.push_back(entry);
}

void ExtentStore::Impl::note_use(const EntryPtr& entry, int64_t now_ms) {
  entry->usage.last_used_ms = std::max(entry->usage.last_used_ms, now_ms);
  if (!entry->touched) touched_.push_back(entry);
  entry->touched = true;
}

// Rows of the dead go durably.
Status ExtentStore::Impl::bury_rows() {
  std::vector<EntryPtr> dead;
  std::vector<Place> places;
  std::vector<ExtentRow> all;
  const bool stale = index_.stale();
  {
    MutexLock lock(mutex_);
    for (const EntryPtr& e : graveyard_) {
      if (e->row_gone) continue;
      dead.push_back(e);
      places.push_back(e->row.place);
    }
    for (auto it = map_.begin(); stale && it != map_.end(); ++it) {
      all.push_back(it->second->row);
      all.back().usage = it->second->usage;
    }
  }
  Status s;
  if (stale) {
    std::vector<const ExtentRow*> rows;
    for (const ExtentRow& row : all) rows.push_back(&row);
    s = index_.replace_all(rows);
  } else if (!dead.empty()) {
    s = index_.remove(places);
  }
  MutexLock lock(mutex_);
  if (!s) stats_.alert = s.error().text();
  for (const EntryPtr& e : dead) e->row_gone = e->row_gone || s.has_value();
  return s;
}

// Space whose rows are gone and that nobody reads becomes free. An error: some of it does not, yet.
Status ExtentStore::Impl::drain() {
  Status s;
  {
    MutexLock index(index_mutex_);
    s = bury_rows();
  }
  std::vector<EntryPtr> ready;
  {
    MutexLock lock(mutex_);
    std::erase_if(graveyard_, [&](const EntryPtr& e) {
      const bool done = e->row_gone && e->n_leases == 0;
      if (done) ready.push_back(e);
      return done;
    });
  }
  scrub(ready);
  MutexLock lock(mutex_);
  for (const EntryPtr& e : ready) {
    const auto used = used_.find(e->row.namespace_id);
    if (used != used_.end() && (used->second -= std::min(used->second, e->row.bytes)) == 0) used_.erase(used);
    e->region.reset();
  }
  return s;
}

// So that no scan finds a header of what is gone.
void ExtentStore::Impl::scrub(std::span<const EntryPtr> entries) {
  struct Held {
    std::shared_ptr<AlignedBytes> zeros;
    std::shared_ptr<Region> region;
  };
  auto unit = entries.empty() ? Result<AlignedBytes>() : AlignedBytes::allocate(kUnitBytes);
  std::vector<BlockOp> ops;
  uint64_t n_failed = 0;
  if (unit && !entries.empty()) {
    const auto zeros = std::make_shared<AlignedBytes>(*std::move(unit));
    std::memset(zeros->data(), 0, zeros->size());
    for (const EntryPtr& e : entries) {
      auto file = e->region ? files_.file(e->row.place.segment) : nullptr;
      if (!file) continue;
      const auto held = std::make_shared<Held>(Held{zeros, e->region});
      ops.push_back({BlockOp::Kind::kWrite, std::move(file), e->row.place.offset(), zeros->span(), held});
    }
  }
  if (!ops.empty()) {
    MutexLock lock(mutex_);
    for (const EntryPtr& e : entries) unsynced_.insert(e->row.place.segment);
  }
  if (!ops.empty()) {
    for (const Status& s : io_.run(std::move(ops), env_->mono_ns() + config_.write_deadline_ms * 1'000'000)) n_failed += s ? 0 : 1;
  }
  if (n_failed == 0) return;
  unclean_ = true;
  MutexLock lock(mutex_);
  stats_.n_scrubs_failed += n_failed;
}

// What was overwritten stays overwritten.
Status ExtentStore::Impl::sync_scrubs() {
  std::set<uint32_t> segments;
  {
    MutexLock lock(mutex_);
    segments.swap(unsynced_);
  }
  Status first;
  for (const uint32_t segment : segments) {
    auto file = files_.file(segment);
    if (!file) continue;
    Status s = io_.run_one({BlockOp::Kind::kSync, std::move(file), 0, {}, nullptr}, scan_deadline());
    if (!s && first) first = std::move(s);
  }
  if (!first) unclean_ = true;  // a second sync could lie
  return first;
}

Status ExtentStore::Impl::write_usage(size_t most) {
  std::vector<ExtentRow> rows;
  {
    MutexLock lock(mutex_);
    for (; !touched_.empty() && rows.size() < most; touched_.pop_back()) {
      ExtentEntry& e = *touched_.back();
      e.touched = false;
      ExtentRow row;
      row.place = e.row.place;
      row.usage = e.usage;
      const auto it = map_.find(e.row.id);
      if (it != map_.end() && it->second.get() == &e) rows.push_back(std::move(row));
    }
  }
  if (rows.empty()) return {};
  MutexLock index(index_mutex_);
  return index_.touch(rows);
}

Result<uint64_t> ExtentStore::Impl::erase(std::span<const ExtentId> ids) {
  MutexLock write(write_mutex_);
  uint64_t n = 0;
  {
    MutexLock lock(mutex_);
    for (const ExtentId& id : ids) {
      const auto it = map_.find(id);
      if (it == map_.end()) continue;
      const EntryPtr entry = it->second;
      hide(entry);
      n++;
    }
    stats_.n_erased += n;
  }
  CARREL_TRY(drain());
  if (work() != Work::kRebuild) CARREL_TRY(files_.shrink());  // what no scan has seen yet looks empty
  return n;
}

Result<std::vector<ExtentId>> ExtentStore::Impl::sweep() {
  const int64_t now = env_->wall_ms();
  std::vector<ExtentId> old;
  {
    MutexLock lock(mutex_);
    for (auto it = map_.begin(); config_.ttl_ms > 0 && it != map_.end(); ++it) {
      ExtentEntry& e = *it->second;
      if (e.usage.last_used_ms > now) e.usage.last_used_ms = now;  // the clock was set back
      if (e.usage.last_used_ms + config_.ttl_ms <= now && e.usage.pinned_until_ms <= now) old.push_back(it->first);
    }
    stats_.n_expired += old.size();
  }
  CARREL_TRY(erase(old));
  CARREL_TRY(write_usage(SIZE_MAX));
  return old;
}

void ExtentStore::Impl::quarantine(const EntryPtr& entry, const Error& why) {
  {
    MutexLock lock(mutex_);
    const auto it = map_.find(entry->row.id);
    if (it == map_.end() || it->second != entry) return;
    hide(entry);
    stats_.n_quarantined++;
  }
  spdlog::warn("offload store: extent {} of namespace {} is quarantined: {}", to_hex(std::span(entry->row.id.key).first(8)),
               entry->row.namespace_id, why.text());
  MutexLock index(index_mutex_);
  (void)bury_rows();  // where it fails, the next put or sweep does it
}

// --- Budgets and figures ---

uint64_t ExtentStore::Impl::room(const std::string& namespace_id) const {
  const auto limit = limits_.find(namespace_id);
  if (limit == limits_.end() && config_.namespace_bytes == 0) return UINT64_MAX;
  const uint64_t most = limit != limits_.end() ? limit->second : config_.namespace_bytes;
  const auto used = used_.find(namespace_id);
  const uint64_t now = used == used_.end() ? 0 : used->second;
  return most > now ? most - now : 0;
}

void ExtentStore::Impl::set_namespace_limit(const std::string& namespace_id, std::optional<uint64_t> bytes) {
  MutexLock lock(mutex_);
  limits_.erase(namespace_id);
  if (bytes) limits_[namespace_id] = *bytes;
}

uint64_t ExtentStore::Impl::namespace_room(const std::string& namespace_id) {
  MutexLock lock(mutex_);
  return room(namespace_id);
}

uint64_t ExtentStore::Impl::dead_bytes() const {
  uint64_t sum = 0;
  for (const EntryPtr& e : graveyard_) sum += e->region ? e->row.bytes : 0;
  return sum;
}

ExtentStoreStats ExtentStore::Impl::stats() {
  const BlockIo::Stats io = io_.stats();
  const uint64_t disk_free = files_.disk_free().value_or(0);
  MutexLock lock(mutex_);
  ExtentStoreStats s = stats_;
  s.dead_bytes = dead_bytes();
  s.file_bytes = files_.bytes();
  s.free_bytes = files_.space().free_units() * kUnitBytes;
  s.max_bytes = config_.max_bytes;
  s.disk_free_bytes = disk_free;
  s.n_segments = files_.segments().size();
  s.n_io_given_up = io.n_given_up;
  s.n_io_hung = io.n_hung;
  s.foreign = files_.foreign();
  s.io = io.name;
  s.direct = files_.direct();
  return s;
}

ExtentLedger ExtentStore::Impl::ledger() {
  MutexLock lock(mutex_);
  ExtentLedger l = ledger_;
  l.dead_bytes = dead_bytes();
  l.free_bytes = files_.space().free_units() * kUnitBytes;
  l.segment_header_bytes = files_.segments().size() * kUnitBytes;
  l.file_bytes = files_.bytes();
  return l;
}

// --- The door ---

ExtentStore::ExtentStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ExtentStore::~ExtentStore() = default;

Result<std::unique_ptr<ExtentStore>> ExtentStore::open(Env* env, ExtentStoreConfig config) {
  auto impl = std::make_unique<Impl>(env, std::move(config));
  CARREL_TRY(impl->open());
  return std::unique_ptr<ExtentStore>(new ExtentStore(std::move(impl)));
}

uint64_t ExtentStore::next_sequence() {
  return impl_->next_sequence();
}
std::vector<Result<PutOutcome>> ExtentStore::put(std::span<const std::shared_ptr<const AlignedBytes>> extents) {
  return impl_->put(extents);
}
std::optional<ExtentRow> ExtentStore::find(const ExtentId& id) {
  return impl_->find(id);
}
std::vector<ExtentRow> ExtentStore::rows(const std::string& namespace_id) {
  return impl_->rows(namespace_id);
}
ExtentLease ExtentStore::lease(const ExtentId& id) {
  auto leases = impl_->lease({&id, 1});
  return leases.empty() ? ExtentLease() : std::move(leases[0]);
}
std::vector<ExtentLease> ExtentStore::lease(std::span<const ExtentId> ids) {
  return impl_->lease(ids);
}
std::vector<Result<ExtentBytes>> ExtentStore::read(std::span<const ExtentLease> leases, int64_t deadline_ns) {
  return impl_->read(leases, deadline_ns);
}
void ExtentStore::quarantine(const ExtentLease& lease, const Error& why) {
  if (lease) impl_->quarantine(lease.entry_, why);
}
Result<uint64_t> ExtentStore::erase(std::span<const ExtentId> ids) {
  return impl_->erase(ids);
}
Result<std::vector<ExtentId>> ExtentStore::sweep() {
  return impl_->sweep();
}
Result<ExtentPurge> ExtentStore::purge(const std::string& namespace_id, int64_t deadline_ns) {
  return impl_->purge(namespace_id, deadline_ns);
}
bool ExtentStore::pin(const ExtentId& id, int64_t until_ms) {
  return impl_->pin(id, until_ms);
}
void ExtentStore::touch(std::span<const ExtentId> ids) {
  impl_->touch(ids);
}
void ExtentStore::set_namespace_limit(const std::string& namespace_id, std::optional<uint64_t> bytes) {
  impl_->set_namespace_limit(namespace_id, bytes);
}
uint64_t ExtentStore::namespace_room(const std::string& namespace_id) {
  return impl_->namespace_room(namespace_id);
}
Result<ExtentVerify> ExtentStore::verify(const std::function<bool(uint64_t, uint64_t)>& progress) {
  return impl_->verify(progress);
}
Status ExtentStore::maintain() {
  return impl_->maintain();
}
ExtentStoreStats ExtentStore::stats() {
  return impl_->stats();
}
ExtentLedger ExtentStore::ledger() {
  return impl_->ledger();
}

}  // namespace carrel
