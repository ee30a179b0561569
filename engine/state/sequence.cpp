// The life of one sequence: it takes pages, seals and publishes blocks as they fill, leaves register pages behind, and gives everything
// back.
#include <algorithm>

#include "base/log.h"
#include "engine/state/manager_impl.h"
#include "engine/state/rows.h"

namespace carrel {

namespace {
constexpr int64_t kAllBlocks = INT64_MAX;
constexpr double kBornHits = 1.0 / 16;    // worth of a state point that nobody asked for yet
constexpr double kMessageHits = 1.0 / 4;  // the same of one behind an earlier message
}  // namespace

// ---- Sequence

Sequence::Sequence(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&&) noexcept = default;
Sequence::~Sequence() = default;

Sequence::Impl::~Impl() {
  if (manager == nullptr) return;  // an admission that was not committed: the lock is held by admit
  std::lock_guard lock(manager->mu);
  manager->release(*this);
}

void Sequence::Impl::size_table(int64_t n_blocks) {
  const auto n = static_cast<size_t>(n_blocks);
  for (size_t g = 0; g < cells.size(); g++) {
    if (cells[g].size() < n) {
      cells[g].resize(n);
      table[g].resize(n, nullptr);
    }
    table_rows[g] = table[g].data();
  }
}

void Sequence::Impl::set_cell(size_t group, int64_t block, Cell cell) {
  const auto b = static_cast<size_t>(block);
  n_held[group] += (cell.data() != nullptr ? 1 : 0) - (table[group][b] != nullptr ? 1 : 0);
  table[group][b] = cell.data();
  cells[group][b] = std::move(cell);
}

const Match& Sequence::match() const {
  return impl_->match;
}
int64_t Sequence::n_past() const {
  return impl_->n_past;
}
std::span<std::byte* const* const> Sequence::pages() const {
  return impl_->table_rows;
}
std::byte* Sequence::slot() const {
  return impl_->slot.data();
}
bool Sequence::restored() const {
  return impl_->restored;
}

Status Sequence::reserve(int64_t n_tokens) {
  StateManager::Impl& m = *impl_->manager;
  if (n_tokens < 0 || n_tokens > m.config.max_step_tokens)
    return fail(Code::kInvalidArgument,
                "a step of " + std::to_string(n_tokens) + " tokens; the most is " + std::to_string(m.config.max_step_tokens),
                "max_step_tokens");
  std::lock_guard lock(m.mu);
  Status s = m.reserve_locked(*impl_, n_tokens);
  if (s) m.plan_captures(*impl_, n_tokens);
  m.index.trim_ghosts();
  m.audit();
  return s;
}

Status Sequence::advance(std::span<const int32_t> tokens) {
  Impl& s = *impl_;
  StateManager::Impl& m = *s.manager;
  const auto past = static_cast<size_t>(s.n_past);
  const size_t end = past + tokens.size();
  const size_t known = std::min(s.tokens.size(), end);
  if (!std::equal(s.tokens.begin() + static_cast<ptrdiff_t>(past), s.tokens.begin() + static_cast<ptrdiff_t>(known), tokens.begin()))
    return fail(Code::kInvalidArgument, "the step's tokens are not those of the prompt", "advance");
  const auto block = static_cast<size_t>(m.block_size);
  for (size_t g = 0; g < s.cells.size(); g++)
    for (size_t b = past / block; b * block < end; b++)
      if (m.spec(static_cast<int64_t>(g)).kind != StateKind::kRecurrent && (b >= s.cells[g].size() || !s.cells[g][b].page))
        return fail(Code::kInvalidArgument, "tokens were computed for which no pages were reserved", "advance");

  const int64_t first = s.n_past / m.block_size, last = static_cast<int64_t>(end) / m.block_size;
  std::vector<int32_t> beyond(tokens.begin() + static_cast<ptrdiff_t>(known - past), tokens.end());
  {
    std::lock_guard lock(m.mu);  // the audit may look at this sequence from another thread
    s.tokens.insert(s.tokens.end(), beyond.begin(), beyond.end());
    s.n_past = static_cast<int64_t>(end);
    extend_keys(s.keys, m.config.key_fn, s.secret, m.context, s.tokens, m.block_size, end / block);
  }
  for (int64_t b = first; b < last; b++) m.seal(s, b);  // pages are private: no lock while hashing

  std::lock_guard lock(m.mu);
  s.restored = s.restored && tokens.empty();
  for (int64_t b = first; b < last; b++) m.publish(s, b);
  m.leave_behind(s);
  m.trim_recurrent(s.ns);
  m.index.trim_ghosts();
  m.audit();
  return {};
}

// ---- taking space

PageHandle StateManager::Impl::take(int kind) {
  for (;;) {
    PageHandle page = kind == pool.slot_kind() ? pool.take_slot() : pool.take(kind);
    if (page || !index.evict_one()) return page;
  }
}

Status StateManager::Impl::reserve_locked(Sequence::Impl& seq, int64_t n_tokens) {
  const int64_t first = seq.n_past / block_size;
  const int64_t end = (seq.n_past + n_tokens + block_size - 1) / block_size;
  struct Taken {
    size_t group;
    int64_t block;
    PageHandle page;
  };
  std::vector<Taken> taken;
  for (int64_t g = 0; g < n_groups(); g++) {
    if (spec(g).kind == StateKind::kRecurrent) continue;
    const auto& row = seq.cells[static_cast<size_t>(g)];
    for (int64_t b = first; b < end; b++) {
      if (b < static_cast<int64_t>(row.size()) && row[static_cast<size_t>(b)].page) continue;
      PageHandle page = take(static_cast<int>(g));
      if (!page)
        return fail(Code::kExhausted,
                    "no page of " + std::to_string(pool.bytes_of_kind(static_cast<int>(g))) + " bytes for group " + spec(g).name + ": " +
                        std::to_string(pool.used_bytes()) + " of " + std::to_string(pool.budget_bytes()) + " bytes are in use by " +
                        std::to_string(live.size()) + " live sequences",
                    "cache.max_size_gb");
      taken.push_back({static_cast<size_t>(g), b, std::move(page)});
    }
  }
  seq.size_table(end);
  for (Taken& t : taken) {
    Cell cell;
    cell.state = RecordState::kWriting;
    cell.page = std::move(t.page);
    seq.set_cell(t.group, t.block, std::move(cell));
  }
  return {};
}

// ---- registers of recurrent groups

bool StateManager::Impl::is_point(const Sequence::Impl& seq, int64_t n_blocks) const {
  const auto in = [&](const std::vector<int64_t>& v) { return std::find(v.begin(), v.end(), n_blocks) != v.end(); };
  return (ladder_blocks > 0 && n_blocks % ladder_blocks == 0) || in(seq.likely_points) || in(seq.message_points);
}

/// Pages for the registers that the next n tokens shall leave: at state points, and at the last boundary, which becomes one if the sequence
/// ends before the next. Without space nothing is kept.
void StateManager::Impl::plan_captures(Sequence::Impl& seq, int64_t n_tokens) {
  if (recurrent.empty()) return;
  const int64_t first = seq.n_past / block_size, end = (seq.n_past + n_tokens) / block_size;
  const auto n_cells = static_cast<int64_t>(seq.cells[recurrent[0]].size());
  for (int64_t b = first; b < n_cells; b++) {
    const bool wanted = b < end && ((seq.storing && (b + 1 == end || is_point(seq, b + 1))) || (seq.verifying && is_point(seq, b + 1)));
    if (wanted == (seq.table[recurrent[0]][static_cast<size_t>(b)] != nullptr)) continue;
    std::vector<PageHandle> pages;
    for (const size_t g : recurrent)
      if (wanted) pages.push_back(take(static_cast<int>(g)));
    const bool space = std::all_of(pages.begin(), pages.end(), [](const PageHandle& p) { return static_cast<bool>(p); });
    if (wanted && !space) counters.captures_skipped++;
    for (size_t i = 0; i < recurrent.size(); i++) {
      Cell cell;
      if (wanted && space) {
        cell.state = RecordState::kWriting;
        cell.page = std::move(pages[i]);
      }
      seq.set_cell(recurrent[i], b, std::move(cell));
    }
  }
}

/// The registers at the end of this block, which are no state point: instead of older ones.
void StateManager::Impl::keep_newest(Sequence::Impl& seq, int64_t block) {
  seq.newest.block = block;
  for (size_t i = 0; i < recurrent.size(); i++) {
    seq.newest.cells[i] = std::move(seq.cells[recurrent[i]][static_cast<size_t>(block)]);
    seq.set_cell(recurrent[i], block, Cell{});
  }
}

void StateManager::Impl::drop_newest(Sequence::Impl& seq) {
  seq.newest.block = -1;
  for (Cell& cell : seq.newest.cells) cell = Cell{};
}

/// At the end of a sequence, an abort and a preemption too.
void StateManager::Impl::publish_newest(Sequence::Impl& seq) {
  if (seq.newest.block < 0 || !seq.storing || seq.epoch != epoch) return;
  Block* node = find_chain(seq, seq.newest.block);
  if (node == nullptr || node->n_logs == 0) return;
  for (size_t i = 0; i < recurrent.size(); i++)
    if (!node->records[recurrent[i]]) publish_cell(seq, node, recurrent[i], seq.newest.cells[i]);
  index.set_newest(node, 1);
  counters.captured++;
}

/// A namespace keeps no more registers than its share.
void StateManager::Impl::trim_recurrent(int ns) {
  if (recurrent.empty()) return;
  const auto share = static_cast<size_t>(config.recurrent_share * static_cast<double>(config.budget_bytes));
  while (index.recurrent_bytes(ns) > share && index.evict_recurrent(ns)) {
  }
}

// ---- sealing and publishing

/// Digests the block's private pages. Runs without the lock: only this sequence's thread touches them.
void StateManager::Impl::seal(Sequence::Impl& seq, int64_t block) {
  for (int64_t g = 0; g < n_groups(); g++) {
    Cell& cell = seq.cells[static_cast<size_t>(g)][static_cast<size_t>(block)];
    if (!cell.page) continue;  // registers that are not kept
    cell.digest = digest_rows(cell.page.data(), layouts[static_cast<size_t>(g)], spec(g).n_layers);
  }
}

Block* StateManager::Impl::find_chain(const Sequence::Impl& seq, int64_t block) const {
  const auto b = static_cast<size_t>(block);
  Block* node = index.find(seq.keys[b]);
  if (node == nullptr) return nullptr;
  const Block* parent = block == 0 ? nullptr : index.find(seq.keys[b - 1]);
  const auto n = static_cast<size_t>(block_size);
  return PrefixIndex::confirms(*node, parent, seq.ns, std::span(seq.tokens).subspan(b * n, n)) ? node : nullptr;
}

/// The block's node, with its ancestors when ghosts were forgotten meanwhile; null at a key collision.
Block* StateManager::Impl::ensure_chain(Sequence::Impl& seq, int64_t block) {
  int64_t known = block;
  while (known > 0 && index.find(seq.keys[static_cast<size_t>(known) - 1]) == nullptr) known--;
  Block* node = known == 0 ? nullptr : find_chain(seq, known - 1);
  if (known > 0 && node == nullptr) return nullptr;
  const auto n = static_cast<size_t>(block_size);
  for (int64_t b = known; b <= block; b++) {
    const auto at = static_cast<size_t>(b);
    node = index.ensure(seq.keys[at], node, seq.ns, std::span(seq.tokens).subspan(at * n, n));
    if (node == nullptr) return nullptr;
  }
  return node;
}

/// Compares the sealed block with what is published of it and adopts that. False: nothing more may be published, because some group differs
/// (the published record is quarantined, the private pages stay what they are), or because this sequence reads nothing that others
/// computed: children below records that it does not lease would keep those from being evicted.
bool StateManager::Impl::settle_known(Sequence::Impl& seq, int64_t block, Block* node) {
  bool equal = true, known = false;
  for (size_t g = 0; g < node->records.size(); g++) {
    Record* r = node->records[g].get();
    const Cell& own = seq.cells[g][static_cast<size_t>(block)];
    if (r == nullptr && own.page && !same_in_copy(node, static_cast<int>(g), own.digest)) equal = false;
    if (r == nullptr || !own.page) continue;
    if (const auto failed = failed_check(*r, rule())) {
      quarantine(r, *failed);
      continue;
    }
    known = true;
    counters.compared++;
    if (r->digest == own.digest) continue;
    equal = false;
    counters.digest_mismatches++;
    counters.quarantined++;
    spdlog::error(
        "{}: group {} at token {} was computed again with another result; the published record is quarantined; check memory and kernels",
        config.label, spec(static_cast<int64_t>(g)).name, block * block_size);
    index.detach(r, RecordState::kQuarantined);
  }
  if (!equal || (known && !seq.reuse)) return false;
  for (size_t g = 0; g < node->records.size(); g++) {
    Record* r = node->records[g].get();
    if (r == nullptr || !seq.cells[g][static_cast<size_t>(block)].page) continue;
    Cell cell;
    cell.state = RecordState::kPublished;
    cell.lease = index.lease(r);
    seq.set_cell(g, block, std::move(cell));
    counters.adopted++;
  }
  return true;
}

/// Compares what was computed again with its copy in a lower tier, where this process made that; it is dropped when it differs.
bool StateManager::Impl::same_in_copy(Block* node, int group, const Digest& digest) {
  const LowerCopy& copy = index.lower(node, group);
  if (!index.in_lower(*node, group)) return true;
  const auto known = std::find_if(copy.digests.begin(), copy.digests.end(), [&](const auto& d) { return d.first == group; });
  if (known == copy.digests.end()) return true;
  counters.compared++;
  if (known->second == digest) return true;
  counters.digest_mismatches++;
  counters.quarantined++;
  spdlog::error(
      "{}: group {} at token {} was computed again with another result than its copy in a lower tier, which was dropped; check memory and "
      "kernels",
      config.label, spec(group).name, node->depth * block_size);
  if (index.forget_copy(node, index.set_of_group(group), -1, RecordState::kQuarantined))
    doomed.push_back(id_of(*node, index.set_of_group(group)));
  return false;
}

void StateManager::Impl::publish(Sequence::Impl& seq, int64_t block) {
  for (auto& row : seq.cells)
    if (Cell& cell = row[static_cast<size_t>(block)]; cell.page) cell.state = RecordState::kSealed;
  Block* node = seq.storing ? ensure_chain(seq, block) : find_chain(seq, block);
  if (node == nullptr && seq.storing) {
    counters.key_collisions++;
    stop_storing(seq);
  }
  if (node != nullptr && seq.epoch == epoch && !settle_known(seq, block, node)) stop_storing(seq);
  if (seq.storing) {
    bool was_known = false;
    for (size_t g = 0; g < node->records.size(); g++) was_known |= node->records[g] != nullptr || node->lost[g] != RecordState::kEmpty;
    bool captured = false, point = is_point(seq, block + 1);
    for (const size_t g : recurrent) {
      captured |= static_cast<bool>(seq.cells[g][static_cast<size_t>(block)].page);
      point |= node->records[g] != nullptr;  // somebody else's: what it has lost is put back
    }
    if (captured && !point) keep_newest(seq, block);
    if (captured && point) counters.captured++;
    if (captured && block + 1 == matchable_blocks(seq.n_prompt)) index.set_newest(node, 0);
    for (size_t g = 0; g < node->records.size(); g++) {
      Cell& own = seq.cells[g][static_cast<size_t>(block)];
      if (node->records[g] || !own.page) continue;
      Record* r = publish_cell(seq, node, g, own);
      Cell cell;
      cell.state = RecordState::kPublished;
      cell.lease = index.lease(r);
      seq.set_cell(g, block, std::move(cell));
      if (was_known) counters.filled++;
    }
    if (!recurrent.empty() && std::all_of(recurrent.begin(), recurrent.end(), [&](size_t g) { return node->records[g] != nullptr; }))
      drop_newest(seq);
    const double hits = worth(seq, block + 1);
    if (hits == 1 || node->hits <= 0) index.touch(node, hits, tick);
    queue_down(node, recurrent.empty() ? hits >= kMessageHits : captured && point);
  } else {
    for (const size_t g : recurrent)  // kept for nobody
      if (seq.cells[g][static_cast<size_t>(block)].page) seq.set_cell(g, block, Cell{});
  }
  withdraw(seq, block + 1);
}

Record* StateManager::Impl::publish_cell(Sequence::Impl& seq, Block* node, size_t group, Cell& cell) {
  counters.published++;
  return index.publish(node, static_cast<int>(group), std::move(cell.page), cell.digest, layouts[group].rows_per_page, layout, seq.epoch);
}

/// Hits that a new state point is born with.
double StateManager::Impl::worth(const Sequence::Impl& seq, int64_t n_blocks) const {
  const auto& messages = seq.message_points;
  if (std::find(seq.likely_points.begin(), seq.likely_points.end(), n_blocks) != seq.likely_points.end()) return 1;
  if (!messages.empty() && messages.front() == n_blocks) return 1;
  return std::find(messages.begin(), messages.end(), n_blocks) != messages.end() ? kMessageHits : kBornHits;
}

/// Others no longer wait for this sequence's blocks before up_to.
void StateManager::Impl::withdraw(Sequence::Impl& seq, int64_t up_to) {
  for (; !seq.announced.empty() && seq.announced.back() < up_to; seq.announced.pop_back()) {
    const auto at = announced.find(seq.keys[static_cast<size_t>(seq.announced.back())]);
    if (--at->second == 0) announced.erase(at);
  }
}

void StateManager::Impl::stop_storing(Sequence::Impl& seq) {
  seq.storing = false;
  withdraw(seq, kAllBlocks);
}

// ---- giving back

/// The first block of a group that any position ≥ n_past still needs. A tail page is read while the block after it closes its first
/// groups, so that one page before the open block is held.
int64_t StateManager::Impl::first_needed(int64_t group, int64_t n_past) const {
  const StateSpec& s = spec(group);
  if (is_log(s.kind)) return 0;
  if (s.kind == StateKind::kTail) return std::max<int64_t>(0, n_past / block_size - 1);
  if (s.kind == StateKind::kRecurrent) return n_past / block_size;
  return std::max<int64_t>(0, n_past - s.window + 1) / block_size;
}

void StateManager::Impl::leave_behind(Sequence::Impl& seq) {
  for (int64_t g = 0; g < n_groups(); g++) {
    int64_t& held = seq.first_held[static_cast<size_t>(g)];
    const int64_t needed = std::min(first_needed(g, seq.n_past), static_cast<int64_t>(seq.cells[static_cast<size_t>(g)].size()));
    for (; held < needed; held++) seq.set_cell(static_cast<size_t>(g), held, Cell{});
  }
}

void StateManager::Impl::release(Sequence::Impl& seq) {
  withdraw(seq, kAllBlocks);
  const int64_t end = seq.n_past / block_size;
  if (end > 0 && static_cast<size_t>(end) <= seq.keys.size() && seq.storing)
    if (Block* last = find_chain(seq, end - 1); last != nullptr && worth(seq, end) < 1) index.touch(last, 1, tick);
  publish_newest(seq);
  if (const int64_t point = recurrent.empty() ? end - 1 : seq.newest.block;
      point >= 0 && seq.storing && static_cast<size_t>(point) < seq.keys.size())
    if (Block* last = find_chain(seq, point); last != nullptr) queue_down(last, true);
  seq.newest.cells.clear();
  seq.cells.clear();
  trim_recurrent(seq.ns);
  seq.slot = PageHandle();
  live.erase(&seq);
  index.trim_ghosts();
  audit();
}

}  // namespace carrel
