#include "engine/drill/reuse.h"

#include <algorithm>

#include "engine/drill/bench.h"

namespace carrel {

using drill::Bench;
using drill::Run;

namespace {

constexpr int kAnswer = 3;  // tokens

/// Tokens and where its messages end.
struct Talk {
  std::vector<int32_t> tokens;
  std::vector<int64_t> boundaries;
};

class Measure {
 public:
  Measure(Bench& bench, std::vector<ReuseRow>& rows, int64_t turn_tokens)
      : bench_(bench), rows_(rows), block_(bench.state().block_size), turn_tokens_(turn_tokens) {
    for (const StateSpec& g : bench.state().groups) recurrent_ |= g.kind == StateKind::kRecurrent;
  }

  Status all() {
    CARREL_TRY(questions());
    CARREL_TRY(chat());
    CARREL_TRY(branch_at_message());
    return branch_inside();
  }

 private:
  /// Adds a message of its own words.
  void say(Talk& talk, int64_t n, bool ends = true) {
    const int vocab = bench_.model().graph().vocab;
    for (int64_t i = 0; i < n; i++) {
      word_ = word_ * 6364136223846793005u + 1442695040888963407u;
      talk.tokens.push_back(static_cast<int32_t>(3 + (word_ >> 33) % static_cast<uint64_t>(vocab - 3)));
    }
    if (ends) talk.boundaries.push_back(static_cast<int64_t>(talk.tokens.size()));
  }

  /// shared: tokens that earlier prompts and answers began with, too. exact: the promise is the whole nominal match; else the last rung.
  Result<Run> ask(const Talk& talk, const char* scenario, int sighting, int64_t shared, bool exact = true) {
    AdmitRequest r = bench_.ask();
    r.tokens = talk.tokens;
    r.boundaries = talk.boundaries;
    CARREL_ASSIGN(Run run, bench_.run(*manager_, r));
    const auto n = static_cast<int64_t>(talk.tokens.size());
    ReuseRow row;
    row.scenario = scenario;
    row.sighting = sighting;
    row.prompt_tokens = n;
    row.shared_tokens = shared;
    row.nominal = run.match.nominal;
    row.effective = run.match.effective;
    row.promised = std::min(shared, n - 1) / block_ * block_;
    if (recurrent_ && !exact) row.promised = row.promised / manager_->stats().ladder_tokens * manager_->stats().ladder_tokens;
    for (const Veto& v : run.match.vetoes)
      row.veto += (row.veto.empty() ? "" : ", ") + std::string(to_string(v.kind)) + " at " + std::to_string(v.position) + " " + v.residency;
    rows_.push_back(std::move(row));
    return run;
  }

  Status fresh() {
    CARREL_ASSIGN(manager_, bench_.fresh());
    return {};
  }

  Status questions() {
    CARREL_TRY(fresh());
    Talk system;
    say(system, 2 * block_ + block_ / 3);
    for (int i = 1; i <= 5; i++) {
      Talk talk = system;
      say(talk, block_ / 4 + 3 * i);
      CARREL_TRY(ask(talk, "shared system prompt", i, i > 1 ? system.boundaries[0] : 0));
    }
    return {};
  }

  Status chat() {
    CARREL_TRY(fresh());
    Talk talk;
    say(talk, block_ + block_ / 5);
    int64_t known = 0;
    for (int turn = 1; turn <= kChatTurns; turn++) {
      say(talk, turn_tokens_ / 2 + turn * 7 % turn_tokens_);
      CARREL_ASSIGN(const Run run, ask(talk, "growing chat", turn, known));
      talk.tokens.insert(talk.tokens.end(), run.tokens.begin(), run.tokens.end());
      talk.boundaries.push_back(static_cast<int64_t>(talk.tokens.size()));
      known = static_cast<int64_t>(talk.tokens.size()) - 1;  // the last token was sampled, not read
    }
    return {};
  }

  Status branch_at_message() {
    CARREL_TRY(fresh());
    Talk talk;
    for (int i = 0; i < 6; i++) say(talk, block_ / 2 + 9 * i);
    CARREL_TRY(ask(talk, "branch at a message", 1, 0));
    for (int i = 2; i <= 3; i++) {
      const int64_t at = talk.boundaries[3];
      Talk branch{{talk.tokens.begin(), talk.tokens.begin() + at}, {talk.boundaries.begin(), talk.boundaries.begin() + 4}};
      say(branch, block_ / 2 + i);
      CARREL_TRY(ask(branch, "branch at a message", i, at));
    }
    return {};
  }

  Status branch_inside() {
    CARREL_TRY(fresh());
    Talk system;
    say(system, block_ + 7);
    Talk first = system;
    say(first, 4 * block_ + block_ / 2);
    CARREL_TRY(ask(first, "branch inside a message", 1, 0));
    const int64_t at = 3 * block_ + block_ / 2;
    for (int i = 2; i <= 4; i++) {
      Talk branch = system;
      branch.tokens.assign(first.tokens.begin(), first.tokens.begin() + at);
      say(branch, block_ / 2 + i);
      CARREL_TRY(ask(branch, "branch inside a message", i, at, i > 2));
    }
    return {};
  }

  Bench& bench_;
  std::vector<ReuseRow>& rows_;
  const int64_t block_;
  const int64_t turn_tokens_;  // of a chat's user, on average
  bool recurrent_ = false;
  uint64_t word_ = 7;
  std::unique_ptr<StateManager> manager_;
};

}  // namespace

Result<std::vector<ReuseRow>> measure_reuse(const Model& model) {
  const int64_t block = model.graph().state.block_size;
  // A chat's turns are as long as the context lets forty of them be, and no longer than a block.
  const int64_t turn = std::min(block, (model.graph().max_positions - 2 * block) / (kChatTurns + 4) - kAnswer);
  if (turn < 4 || model.graph().max_positions < 6 * block)
    return fail(Code::kUnsupported,
                "its context of " + std::to_string(model.graph().max_positions) + " tokens is too short for a chat of " +
                    std::to_string(kChatTurns) + " turns",
                model.name());
  const int64_t longest = std::max(6 * block, 2 * block + (kChatTurns + 4) * (turn + kAnswer));
  const std::vector<int32_t> room(static_cast<size_t>(longest), 3);
  CARREL_ASSIGN(const auto bench, Bench::create(model, room, kAnswer, true));
  std::vector<ReuseRow> rows;
  CARREL_TRY(Measure(*bench, rows, turn).all());
  return rows;
}

}  // namespace carrel
