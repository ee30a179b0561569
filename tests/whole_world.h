// What the whole-engine test works with: a model in several thread counts, the answers of requests that ran alone, and clients that drive
// an engine at the moments a plan says.
//
// Threads: a World and Cold belong to one thread; run_clients starts one thread per client and joins them.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "app/assets/demo.h"
#include "base/env.h"
#include "engine/engine.h"
#include "engine/model/model.h"

namespace carrel::whole {

/// One model with one set of ops, loaded on demand for each number of threads. The golden models have no text front end; they get the
/// demo's.
class World {
 public:
  static Result<std::unique_ptr<World>> open(const std::string& dir, OpSet ops);
  Model& with_threads(int n_threads);
  const Graph& graph() { return with_threads(1).graph(); }
  int block_size() { return graph().state.block_size; }
  /// State bytes that a sequence of n tokens needs at most.
  size_t state_bytes(int64_t n_tokens);
  StateConfig state_config(Model& model, const EngineConfig& engine, size_t budget_bytes) const;

 private:
  OpSet ops_ = OpSet::kFast;
  std::map<std::string, std::string> files_;
  std::map<int, std::unique_ptr<Model>> models_;
};

/// All that a request was answered.
struct Answer {
  std::vector<TokenInfo> tokens;
  std::string text;
  std::optional<Finish> finish;
  bool cancelled = false;  // by the client, before it saw the finish
};

/// Runs requests cold, alone, on one thread, without reuse: what every other way of running them must equal.
class Cold {
 public:
  explicit Cold(World& world);
  Answer answer(Request request);

 private:
  std::unique_ptr<StateManager> state_;
  std::unique_ptr<Engine> engine_;
};

/// When a client sends a request and when it leaves.
struct Plan {
  size_t question = 0;  // index of equal requests
  Request request;
  int client = 0;
  uint64_t submit_step = 0;                    // steps that the engine has done by then; earlier when it has nothing to do
  std::optional<uint64_t> cancel_after_steps;  // from submit
  std::optional<size_t> cancel_after_tokens;
};

/// What happens to the whole table at a step.
enum class Upheaval { kPurge, kEpoch, kVerify };
struct Event {
  uint64_t step = 0;
  Upheaval what = Upheaval::kVerify;
};

/// Runs all plans; answers in their order. The first error of a submit ends the run.
Result<std::vector<Answer>> run_clients(Engine& engine, const std::vector<Plan>& plans, int n_clients, const std::vector<Event>& events);

/// Where two answers differ in a bit, or empty. `part`: `got` may be the beginning of `want`.
std::string difference(const Answer& got, const Answer& want, bool part);

inline Result<std::unique_ptr<World>> World::open(const std::string& dir, OpSet ops) {
  auto w = std::make_unique<World>();
  w->ops_ = ops;
  for (const auto& [name, bytes] : demo_model_files())
    if (dir.empty() || name.starts_with("tokenizer"))
      w->files_[name] = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (dir.empty()) return w;
  for (const char* name : {"config.json", "model.safetensors"}) {
    CARREL_ASSIGN(w->files_[name], read_file(Env::real(), dir + "/" + name));
  }
  return w;
}

inline Model& World::with_threads(int n_threads) {
  std::unique_ptr<Model>& model = models_[n_threads];
  if (model) return *model;
  ModelLocation from;
  from.embedded = true;
  for (const auto& [name, text] : files_) from.files[name] = std::as_bytes(std::span(text));
  ModelOptions options;
  options.name = "whole";
  options.ops = ops_;
  options.threads = n_threads;
  auto loaded = Model::load(Env::real(), from, options);
  if (!loaded) {
    std::fprintf(stderr, "cannot load the model: %s\n", loaded.error().text().c_str());
    std::abort();
  }
  model = std::move(*loaded);
  return *model;
}

inline size_t World::state_bytes(int64_t n_tokens) {
  const ModelState& state = graph().state;
  const auto n_blocks = static_cast<size_t>((n_tokens + state.block_size - 1) / state.block_size);
  size_t n = (state.slot_bytes + 63) / 64 * 64;
  for (const StateSpec& g : state.groups) n += n_blocks * page_bytes(g, state.block_size);
  return n;
}

inline StateConfig World::state_config(Model& model, const EngineConfig& engine, size_t budget_bytes) const {
  StateConfig c;
  c.model = model.graph().state;
  c.model_digest = model.digest();
  c.numerics_id = model.numerics_id();
  c.kernel_layout_id = page_layout_id(model.graph().state);
  c.budget_bytes = budget_bytes;
  c.max_sequences = engine.max_num_seqs;
  c.max_step_tokens = std::max(engine.prefill_chunk, engine.max_batch_size);
  c.max_sequence_tokens = model.graph().max_positions;
  return c;
}

/// Takes what has arrived. True: something had.
inline bool take_events(Stream& stream, Answer& answer, int64_t timeout_ms) {
  bool any = false;
  while (auto event = stream.next(any ? 0 : timeout_ms)) {
    any = true;
    if (auto* finish = std::get_if<Finish>(&*event)) {
      answer.finish = std::move(*finish);
      break;
    }
    Delta& delta = std::get<Delta>(*event);
    answer.text += delta.text;
    for (TokenInfo& t : delta.tokens) answer.tokens.push_back(std::move(t));
  }
  return any;
}

struct Open {
  const Plan* plan = nullptr;
  Answer* answer = nullptr;
  std::unique_ptr<Stream> stream;
  uint64_t submitted_step = 0;
};

/// One client: sends its plans in order and reads what comes, until all have ended.
class Client {
 public:
  Client(Engine& engine, std::vector<Open> plans, std::vector<Event> events)
      : engine_(engine), waiting_(std::move(plans)), events_(std::move(events)) {}

  Status run() {
    while (next_ < waiting_.size() || !open_.empty()) {
      const EngineStats now = engine_.stats();
      const bool idle = now.running == 0 && now.queued == 0;
      upset(now.steps);
      while (next_ < waiting_.size() && (waiting_[next_].plan->submit_step <= now.steps || (idle && open_.empty()))) {
        CARREL_TRY(submit(now.steps));
      }
      read(now.steps);
    }
    return {};
  }

 private:
  Status submit(uint64_t step) {
    Open o = std::move(waiting_[next_++]);
    CARREL_ASSIGN(o.stream, engine_.submit(o.plan->request));
    o.submitted_step = step;
    open_.push_back(std::move(o));
    return {};
  }

  void read(uint64_t step) {
    for (Open& o : open_) {
      const bool first = &o == open_.data();
      (void)take_events(*o.stream, *o.answer, first ? 1 : 0);
      if (o.answer->finish || o.answer->cancelled) continue;
      const Plan& p = *o.plan;
      if ((p.cancel_after_steps && step >= o.submitted_step + *p.cancel_after_steps) ||
          (p.cancel_after_tokens && o.answer->tokens.size() >= *p.cancel_after_tokens)) {
        o.answer->cancelled = true;
        o.stream->cancel();
      }
    }
    std::erase_if(open_, [](const Open& o) { return o.answer->finish.has_value(); });
  }

  void upset(uint64_t step) {
    for (; !events_.empty() && events_.back().step <= step; events_.pop_back()) {
      switch (events_.back().what) {
        case Upheaval::kPurge:
          (void)engine_.state().purge("a");
          break;
        case Upheaval::kEpoch:
          engine_.state().bump_epoch();
          break;
        case Upheaval::kVerify:
          (void)engine_.state().verify();
          break;
      }
    }
  }

  Engine& engine_;
  std::vector<Open> waiting_;
  size_t next_ = 0;
  std::vector<Open> open_;
  std::vector<Event> events_;  // the next one last
};

inline Cold::Cold(World& world) {
  const EngineConfig config{.max_batch_size = 1, .max_num_seqs = 1, .prefill_chunk = 512};
  Model& model = world.with_threads(1);
  StateConfig state = world.state_config(model, config, 2 * world.state_bytes(model.graph().max_positions));
  state.reuse = false;
  state.poison = true;
  auto made = StateManager::create(std::move(state));
  if (!made) {
    std::fprintf(stderr, "cannot make the state: %s\n", made.error().text().c_str());
    std::abort();
  }
  state_ = std::move(*made);
  engine_ = std::make_unique<Engine>(config, &model, state_.get(), Env::real());
}

inline Answer Cold::answer(Request request) {
  request.reuse = request.store = false;
  Answer a;
  auto stream = engine_->submit(std::move(request));
  if (!stream) {
    a.finish = Finish{.reason = FinishReason::kError, .stop = {}, .error = stream.error(), .usage = {}};
    return a;
  }
  while (!a.finish) (void)take_events(**stream, a, 1000);
  return a;
}

inline Result<std::vector<Answer>> run_clients(Engine& engine, const std::vector<Plan>& plans, int n_clients,
                                               const std::vector<Event>& events) {
  std::vector<Answer> answers(plans.size());
  std::vector<std::vector<Open>> shares(static_cast<size_t>(n_clients));
  for (size_t i = 0; i < plans.size(); i++) {
    Open o;
    o.plan = &plans[i];
    o.answer = &answers[i];
    shares[static_cast<size_t>(plans[i].client)].push_back(std::move(o));
  }
  std::vector<Status> results(shares.size());
  std::vector<std::thread> threads;
  for (size_t c = 0; c < shares.size(); c++)
    threads.emplace_back([&, c] { results[c] = Client(engine, std::move(shares[c]), c == 0 ? events : std::vector<Event>()).run(); });
  for (std::thread& t : threads) t.join();
  for (Status& r : results) CARREL_TRY(std::move(r));
  return answers;
}

inline std::string difference(const Answer& got, const Answer& want, bool part) {
  const auto bits = [](float f) { return std::bit_cast<uint32_t>(f); };
  if (got.tokens.size() > want.tokens.size() || (!part && got.tokens.size() != want.tokens.size()))
    return std::to_string(got.tokens.size()) + " tokens, alone " + std::to_string(want.tokens.size());
  for (size_t i = 0; i < got.tokens.size(); i++) {
    const TokenInfo &g = got.tokens[i], &w = want.tokens[i];
    const std::string where = "token " + std::to_string(i) + " of the answer: ";
    if (g.id != w.id) return where + "id " + std::to_string(g.id) + ", alone " + std::to_string(w.id);
    if (bits(g.logprob) != bits(w.logprob)) return where + "logprob " + std::to_string(g.logprob) + ", alone " + std::to_string(w.logprob);
    if (g.bytes != w.bytes || g.top.size() != w.top.size()) return where + "bytes or the number of alternatives";
    for (size_t k = 0; k < g.top.size(); k++)
      if (g.top[k].id != w.top[k].id || bits(g.top[k].logprob) != bits(w.top[k].logprob)) return where + "alternative " + std::to_string(k);
  }
  if (part) return want.text.starts_with(got.text) ? "" : "text \"" + got.text + "\" does not begin \"" + want.text + "\"";
  if (got.text != want.text) return "text \"" + got.text + "\", alone \"" + want.text + "\"";
  if (got.finish->reason != want.finish->reason) return "another reason to finish: " + got.finish->error.text();
  if (got.finish->stop != want.finish->stop) return "another stop string";
  return {};
}

}  // namespace carrel::whole
