// Whatever reads whole segment files: rebuilding the index from headers, overwriting what no row knows, proving a purge, verify.
#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "base/log.h"
#include "storage/extent_store_impl.h"

namespace carrel {
namespace {

constexpr uint32_t kChunkUnits = 256;
constexpr uint32_t kHeaderUnits = kMaxExtentHeaderBytes / kUnitBytes;
constexpr size_t kMostFindings = 16;
constexpr int64_t kPollMs = 5;
constexpr uint64_t kMostSequence = uint64_t{1} << 62;  // nobody counts that far; what follows must not wrap

}  // namespace

Result<std::shared_ptr<AlignedBytes>> ExtentStore::Impl::read_place(const Place& place, int64_t deadline_ns) {
  auto file = files_.file(place.segment);
  if (!file) return fail(Code::kNotFound, "the segment is gone", files_.path_of(place.segment));
  CARREL_ASSIGN(auto bytes, AlignedBytes::allocate(place.bytes()));
  const auto buffer = std::make_shared<AlignedBytes>(std::move(bytes));
  CARREL_TRY(io_.run_one({BlockOp::Kind::kRead, std::move(file), place.offset(), buffer->span(), buffer}, deadline_ns));
  return buffer;
}

// --- Rebuild ---

Status ExtentStore::Impl::maintain() {
  if (work() == Work::kRebuild) {
    CARREL_TRY(rebuild());
    if (stopping_) return {};
    MutexLock lock(mutex_);
    spdlog::info("offload store: the index is rebuilt: {} extents, {} bytes", stats_.n_rows, stats_.row_bytes);
    stats_.work = Work::kReclaim;
    stats_.work_done_bytes = 0;
  }
  if (work() != Work::kReclaim) return {};
  const Orphans found = sweep_free_space({});
  if (found.n != 0) spdlog::info("offload store: {} orphaned extents of {} bytes were overwritten", found.n, found.bytes);
  const auto segments = files_.segments();
  MutexLock lock(mutex_);
  for (const auto& [number, n_units] : segments) unsynced_.insert(number);  // whoever came before may have failed to
  if (!stopping_) stats_.work = Work::kNone;
  return {};
}

Status ExtentStore::Impl::rebuild() {
  {
    MutexLock lock(mutex_);
    stats_.work_total_bytes = files_.bytes();
    stats_.work_done_bytes = 0;
  }
  for (const auto& [number, n_units] : files_.segments()) {
    if (stopping_) return {};
    CARREL_TRY(rebuild_segment(number, n_units));
  }
  MutexLock index(index_mutex_);
  CARREL_TRY(bury_rows());
  return index_.end_rebuild();
}

std::vector<std::pair<uint32_t, ExtentHeader>> ExtentStore::Impl::find_headers(uint32_t number, uint32_t n_units) {
  std::vector<std::pair<uint32_t, ExtentHeader>> found;
  for (uint32_t first = 1; first < n_units && !stopping_; first += kChunkUnits) {
    const uint32_t n = std::min(kChunkUnits, n_units - first), more = std::min(n + kHeaderUnits - 1, n_units - first);
    const auto chunk = read_place({number, first, more}, scan_deadline());
    {
      MutexLock lock(mutex_);
      stats_.work_done_bytes += n * kUnitBytes;
    }
    if (!chunk) {
      spdlog::warn("offload store: {} cannot be read at unit {}: {}", files_.path_of(number), first, chunk.error().message);
      continue;
    }
    for (uint32_t i = 0; i < n; i++) {
      const auto start = std::as_const(**chunk).span().subspan(i * kUnitBytes);
      if (!peek_extent(start)) continue;
      auto header = parse_extent_header(start);
      if (header && header->sequence <= kMostSequence) found.emplace_back(first + i, *std::move(header));
    }
  }
  return found;
}

// An extent that is whole and that nothing later overwrote.
Result<EntryPtr> ExtentStore::Impl::try_extent(uint32_t number, uint32_t unit, const ExtentHeader& header) {
  auto entry = std::make_shared<ExtentEntry>();
  entry->row = row_of(header, env_->wall_ms());
  entry->row.place = {number, unit, static_cast<uint32_t>(header.total_bytes / kUnitBytes)};
  entry->usage = entry->row.usage;
  entry->region = files_.at(entry->row.place);
  if (!entry->region) return fail(Code::kCorrupt, "its bytes are in part another extent's");
  const Place& p = entry->row.place;
  if (!config_.check) {
    CARREL_ASSIGN(const auto tail, read_place({number, p.unit + p.n_units - 1, 1}, scan_deadline()));
    return extent_tail_matches(header, tail->span()) ? Result<EntryPtr>(entry) : fail(Code::kCorrupt, "its end is missing");
  }
  CARREL_ASSIGN(const auto bytes, read_place(p, scan_deadline()));
  CARREL_ASSIGN(const ExtentView view, ExtentView::parse(std::as_const(*bytes).span()));
  CARREL_TRY(check_header(entry->row, view.header()));
  CARREL_TRY(config_.check(entry->row, std::as_const(*bytes).span()));
  return entry;
}

Status ExtentStore::Impl::rebuild_segment(uint32_t number, uint32_t n_units) {
  auto headers = find_headers(number, n_units);
  std::sort(headers.begin(), headers.end(), [](const auto& a, const auto& b) { return a.second.sequence > b.second.sequence; });
  std::vector<EntryPtr> fresh;
  for (const auto& [unit, header] : headers) {
    if (stopping_) return {};
    auto entry = try_extent(number, unit, header);
    if (entry) fresh.push_back(*std::move(entry));
    if (header.sequence >= sequence_) sequence_ = header.sequence + 1;
  }
  MutexLock index(index_mutex_);
  std::vector<EntryPtr> accepted;
  std::unordered_set<ExtentId, ExtentIdHash> ids;
  {
    MutexLock lock(mutex_);
    for (const EntryPtr& e : fresh) {
      const auto known = map_.find(e->row.id);
      const bool twice = !ids.insert(e->row.id).second;
      if (twice || (known != map_.end() && known->second->row.sequence > e->row.sequence)) continue;
      if (known != map_.end()) {
        const EntryPtr older = known->second;
        hide(older);
      }
      accepted.push_back(e);
    }
  }
  CARREL_TRY(bury_rows());
  std::vector<const ExtentRow*> rows;
  for (const EntryPtr& e : accepted) rows.push_back(&e->row);
  if (rows.empty()) return {};
  CARREL_TRY(index_.insert(rows));
  MutexLock lock(mutex_);
  for (const EntryPtr& e : accepted) {
    used_[e->row.namespace_id] += e->row.bytes;
    show(e);
    stats_.n_rebuilt++;
  }
  return {};
}

// --- What no row knows ---

// Headers in a run that the caller holds: overwritten. counted: up to which unit orphaned bytes of this segment are counted.
void ExtentStore::Impl::sweep_free_run(const std::shared_ptr<Region>& run, const std::string& namespace_id, uint32_t& counted,
                                       Orphans& found) {
  const Place& p = run->place();
  const auto segments = files_.segments();
  const auto size = segments.find(p.segment);
  if (size == segments.end()) return;
  const uint32_t more = std::min(p.n_units + kHeaderUnits - 1, size->second - p.unit);
  const auto chunk = read_place({p.segment, p.unit, more}, scan_deadline());
  if (!chunk) return;
  found.scanned_bytes += p.bytes();
  std::vector<EntryPtr> dead;
  for (uint32_t i = 0; i < p.n_units; i++) {
    const auto start = std::as_const(**chunk).span().subspan(i * kUnitBytes);
    const auto lengths = peek_extent(start);
    if (!lengths) continue;
    const uint32_t unit = p.unit + i, end = unit + static_cast<uint32_t>(lengths->total_bytes / kUnitBytes);
    found.n++;
    found.bytes += end > counted ? (end - std::max(unit, counted)) * kUnitBytes : 0;
    counted = std::max(counted, end);
    const auto header = parse_extent_header(start);
    if (header && header->identity.namespace_id == namespace_id) found.n_of_namespace++;
    dead.push_back(std::make_shared<ExtentEntry>());
    dead.back()->row.place = {p.segment, unit, 1};
    dead.back()->region = run;
  }
  scrub(dead);
}

ExtentStore::Impl::Orphans ExtentStore::Impl::sweep_free_space(const std::string& namespace_id) {
  Orphans found;
  for (const auto& [number, n_units] : files_.segments()) {
    uint32_t counted = 0;
    for (uint32_t next = 1; !stopping_;) {
      const auto place = files_.space().take_next(number, next, kChunkUnits);
      if (!place) break;
      sweep_free_run(files_.hold(*place), namespace_id, counted, found);
      next = place->unit + place->n_units;
      MutexLock lock(mutex_);
      if (stats_.work == Work::kReclaim)
        stats_.work_done_bytes = std::min(stats_.work_done_bytes + place->bytes(), stats_.work_total_bytes);
    }
  }
  MutexLock lock(mutex_);
  stats_.n_orphans += found.n;
  stats_.orphan_bytes += found.bytes;
  return found;
}

Result<ExtentPurge> ExtentStore::Impl::purge(const std::string& namespace_id, int64_t deadline_ns) {
  if (work() == Work::kRebuild)
    return fail(Code::kUnavailable, "the index of the disk tier is being rebuilt; try again when it is", config_.dir);
  ExtentPurge out;
  std::vector<ExtentId> ids;
  {
    MutexLock write(write_mutex_);  // what is being put now is seen
    MutexLock lock(mutex_);
    purging_.insert(namespace_id);
    for (const auto& [id, entry] : map_) {
      if (entry->row.namespace_id != namespace_id) continue;
      ids.push_back(id);
      out.n_bytes += entry->row.bytes;
    }
  }
  const auto left = [&] {
    MutexLock lock(mutex_);
    return static_cast<uint64_t>(
        std::count_if(graveyard_.begin(), graveyard_.end(), [&](const EntryPtr& e) { return e->row.namespace_id == namespace_id; }));
  };
  const auto work_off = [&]() -> Status {
    CARREL_ASSIGN(out.n_rows, erase(ids));
    while ((out.n_leased = left()) != 0 && env_->mono_ns() < deadline_ns) {
      env_->sleep_ms(kPollMs);
      CARREL_TRY(erase({}));
    }
    Orphans proof = sweep_free_space(namespace_id);
    if (proof.n_of_namespace != 0) proof = sweep_free_space(namespace_id);  // what a crash had left is overwritten now
    out.scanned_bytes = proof.scanned_bytes;
    out.n_found = proof.n_of_namespace;
    CARREL_TRY(sync_scrubs());
    MutexLock index(index_mutex_);
    CARREL_ASSIGN(out.n_index_rows, index_.count(namespace_id));
    return {};
  };
  const Status s = work_off();
  MutexLock lock(mutex_);
  purging_.erase(namespace_id);
  if (!s) return std::unexpected(s.error());
  return out;
}

// --- verify ---

void ExtentStore::Impl::verify_row(const ExtentId& id, ExtentVerify& out) {
  const std::vector<ExtentLease> lease = this->lease({&id, 1});
  if (lease.empty()) {
    out.n_skipped++;
    return;
  }
  const ExtentRow& row = lease[0].row();
  const auto bytes = read_place(row.place, scan_deadline());
  Status s = bytes ? Status{} : std::unexpected(bytes.error());
  if (s) {
    const auto view = ExtentView::parse(std::as_const(**bytes).span());
    s = view ? check_header(row, view->header()) : std::unexpected(view.error());
  }
  if (s && config_.check) s = config_.check(row, std::as_const(**bytes).span());
  if (s) {
    out.n_rows++;
    out.n_bytes += row.bytes;
    return;
  }
  if (s.error().code == Code::kDeadline || s.error().code == Code::kExhausted || s.error().code == Code::kUnavailable) {
    out.n_skipped++;
  } else {
    out.n_bad++;
    quarantine(lease[0].entry_, s.error());
  }
  if (out.findings.size() < kMostFindings)
    out.findings.push_back(files_.path_of(row.place.segment) + " at " + std::to_string(row.place.offset()) + ": " + s.error().message);
}

Result<ExtentVerify> ExtentStore::Impl::verify(const std::function<bool(uint64_t, uint64_t)>& progress) {
  ExtentVerify out;
  for (const auto& [number, n_units] : files_.segments()) {
    if (const auto again = files_.open_segment(number); !again) {
      out.n_bad++;
      out.findings.push_back(again.error().text());
    }
  }
  std::vector<ExtentId> ids;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, entry] : map_) ids.push_back(id);
  }
  for (size_t i = 0; i < ids.size(); i++) {
    verify_row(ids[i], out);
    if (progress && !progress(i + 1, ids.size())) return out;
  }
  CARREL_TRY(erase({}));
  const Orphans orphans = sweep_free_space({});
  out.n_orphans = orphans.n;
  out.orphan_bytes = orphans.bytes;
  out.foreign = files_.foreign();
  MutexLock index(index_mutex_);
  CARREL_ASSIGN(out.n_index_rows, index_.count());
  MutexLock lock(mutex_);
  out.n_visible = static_cast<int64_t>(stats_.n_rows);
  return out;
}

}  // namespace carrel
