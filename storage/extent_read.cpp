// What readers of the disk tier do: find, lease, read. No index, no allocation; a reader waits for the memory's mutex and for its own
// bytes.
#include <algorithm>
#include <utility>

#include "storage/extent_store_impl.h"

namespace carrel {
namespace {

constexpr uint32_t kMostRunUnits = (8 << 20) / kUnitBytes;  // of one read

// Says nothing about the extent.
bool is_passing(Code code) {
  return code == Code::kDeadline || code == Code::kExhausted || code == Code::kUnavailable;
}

}  // namespace

ExtentLease::ExtentLease(std::shared_ptr<ExtentEntry> entry) : entry_(std::move(entry)) {
  entry_->n_leases++;
}
ExtentLease& ExtentLease::operator=(ExtentLease&& o) noexcept {
  std::swap(entry_, o.entry_);
  return *this;
}
ExtentLease::~ExtentLease() {
  if (entry_) entry_->n_leases--;
}
const ExtentRow& ExtentLease::row() const {
  return entry_->row;
}

std::optional<ExtentRow> ExtentStore::Impl::find(const ExtentId& id) {
  MutexLock lock(mutex_);
  const auto it = map_.find(id);
  if (it == map_.end()) return std::nullopt;
  ExtentRow row = it->second->row;
  row.usage = it->second->usage;
  return row;
}

std::vector<ExtentRow> ExtentStore::Impl::rows(const std::string& namespace_id) {
  std::vector<ExtentRow> out;
  MutexLock lock(mutex_);
  for (const auto& [id, entry] : map_) {
    if (!namespace_id.empty() && entry->row.namespace_id != namespace_id) continue;
    out.push_back(entry->row);
    out.back().usage = entry->usage;
  }
  return out;
}

std::vector<ExtentLease> ExtentStore::Impl::lease(std::span<const ExtentId> ids) {
  std::vector<ExtentLease> leases;
  leases.reserve(ids.size());
  MutexLock lock(mutex_);
  for (const ExtentId& id : ids) {
    const auto it = map_.find(id);
    if (it == map_.end()) break;
    leases.push_back(ExtentLease(it->second));
  }
  return leases;
}

struct ExtentStore::Impl::Run {
  Place place;
  std::vector<size_t> leases;  // in the order of their places
};

std::vector<ExtentStore::Impl::Run> ExtentStore::Impl::plan_reads(std::span<const ExtentLease> leases) {
  std::vector<size_t> order;
  for (size_t i = 0; i < leases.size(); i++)
    if (leases[i]) order.push_back(i);
  const auto place_of = [&](size_t i) { return leases[i].row().place; };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place_of(a) < place_of(b); });
  std::vector<Run> runs;
  for (const size_t i : order) {
    const Place p = place_of(i);
    Run* last = runs.empty() ? nullptr : &runs.back();
    const bool neighbour = last != nullptr && last->place.segment == p.segment && last->place.unit + last->place.n_units == p.unit;
    if (neighbour && last->place.n_units + p.n_units <= kMostRunUnits) {
      last->place.n_units += p.n_units;
      last->leases.push_back(i);
    } else {
      runs.push_back({p, {i}});
    }
  }
  return runs;
}

std::vector<Result<ExtentBytes>> ExtentStore::Impl::read(std::span<const ExtentLease> leases, int64_t deadline_ns) {
  std::vector<Result<ExtentBytes>> out(leases.size(), fail(Code::kNotFound, "the lease is empty"));
  std::vector<Run> runs = plan_reads(leases);
  std::vector<std::shared_ptr<AlignedBytes>> buffers;
  std::vector<BlockOp> ops;
  std::vector<size_t> of_op;
  for (size_t r = 0; r < runs.size(); r++) {
    auto buffer = AlignedBytes::allocate(runs[r].place.bytes());
    auto file = files_.file(runs[r].place.segment);
    buffers.push_back(buffer ? std::make_shared<AlignedBytes>(*std::move(buffer)) : nullptr);
    for (const size_t i : runs[r].leases) out[i] = fail(Code::kExhausted, "no memory to read an extent", config_.dir);
    if (!buffers[r] || !file) continue;
    ops.push_back({BlockOp::Kind::kRead, std::move(file), runs[r].place.offset(), buffers[r]->span(), buffers[r]});
    of_op.push_back(r);
  }
  const std::vector<Status> done = io_.run(std::move(ops), deadline_ns);
  for (size_t o = 0; o < done.size(); o++) {
    const Run& run = runs[of_op[o]];
    for (const size_t i : run.leases) {
      const ExtentRow& row = leases[i].row();
      const auto bytes = std::as_const(*buffers[of_op[o]]).span().subspan(row.place.offset() - run.place.offset(), row.bytes);
      Status s = done[o];
      if (s) {
        const auto view = ExtentView::parse(bytes);
        s = view ? check_header(row, view->header()) : std::unexpected(view.error());
      }
      out[i] = s ? Result<ExtentBytes>(ExtentBytes{buffers[of_op[o]], bytes}) : std::unexpected(s.error());
    }
  }
  const int64_t now = env_->wall_ms();
  for (size_t i = 0; i < leases.size(); i++) {
    if (!leases[i]) continue;
    const bool late = !out[i] && (is_passing(out[i].error().code));
    {
      MutexLock lock(mutex_);
      stats_.n_read += out[i] ? 1 : 0;
      stats_.read_bytes += out[i] ? leases[i].row().bytes : 0;
      stats_.n_read_late += late ? 1 : 0;
      stats_.n_read_failed += !out[i] && !late ? 1 : 0;
      if (out[i]) {
        leases[i].entry_->usage.hits++;
        note_use(leases[i].entry_, now);
      }
    }
    if (!out[i] && !late) quarantine(leases[i].entry_, out[i].error());
  }
  return out;
}

bool ExtentStore::Impl::pin(const ExtentId& id, int64_t until_ms) {
  MutexLock lock(mutex_);
  const auto it = map_.find(id);
  if (it == map_.end()) return false;
  it->second->usage.pinned_until_ms = until_ms;
  note_use(it->second, it->second->usage.last_used_ms);
  return true;
}

void ExtentStore::Impl::touch(std::span<const ExtentId> ids) {
  const int64_t now = env_->wall_ms();
  MutexLock lock(mutex_);
  for (const ExtentId& id : ids) {
    const auto it = map_.find(id);
    if (it == map_.end()) continue;
    it->second->usage.hits++;
    note_use(it->second, now);
  }
}

}  // namespace carrel
