// A random search for a breach: sequences of submit, advance, abort, evict, purge and epochs over several namespaces and layouts, with the
// invariants asserted after every transition, every page read by a reader that knows what must be in it, and, while there is room for
// everything, hits and waits predicted by a model of a few lines.
//
// CARREL_SEED replays a run; CARREL_LONG makes 10^7 steps of 10^5.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <set>

#include "base/env.h"
#include "engine/state/state_sim.h"
#include "tests/seed.h"

namespace carrel {
namespace {

using namespace sim;

/// What must be known and restorable: which groups of which block were published and not taken away since.
class Oracle {
 public:
  explicit Oracle(const ModelState& model) : model_(model) {}
  using Place = std::pair<std::string, uint64_t>;  // namespace, hash of the tokens up to the block's end

  struct Expected {
    int64_t nominal = 0, effective = 0, known = 0;  // in blocks; known: ghosts too
  };
  Expected expect(const std::string& ns, const Reader& run_tokens, int64_t max_blocks) const {
    std::vector<uint32_t> chain;
    Expected e;
    for (int64_t b = 0; b < max_blocks; b++) {
      const auto at = blocks_.find({ns, run_tokens.hash_at((b + 1) * model_.block_size)});
      if (at == blocks_.end()) break;
      chain.push_back(at->second);
      if (at->second != 0) e.nominal = b + 1;
    }
    e.known = static_cast<int64_t>(chain.size());
    for (e.effective = e.nominal; e.effective > 0 && !restorable(chain, e.effective); e.effective--) {
    }
    return e;
  }
  uint32_t& at(const Place& place) { return blocks_[place]; }
  bool knows(const Place& place) const {
    const auto at = blocks_.find(place);
    return at != blocks_.end() && at->second != 0;
  }
  void forget(const std::string* ns) {
    std::erase_if(blocks_, [&](const auto& b) { return ns == nullptr || b.first.first == *ns; });
  }

 private:
  bool restorable(const std::vector<uint32_t>& chain, int64_t p) const {
    for (size_t g = 0; g < model_.groups.size(); g++) {
      const StateSpec& s = model_.groups[g];
      for (int64_t b = 0; b < p; b++) {
        const bool needed = s.kind == StateKind::kTail || s.kind == StateKind::kRecurrent ? b == p - 1
                            : s.kind == StateKind::kWindow ? (b + 1) * model_.block_size > p * model_.block_size - s.window + 1
                                                           : true;
        if (needed && (chain[static_cast<size_t>(b)] >> g & 1) == 0) return false;
      }
    }
    return true;
  }
  const ModelState& model_;
  std::map<Place, uint32_t> blocks_;  // bit per group
};

struct Live {
  Reader run;
  std::string ns;
  int64_t n_prompt, n_total;
  bool reuse, storing;
  std::set<int64_t> points;  // in blocks: where registers are kept, beside the ladder
  int64_t newest = -1;       // block at whose end they are kept until the sequence ends
};

class Walker {
 public:
  Walker(const ModelState& model, size_t budget, bool room, uint64_t seed) : dice_(seed), room_(room), model_(model), oracle_(model_) {
    StateConfig c = config_of(model_, budget);
    c.max_step_tokens = 3 * model_.block_size;
    c.max_sequences = 6;
    c.max_ghosts = room ? 1'000'000 : 40;
    c.host_budget_bytes = room ? size_t{1} << 30 : 24 * 2 * kExtentUnitBytes;  // extents of these small pages are mostly padding
    manager_ = make(std::move(c));
    ladder_ = manager_->stats().ladder_tokens / model_.block_size;
    for (size_t g = 0; g < model_.groups.size(); g++) (model_.groups[g].kind == StateKind::kRecurrent ? registers_ : others_) |= 1u << g;
  }

  void walk(int64_t n_steps) {
    for (int64_t i = 0; i < n_steps && !::testing::Test::HasFailure(); i++) {
      const int64_t what = dice_.below(3000);
      if (what < 500)
        submit();
      else if (what < 2700)
        advance();
      else if (what < 2780)
        abort();
      else if (what < 2980)
        evict();
      else if (what < 2984)
        purge();
      else if (what < 2985)
        epoch();
      else
        ASSERT_EQ(manager_->verify(), 0);
    }
    live_.clear();
    const StateStats s = manager_->stats();
    EXPECT_EQ(manager_->check_invariants(), "");
    EXPECT_EQ(manager_->verify(), 0);
    EXPECT_EQ(s.slot_bytes, 0u);
    EXPECT_EQ(s.digest_mismatches, 0u);
    EXPECT_EQ(s.quarantined, 0u);
    size_t published = 0;
    for (const auto& g : s.groups) {
      EXPECT_EQ(g.n_leased, 0);
      published += static_cast<size_t>(g.n_resident) * g.page_bytes;
    }
    EXPECT_EQ(s.used_bytes, published);
    EXPECT_GT(s.effective_tokens, 0u) << "the walk must exercise reuse";
    EXPECT_GT(s.evicted + s.filled, 0u);
    EXPECT_GT(s.restored, 0u) << "and host memory";
    if (room_) {
      EXPECT_GT(s.waited, 0u);
      EXPECT_GT(s.filled, 0u);
    }
  }

 private:
  std::string draw_namespace() { return std::string(1, "aaabbc"[dice_.below(6)]); }

  /// Mostly a piece of an earlier prompt with something new behind it.
  std::vector<int32_t> draw_prompt() {
    std::vector<int32_t> t;
    if (!corpus_.empty() && dice_.percent(85)) {
      const auto& old = corpus_[static_cast<size_t>(dice_.below(static_cast<int64_t>(corpus_.size())))];
      const auto n_old = static_cast<int64_t>(old.size());
      t.assign(old.begin(), old.begin() + (dice_.percent(50) ? n_old : dice_.below(n_old + 1)));
    }
    const int64_t most_new = dice_.percent(50) ? 10 : 2 * model_.block_size;
    for (int64_t n = dice_.below(most_new) + (t.empty() ? 1 : 0); n > 0; n--) t.push_back(static_cast<int32_t>(dice_.below(50)));
    const int64_t most = 7 * model_.block_size;
    if (static_cast<int64_t>(t.size()) > most) t.resize(static_cast<size_t>(most));
    if (corpus_.size() < 12)
      corpus_.push_back(t);
    else if (dice_.percent(10))
      corpus_[static_cast<size_t>(dice_.below(12))] = t;
    return t;
  }

  void submit() {
    auto prompt = draw_prompt();
    std::string ns = draw_namespace();          // each draw a statement of its own: compilers order arguments as they like
    if (!live_.empty() && dice_.percent(15)) {  // what somebody asks right now
      const Live& l = live_[static_cast<size_t>(dice_.below(static_cast<int64_t>(live_.size())))];
      prompt.assign(l.run.tokens().begin(), l.run.tokens().begin() + l.n_prompt);
      ns = l.ns;
    }
    AdmitRequest r = ask(prompt, ns, dice_.below(2 * model_.block_size));
    r.reuse = dice_.percent(90);
    r.store = dice_.percent(85);
    const int64_t n_prompt = static_cast<int64_t>(prompt.size());
    std::vector<int64_t> boundaries;
    for (int64_t n = dice_.below(3); n > 0; n--) boundaries.push_back(dice_.below(n_prompt));
    std::sort(boundaries.begin(), boundaries.end());
    r.boundaries = boundaries;
    const Match explained = manager_->explain(r);
    auto admission = manager_->admit(r);
    if (!admission) {
      EXPECT_TRUE(admission.error().code == Code::kExhausted) << admission.error().text();
      EXPECT_TRUE(!room_ || live_.size() == 6) << admission.error().text();
      return;
    }
    if (!admission->sequence) {
      if (room_) {
        EXPECT_TRUE(must_wait(r));
      }
      return;
    }
    Live live{Reader(model_, std::move(*admission->sequence), prompt), r.namespace_id, n_prompt, 0, r.reuse, r.store, {}, -1};
    const int64_t most = (n_prompt - 1) / model_.block_size;
    live.points = {most, n_prompt / model_.block_size};
    for (const int64_t p : boundaries) live.points.insert(p / model_.block_size);
    live.n_total = live.n_prompt + r.max_new_tokens;
    const Match& match = live.run.seq.match();
    EXPECT_EQ(match.nominal, explained.nominal);
    EXPECT_EQ(match.effective, explained.effective);
    EXPECT_EQ(match.vetoes.empty(), match.nominal == match.effective);
    EXPECT_EQ(match.effective % model_.block_size, 0);
    EXPECT_LT(match.effective, live.n_prompt);
    if (room_) {
      const auto e = r.reuse ? oracle_.expect(r.namespace_id, live.run, (live.n_prompt - 1) / model_.block_size) : Oracle::Expected{};
      live.points.insert(e.known);
      live.points.insert(e.nominal);
      EXPECT_EQ(match.nominal, e.nominal * model_.block_size);
      EXPECT_EQ(match.effective, e.effective * model_.block_size);
      EXPECT_FALSE(must_wait(r));
    }
    EXPECT_TRUE(live.run.verify()) << "a hit reads something else than what was published";
    live_.push_back(std::move(live));
  }

  /// Whether a live sequence computes the first block that this request would have to compute, and will publish it.
  bool must_wait(const AdmitRequest& r) {
    if (!r.reuse) return false;
    uint64_t hash = 7;
    std::vector<uint64_t> hashes = {hash};
    for (const int32_t t : r.tokens) hashes.push_back(hash = mix(hash, static_cast<uint64_t>(t)));
    const int64_t max_blocks = (static_cast<int64_t>(r.tokens.size()) - 1) / model_.block_size;
    const int64_t hit = manager_->explain(r).effective / model_.block_size;
    if (hit >= max_blocks) return false;
    const int64_t end = registers_ == 0 ? hit + 1 : max_blocks;
    for (const Live& l : live_) {
      if (!l.storing || l.ns != r.namespace_id) continue;
      for (int64_t b = std::max(hit, l.run.seq.n_past() / model_.block_size); b < end && (b + 1) * model_.block_size <= l.n_prompt; b++) {
        if (registers_ != 0 && !is_point(l, b + 1)) continue;
        if (l.run.hash_at((b + 1) * model_.block_size) == hashes[static_cast<size_t>((b + 1) * model_.block_size)]) return true;
      }
    }
    return false;
  }

  bool is_point(const Live& l, int64_t n_blocks) const { return (ladder_ > 0 && n_blocks % ladder_ == 0) || l.points.contains(n_blocks); }

  void advance() {
    if (live_.empty()) return submit();
    const size_t i = static_cast<size_t>(dice_.below(static_cast<int64_t>(live_.size())));
    Live& l = live_[i];
    const int64_t past = l.run.seq.n_past();
    if (past >= l.n_total) return drop(i);
    int64_t n = past < l.n_prompt ? 1 + dice_.below(std::min(l.n_prompt - past, 3 * static_cast<int64_t>(model_.block_size)))
                                  : 1 + dice_.below(model_.block_size);
    n = std::min(n, l.n_total - past);
    while (l.run.n_tokens() < past + n) l.run.add(static_cast<int32_t>(dice_.below(50)));
    if (Status s = l.run.step(n); !s) {
      EXPECT_EQ(s.error().code, Code::kExhausted) << s.error().text();
      EXPECT_FALSE(room_);
      if (dice_.percent(50)) drop(i);
      return;
    }
    EXPECT_TRUE(l.run.verify());
    for (int64_t b = past / model_.block_size; (b + 1) * model_.block_size <= past + n; b++) {
      const Oracle::Place place{l.ns, l.run.hash_at((b + 1) * model_.block_size)};
      if (l.storing && !l.reuse && oracle_.knows(place)) l.storing = false;
      if (!l.storing) continue;
      uint32_t& there = oracle_.at(place);
      const bool last = (b + 2) * model_.block_size > past + n;
      const bool kept = registers_ != 0 && (is_point(l, b + 1) || (last && (there & registers_) != 0));
      there |= others_ | (kept ? registers_ : 0);
      if (registers_ == 0) continue;
      if ((there & registers_) == registers_)
        l.newest = -1;
      else if (last)
        l.newest = b;
    }
  }

  void drop(size_t i) {
    if (corpus_.size() >= 12 && dice_.percent(30)) {  // a later turn goes on from the whole answer
      auto& l = live_[i];
      std::vector<int32_t> all(l.run.tokens().begin(), l.run.tokens().end());
      corpus_[static_cast<size_t>(dice_.below(12))] = all;
    }
    const Live& l = live_[i];
    if (room_ && l.storing && l.newest >= 0) {
      uint32_t& there = oracle_.at({l.ns, l.run.hash_at((l.newest + 1) * model_.block_size)});
      if ((there & others_) != 0) there |= registers_;
    }
    std::swap(live_[i], live_.back());
    live_.pop_back();
  }

  void abort() {
    if (!live_.empty()) drop(static_cast<size_t>(dice_.below(static_cast<int64_t>(live_.size()))));
  }

  void evict() {
    if (!room_) {
      manager_->evict_one_for_test();
      return;
    }
    if (corpus_.empty()) return;
    const auto prompt = corpus_[static_cast<size_t>(dice_.below(static_cast<int64_t>(corpus_.size())))];
    const int64_t n_blocks = static_cast<int64_t>(prompt.size()) / model_.block_size;
    if (n_blocks == 0) return;
    const std::string ns = draw_namespace();
    const int64_t b = dice_.below(n_blocks);
    const auto g = static_cast<size_t>(dice_.below(static_cast<int64_t>(model_.groups.size())));
    uint64_t hash = 7;
    for (int64_t i = 0; i < (b + 1) * model_.block_size; i++) hash = mix(hash, static_cast<uint64_t>(prompt[static_cast<size_t>(i)]));
    const auto damage = [&](Damage d) { return manager_->damage_for_test(ask(prompt, ns), b, model_.groups[g].name, d); };
    const bool known = oracle_.knows({ns, hash}) && (oracle_.at({ns, hash}) >> g & 1) != 0;
    const bool offload = dice_.percent(50);  // stays restorable
    const Status s = damage(offload ? Damage::kOffload : Damage::kEvict);
    if (s || s.error().code == Code::kUnavailable) {
      EXPECT_TRUE(known) << (s ? "gone" : s.error().text());
    }
    if (offload || (!s && s.error().code == Code::kUnavailable)) return;
    const bool in_host = damage(Damage::kDropHost).has_value();
    EXPECT_EQ(s || in_host, known);
    if (known) oracle_.at({ns, hash}) &= ~(1u << g);
  }

  void purge() {
    const std::string ns = draw_namespace();
    manager_->purge(ns);
    oracle_.forget(&ns);
    for (Live& l : live_) l.storing = l.storing && l.ns != ns;
  }

  void epoch() {
    manager_->bump_epoch();
    oracle_.forget(nullptr);
    for (Live& l : live_) l.storing = false;
  }

  Dice dice_;
  const bool room_;
  ModelState model_;
  Oracle oracle_;
  int64_t ladder_ = 0;                   // in blocks
  uint32_t registers_ = 0, others_ = 0;  // bits of the recurrent groups, and of the rest
  std::unique_ptr<StateManager> manager_;
  std::vector<Live> live_;
  std::vector<std::vector<int32_t>> corpus_;
};

/// Bytes of n blocks of all groups.
size_t blocks_bytes(const ModelState& m, int64_t n) {
  size_t bytes = 0;
  for (const StateSpec& g : m.groups) bytes += page_bytes(g, m.block_size) * static_cast<size_t>(n);
  return bytes + 6 * m.slot_bytes;
}

TEST(StateRandom, NoScheduleBreaksAnInvariantOrAPromise) {
  std::optional<uint64_t> given;
  ASSERT_TRUE(read_seed("CARREL_SEED", &given));
  const bool is_long = std::getenv("CARREL_LONG") != nullptr;
  const int n_rounds = is_long ? 100 : 1;  // of ten walks of 10^4 steps: a walk's table grows, and every transition audits all of it
  const ModelState models[] = {v4_like(), demo_like(), gemma_like(), plain(), mistral_like(), qwen_like(), lfm_like()};
  uint64_t seed = 20261130;
  if (is_long) Env::real()->random(std::as_writable_bytes(std::span(&seed, 1)));
  seed = given.value_or(seed);
  for (int round = 0; round < n_rounds; round++, seed++) {
    std::cout << "CARREL_SEED=" << seed << std::endl;
    uint64_t walk = 0;
    for (const ModelState& model : models) {
      for (const bool room : {true, false}) {
        SCOPED_TRACE("CARREL_SEED=" + std::to_string(seed) + ", " + page_layout_id(model) + (room ? " with room" : " under pressure"));
        Walker(model, room ? size_t{64} << 20 : blocks_bytes(model, 16), room, mix(seed, walk++)).walk(10'000);
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace carrel
