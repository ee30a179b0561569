// The four invariants, asserted over the whole table.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>

#include "engine/state/manager_impl.h"

namespace carrel {

namespace {

/// Every page once, and everything in use owned by exactly one record, cell or slot.
class Owners {
 public:
  /// False: the page has an owner already.
  bool add(const std::byte* page) { return pages_.emplace(page, 1).second; }
  bool contains(const std::byte* page) const { return pages_.contains(page); }
  size_t size() const { return pages_.size(); }

 private:
  std::unordered_map<const std::byte*, int> pages_;
};

std::string check_sequence(const StateManager::Impl& m, const Sequence::Impl& seq, Owners& owners,
                           std::unordered_map<const Record*, int>& leases) {
  for (size_t g = 0; g < seq.cells.size(); g++) {
    const auto held = std::count_if(seq.table[g].begin(), seq.table[g].end(), [](const std::byte* p) { return p != nullptr; });
    if (held != seq.n_held[g]) return "I3: sequence " + std::to_string(seq.id) + " miscounts its pages";
    for (size_t b = 0; b < seq.cells[g].size(); b++) {
      const Cell& c = seq.cells[g][b];
      const std::string where =
          "sequence " + std::to_string(seq.id) + " group " + m.config.model.groups[g].name + " block " + std::to_string(b);
      if (c.page && c.lease) return "I3: " + where + " is private and leased";
      if (c.page && !owners.add(c.page.data())) return "I3: " + where + ": its page has another owner";
      if (c.page && c.state != RecordState::kWriting && c.state != RecordState::kSealed)
        return "I3: " + where + ": a private page that is not its own";
      if (seq.table[g][b] != c.data()) return "I3: " + where + ": kernels see another page";
      if (!c.lease) continue;
      const Record& r = *c.lease.record();
      leases[&r]++;
      if (c.state != RecordState::kPublished) return "I1: " + where + " reads a record that was not published";
      if (r.generation != c.lease.generation()) return "I2: " + where + ": the lease is of an older record";
      if (r.block != nullptr && (r.block->depth != static_cast<int64_t>(b) || r.block->ns != seq.ns || r.group != static_cast<int>(g)))
        return "I1: " + where + " reads a record of another place";
      if (r.epoch != seq.epoch) return "I4: " + where + " reads a record of another epoch";
    }
  }
  return {};
}

}  // namespace

std::string StateManager::Impl::breach() const {
  if (std::string text = index.audit(); !text.empty()) return "I3: " + text;
  Owners owners;
  std::unordered_map<const Record*, int> leases;
  std::unordered_map<Digest, int, DigestHash> announcements;
  for (const Sequence::Impl* seq : live) {
    if (std::string text = check_sequence(*this, *seq, owners, leases); !text.empty()) return text;
    if (seq->slot && !owners.add(seq->slot.data())) return "I3: a slot has two owners";
    for (const Cell& c : seq->newest.cells)
      if (c.page && !owners.add(c.page.data())) return "I3: registers of a sequence have two owners";
    for (const int64_t b : seq->announced) announcements[seq->keys[static_cast<size_t>(b)]]++;
  }
  for (const auto& r : restores) {
    for (const Lease& l : r->leases) leases[l.record()]++;
    for (const Restore::Item& item : r->items)
      for (const Restore::Part& part : item.parts)
        if (part.page && !owners.add(part.page.data())) return "I3: a page of a restore has another owner";
  }
  for (const Down& d : under_way)
    for (const Lease& l : d.leases) leases[l.record()]++;
  if (announcements != announced) return "I2: requests wait for blocks that nobody computes, or the reverse";

  std::string text;
  index.for_each_record([&](const Record& r) {
    if (!text.empty()) return;
    const auto counted = leases.find(&r);
    const int n = counted == leases.end() ? 0 : counted->second;
    if (n != r.n_leases) text = "I2: a record counts " + std::to_string(r.n_leases) + " leases, " + std::to_string(n) + " are live";
    if (!owners.add(r.page.data())) text = "I3: a record's page has another owner";
    if (r.block == nullptr) return;
    if (r.n_rows != layouts[static_cast<size_t>(r.group)].rows_per_page) text = "I1: a published record is not whole";
    if (r.layout != layout || r.epoch != epoch) text = "I4: a published record has another layout or epoch";
    if (r.data != r.page.data()) text = "I4: a published record is read at another address than its page's";
    leases.erase(&r);
  });
  if (!text.empty()) return text;

  size_t used = 0, allocated = 0;
  for (const auto& [page, kind] : pool.all()) {
    allocated += pool.bytes_of_kind(kind);
    if (owners.contains(page)) used += pool.bytes_of_kind(kind);
  }
  for (int kind = 0; kind <= pool.slot_kind(); kind++)
    for (const std::byte* page : pool.free_list(kind))
      if (!owners.add(page)) return "I3: a page is free and in use";
  if (owners.size() != pool.all().size()) return "I3: a page has no owner";
  if (used != pool.used_bytes() || allocated != pool.allocated_bytes()) return "I3: the ledger does not sum up";
  if (allocated > pool.budget_bytes()) return "I3: the budget is exceeded";
  return {};
}

void StateManager::Impl::audit() const {
  if (!config.audit) return;
  const std::string text = breach();
  if (text.empty()) return;
  std::fprintf(stderr, "state invariant broken: %s\n", text.c_str());
  std::abort();
}

std::string StateManager::check_invariants() const {
  std::lock_guard lock(impl_->mu);
  return impl_->breach();
}

}  // namespace carrel
