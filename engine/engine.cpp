#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "engine/model/model.h"
#include "engine/shadow.h"
#include "engine/text/detokenizer.h"
#include "engine/text/stop.h"

namespace carrel {

namespace {

constexpr size_t kMeasuredTokens = 64;  // of a step, from which on its speed says something of computing a prefix again

/// Wakes the step thread. Streams share it, so that one that outlives its engine rings where nobody listens.
struct Doorbell {
  std::mutex mu;  // guards rung and, with it, what Engine::Impl says
  std::condition_variable wake;
  bool rung = false;

  void ring() {
    {
      std::lock_guard lock(mu);
      rung = true;
    }
    wake.notify_one();
  }
};

}  // namespace

struct Stream::Shared {
  std::mutex mu;  // guards events
  std::condition_variable ready;
  std::deque<Event> events;
  std::atomic<bool> cancelled{false};
  std::shared_ptr<Doorbell> bell;  // of the step thread; set once at submit

  void push(Event event) {
    {
      std::lock_guard lock(mu);
      events.push_back(std::move(event));
    }
    ready.notify_one();
  }
};

Stream::~Stream() { cancel(); }

void Stream::cancel() {
  if (!shared_ || shared_->cancelled.exchange(true)) return;
  shared_->bell->ring();
}

std::optional<Event> Stream::next(int64_t timeout_ms) {
  std::unique_lock lock(shared_->mu);
  if (!shared_->ready.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return !shared_->events.empty(); })) return std::nullopt;
  Event event = std::move(shared_->events.front());
  shared_->events.pop_front();
  return event;
}

namespace {

/// One request from submit to finish. Touched by the step thread only, but for what the queue needs.
struct Job {
  uint64_t id = 0;
  Request request;
  std::shared_ptr<Stream::Shared> out;
  int64_t submitted_ns = 0;
  std::vector<int32_t> tokens;  // prompt, then answer
  size_t n_prompt = 0;
  std::optional<Sequence> sequence;  // empty while waiting
  BlockKeys block_keys;              // of tokens, kept between tries: admit hashes a prompt once
  std::optional<Match> first_match;
  int64_t admitted_ns = 0, first_token_ns = 0;
  Detokenizer detokenizer;
  StopMatcher stop;

  std::optional<size_t> stopped_by;  // index into request.stop

  bool sampled = false;                // to be computed again later
  uint64_t generation = 0;             // of its namespace at admission
  std::vector<Digest> rows;            // of a sampled one: hashes of its first logit rows
  std::optional<ShadowSample> shadow;  // this is such a computation; nobody reads `out`

  Job(Request r, StopMatcher matcher, const Tokenizer& tokenizer)
      : request(std::move(r)),
        tokens(request.prompt),
        n_prompt(request.prompt.size()),
        detokenizer(tokenizer, request.skip_special),
        stop(std::move(matcher)) {}

  int64_t n_pending() const { return static_cast<int64_t>(tokens.size()) - sequence->n_past(); }
  std::span<const int32_t> answer() const { return std::span(tokens).subspan(n_prompt); }
};

}  // namespace

namespace {

StepLimits step_limits(const EngineConfig& c) {
  return {.max_tokens = std::max(c.prefill_chunk, c.max_batch_size), .max_seqs = c.max_batch_size, .max_outputs = max_output_rows(c)};
}

}  // namespace

struct Engine::Impl {
  const EngineConfig config;
  Model* const model;
  StateManager* const state;
  Env* const env;
  GraphRunner runner;
  Sampler sampler;

  const std::shared_ptr<Doorbell> bell = std::make_shared<Doorbell>();
  std::mutex& mu = bell->mu;  // guards queue, waiting, counters, stopping, draining, ending, next_id and the bell
  std::condition_variable &wake = bell->wake, idle;
  FairQueue queue;
  std::unordered_map<uint64_t, std::unique_ptr<Job>> waiting;
  EngineStats counters;
  bool& poked = bell->rung;
  bool stopping = false, draining = false;
  bool ending = false;  // what is left is cancelled
  uint64_t next_id = 1;
  std::atomic<int64_t> heartbeat_ns{0};
  std::atomic<bool> hold_plans{false};

  std::list<std::unique_ptr<Job>> running;  // step thread only, in order of admission
  ShadowQueue shadows;                      // step thread only
  double shadow_debt = 0;
  // Step buffers, kept between steps.
  std::vector<int32_t> ids, positions, seq_of, outputs;
  std::vector<SeqStep> seqs;
  std::vector<Job*> in_step;

  std::thread thread;

  Impl(const EngineConfig& c, Model* m, StateManager* s, Env* e)
      : config(c), model(m), state(s), env(e), runner(&m->graph(), &m->ops(), step_limits(c), s->layout_stamp()), queue(c.max_queue_depth) {
    heartbeat_ns = env->mono_ns();
    state->on_restored([bell = bell] { bell->ring(); });
    thread = std::thread([this] { loop(); });
  }

  ~Impl() {
    {
      std::lock_guard lock(mu);
      stopping = true;
    }
    wake.notify_one();
    thread.join();
    state->on_restored({});
  }

  void loop() {
    for (;;) {
      heartbeat_ns = env->mono_ns();
      {
        std::unique_lock lock(mu);
        // Waiting requests have deadlines, so that the sleep is bounded when there are any.
        const auto due = [&] { return stopping || poked || !running.empty(); };
        if (!waiting.empty() && running.empty() && !poked) wake.wait_for(lock, std::chrono::milliseconds(2), due);
        if (waiting.empty() && running.empty() && shadows.empty()) wake.wait_for(lock, std::chrono::milliseconds(500), [&] { return due() || !waiting.empty(); });
        poked = false;
        if (stopping) break;
      }
      sweep();
      admit();
      start_shadow();
      if (!running.empty()) step();
      std::lock_guard lock(mu);
      counters.running = running.size() - (shadow() != running.end() ? 1 : 0);
      if (counters.running == 0 && waiting.empty()) idle.notify_all();
    }
    std::vector<std::unique_ptr<Job>> rest;
    {
      std::lock_guard lock(mu);
      for (auto& [id, job] : waiting) rest.push_back(std::move(job));
      waiting.clear();
    }
    for (auto& job : rest) finish(*job, FinishReason::kCancelled, {});
    for (auto& job : running) finish(*job, FinishReason::kCancelled, {});
    running.clear();
  }

  /// Ends what was cancelled or ran out of time, waiting or running.
  void sweep() {
    const int64_t now = env->mono_ns();
    bool all = false;
    const auto verdict = [&](const Job& job) -> std::optional<std::pair<FinishReason, Error>> {
      if (all || job.out->cancelled) return std::pair{FinishReason::kCancelled, Error{}};
      const int64_t age_ms = (now - job.submitted_ns) / 1'000'000;
      const Request& r = job.request;
      if (r.timeout_ms > 0 && age_ms >= r.timeout_ms)
        return std::pair{FinishReason::kDeadline, Error{Code::kDeadline, "the request ran longer than its limit of " + std::to_string(r.timeout_ms) + " ms", "server.timeout_seconds"}};
      if (!job.first_match && r.queue_timeout_ms > 0 && age_ms >= r.queue_timeout_ms)
        return std::pair{FinishReason::kDeadline, Error{Code::kDeadline, "waited longer than " + std::to_string(r.queue_timeout_ms) + " ms for a place", "admission.queue_timeout_seconds"}};
      return std::nullopt;
    };
    std::vector<std::unique_ptr<Job>> ended;
    {
      std::lock_guard lock(mu);
      all = ending;
      for (auto it = waiting.begin(); it != waiting.end();) {
        if (!verdict(*it->second)) {
          ++it;
          continue;
        }
        queue.remove(it->first);
        ended.push_back(std::move(it->second));
        it = waiting.erase(it);
        counters.running++;  // until its end is told; set right after the step
      }
    }
    for (auto& job : ended) {
      auto [reason, error] = *verdict(*job);
      finish(*job, reason, std::move(error));
    }
    for (auto it = running.begin(); it != running.end();) {
      if (auto v = verdict(**it)) {
        finish(**it, v->first, std::move(v->second));
        it = running.erase(it);
      } else {
        ++it;
      }
    }
  }

  // ---- hits computed again

  std::list<std::unique_ptr<Job>>::iterator shadow() {
    return std::find_if(running.begin(), running.end(), [](const auto& job) { return job->shadow.has_value(); });
  }

  /// Whoever waits goes first: the computation is given up, its sample kept for later.
  bool yield_shadow() {
    const auto at = shadow();
    if (at == running.end()) return false;
    const std::unique_ptr<Job> job = std::move(*at);
    running.erase(at);
    count_dropped(shadows.push(std::move(*job->shadow)));
    return true;
  }

  void count_dropped(size_t n) {
    std::lock_guard lock(mu);
    counters.shadow_dropped += n;
  }

  /// Samples of purged namespaces are forgotten at once; when nothing waits, the oldest of the rest is computed again.
  void start_shadow() {
    const auto stale = [&](const ShadowSample& s) { return state->generation(s.namespace_id) != s.generation; };
    if (const auto at = shadow(); at != running.end() && stale(*(*at)->shadow)) {
      running.erase(at);
      count_dropped(1);
    }
    count_dropped(shadows.drop(stale));
    bool leave = false;
    {
      std::lock_guard lock(mu);
      leave = draining || stopping;
      if (!leave && !waiting.empty()) return;
    }
    if (leave) {
      (void)yield_shadow();
      count_dropped(shadows.drop([](const ShadowSample&) { return true; }));
      return;
    }
    if (shadows.empty() || shadow() != running.end() || running.size() >= static_cast<size_t>(config.max_num_seqs)) return;
    ShadowSample sample = *shadows.pop();
    Request r;
    r.id = "shadow of " + sample.request_id;
    r.prompt = sample.tokens;
    r.namespace_id = r.tenant = sample.namespace_id;
    r.namespace_secret = sample.namespace_secret;
    r.reuse = r.store = false;
    auto admission = state->admit({.tokens = r.prompt,
                                   .namespace_secret = r.namespace_secret,
                                   .namespace_id = r.namespace_id,
                                   .max_new_tokens = 0,
                                   .reuse = false,
                                   .store = false,
                                   .verify = true,
                                   .boundaries = std::span(&sample.point, 1),
                                   .keys = nullptr});
    if (!admission || !admission->sequence) return count_dropped(1);
    auto job = std::make_unique<Job>(std::move(r), *StopMatcher::create({}), model->tokenizer());
    job->out = std::make_shared<Stream::Shared>();
    job->submitted_ns = env->mono_ns();
    job->sequence = std::move(admission->sequence);
    job->first_match = job->sequence->match();
    job->shadow = std::move(sample);
    running.push_back(std::move(job));
  }

  void keep_sample(Job& job) {
    if (!job.sampled || job.rows.empty()) return;
    ShadowSample s;
    s.request_id = job.request.id;
    s.namespace_id = job.request.namespace_id;
    s.namespace_secret = job.request.namespace_secret;
    s.generation = job.generation;
    s.tokens.assign(job.tokens.begin(), job.tokens.begin() + static_cast<ptrdiff_t>(job.n_prompt + job.rows.size() - 1));
    s.n_prompt = job.n_prompt;
    s.point = job.first_match->effective;
    s.rows = std::move(job.rows);
    const size_t lost = shadows.push(std::move(s));
    std::lock_guard lock(mu);
    counters.shadow_sampled++;
    counters.shadow_dropped += lost;
  }

  /// The next logit row of a hit that is computed again. False: that was the last one, and the job is gone.
  bool compare_row(Job* job, std::span<const float> logits) {
    const ShadowSample& s = *job->shadow;
    const size_t i = job->rows.size();
    job->rows.push_back(sha256(std::as_bytes(logits)));
    const bool equal = job->rows[i] == s.rows[i];
    if (equal && job->rows.size() < s.rows.size()) return true;
    {
      std::lock_guard lock(mu);
      counters.shadow_verified++;
      counters.shadow_mismatches += equal ? 0 : 1;
    }
    if (!equal) {
      AdmitRequest of;
      of.tokens = s.tokens;
      of.namespace_id = s.namespace_id;
      of.namespace_secret = s.namespace_secret;
      const int64_t n = state->quarantine_prefix(of, s.point);
      spdlog::error(
          "shadow: request {} answered from {} reused tokens with other logits (row {}) than computing them again gives; {} records of that prefix are "
          "quarantined; check memory and kernels, and run carrel drill",
          s.request_id, s.point, i, n);
    }
    running.remove_if([&](const auto& r) { return r.get() == job; });
    return false;
  }

  std::unique_ptr<Job> take_waiting(uint64_t id) {
    std::lock_guard lock(mu);
    const auto at = waiting.find(id);
    if (at == waiting.end()) return nullptr;
    auto job = std::move(at->second);
    waiting.erase(at);
    queue.remove(id);
    counters.running++;  // else drain would miss it; set right after the step
    return job;
  }

  /// A waiting job stays where it is while it is tried: only the step thread takes jobs away, so the pointer holds.
  Job* peek_waiting(uint64_t id) {
    std::lock_guard lock(mu);
    const auto at = waiting.find(id);
    return at == waiting.end() ? nullptr : at->second.get();
  }

  /// Lets waiting requests in, fairest first, until space or places end. A request whose prefix is being computed by another waits for it.
  void admit() {
    constexpr size_t kTriesPerStep = 16;
    std::vector<uint64_t> order;
    {
      std::lock_guard lock(mu);
      order = queue.order();
    }
    for (size_t i = 0; i < order.size() && i < kTriesPerStep && running.size() < static_cast<size_t>(config.max_num_seqs); i++) {
      Job* job = peek_waiting(order[i]);
      if (job == nullptr) continue;
      const Request& r = job->request;
      auto admission = state->admit({.tokens = job->tokens,
                                     .namespace_secret = r.namespace_secret,
                                     .namespace_id = r.namespace_id,
                                     .max_new_tokens = r.max_new_tokens - static_cast<int64_t>(job->answer().size()),
                                     .reuse = r.reuse,
                                     .store = r.store,
                                     .boundaries = r.boundaries,
                                     .keys = &job->block_keys});
      if (!admission) {
        if (admission.error().code == Code::kExhausted && yield_shadow()) {
          i--;
          continue;
        }
        if (admission.error().code == Code::kExhausted && !running.empty()) return;
        finish(*take_waiting(order[i]), FinishReason::kError, std::move(admission.error()));
        continue;
      }
      if (!admission->sequence) continue;
      job->sequence = std::move(admission->sequence);
      if (!job->first_match) {
        job->first_match = job->sequence->match();
        job->admitted_ns = env->mono_ns();
        if (job->first_match->effective > 0 && r.store) sample(*job);
      }
      running.push_back(take_waiting(order[i]));
    }
  }

  /// Every so many hits, one is to be computed again.
  void sample(Job& job) {
    shadow_debt += config.shadow_verify_rate;
    if (shadow_debt < 1) return;
    shadow_debt -= 1;
    job.sampled = true;
    job.generation = state->generation(job.request.namespace_id);
  }

  void put_back(std::unique_ptr<Job> job) {
    std::lock_guard lock(mu);
    queue.push_front(job->id, job->request.tenant, job->request.priority);
    const uint64_t id = job->id;
    waiting.emplace(id, std::move(job));
  }

  /// Takes a running sequence's pages away; its published blocks stay, so that it goes on later from there with the same bits.
  bool preempt_one(const Job* keep) {
    for (auto it = running.rbegin(); it != running.rend(); ++it) {
      Job* victim = it->get();
      if (victim == keep || std::find(in_step.begin(), in_step.end(), victim) != in_step.end()) continue;
      auto owned = std::move(*it);
      running.erase(std::next(it).base());
      if (owned->shadow) {
        count_dropped(shadows.push(std::move(*owned->shadow)));
        return true;
      }
      owned->sequence.reset();
      {
        std::lock_guard lock(mu);
        counters.preempted++;
      }
      put_back(std::move(owned));
      return true;
    }
    return false;
  }

  /// Adds the next n tokens of a job to the step. False: no space for it now.
  bool add(Job* job, int64_t n) {
    while (true) {
      Status reserved = job->sequence->reserve(n);
      if (reserved) break;
      if (reserved.error().code != Code::kExhausted || job->shadow || !preempt_one(job)) return false;
    }
    const int64_t past = job->sequence->n_past();
    SeqStep s;
    s.first_token = static_cast<int32_t>(ids.size());
    s.n_tokens = static_cast<int32_t>(n);
    s.n_past = static_cast<int32_t>(past);
    for (int64_t i = 0; i < n; i++) {
      ids.push_back(job->tokens[static_cast<size_t>(past + i)]);
      positions.push_back(static_cast<int32_t>(past + i));
      seq_of.push_back(static_cast<int32_t>(seqs.size()));
    }
    const int64_t n_tokens = static_cast<int64_t>(job->tokens.size());
    const int64_t n_rows = job->shadow ? static_cast<int64_t>(job->shadow->rows.size()) : 1;  // the last ones
    for (int64_t p = std::max(past, n_tokens - n_rows); p < past + n; p++) outputs.push_back(s.first_token + static_cast<int32_t>(p - past));
    seqs.push_back(s);
    in_step.push_back(job);
    return true;
  }

  /// Decoding sequences first, one token each; then prompts, in order of admission, up to the step's token rows.
  void fill_step() {
    ids.clear(), positions.clear(), seq_of.clear(), outputs.clear(), seqs.clear(), in_step.clear();
    const int rows = std::max(config.prefill_chunk, config.max_batch_size);
    std::vector<Job*> jobs;
    for (auto& job : running) jobs.push_back(job.get());
    std::stable_partition(jobs.begin(), jobs.end(), [](const Job* j) { return j->n_pending() == 1; });
    std::stable_partition(jobs.begin(), jobs.end(), [](const Job* j) { return !j->shadow; });
    std::vector<Job*> stuck;
    for (Job* job : jobs) {
      if (static_cast<int>(in_step.size()) >= config.max_batch_size || static_cast<int>(ids.size()) >= rows) break;
      if (std::none_of(running.begin(), running.end(), [&](const auto& r) { return r.get() == job; })) continue;  // preempted meanwhile
      const int64_t n = std::min<int64_t>(job->n_pending(), rows - static_cast<int>(ids.size()));
      if (!add(job, n)) stuck.push_back(job);
    }
    if (!in_step.empty()) return;
    for (Job* job : stuck) end(job, FinishReason::kError, Error{Code::kExhausted, "no state space left for this request; lower max_tokens or raise cache.max_size_gb", "cache.max_size_gb"});
  }

  void step() {
    const int64_t start = env->mono_ns();
    fill_step();
    if (in_step.empty()) return;
    for (size_t i = 0; i < seqs.size(); i++) {
      seqs[i].pages = in_step[i]->sequence->pages();
      seqs[i].slot = in_step[i]->sequence->slot();
      seqs[i].restored = in_step[i]->sequence->restored();
    }
    Batch batch;
    batch.n_tokens = static_cast<int32_t>(ids.size());
    batch.block_size = model->graph().state.block_size;
    batch.ids = ids;
    batch.positions = positions;
    batch.seq_of = seq_of;
    batch.seqs = seqs;
    batch.outputs = outputs;
    // A graph planned for another layout is never run: it is planned anew first.
    const LayoutStamp layout = state->layout_stamp();
    if (layout != runner.layout() && !hold_plans) runner.replan(layout);
    const Result<const float*> ran = runner.run(batch, layout);
    count_plans();
    if (!ran) {
      const std::vector<Job*> refused = std::exchange(in_step, {});
      for (Job* job : refused) end(job, FinishReason::kError, ran.error());
      return;
    }
    const float* logits = *ran;
    const int64_t done = env->mono_ns();

    if (ids.size() >= kMeasuredTokens) state->note_computed(static_cast<int64_t>(ids.size()), done - start);

    const std::vector<SeqStep> steps = seqs;
    const std::vector<Job*> jobs = in_step;
    in_step.clear();
    count(jobs, steps);  // before anybody learns that a request has ended
    size_t row = 0;
    for (size_t i = 0; i < jobs.size(); i++) {
      Job* job = jobs[i];
      const SeqStep& s = steps[i];
      const auto vocab = static_cast<size_t>(model->graph().vocab);
      const size_t first_row = row;
      while (row < outputs.size() && outputs[row] < s.first_token + s.n_tokens) row++;
      const std::span<const float> mine(logits + first_row * vocab, (row - first_row) * vocab);
      if (Status advanced = job->sequence->advance(std::span(ids).subspan(static_cast<size_t>(s.first_token), static_cast<size_t>(s.n_tokens))); !advanced) {
        end(job, FinishReason::kError, std::move(advanced.error()));
        continue;
      }
      const bool shadow = job->shadow.has_value();
      for (size_t at = 0; at < mine.size(); at += vocab) {
        if (!shadow) {
          take_token(job, mine.subspan(at, vocab), done);
        } else if (!compare_row(job, mine.subspan(at, vocab))) {
          break;
        }
      }
    }
    const int64_t end_ns = env->mono_ns();
    std::lock_guard lock(mu);
    counters.step_ns += end_ns - start;
  }

  void count_plans() {
    const GraphRunner::Counts& c = runner.counts();
    std::lock_guard lock(mu);
    counters.graph_plans = c.plans;
    counters.graph_replans = c.replans;
    counters.graph_refused = c.refused;
  }

  void count(const std::vector<Job*>& jobs, const std::vector<SeqStep>& steps) {
    std::lock_guard lock(mu);
    counters.steps++;
    for (size_t i = 0; i < jobs.size(); i++) {
      if (jobs[i]->shadow) continue;  // nobody's tokens
      const bool decode = jobs[i]->tokens.size() > jobs[i]->n_prompt && steps[i].n_tokens == 1;
      (decode ? counters.decode_tokens : counters.prefill_tokens) += static_cast<uint64_t>(steps[i].n_tokens);
      queue.charge(jobs[i]->request.tenant, steps[i].n_tokens);
    }
  }

  void take_token(Job* job, std::span<const float> logits, int64_t now) {
    const Request& r = job->request;
    if (job->sampled && job->rows.size() < ShadowQueue::kMostRows) job->rows.push_back(sha256(std::as_bytes(logits)));
    auto sampled = sampler.sample(logits, r.sampling, r.prompt, job->answer(), static_cast<int64_t>(job->tokens.size()));
    if (!sampled) return end(job, FinishReason::kError, std::move(sampled.error()));
    if (job->first_token_ns == 0) job->first_token_ns = now;
    job->tokens.push_back(sampled->id);
    Delta delta;
    delta.tokens.push_back({sampled->id, std::string(model->tokenizer().token_bytes(sampled->id)), sampled->logprob, std::move(sampled->top)});
    const bool at_end = !r.ignore_end && model->tokenizer().is_end(sampled->id);
    const bool full = static_cast<int64_t>(job->answer().size()) >= r.max_new_tokens;
    const auto feed = [&](const std::string& text) {
      StopMatcher::Out out = job->stop.push(text);
      delta.text += out.text;
      if (out.stop) job->stopped_by = out.stop;
    };
    if (!at_end) feed(job->detokenizer.push(sampled->id));
    if (!job->stopped_by && (at_end || full)) {
      feed(job->detokenizer.flush());
      if (!job->stopped_by) delta.text += job->stop.flush();
    }
    job->out->push(std::move(delta));
    if (job->stopped_by || at_end) return end(job, FinishReason::kStop, {});
    if (full) return end(job, FinishReason::kLength, {});
  }

  /// Finishes a running job and forgets it.
  void end(Job* job, FinishReason reason, Error error) {
    finish(*job, reason, std::move(error));
    running.remove_if([&](const auto& r) { return r.get() == job; });
  }

  void finish(Job& job, FinishReason reason, Error error) {
    if (job.shadow) return count_dropped(1);
    keep_sample(job);
    const int64_t now = env->mono_ns();
    Finish f;
    f.reason = reason;
    f.error = std::move(error);
    if (job.stopped_by) f.stop = job.request.stop[*job.stopped_by];
    EngineUsage& u = f.usage;
    u.prompt_tokens = static_cast<int64_t>(job.n_prompt);
    if (job.first_match) u.match = *job.first_match;
    u.cached_tokens = u.match.effective;
    u.completion_tokens = static_cast<int64_t>(job.tokens.size() - job.n_prompt);
    u.queue_ns = (job.admitted_ns != 0 ? job.admitted_ns : now) - job.submitted_ns;
    u.ttft_ns = job.first_token_ns != 0 ? job.first_token_ns - job.submitted_ns : 0;
    u.total_ns = now - job.submitted_ns;
    job.sequence.reset();
    {
      std::lock_guard lock(mu);
      counters.finished++;
      if (reason == FinishReason::kCancelled) counters.cancelled++;
      if (reason == FinishReason::kError || reason == FinishReason::kDeadline) counters.failed++;
    }
    job.out->push(std::move(f));
  }
};

Engine::Engine(const EngineConfig& config, Model* model, StateManager* state, Env* env) : impl_(std::make_unique<Impl>(config, model, state, env)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Stream>> Engine::submit(Request request) {
  Impl& e = *impl_;
  const Graph& graph = e.model->graph();
  if (request.prompt.empty()) return fail(Code::kInvalidArgument, "the prompt has no tokens", "prompt");
  for (const int32_t id : request.prompt)
    if (id < 0 || id >= graph.vocab) return fail(Code::kInvalidArgument, "token " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(graph.vocab), "prompt");
  const int64_t n_prompt = static_cast<int64_t>(request.prompt.size());
  if (request.max_new_tokens < 1) return fail(Code::kInvalidArgument, "must be at least 1", "max_tokens");
  if (n_prompt + request.max_new_tokens > graph.max_positions)
    return fail(Code::kInvalidArgument,
                "prompt of " + std::to_string(n_prompt) + " tokens and answer of up to " + std::to_string(request.max_new_tokens) + " exceed the context of " +
                    std::to_string(graph.max_positions) + " tokens; shorten the prompt or lower max_tokens",
                "context_length");
  CARREL_TRY(check(request.sampling, graph.vocab));
  CARREL_ASSIGN(StopMatcher matcher, StopMatcher::create(request.stop));

  auto stream = std::make_unique<Stream>();
  stream->shared_ = std::make_shared<Stream::Shared>();
  stream->shared_->bell = e.bell;
  {
    std::lock_guard lock(e.mu);
    if (e.draining || e.stopping) return fail(Code::kUnavailable, "the server is shutting down; retry elsewhere or later");
    auto job = std::make_unique<Job>(std::move(request), std::move(matcher), e.model->tokenizer());
    job->id = e.next_id;
    job->out = stream->shared_;
    job->submitted_ns = e.env->mono_ns();
    if (!e.queue.push(job->id, job->request.tenant, job->request.priority)) {
      e.counters.refused++;
      stream->shared_->cancelled = true;  // nothing to cancel
      return fail(Code::kExhausted, "the queue is full (" + std::to_string(e.queue.max_depth()) + " waiting); retry later", "admission.max_queue_depth");
    }
    e.waiting.emplace(e.next_id++, std::move(job));
    e.poked = true;
  }
  e.wake.notify_one();
  return stream;
}

EngineStats Engine::stats() const {
  EngineStats s;
  {
    std::lock_guard lock(impl_->mu);
    s = impl_->counters;
    s.queued = impl_->queue.size();
    s.draining = impl_->draining;
  }
  s.heartbeat_age_ns = impl_->env->mono_ns() - impl_->heartbeat_ns;
  s.state = impl_->state->stats();
  return s;
}

int max_output_rows(const EngineConfig& config) { return config.max_batch_size + static_cast<int>(ShadowQueue::kMostRows); }

void Engine::hold_plans_for_test(bool on) { impl_->hold_plans = on; }
const Model& Engine::model() const { return *impl_->model; }
StateManager& Engine::state() { return *impl_->state; }

void Engine::drain(int64_t timeout_ms) {
  std::unique_lock lock(impl_->mu);
  impl_->draining = true;
  const auto idle = [&] { return impl_->waiting.empty() && impl_->counters.running == 0; };
  if (impl_->idle.wait_for(lock, std::chrono::milliseconds(timeout_ms), idle)) return;
  impl_->ending = impl_->poked = true;
  impl_->wake.notify_one();
  impl_->idle.wait(lock, idle);
}

}  // namespace carrel
