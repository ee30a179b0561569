#include "engine/drill/drill.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/env.h"
#include "engine/drill/bench.h"
#include "engine/state/prefix_index.h"

namespace carrel {

using drill::Bench;
using drill::equal_logits;
using drill::Run;

namespace {

// toctou: each thread runs at least so often, and on until so much was evicted meanwhile, but not for ever.
constexpr int kThreads = 3, kLeastRuns = 4, kMostRuns = 500;
constexpr uint64_t kLeastEvicted = 8;

std::string at(const StateSpec& group, int64_t token, const char* what) {
  return group.name + ": " + what + " at token " + std::to_string(token);
}

/// One drill at work: its managers, its cold run, its report.
class Drill {
 public:
  Drill(Bench& bench, const Run& cold, const DrillOptions& options, DrillReport& report)
      : bench_(bench), cold_(cold), options_(options), report_(report) {}

  // ---- one per row of the table
  Status missing(StateKind kind);
  Status offloaded_not_restored();
  Status check(Damage damage, int check, const char* what);
  Status group_disagreement();
  Status bit_flip();
  Status toctou();
  Status stale_graph();
  Status restart();
  Status first_vs_hit();

 private:
  const ModelState& state() const { return bench_.state(); }
  int64_t last() const { return bench_.n_blocks() - 1; }
  int64_t token_of(int64_t block) const { return block * state().block_size; }
  bool failed() const { return report_.verdict == DrillVerdict::kFailed; }
  void fail_with(std::string reason) {
    report_.verdict = DrillVerdict::kFailed;
    if (report_.reason.empty()) report_.reason = std::move(reason);
  }

  Status warm();
  Status damage(const StateSpec& group, int64_t block, Damage how) {
    return manager_->damage_for_test(bench_.ask(), block, group.name, how);
  }
  Status offload_all();
  template <class Counter>
  Status judge(std::string damage, std::string counter, Counter read, uint64_t before, const std::vector<size_t>& lost,
               bool shortened = true);
  void judge_run(const Run& run, const Run& cold, DrillCase& c, bool shortened);

  Bench& bench_;
  const Run& cold_;
  const DrillOptions& options_;
  DrillReport& report_;
  std::unique_ptr<StateManager> manager_;
};

/// A manager that knows the prompt, and the proof that a hit on it is whole: what a drill damages must have been there.
Status Drill::warm() {
  CARREL_ASSIGN(manager_, bench_.fresh());
  for (const bool again : {false, true}) {
    CARREL_ASSIGN(const Run run, bench_.run(*manager_));
    if (run.tokens != cold_.tokens || !equal_logits(run, cold_)) fail_with("without any damage the answer differs from the cold run");
    const int64_t expected = again ? token_of(bench_.n_blocks()) : 0;
    if (run.match.effective != expected)
      fail_with("there was no whole hit to damage: " + std::to_string(run.match.effective) + " of " + std::to_string(expected) +
                " tokens were reused");
  }
  return {};
}

void Drill::judge_run(const Run& run, const Run& cold, DrillCase& c, bool shortened) {
  c.nominal = run.match.nominal;
  c.effective = run.match.effective;
  c.tokens_equal = run.tokens == cold.tokens;
  c.logits_equal = equal_logits(run, cold);
  c.answer = bench_.words(run.tokens);
  if (!c.tokens_equal)
    c.failure = "the tokens differ from the cold run";
  else if (!c.logits_equal)
    c.failure = "the logits differ from the cold run";
  else if (shortened && c.effective >= token_of(bench_.n_blocks()))
    c.failure = "the damage did not shorten the hit";
  else if (c.after <= c.before)
    c.failure = "the counter " + c.counter + " did not move";
}

/// Runs the prompt over the damaged manager. lost: groups that a wrong hit would have read blank.
template <class Counter>
Status Drill::judge(std::string damage, std::string counter, Counter read, uint64_t before, const std::vector<size_t>& lost,
                    bool shortened) {
  CARREL_ASSIGN(const Run run, bench_.run(*manager_));
  DrillCase c;
  c.damage = std::move(damage);
  c.counter = std::move(counter);
  c.before = before;
  c.after = read(manager_->stats());
  judge_run(run, cold_, c, shortened);
  if (options_.show_damage && !lost.empty()) {
    CARREL_ASSIGN(const Run wrong, bench_.run_blanked(lost));
    c.would_have_answered = bench_.words(wrong.tokens);
    if (c.failure.empty() && equal_logits(wrong, cold_)) c.failure = "blanking this state changes nothing: the prompt does not use it";
  }
  if (!c.failure.empty()) fail_with(c.damage + ": " + c.failure);
  report_.cases.push_back(std::move(c));
  return {};
}

Status Drill::missing(StateKind kind) {
  const auto vetoes = [&](const StateStats& s) { return s.vetoes[static_cast<size_t>(kind)]; };
  const auto ghosts = [](const StateStats& s) { return s.ghost_tokens; };
  bool any = false;
  for (size_t g = 0; g < state().groups.size() && !failed(); g++) {
    const StateSpec& group = state().groups[g];
    if (group.kind != kind) continue;
    any = true;
    CARREL_TRY(warm());
    if (failed()) return {};
    const int64_t block = is_log(kind) ? last() - 1 : last();  // not a log's end: without it the prefix would not be known that far
    CARREL_TRY(damage(group, block, Damage::kEvict));
    const std::string what = at(group, token_of(block), "record evicted");
    if (!is_log(kind) && state().groups.size() == 1) {  // its only group: the block is a ghost, and nobody's veto shortens the match
      CARREL_TRY(judge(what, "ghost_tokens", ghosts, ghosts(manager_->stats()), {g}));
    } else {
      CARREL_TRY(judge(what, "vetoes{" + std::string(to_string(kind)) + "}", vetoes, vetoes(manager_->stats()), {g}));
    }
    CARREL_ASSIGN(const Run healed, bench_.run(*manager_));
    if (healed.match.effective != token_of(bench_.n_blocks())) fail_with(group.name + ": the next sighting does not hit whole again");
  }
  if (any) return {};
  report_.verdict = DrillVerdict::kNotApplicable;
  report_.reason = "this model has no state of kind " + std::string(to_string(kind));
  return {};
}

Status Drill::offload_all() {
  for (const StateSpec& group : state().groups)
    for (int64_t b = 0; b < bench_.n_blocks(); b++)
      if (Status s = damage(group, b, Damage::kOffload); !s && s.error().code != Code::kNotFound)
        return s;  // not kept there: nothing to move
  return {};
}

Status Drill::offloaded_not_restored() {
  CARREL_TRY(warm());
  if (failed()) return {};
  std::vector<size_t> all;
  for (size_t g = 0; g < state().groups.size(); g++) all.push_back(g);
  CARREL_TRY(offload_all());
  const auto restored = [](const StateStats& s) { return s.restored; };
  CARREL_TRY(judge("every record moved to host memory", "restored", restored, restored(manager_->stats()), {}, false));
  if (report_.cases.back().effective != token_of(bench_.n_blocks())) fail_with("what lies in host memory was not restored");
  for (size_t g = 0; g < state().groups.size() && !failed(); g++) {
    const StateSpec& group = state().groups[g];
    const auto failures = [&](const StateStats& s) { return s.restore_failures[static_cast<size_t>(group.kind)]; };
    CARREL_TRY(offload_all());
    CARREL_TRY(damage(group, last(), Damage::kFlipHostBit));
    CARREL_TRY(judge(at(group, token_of(last()), "copy in host memory unreadable"),
                     "restore_failures{" + std::string(to_string(group.kind)) + "}", failures, failures(manager_->stats()),
                     g == 0 ? all : std::vector<size_t>{}));
  }
  return {};
}

Status Drill::check(Damage how, int check, const char* what) {
  static constexpr const char* kNames[] = {"whole_blocks", "layout", "intersection", "alignment"};
  const auto refused = [&](const StateStats& s) { return s.check_failures[check]; };
  for (size_t g = 0; g < state().groups.size() && !failed(); g++) {
    CARREL_TRY(warm());
    if (failed()) return {};
    CARREL_TRY(damage(state().groups[g], last(), how));
    CARREL_TRY(judge(at(state().groups[g], token_of(last()), what), "check_failures{" + std::string(kNames[check]) + "}", refused,
                     refused(manager_->stats()), {}));
  }
  return {};
}

Status Drill::group_disagreement() {
  CARREL_TRY(check(Damage::kEpoch, 2, "record of an older epoch"));
  if (failed() || state().groups.size() < 2 || last() < 1) return {};
  CARREL_TRY(warm());
  const auto vetoes = [](const StateStats& s) {
    uint64_t n = 0;
    for (const uint64_t v : s.vetoes) n += v;
    return n;
  };
  const StateSpec &first = state().groups.front(), &second = state().groups.back();
  CARREL_TRY(damage(first, last(), Damage::kEvict));
  if (Status s = damage(second, last() - 1, Damage::kEvict); !s && s.error().code != Code::kNotFound) return s;
  CARREL_TRY(judge(first.name + " ends a block earlier than the rest, " + second.name + " lacks the one before", "vetoes", vetoes,
                   vetoes(manager_->stats()), {}));
  if (is_log(second.kind) && report_.cases.back().effective > token_of(last() - 1)) fail_with("the groups were not intersected");
  return {};
}

Status Drill::bit_flip() {
  for (size_t g = 0; g < state().groups.size() && !failed(); g++) {
    const StateSpec& group = state().groups[g];
    const auto mismatches = [](const StateStats& s) { return s.digest_mismatches; };
    CARREL_TRY(warm());
    if (failed()) return {};
    const uint64_t before = mismatches(manager_->stats());
    CARREL_TRY(damage(group, last(), Damage::kFlipBit));
    if (manager_->verify() != 1) fail_with(group.name + ": verification did not find the flipped bit");
    CARREL_TRY(judge(at(group, token_of(last()), "bit flipped on the device"), "digest_mismatches", mismatches, before, {}));
    const auto failures = [&](const StateStats& s) { return s.restore_failures[static_cast<size_t>(group.kind)]; };
    CARREL_TRY(offload_all());
    CARREL_TRY(damage(group, last(), Damage::kFlipHostBit));
    CARREL_TRY(judge(at(group, token_of(last()), "bit flipped in host memory"),
                     "restore_failures{" + std::string(to_string(group.kind)) + "}", failures, failures(manager_->stats()), {}));
  }
  return {};
}

Status Drill::toctou() {
  CARREL_TRY(warm());
  if (failed()) return {};
  std::atomic<int> working{kThreads}, wrong{0}, n_runs{0};
  std::atomic<int64_t> effective{0};
  const uint64_t before = manager_->stats().evicted;
  std::vector<std::thread> threads;
  std::vector<Status> status(kThreads);
  for (int t = 0; t < kThreads; t++) {
    threads.emplace_back([&, t] {
      const auto work = [&]() -> Status {
        CARREL_ASSIGN(const auto own, Bench::create(bench_.model(), bench_.prompt(), options_.n_new, options_.reuse));
        for (int i = 0; i < kLeastRuns || (i < kMostRuns && manager_->stats().evicted < before + kLeastEvicted); i++) {
          CARREL_ASSIGN(const Run run, own->run(*manager_));
          effective += run.match.effective;
          n_runs++;
          if (run.tokens != cold_.tokens || !equal_logits(run, cold_)) wrong++;
          std::this_thread::sleep_for(std::chrono::milliseconds(2));  // moments in which nobody reads: a short log is leased whole
        }
        return {};
      };
      status[static_cast<size_t>(t)] = work();
      working--;
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; working > 0; i++) {
      manager_->evict_one_for_test();
      if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));  // else there would be nothing left to match
    }
  });
  for (std::thread& t : threads) t.join();
  for (Status& s : status) CARREL_TRY(std::move(s));
  DrillCase c;
  c.damage = std::to_string(kThreads) + " threads match while records are evicted";
  c.counter = "evicted";
  c.before = before;
  c.after = manager_->stats().evicted;
  c.effective = effective / std::max(n_runs.load(), 1);
  c.nominal = token_of(bench_.n_blocks());
  c.tokens_equal = c.logits_equal = wrong == 0;
  if (wrong > 0)
    c.failure = std::to_string(wrong.load()) + " of " + std::to_string(n_runs.load()) + " answers differ from the cold run";
  else if (c.after <= c.before)
    c.failure = "nothing was evicted meanwhile";
  else if (effective == 0)
    c.failure = "no request hit";
  if (const std::string breach = manager_->check_invariants(); !breach.empty()) c.failure = breach;
  if (!c.failure.empty()) fail_with(c.failure);
  report_.cases.push_back(std::move(c));
  return {};
}

/// The states are laid out anew under a graph that still has its old plans: it must refuse to run, and be right once it has planned again.
Status Drill::stale_graph() {
  CARREL_TRY(warm());
  if (failed()) return {};
  manager_->bump_epoch();
  DrillCase c;
  c.damage = "the layout's epoch raised, the graph not planned again";
  c.counter = "graph_refused";
  c.before = bench_.graph_counts().refused;
  bench_.hold_plans(true);
  const auto stale = bench_.run(*manager_);
  bench_.hold_plans(false);
  c.after = bench_.graph_counts().refused;
  const uint64_t replans = bench_.graph_counts().replans;
  CARREL_ASSIGN(const Run first, bench_.run(*manager_));
  CARREL_ASSIGN(const Run again, bench_.run(*manager_));
  judge_run(again, cold_, c, false);
  if (stale)
    c.failure = "a step ran on plans of another layout";
  else if (bench_.graph_counts().replans <= replans)
    c.failure = "the graph was not planned again";
  else if (first.match.effective != 0 || again.match.effective != token_of(bench_.n_blocks()))
    c.failure = "state of the older epoch was used, or none of the new one";
  else if (!equal_logits(first, cold_))
    c.failure = "the logits differ from the cold run";
  if (!c.failure.empty()) fail_with(c.damage + ": " + c.failure);
  report_.cases.push_back(std::move(c));
  return {};
}

Status Drill::restart() {
  CARREL_TRY(warm());
  if (failed()) return {};
  const StateSnapshot snapshot = manager_->snapshot(bench_.ask());
  const auto restored = [](const StateStats& s) { return s.restored; };
  CARREL_ASSIGN(manager_, bench_.fresh());
  const int64_t n = manager_->adopt(bench_.ask(), snapshot);
  CARREL_TRY(judge(std::to_string(n) + " blocks taken over by a new process", "restored", restored, 0, {}, false));
  if (report_.cases.back().effective != token_of(bench_.n_blocks())) fail_with("the prefix does not hit after the restart");
  CARREL_ASSIGN(const auto stranger, bench_.fresh(true));
  if (stranger->adopt(bench_.ask(), snapshot) != 0) fail_with("another model took the blocks over");
  return {};
}

Status Drill::first_vs_hit() {
  for (int64_t b = 1; b <= bench_.n_blocks() && !failed(); b++) {
    const auto n = std::min(static_cast<int64_t>(bench_.prompt().size()), token_of(b) + 1 + state().block_size / 4);
    const auto prompt = bench_.prompt().first(static_cast<size_t>(n));
    CARREL_ASSIGN(manager_, bench_.fresh());
    CARREL_ASSIGN(const Run cold, bench_.run(*manager_, prompt, false, false));
    CARREL_ASSIGN(const Run first, bench_.run(*manager_, prompt, true, true));
    const uint64_t before = manager_->stats().effective_tokens;
    CARREL_ASSIGN(const Run hit, bench_.run(*manager_, prompt, true, true));
    DrillCase c;
    c.damage = "none; resumed at token " + std::to_string(token_of(b));
    c.counter = "effective_tokens";
    c.before = before;
    c.after = manager_->stats().effective_tokens;
    judge_run(hit, cold, c, false);
    if (c.failure.empty() && (!equal_logits(first, cold) || hit.match.effective != token_of(b)))
      c.failure = "the second sighting was not a whole hit";
    if (!c.failure.empty()) fail_with(c.damage + ": " + c.failure);
    report_.cases.push_back(std::move(c));
  }
  return {};
}

struct Row {
  DrillInfo info;
  Status (*run)(Drill&);
};

const Row kRows[] = {
    {{"missing-compressed", "rows of a compressed or plain key/value log are gone: computed again"},
     [](Drill& d) { return d.missing(StateKind::kCompressedKv); }},
    {{"missing-tail", "the seeds of the next compressed rows are gone, one after the other"},
     [](Drill& d) { return d.missing(StateKind::kTail); }},
    {{"missing-window", "the last window of keys and values is gone"}, [](Drill& d) { return d.missing(StateKind::kWindow); }},
    {{"missing-indexer", "keys of the indexer are gone: what it would choose from"},
     [](Drill& d) { return d.missing(StateKind::kIndexer); }},
    {{"offloaded-not-restored", "the prefix lies in host memory: restored whole, or computed again where a copy is unreadable"},
     [](Drill& d) { return d.offloaded_not_restored(); }},
    {{"missing-recurrent", "registers of recurrent layers are gone, one group after the other"},
     [](Drill& d) { return d.missing(StateKind::kRecurrent); }},
    {{"half-block", "a record lacks a row: check 1"},
     [](Drill& d) { return d.check(Damage::kHalfBlock, 0, "record without its last row"); }},
    {{"layout-mismatch", "a record has another page layout: check 2"},
     [](Drill& d) { return d.check(Damage::kLayout, 1, "record of another page layout"); }},
    {{"group-disagreement", "groups match different lengths, or epochs: check 3"}, [](Drill& d) { return d.group_disagreement(); }},
    {{"misaligned", "a record lies at an address that kernels cannot read: check 4"},
     [](Drill& d) { return d.check(Damage::kMisalign, 3, "record four bytes off"); }},
    {{"bit-flip", "a bit changes on the device and in host memory"}, [](Drill& d) { return d.bit_flip(); }},
    {{"toctou", "threads match while an evictor runs"}, [](Drill& d) { return d.toctou(); }},
    {{"stale-graph", "the states are laid out anew and the graph is not: it refuses, then plans again"},
     [](Drill& d) { return d.stale_graph(); }},
    {{"restart", "a new process takes the state over; another model does not"}, [](Drill& d) { return d.restart(); }},
    {{"first-vs-hit", "the first computation against a hit at every boundary"}, [](Drill& d) { return d.first_vs_hit(); }},
};

/// A hit at a boundary with another one before it, and a token behind it.
int64_t shortest_prompt(const Model& model) {
  return 2 * int64_t{model.graph().state.block_size} + 1;
}

std::unexpected<Error> too_short_for_drills(const Model& model, int64_t n_prompt, int n_new) {
  return fail(Code::kUnsupported,
              "drills are not applicable to " + model.name() + ": they need " + std::to_string(n_prompt + n_new) + " tokens (prompt " +
                  std::to_string(n_prompt) + ", answer " + std::to_string(n_new) + ") and its context is " +
                  std::to_string(model.graph().max_positions) +
                  "; raise model.max_sequence_length, or use a model whose max_position_embeddings is larger",
              "model.max_sequence_length");
}

}  // namespace

std::span<const DrillInfo> drill_table() {
  static const std::vector<DrillInfo> infos = [] {
    std::vector<DrillInfo> out;
    for (const Row& r : kRows) out.push_back(r.info);
    return out;
  }();
  return infos;
}

std::string_view to_string(DrillVerdict verdict) {
  return verdict == DrillVerdict::kPassed ? "passed" : verdict == DrillVerdict::kFailed ? "failed" : "not applicable";
}

Result<std::vector<DrillReport>> run_drills(Env* env, const Model& model, std::span<const int32_t> prompt, const DrillOptions& options) {
  std::vector<const Row*> chosen;
  for (const std::string& name : options.names) {
    const auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.info.name == name; });
    if (row == std::end(kRows)) {
      std::string known;
      for (const Row& r : kRows) known += (known.empty() ? "" : ", ") + std::string(r.info.name);
      return fail(Code::kNotFound, "there is no such drill; there are " + known, name);
    }
    chosen.push_back(&*row);
  }
  if (chosen.empty())
    for (const Row& r : kRows) chosen.push_back(&r);
  const auto n_prompt = static_cast<int64_t>(prompt.size());
  if (n_prompt < shortest_prompt(model))
    return fail(Code::kInvalidArgument,
                "a drill needs a prompt of more than " + std::to_string(2 * model.graph().state.block_size) + " tokens, this one has " +
                    std::to_string(n_prompt),
                "prompt");
  if (n_prompt + options.n_new > model.graph().max_positions) return too_short_for_drills(model, n_prompt, options.n_new);
  CARREL_ASSIGN(const auto bench, Bench::create(model, prompt, options.n_new, options.reuse));
  CARREL_ASSIGN(const auto empty, bench->fresh());
  CARREL_ASSIGN(const Run cold, bench->run(*empty, prompt, false, false));
  std::vector<DrillReport> out;
  for (const Row* row : chosen) {
    DrillReport report;
    report.name = row->info.name;
    report.verdict = DrillVerdict::kPassed;
    const int64_t start = env->mono_ns();
    Drill drill(*bench, cold, options, report);
    if (Status s = row->run(drill); !s) {
      report.verdict = DrillVerdict::kFailed;
      report.reason = s.error().text();
    }
    report.ms = (env->mono_ns() - start) / 1'000'000;
    if (options.done) options.done(report);
    out.push_back(std::move(report));
  }
  return out;
}

Result<std::vector<int32_t>> drill_prompt(const Model& model) {
  const Graph& graph = model.graph();
  const int64_t block = graph.state.block_size, room = graph.max_positions - DrillOptions().n_new;
  if (room < shortest_prompt(model)) return too_short_for_drills(model, shortest_prompt(model), DrillOptions().n_new);
  const auto n = static_cast<size_t>(std::min(5 * block + block / 4, room));
  std::vector<int32_t> tokens;
  const Tokenizer& t = model.tokenizer();
  if (t.vocab_size() <= graph.vocab) {
    std::string text;
    for (int i = 1; i < 400; i++)
      text +=
          "Note " + std::to_string(i) + ": shelf " + std::to_string(i * 37 % 101) + " holds volume " + std::to_string(i * 53 % 97) + ". ";
    if (auto ids = t.encode(text, {.add_special = true})) tokens = *std::move(ids);
  }
  const int first = graph.vocab > 3 ? 3 : 0;  // the first ids are often special
  for (size_t i = tokens.size(); i < n; i++)
    tokens.push_back(static_cast<int32_t>(static_cast<size_t>(first) + (i * 2654435761u >> 7) % static_cast<size_t>(graph.vocab - first)));
  tokens.resize(n);
  return tokens;
}

}  // namespace carrel
