// Admission: match, pin, allocate, commit.
#include "engine/state/state_manager.h"

#include <algorithm>

#include "base/log.h"
#include "engine/state/block_extent.h"
#include "engine/state/manager_impl.h"
#include "engine/state/needs.h"

namespace carrel {

namespace {

constexpr int kInertStreak = 100;

std::vector<RowLayout> layouts_of(const ModelState& model) {
  std::vector<RowLayout> out;
  for (const StateSpec& g : model.groups) out.push_back(layout_of(g, model.block_size));
  return out;
}

std::vector<size_t> recurrent_groups(const ModelState& model) {
  std::vector<size_t> out;
  for (size_t g = 0; g < model.groups.size(); g++)
    if (model.groups[g].kind == StateKind::kRecurrent) out.push_back(g);
  return out;
}

std::string bytes_text(size_t n) {
  return std::to_string(n) + " bytes";
}

Status check_config(const StateConfig& c) {
  const ModelState& m = c.model;
  constexpr size_t kMaxGroups = 64;  // a bit each
  const auto bad = [](std::string what) { return fail(Code::kInvalidArgument, std::move(what), "state"); };
  if (m.groups.empty() || m.groups.size() > kMaxGroups || m.block_size <= 0)
    return bad("the model declares no state groups, more than 64, or no block size");
  for (const StateSpec& g : m.groups) {
    const RowLayout l = layout_of(g, m.block_size);
    if (g.ratio > 0 && m.block_size % g.ratio != 0)
      return bad("group " + g.name + ": a block of " + std::to_string(m.block_size) + " tokens is not a whole number of rows of " +
                 std::to_string(g.ratio));
    if (g.n_layers <= 0 || l.rows_per_page <= 0 || l.row_stride_bytes == 0) return bad("group " + g.name + ": no rows");
    if (!serialized(g.kind)) return bad("group " + g.name + ": nothing can carry its kind to another tier");
    if (g.kind == StateKind::kRecurrent && g.ratio != 0) return bad("group " + g.name + ": registers have no ratio");
    if (g.kind == StateKind::kWindow && g.window < 1) return bad("group " + g.name + ": a window of no rows");
    if (l.layer_stride_bytes % PagePool::kAlignment != 0) return bad("group " + g.name + ": layers are not aligned to 64 bytes");
  }
  if (c.kernel_layout_id != page_layout_id(m))
    return bad("the graph was built for page layout \"" + c.kernel_layout_id + "\", pages are laid out as \"" + page_layout_id(m) +
               "\"; rebuild the graph");
  if (c.max_step_tokens < 1 || c.max_sequences < 1) return bad("max_step_tokens and max_sequences must be at least 1");
  return {};
}

}  // namespace

StateManager::Impl::Impl(StateConfig c)
    : config(std::move(c)),
      block_size(config.model.block_size),
      context(key_context(config.model_digest, config.numerics_id, row_layout_id(config.model))),
      layouts(layouts_of(config.model)),
      recurrent(recurrent_groups(config.model)),
      ladder_blocks(carrel::ladder_blocks(config.model)),
      pool(config.model, config.budget_bytes, config.poison),
      index(config.model, config.max_ghosts, config.host_budget_bytes),
      disk(config.disk),
      extent_rows(extent_layout(config.model, config.numerics_id)) {
  begin_tiers();
  if (!config.reuse) return;
  const auto warn = [&](std::string text) {
    spdlog::warn("{}: {}", config.label, text);
    warnings.push_back(std::move(text));
  };
  if (config.max_sequence_tokens > 0 && config.max_sequence_tokens <= block_size)
    warn("no prefix can ever be reused: sequences of at most " + std::to_string(config.max_sequence_tokens) +
         " tokens never exceed a block of " + std::to_string(block_size));
  const int64_t two_points = std::max<int64_t>(2 * block_size + 1, config.max_sequence_tokens);
  if (config.budget_bytes < needed_bytes(two_points))
    warn("the budget of " + bytes_text(config.budget_bytes) + " is less than one sequence of " + std::to_string(two_points) +
         " tokens needs (" + bytes_text(needed_bytes(two_points)) +
         "); prefixes will hardly outlive their request; raise cache.max_size_gb");
}

Result<std::unique_ptr<StateManager>> StateManager::create(StateConfig config) {
  CARREL_TRY(check_config(config));
  auto impl = std::make_unique<Impl>(std::move(config));
  const size_t least = impl->needed_bytes(1);
  if (impl->config.budget_bytes < least)
    return fail(Code::kInvalidArgument,
                "a budget of " + bytes_text(impl->config.budget_bytes) + " holds no sequence; the least is " + bytes_text(least),
                "cache.max_size_gb");
  return std::unique_ptr<StateManager>(new StateManager(std::move(impl)));
}

StateManager::StateManager(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StateManager::~StateManager() {
  impl_->end_tiers();
}

int64_t StateManager::Impl::peak_pages(int64_t group, int64_t n_tokens) const {
  return carrel::peak_pages(spec(group), block_size, n_tokens, config.max_step_tokens);
}

size_t StateManager::Impl::needed_bytes(int64_t n_tokens) const {
  return sequence_bytes(config.model, n_tokens, config.max_step_tokens);
}

/// What a live sequence still has to take until its prompt is computed.
size_t StateManager::Impl::outstanding_bytes(const Sequence::Impl& seq) const {
  const auto n_prompt = static_cast<int64_t>(seq.n_prompt);
  if (seq.n_past >= n_prompt) return 0;
  size_t n = 0;
  for (int64_t g = 0; g < n_groups(); g++)
    n += static_cast<size_t>(std::max<int64_t>(0, peak_pages(g, n_prompt) - seq.n_held[static_cast<size_t>(g)])) *
         pool.bytes_of_kind(static_cast<int>(g));
  return n;
}

/// Whether the prompts of all live sequences and of this one can be computed side by side: else they would take each other's space away.
Status StateManager::Impl::check_room(const Sequence::Impl& seq) const {
  if (live.empty()) return {};
  size_t wanted = outstanding_bytes(seq) + pool.bytes_of_kind(pool.slot_kind());
  for (const Sequence::Impl* other : live) wanted += outstanding_bytes(*other);
  size_t evictable = 0;
  for (int g = 0; g < static_cast<int>(n_groups()); g++) evictable += static_cast<size_t>(index.n_idle(g)) * pool.bytes_of_kind(g);
  const size_t there = pool.budget_bytes() - pool.used_bytes() + evictable;
  if (wanted <= there) return {};
  return fail(Code::kExhausted,
              "the prompts of " + std::to_string(live.size()) + " live sequences and this one need " + bytes_text(wanted) + " more, " +
                  bytes_text(there) + " are free or evictable",
              "cache.max_size_gb");
}

Status StateManager::Impl::check_fits(const AdmitRequest& request) const {
  const auto n_prompt = static_cast<int64_t>(request.tokens.size());
  const int64_t n_new = std::max<int64_t>(request.max_new_tokens, 0);
  if (n_prompt == 0) return fail(Code::kInvalidArgument, "the prompt has no tokens", "prompt");
  const size_t needed = needed_bytes(n_prompt + n_new);
  if (needed <= config.budget_bytes) return {};
  return fail(Code::kInvalidArgument,
              "a prompt of " + std::to_string(n_prompt) + " tokens and an answer of up to " + std::to_string(n_new) + " need " +
                  bytes_text(needed) + " of state, the whole budget is " + bytes_text(config.budget_bytes) +
                  "; shorten the prompt, lower max_tokens or raise cache.max_size_gb",
              "cache.max_size_gb");
}

void StateManager::Impl::fill_keys(const AdmitRequest& request, BlockKeys& keys, size_t n_blocks) const {
  extend_keys(keys, config.key_fn, request.namespace_secret, context, request.tokens, block_size, n_blocks);
}

std::optional<int> StateManager::Impl::find_namespace(const AdmitRequest& request) const {
  const auto at = namespaces.find({request.namespace_id, request.namespace_secret});
  if (at == namespaces.end()) return std::nullopt;
  return at->second;
}

int StateManager::Impl::intern_namespace(const AdmitRequest& request) {
  const auto [at, fresh] = namespaces.try_emplace({request.namespace_id, request.namespace_secret}, static_cast<int>(namespaces.size()));
  if (fresh) {
    namespace_names.push_back(at->first);
    namespace_ids.insert(request.namespace_id);
  }
  return at->second;
}

// ---- matching

Match StateManager::Impl::match(const Walk& walk, std::vector<Record*>& failed, bool device_only) const {
  const RecordRule r = rule();
  const int64_t now = index.has_copies() ? config.env->mono_ns() : 0;
  Intersection hit = intersect(config.model, walk.n_nominal, [&](int g, int64_t b) {
    const Block& block = *walk.chain[static_cast<size_t>(b)];
    const std::string_view lacks = residency(block, g, r);
    if (!lacks.empty() && index.in_lower(block, g)) {
      const LowerCopy& copy = block.lower[static_cast<size_t>(set_of(spec(g).kind))];
      if (device_only || (!copy.host && copy.avoid_until > now)) return std::string_view("offloaded");
      return std::string_view();
    }
    if (!lacks.empty() && block.records[static_cast<size_t>(g)]) failed.push_back(block.records[static_cast<size_t>(g)].get());
    return lacks;
  });
  return {walk.n_nominal * block_size, hit.n_blocks * block_size, 0, false, std::move(hit.vetoes)};
}

/// A record that failed a check is never offered again.
void StateManager::Impl::quarantine(Record* record, Check failed) {
  counters.check_failures[static_cast<size_t>(failed)]++;
  counters.quarantined++;
  spdlog::error("{}: a record of group {} at token {} failed check {} and was quarantined", config.label, spec(record->group).name,
                record->block->depth * block_size, static_cast<int>(failed) + 1);
  index.detach(record, RecordState::kQuarantined);
}

Match StateManager::explain(const AdmitRequest& request) const {
  Impl& m = *impl_;  // nothing is taken, but what the disk has of the prompt becomes known
  if (!m.config.reuse || !request.reuse) return {};
  const int64_t n = m.matchable_blocks(request.tokens.size());
  BlockKeys own;
  BlockKeys& keys = request.keys != nullptr ? *request.keys : own;
  m.fill_keys(request, keys, static_cast<size_t>(n));
  std::lock_guard lock(m.mu);
  std::vector<Record*> failed;
  Match found = m.match(m.walk(keys, request.tokens, m.intern_namespace(request), n), failed);
  m.index.trim_ghosts();
  return found;
}

// ---- admission

Result<Admission> StateManager::admit(const AdmitRequest& request) {
  Impl& m = *impl_;
  BlockKeys own;
  BlockKeys& keys = request.keys != nullptr ? *request.keys : own;
  if (Status fits = m.check_fits(request); !fits) {
    std::lock_guard lock(m.mu);
    m.counters.refused++;
    return std::unexpected(std::move(fits).error());
  }
  m.fill_keys(request, keys, request.tokens.size() / static_cast<size_t>(m.block_size));
  if (m.config.seal_key) (void)m.config.seal_key(request.namespace_id);  // the first time it may read a file: not under the lock
  for (std::shared_ptr<Restore> own;;) {                                 // brought back by this very call
    std::shared_ptr<Restore> restore;
    {
      std::lock_guard lock(m.mu);
      auto admission = m.admit_locked(request, keys, &restore);
      if (own != nullptr) m.drop_ready([&](const Restore& r) { return &r == own.get(); });
      m.index.trim_ghosts();
      m.audit();
      if (restore == nullptr) return admission;
      own = restore;
      m.to_restore.push_back(std::move(restore));
      if (m.restorers) {
        m.restorers->wake();
        return admission;
      }
    }
    (void)m.restore_some();
  }
}

Result<Admission> StateManager::Impl::admit_locked(const AdmitRequest& request, const BlockKeys& keys, std::shared_ptr<Restore>* restore) {
  const bool reuse = config.reuse && request.reuse;
  const int64_t max_blocks = matchable_blocks(request.tokens.size());
  const auto n_full = static_cast<int64_t>(request.tokens.size()) / block_size;
  const int ns = intern_namespace(request);
  Walk walk;
  Match found;
  if (reuse) {
    walk = this->walk(keys, request.tokens, ns, max_blocks);
    std::vector<Record*> failed;
    found = match(walk, failed);
    for (Record* r : failed) quarantine(r, *failed_check(*r, rule()));
    walk.measure();
    CARREL_ASSIGN(const bool wait, bring_back(walk, found, restore));
    if (wait) return Admission{};
  }
  const int64_t hit = found.effective / block_size;
  if (reuse && computed_by_another(keys, hit, max_blocks)) {
    counters.waited++;
    return Admission{};
  }
  if (live.size() >= static_cast<size_t>(config.max_sequences)) {
    counters.refused++;
    return fail(Code::kExhausted, "all " + std::to_string(config.max_sequences) + " places for sequences are taken",
                "scheduling.max_num_seqs");
  }

  tick++;
  auto seq = std::make_unique<Sequence::Impl>();
  seq->id = next_sequence++;
  seq->ns = ns;
  seq->secret = request.namespace_secret;
  seq->epoch = epoch;
  seq->reuse = reuse;
  seq->storing = config.reuse && request.store;
  seq->verifying = config.reuse && request.verify;
  seq->tokens.assign(request.tokens.begin(), request.tokens.end());
  seq->n_prompt = request.tokens.size();
  seq->keys.assign(keys.begin(), keys.begin() + n_full);
  seq->n_past = found.effective;
  std::vector<std::shared_ptr<Restore>> held;
  if (hit > 0 && !ready.empty()) held = take_ready(walk, hit, found);
  seq->match = found;
  seq->cells.resize(static_cast<size_t>(n_groups()));
  seq->table.resize(static_cast<size_t>(n_groups()));
  seq->table_rows.resize(static_cast<size_t>(n_groups()));
  seq->first_held.resize(static_cast<size_t>(n_groups()));
  seq->n_held.resize(static_cast<size_t>(n_groups()));
  seq->likely_points = {static_cast<int64_t>(walk.chain.size()), walk.n_nominal, max_blocks, n_full};
  for (const int64_t position : request.boundaries) seq->message_points.push_back(std::min(position / block_size, max_blocks));
  seq->restored = hit > 0;
  seq->newest.cells.resize(recurrent.size());
  pin(*seq, walk, hit);
  for (const auto& r : held) drop_restore(r);  // their leases are the sequence's now
  Status space = check_room(*seq);
  if (space) space = reserve_locked(*seq, std::min<int64_t>(block_size, static_cast<int64_t>(request.tokens.size()) - seq->n_past));
  if (space && config.model.slot_bytes > 0) {
    seq->slot = take(pool.slot_kind());
    if (!seq->slot) space = fail(Code::kExhausted, "no space for the rings of another sequence", "cache.max_size_gb");
  }
  if (!space) {  // pins and pages go back with the sequence
    counters.refused++;
    counters.rolled_back++;
    return std::unexpected(std::move(space).error());
  }

  seq->manager = this;  // from here on it is live: committed
  live.insert(seq.get());
  if (hit > 0) touch(walk, hit);
  if (seq->storing) announce(*seq, hit, n_full);
  count_match(request, seq->match, walk, max_blocks);
  return Admission{Sequence(std::move(seq))};
}

void StateManager::Impl::announce(Sequence::Impl& seq, int64_t from, int64_t to) {
  for (int64_t b = to - 1; b >= from; b--)
    if (recurrent.empty() || is_point(seq, b + 1)) seq.announced.push_back(b);
  for (const int64_t b : seq.announced) announced[seq.keys[static_cast<size_t>(b)]]++;
}

/// Whether a live sequence will soon publish a point from which more could be skipped: of the next block, or, where points are sparse, of
/// any block of this prompt.
bool StateManager::Impl::computed_by_another(const BlockKeys& keys, int64_t hit, int64_t max_blocks) const {
  const int64_t end = recurrent.empty() ? std::min(hit + 1, max_blocks) : max_blocks;
  for (int64_t b = hit; b < end && !announced.empty(); b++)
    if (announced.contains(keys[static_cast<size_t>(b)])) return true;
  return false;
}

void StateManager::Impl::count_match(const AdmitRequest& request, const Match& match, const Walk& walk, int64_t max_blocks) {
  counters.admitted++;
  counters.prompt_tokens += request.tokens.size();
  counters.nominal_tokens += static_cast<uint64_t>(match.nominal);
  counters.effective_tokens += static_cast<uint64_t>(match.effective);
  counters.restored_tokens += static_cast<uint64_t>(match.restored);
  counters.ghost_tokens += (walk.chain.size() - static_cast<size_t>(walk.n_nominal)) * static_cast<size_t>(block_size);
  if (walk.collision) counters.key_collisions++;
  bool counted[std::size(kStateKinds)] = {};
  for (const Veto& v : match.vetoes) {
    bool& seen = counted[static_cast<size_t>(v.kind)];
    if (!seen) counters.vetoes[static_cast<size_t>(v.kind)]++;
    seen = true;
  }
  if (max_blocks == 0 || match.nominal == 0) return;
  inert_streak = match.effective > 0 ? 0 : inert_streak + 1;
  if (inert_streak == kInertStreak)
    spdlog::error("{}: {} requests in a row matched a prefix and none could use it; see the vetoes", config.label, kInertStreak);
  counters.inert_alarm = inert_streak >= kInertStreak;
}

}  // namespace carrel
