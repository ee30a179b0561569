#include "engine/state/prefix_index.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace carrel {

namespace {

constexpr double kHalfLifeTicks = 256;  // admissions after which a hit counts half
constexpr int64_t kMaxPointsBack = 16;  // bounds on how far a score looks: eviction must stay short
constexpr size_t kMaxPointsAhead = 16;
constexpr size_t kMaxRefreshed = 256;
constexpr double kWorthless = -std::numeric_limits<double>::infinity();

}  // namespace

Lease::~Lease() {
  if (record_ != nullptr) index_->release(record_, generation_);
}

PrefixIndex::PrefixIndex(const ModelState& model, int64_t max_ghosts, size_t host_budget_bytes)
    : model_(model), max_ghosts_(max_ghosts), host_budget_bytes_(host_budget_bytes) {
  for (const StateSpec& g : model.groups) {
    page_bytes_.push_back(page_bytes(g, model.block_size));
    if (is_log(g.kind)) {
      n_log_groups_++;
      log_bytes_ += page_bytes_.back();
    }
    if (g.kind == StateKind::kWindow) max_window_blocks_ = std::max(max_window_blocks_, window_blocks(g, model.block_size));
  }
  n_leased_.resize(model.groups.size());
  n_resident_.resize(model.groups.size());
  n_idle_.resize(model.groups.size());
}

Block* PrefixIndex::find(const Digest& key) const {
  const auto at = blocks_.find(key);
  return at == blocks_.end() ? nullptr : at->second.get();
}

bool PrefixIndex::confirms(const Block& block, const Block* parent, int ns, std::span<const int32_t> tokens) {
  return block.parent == parent && block.ns == ns && std::equal(tokens.begin(), tokens.end(), block.tokens.begin(), block.tokens.end());
}

Block* PrefixIndex::ensure(const Digest& key, Block* parent, int ns, std::span<const int32_t> tokens) {
  if (Block* known = find(key)) return confirms(*known, parent, ns, tokens) ? known : nullptr;
  auto made = std::make_unique<Block>();
  Block* block = made.get();
  block->key = key;
  block->parent = parent;
  block->depth = parent == nullptr ? 0 : parent->depth + 1;
  block->ns = ns;
  block->tokens.assign(tokens.begin(), tokens.end());
  block->records.resize(model_.groups.size());
  block->lost.resize(model_.groups.size(), RecordState::kEmpty);
  block->id = next_id_++;
  if (parent != nullptr) {
    if (parent->ghosted != 0) idle_ghosts_.erase(parent->ghosted);
    block->child_slot = parent->children.size();
    parent->children.push_back(block);
  }
  block->ghosted = next_ghost_++;
  n_ghosts_++;
  idle_ghosts_.emplace(block->ghosted, block);
  blocks_.emplace(key, std::move(made));
  if (on_new_block) on_new_block(block);
  return block;
}

void PrefixIndex::became_resident(Block* block, bool log) {
  if (block->n_resident++ == 0) {
    idle_ghosts_.erase(block->ghosted);
    block->ghosted = 0;
    n_ghosts_--;
  }
  if (log && block->n_logs++ == 0 && block->parent != nullptr && block->parent->n_log_children++ == 0)
    set_candidate(block->parent->logs, block->parent, -1, false, 0);
}

void PrefixIndex::lost_resident(Block* block, bool log) {
  if (--block->n_resident == 0) {
    block->ghosted = next_ghost_++;
    n_ghosts_++;
    if (block->children.empty()) idle_ghosts_.emplace(block->ghosted, block);
  }
  if (log && --block->n_logs == 0 && block->parent != nullptr && --block->parent->n_log_children == 0) refresh(block->parent);
}

Record* PrefixIndex::publish(Block* block, int group, PageHandle page, const Digest& digest, int n_rows, uint32_t layout, uint32_t epoch) {
  const auto g = static_cast<size_t>(group);
  auto made = std::make_unique<Record>();
  Record* r = made.get();
  r->data = page.data();
  r->page = std::move(page);
  r->block = block;
  r->group = group;
  r->n_rows = n_rows;
  r->layout = layout;
  r->epoch = epoch;
  r->generation = next_generation_++;
  r->digest = digest;
  block->records[g] = std::move(made);
  n_resident_[g]++;
  n_idle_[g]++;
  if (model_.groups[g].kind == StateKind::kRecurrent) recurrent_[block->ns].bytes += page_bytes_[g];
  became_resident(block, is_log(model_.groups[g].kind));
  refresh(block);
  return r;
}

void PrefixIndex::detach(Record* record, RecordState why) {
  Block* block = record->block;
  const auto g = static_cast<size_t>(record->group);
  const bool log = is_log(model_.groups[g].kind);
  set_candidate(record->candidate, block, record->group, false, 0);
  if (log) set_candidate(block->logs, block, -1, false, 0);
  auto owned = std::move(block->records[g]);
  block->lost[g] = why;
  n_resident_[g]--;
  if (record->n_leases == 0) n_idle_[g]--;
  if (model_.groups[g].kind == StateKind::kRecurrent) recurrent_[block->ns].bytes -= page_bytes_[g];
  owned->block = nullptr;
  owned->state = why;
  if (owned->n_leases > 0) orphans_.emplace(record, std::move(owned));
  owned.reset();
  lost_resident(block, log);
  refresh_around(block);
}

Lease PrefixIndex::lease(Record* record) {
  if (record->n_leases++ == 0) {
    n_leased_[static_cast<size_t>(record->group)]++;
    n_idle_[static_cast<size_t>(record->group)]--;
    set_candidate(record->candidate, record->block, record->group, false, 0);
    if (is_log(model_.groups[static_cast<size_t>(record->group)].kind)) set_candidate(record->block->logs, record->block, -1, false, 0);
  }
  return Lease(this, record);
}

void PrefixIndex::release(Record* record, uint64_t generation) {
  if (record->generation != generation || record->n_leases <= 0)
    std::abort();  // a lease that names another record would free a page in use
  if (--record->n_leases > 0) return;
  n_leased_[static_cast<size_t>(record->group)]--;
  if (record->block == nullptr) {
    orphans_.erase(record);
    return;
  }
  n_idle_[static_cast<size_t>(record->group)]++;
  Block* block = record->block;
  if (!is_log(model_.groups[static_cast<size_t>(record->group)].kind)) {
    refresh(block);
  } else if (logs_evictable(*block)) {
    set_candidate(block->logs, block, -1, true, point_score(*block));
  }
}

void PrefixIndex::touch(Block* block, double weight, uint64_t tick) {
  block->hits = block->hits * std::exp2(-static_cast<double>(tick - block->hits_tick) / kHalfLifeTicks) + weight;
  block->hits_tick = tick;
}

// ---- what is worth keeping

bool PrefixIndex::logs_evictable(const Block& block) const {
  if (block.n_logs == 0 || block.n_log_children > 0) return false;
  return std::none_of(block.records.begin(), block.records.end(),
                      [&](const auto& r) { return r && is_log(model_.groups[static_cast<size_t>(r->group)].kind) && r->n_leases > 0; });
}

/// Whether a prefix that ends with this block could be resumed; logs further up are there as long as these are (leaves go first).
bool PrefixIndex::point_alive(const Block& block) const {
  for (size_t g = 0; g < model_.groups.size(); g++) {
    const StateSpec& spec = model_.groups[g];
    const int64_t n = is_log(spec.kind) ? 1 : point_blocks(spec, model_.block_size);
    const Block* at = &block;
    for (int64_t i = 0; i < n && at != nullptr; i++, at = at->parent)
      if (!has(*at, g)) return false;
  }
  return true;
}

/// log2 of decayed hits × tokens back to the previous restorable point / bytes, on a scale on which all scores decay alike: time need not
/// be entered anew.
double PrefixIndex::point_score(const Block& block) const {
  if (!point_alive(block) || block.hits <= 0) return kWorthless;
  int64_t back = 1;
  for (const Block* at = block.parent; at != nullptr && back < kMaxPointsBack && !point_alive(*at); at = at->parent) back++;
  size_t bytes = static_cast<size_t>(back) * log_bytes_;
  for (size_t g = 0; g < model_.groups.size(); g++) {
    const StateSpec& spec = model_.groups[g];
    if (!is_log(spec.kind)) bytes += page_bytes_[g] * static_cast<size_t>(std::min(point_blocks(spec, model_.block_size), block.depth + 1));
  }
  return std::log2(block.hits) + static_cast<double>(block.hits_tick) / kHalfLifeTicks +
         std::log2(static_cast<double>(back * model_.block_size) / static_cast<double>(std::max<size_t>(bytes, 1)));
}

/// The best of the points whose window this page is part of.
double PrefixIndex::window_score(const Block& block, int group) const {
  const int64_t last = block.depth + window_blocks(model_.groups[static_cast<size_t>(group)], model_.block_size);  // points at depth < last
  double best = kWorthless;
  std::vector<const Block*> ahead;
  if (block.depth < last) ahead.push_back(&block);
  for (size_t i = 0; i < ahead.size(); i++) {
    best = std::max(best, point_score(*ahead[i]));
    for (const Block* c : ahead[i]->children)
      if (c->depth < last && ahead.size() < kMaxPointsAhead) ahead.push_back(c);
  }
  return best;
}

void PrefixIndex::set_candidate(Candidate& c, Block* block, int group, bool wanted, double score) {
  const bool recurrent = group >= 0 && model_.groups[static_cast<size_t>(group)].kind == StateKind::kRecurrent;
  if (c.queued && (!wanted || c.score != score)) {
    const Entry e{c.score, block->id, group, block};
    queue_.erase(e);
    if (recurrent) recurrent_[block->ns].queue.erase(e);
    c.queued = false;
  }
  if (wanted && !c.queued) {
    const Entry e{score, block->id, group, block};
    c.score = score;
    c.queued = true;
    queue_.insert(e);
    if (recurrent) recurrent_[block->ns].queue.insert(e);
  }
}

void PrefixIndex::refresh(Block* block) {
  const bool logs = logs_evictable(*block);
  set_candidate(block->logs, block, -1, logs, logs ? point_score(*block) : 0);
  for (const auto& r : block->records) {
    if (!r) continue;
    const StateKind kind = model_.groups[static_cast<size_t>(r->group)].kind;
    if (is_log(kind)) continue;
    const bool wanted = r->n_leases == 0;
    set_candidate(r->candidate, block, r->group, wanted,
                  !wanted                      ? 0
                  : kind == StateKind::kWindow ? window_score(*block, r->group)
                                               : point_score(*block));
  }
}

void PrefixIndex::refresh_around(Block* block) {
  std::vector<Block*> below = {block};
  for (size_t i = 0; i < below.size(); i++)
    for (Block* c : below[i]->children)
      if (c->depth <= block->depth + max_window_blocks_ && below.size() < kMaxRefreshed) below.push_back(c);
  for (Block* b : below) refresh(b);
  Block* up = block->parent;
  for (int64_t i = 0; i < max_window_blocks_ && up != nullptr; i++, up = up->parent) refresh(up);
}

void PrefixIndex::evict_logs(Block* block) {
  for (size_t g = 0; g < block->records.size(); g++) {
    Record* r = block->records[g].get();
    if (r == nullptr || r->n_leases > 0) continue;
    detach(r, RecordState::kEvicted);
    n_evicted_++;
  }
}

bool PrefixIndex::evict_one() {
  return evict_first(queue_);
}

bool PrefixIndex::evict_recurrent(int ns) {
  const auto at = recurrent_.find(ns);
  return at != recurrent_.end() && evict_first(at->second.queue, at->second.newest);
}

bool PrefixIndex::evict_first(const Queue& queue, std::span<const uint64_t> spared) {
  const auto is_spared = [&](const Entry& e) { return std::find(spared.begin(), spared.end(), e.block->id) != spared.end(); };
  for (auto at = queue.begin(); at != queue.end();) {
    if (is_spared(*at)) {
      ++at;
      continue;
    }
    const Entry e = *at;
    Record* record = e.group < 0 ? nullptr : e.block->records[static_cast<size_t>(e.group)].get();
    Candidate& c = record == nullptr ? e.block->logs : record->candidate;
    const bool window = record != nullptr && model_.groups[static_cast<size_t>(e.group)].kind == StateKind::kWindow;
    const double now = window ? window_score(*e.block, e.group) : point_score(*e.block);
    if (now > e.score) {  // worth more since it was queued
      set_candidate(c, e.block, e.group, true, now);
      at = queue.begin();
      continue;
    }
    if (now > kWorthless && before_evict) before_evict(e.block);  // what nobody can resume at is not worth a copy
    if (record == nullptr) {
      evict_logs(e.block);
    } else {
      detach(record, RecordState::kEvicted);
      n_evicted_++;
    }
    return true;
  }
  return false;
}

// ---- forgetting

void PrefixIndex::drop_block(Block* block) {
  for (const ExtentSet set : kExtentSets) forget_copy(block, set, -1, RecordState::kEvicted);
  if (block->ghosted != 0) {
    idle_ghosts_.erase(block->ghosted);
    n_ghosts_--;
  }
  if (Block* parent = block->parent) {
    parent->children[block->child_slot] = parent->children.back();
    parent->children[block->child_slot]->child_slot = block->child_slot;
    parent->children.pop_back();
    if (parent->children.empty() && parent->ghosted != 0) idle_ghosts_.emplace(parent->ghosted, parent);
  }
  blocks_.erase(Digest(block->key));
}

void PrefixIndex::trim_ghosts() {
  while (n_ghosts_ > max_ghosts_ && !idle_ghosts_.empty()) drop_block(idle_ghosts_.begin()->second);
}

int64_t PrefixIndex::erase(int ns) {
  std::vector<Block*> doomed;
  for (const auto& [key, block] : blocks_)
    if (ns < 0 || block->ns == ns) doomed.push_back(block.get());
  std::sort(doomed.begin(), doomed.end(),
            [](const Block* a, const Block* b) { return a->depth != b->depth ? a->depth > b->depth : a->id < b->id; });
  int64_t n = 0;
  for (Block* b : doomed) {
    for (size_t g = 0; g < b->records.size(); g++) {
      if (b->records[g])
        detach(b->records[g].get(), RecordState::kEvicted);
      else if (!in_lower(*b, static_cast<int>(g)))
        continue;
      n++;
    }
    drop_block(b);
  }
  return n;
}

std::string PrefixIndex::audit() const {
  const auto breach = [](const Block& b, const char* what) { return std::string("block ") + std::to_string(b.id) + ": " + what; };
  size_t host_bytes = 0, n_host = 0;
  int64_t n_copies = 0;
  size_t n_queued = 0, n_recurrent = 0, n_recurrent_queued = 0;
  std::unordered_map<int, size_t> recurrent_bytes;
  int64_t n_ghosts = 0;
  std::vector<int64_t> n_idle(model_.groups.size());
  for (const auto& [key, owned] : blocks_) {
    const Block& b = *owned;
    if (key != b.key || b.tokens.size() != static_cast<size_t>(model_.block_size)) return breach(b, "key or tokens are not its own");
    if (b.parent != nullptr &&
        (b.child_slot >= b.parent->children.size() || b.parent->children[b.child_slot] != &b || b.depth != b.parent->depth + 1))
      return breach(b, "its parent does not know it");
    int n_resident = 0, n_logs = 0, n_log_children = 0;
    for (const ExtentSet set : kExtentSets) {
      const LowerCopy& c = b.lower[static_cast<size_t>(set)];
      n_resident += c.exists() ? 1 : 0;
      n_copies += c.exists() ? 1 : 0;
      host_bytes += c.host ? c.host->size() : 0;
      n_host += c.host ? 1 : 0;
      if (c.exists() != (c.groups != 0) || (c.host && !host_queue_.contains({c.score, b.id, set, nullptr})) || c.n_pins < 0)
        return breach(b, "its copy in a lower tier is not accounted for");
    }
    for (const Block* c : b.children) n_log_children += c->n_logs > 0 ? 1 : 0;
    for (size_t g = 0; g < b.records.size(); g++) {
      const Record* r = b.records[g].get();
      if (r == nullptr) continue;
      n_resident++;
      const bool log = is_log(model_.groups[g].kind);
      n_logs += log ? 1 : 0;
      if (r->block != &b || r->group != static_cast<int>(g) || r->state != RecordState::kPublished || !r->page)
        return breach(b, "a record in the index is not a published one of this block");
      if (r->candidate.queued != (!log && r->n_leases == 0))
        return breach(b, "a record is queued for eviction although leased, or the reverse");
      n_queued += r->candidate.queued ? 1 : 0;
      if (model_.groups[g].kind == StateKind::kRecurrent) {
        recurrent_bytes[b.ns] += page_bytes_[g];
        n_recurrent += r->candidate.queued ? 1 : 0;
      }
      n_idle[g] += r->n_leases == 0 ? 1 : 0;
    }
    if (n_resident != b.n_resident || n_logs != b.n_logs || n_log_children != b.n_log_children) return breach(b, "counts are off");
    if (b.logs.queued != logs_evictable(b)) return breach(b, "log records are queued for eviction although needed, or the reverse");
    n_queued += b.logs.queued ? 1 : 0;
    if ((b.ghosted != 0) != (n_resident == 0)) return breach(b, "a ghost with data, or the reverse");
    if (b.ghosted != 0) n_ghosts++;
    if ((idle_ghosts_.count(b.ghosted) != 0) != (b.ghosted != 0 && b.children.empty())) return breach(b, "the list of idle ghosts is off");
  }
  for (const auto& [ns, r] : recurrent_) {
    n_recurrent_queued += r.queue.size();
    if (r.bytes != recurrent_bytes[ns]) return "the bytes of a namespace's recurrent records are off";
  }
  if (n_recurrent != n_recurrent_queued) return "a namespace's queue of recurrent records is off";
  if (host_bytes != host_bytes_ || n_host != host_queue_.size() || n_copies != n_copies_)
    return "the ledger of host memory does not sum up";
  if (host_bytes_ > host_budget_bytes_) return "the budget of host memory is exceeded";
  if (n_queued != queue_.size()) return "the eviction queue has entries of records that are gone";
  if (n_idle != n_idle_) return "the count of idle records is off";
  if (n_ghosts != n_ghosts_) return "the count of ghosts is off";
  for (const auto& [r, owned] : orphans_)
    if (r->n_leases <= 0 || r->block != nullptr || r->state == RecordState::kPublished)
      return "a record without a lease outlived its place in the index";
  return {};
}

}  // namespace carrel
