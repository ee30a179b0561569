// The way of extents into the disk tier: admitted, placed, written, synced, their rows committed, shown.
#include <algorithm>

#include "base/log.h"
#include "storage/extent_store_impl.h"

namespace carrel {
namespace {

constexpr size_t kMostTouched = 64;  // uses that wait for their way into the index

}  // namespace

struct ExtentStore::Impl::Incoming {
  std::shared_ptr<const AlignedBytes> bytes;
  EntryPtr entry;  // from admission on
  Result<PutOutcome> result = PutOutcome::kStored;
  bool open = true;  // on its way; result does not stand yet

  void settle(Result<PutOutcome> r) {
    result = std::move(r);
    open = false;
  }
};

Status ExtentStore::Impl::ready_to_put() {
  if (work() == Work::kRebuild) return fail(Code::kUnavailable, "the index of the disk tier is being rebuilt", config_.dir);
  return drain();
}

// Parses, adopts what is there, and asks the budgets of namespaces.
Result<std::optional<PutOutcome>> ExtentStore::Impl::admit(Incoming& in, std::set<std::pair<Digest, uint64_t>>& seen) {
  if (!in.bytes) return fail(Code::kInvalidArgument, "no extent");
  CARREL_ASSIGN(const ExtentView view, ExtentView::parse(in.bytes->span()));
  ExtentRow row = row_of(view.header(), env_->wall_ms());
  row.place.n_units = static_cast<uint32_t>(row.bytes / kUnitBytes);
  MutexLock lock(mutex_);
  if (purging_.contains(row.namespace_id)) return fail(Code::kCancelled, "the namespace is being purged", row.namespace_id);
  Sha256 id;
  for (const Digest* d : {&row.id.key, &row.id.model, &row.id.layout}) id.update(*d);
  if (map_.contains(row.id) || !seen.emplace(id.finish(), row.id.generation).second) return PutOutcome::kAdopted;
  if (room(row.namespace_id) < row.bytes)
    return fail(Code::kExhausted, "the namespace's budget of the disk tier is used up", row.namespace_id);
  used_[row.namespace_id] += row.bytes;
  in.entry = std::make_shared<ExtentEntry>();
  in.entry->usage = row.usage;
  in.entry->row = std::move(row);
  return std::nullopt;
}

void ExtentStore::Impl::place(std::vector<Incoming>& batch) {
  std::vector<uint32_t> sizes;
  for (const Incoming& in : batch)
    if (in.open) sizes.push_back(in.entry->row.place.n_units);
  auto regions = files_.allocate(sizes);
  auto next = regions.begin();
  for (Incoming& in : batch) {
    if (!in.open) continue;
    if (*next) {
      in.entry->region = **next;
      in.entry->row.place = in.entry->region->place();
    } else {
      in.settle(std::unexpected(next->error()));
    }
    ++next;
  }
}

// Data first. What fails here has left nothing but bytes that no row knows.
void ExtentStore::Impl::write(std::vector<Incoming>& batch) {
  struct Held {
    std::shared_ptr<const AlignedBytes> bytes;
    std::shared_ptr<Region> region;  // not used again while the device may still write to it
  };
  const int64_t deadline = env_->mono_ns() + config_.write_deadline_ms * 1'000'000;
  std::vector<BlockOp> ops;
  std::vector<Incoming*> of_op;
  for (Incoming& in : batch) {
    if (!in.open) continue;
    const auto held = std::make_shared<Held>(Held{in.bytes, in.entry->region});
    auto* data = const_cast<std::byte*>(in.bytes->data());  // a write reads only
    ops.push_back(
        {BlockOp::Kind::kWrite, files_.file(in.entry->row.place.segment), in.entry->row.place.offset(), {data, in.bytes->size()}, held});
    of_op.push_back(&in);
  }
  std::vector<Status> done = io_.run(std::move(ops), deadline);
  std::map<uint32_t, Status> synced;
  for (size_t i = 0; i < done.size(); i++) {
    if (done[i]) synced[of_op[i]->entry->row.place.segment] = {};
  }
  for (auto& [segment, status] : synced) status = io_.run_one({BlockOp::Kind::kSync, files_.file(segment), 0, {}, nullptr}, deadline);
  for (size_t i = 0; i < done.size(); i++) {
    const Status& s = done[i] ? synced[of_op[i]->entry->row.place.segment] : done[i];
    if (!s) of_op[i]->settle(std::unexpected(s.error()));
    of_op[i]->entry->row_gone = !s;  // there never was one
  }
}

// Rows next, all or none; then everybody sees them.
void ExtentStore::Impl::commit(std::vector<Incoming>& batch) {
  std::vector<const ExtentRow*> rows;
  for (const Incoming& in : batch)
    if (in.open) rows.push_back(&in.entry->row);
  if (rows.empty()) return;
  MutexLock index(index_mutex_);
  const Status s = index_.insert(rows);
  MutexLock lock(mutex_);
  for (Incoming& in : batch) {
    if (!in.open) continue;
    in.settle(s ? Result<PutOutcome>(PutOutcome::kStored) : std::unexpected(s.error()));
    if (s) show(in.entry);
  }
}

void ExtentStore::Impl::count(const Result<PutOutcome>& result, const std::string& namespace_id) {
  if (result) {
    (*result == PutOutcome::kStored ? stats_.n_stored : stats_.n_adopted)++;
    if (*result == PutOutcome::kStored) stats_.alert.clear();
    return;
  }
  const Error& e = result.error();
  const bool refused = e.code == Code::kInvalidArgument || e.code == Code::kCorrupt || e.code == Code::kUnsupported ||
                       e.code == Code::kCancelled ||
                       (e.code == Code::kExhausted && (e.where == SegmentFiles::kBudget || e.where == namespace_id));
  (refused ? stats_.n_refused : e.code == Code::kExhausted ? stats_.n_no_space : stats_.n_io_failed)++;
  if (!refused) stats_.alert = e.text();
}

std::vector<Result<PutOutcome>> ExtentStore::Impl::put(std::span<const std::shared_ptr<const AlignedBytes>> extents) {
  MutexLock write_lock(write_mutex_);
  std::vector<Incoming> batch(extents.size());
  std::set<std::pair<Digest, uint64_t>> seen;
  const Status ready = ready_to_put();
  for (size_t i = 0; i < batch.size(); i++) {
    batch[i].bytes = extents[i];
    const auto admitted = ready ? admit(batch[i], seen) : std::unexpected(ready.error());
    if (!admitted) batch[i].settle(std::unexpected(admitted.error()));
    if (admitted && *admitted) batch[i].settle(**admitted);
  }
  place(batch);
  write(batch);
  commit(batch);
  std::vector<Result<PutOutcome>> results;
  bool failed = false;
  size_t n_touched = 0;
  {
    MutexLock lock(mutex_);
    for (Incoming& in : batch) {
      count(in.result, in.entry ? in.entry->row.namespace_id : std::string());
      if (in.entry && !in.result) {
        in.entry->row_gone = in.entry->row_gone || !in.entry->region;
        graveyard_.push_back(in.entry);
        failed = true;
      }
      results.push_back(std::move(in.result));
    }
    n_touched = touched_.size();
  }
  batch.clear();
  if (failed) (void)drain();
  if (n_touched >= kMostTouched) (void)write_usage(SIZE_MAX);
  return results;
}

}  // namespace carrel
