// Figures beside their bounds, taken in one run: decode against read bandwidth, prefill against the instruction path's peak, prefix reuse
// against cold.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/cli/bench_reuse.h"
#include "app/cli/bench_subject.h"
#include "app/cli/cli.h"
#include "app/lifecycle/engine_room.h"
#include "base/log.h"
#include "engine/model/plain_state.h"
#include "kernels/cpu/peak.h"

namespace carrel {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kRounds = 5, kPrefillRounds = 9;
constexpr double kDecodeBar = 0.6, kPrefillBar = 0.4, kPrefixBar = 0.5;
constexpr int64_t kPrefixRoom = 64;  // tokens: the question, the answer, and that each round's document is another one
constexpr double kPrefixRatio = 0.05;  // of TTFT warm to cold, at most
constexpr double kMemoryLeast = 0.9, kMemoryMost = 1.05;
constexpr int64_t kMemorySequences = 4, kMemoryContext = 2048, kMemoryCounts = 200'000'000;  // smaller models are for information only

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

double seconds_of(Env* env, const std::function<void()>& f) {
  const int64_t start = env->mono_ns();
  f();
  return static_cast<double>(env->mono_ns() - start) / 1e9;
}

std::vector<int32_t> plain_tokens(const Model& model, size_t n) {
  return plain_tokens(model.graph(), &model.tokenizer(), n);
}

Result<Json> decode(Env* env, const BenchSubject& of, int64_t n_tokens) {
  const int n = static_cast<int>(n_tokens > 0 ? n_tokens : 64);
  GraphRunner runner(of.graph, of.ops, 128);
  const std::vector<int32_t> ids = plain_tokens(*of.graph, of.tokenizer, 16 + static_cast<size_t>(n));
  const double bytes = bytes_per_token(of, 16 + n / 2);
  std::vector<double> rates, shares, bounds;
  for (int round = 0; round < kRounds; round++) {
    PlainSequence sequence(&of.graph->state);
    sequence.reserve(16 + n);
    const int32_t last = 15, first = 0;
    sequence.run(runner, std::span(ids).first(16), std::span(&last, 1));
    sequence.commit();
    const double spent = seconds_of(env, [&] {
      for (int i = 0; i < n; i++) {
        sequence.run(runner, std::span(ids).subspan(16 + static_cast<size_t>(i), 1), std::span(&first, 1));
        sequence.commit();
      }
    });
    CARREL_ASSIGN(const double bandwidth, cpu::read_bandwidth(env, *of.team, size_t{256} << 20));
    const double rate = n / spent, bound = bandwidth / bytes;
    rates.push_back(rate), bounds.push_back(bound), shares.push_back(rate / bound);
  }
  return Json{{"bench", "decode"},
              {"tokens_per_s", median(rates)},
              {"bound_tokens_per_s", median(bounds)},
              {"bound", "measured read bandwidth / bytes of weights and state that one token touches"},
              {"bytes_per_token", std::llround(bytes)},
              {"share_of_bound", median(shares)},
              {"bar", kDecodeBar},
              {"met", median(shares) >= kDecodeBar}};
}

Result<Json> prefill(Env* env, const BenchSubject& of, int64_t n_tokens) {
  const size_t n = n_tokens > 0 ? static_cast<size_t>(n_tokens) : 512;
  GraphRunner runner(of.graph, of.ops, 512);
  const std::vector<int32_t> ids = plain_tokens(*of.graph, of.tokenizer, n);
  const double macs = linear_macs(*of.graph);
  const bool integers = on_integers(of);
  const auto peak = [&] { return (integers ? cpu::int8_dot_peak : cpu::f32_fma_peak)(env, *of.team, cpu::best_path()); };
  std::vector<double> rates, shares, bounds;
  for (int round = 0; round <= kPrefillRounds; round++) {
    PlainSequence sequence(&of.graph->state);
    sequence.reserve(static_cast<int>(n));
    const double before = peak();
    const double spent = seconds_of(env, [&] {
      for (size_t at = 0; at < n; at += 512) {
        const size_t m = std::min<size_t>(512, n - at);
        const int32_t last = static_cast<int32_t>(m) - 1;
        sequence.run(runner, std::span(ids).subspan(at, m), std::span(&last, at + m == n ? 1u : 0u));
        sequence.commit();
      }
    });
    if (round == 0) continue;  // warm-up: buffers grow
    const double bound = (before + peak()) / 2 / (2 * macs), rate = static_cast<double>(n) / spent;
    rates.push_back(rate), bounds.push_back(bound), shares.push_back(rate / bound);
  }
  return Json{{"bench", "prefill"},
              {"prompt_tokens", n},
              {"tokens_per_s", median(rates)},
              {"bound_tokens_per_s", median(bounds)},
              {"bound", std::string("measured ") + (integers ? "int8 dot" : "float32 fma") +
                            " peak of the instruction path / operations of the linear layers"},
              {"share_of_bound", median(shares)},
              {"bar", kPrefillBar},
              {"met", median(shares) >= kPrefillBar}};
}

struct Asked {
  EngineUsage usage;
  std::vector<float> logprobs;
};

Result<Asked> ask(Engine& engine, std::vector<int32_t> prompt, bool reuse) {
  Request r;
  r.id = "bench";
  r.tenant = r.namespace_id = "bench";
  r.prompt = std::move(prompt);
  r.sampling.temperature = 0;
  r.sampling.n_logprobs = 5;
  r.max_new_tokens = 8;
  r.ignore_end = true;
  r.reuse = r.store = reuse;
  CARREL_ASSIGN(auto stream, engine.submit(std::move(r)));
  Asked out;
  for (;;) {
    auto event = stream->next(1000);
    if (!event) continue;
    if (const Delta* d = std::get_if<Delta>(&*event)) {
      for (const TokenInfo& t : d->tokens) {
        out.logprobs.push_back(t.logprob);
        for (const TokenLogprob& o : t.top) out.logprobs.push_back(o.logprob);
      }
      continue;
    }
    const Finish& f = std::get<Finish>(*event);
    if (f.reason == FinishReason::kError) return std::unexpected(f.error);
    out.usage = f.usage;
    return out;
  }
}

Result<Json> prefix(Engine& engine, int64_t n_tokens) {
  const Model& model = engine.model();
  // A quarter of a block behind the last one that can be shared, as long as the model's context is.
  const int64_t block = model.graph().state.block_size, most = int64_t{model.graph().max_positions} - kPrefixRoom;
  if (most <= block)
    return fail(Code::kUnsupported,
                "a prefix of more than a block of " + std::to_string(block) + " tokens is wanted, with room for " +
                    std::to_string(kPrefixRoom) + " more, and its context is " + std::to_string(model.graph().max_positions),
                model.name());
  const auto n = static_cast<size_t>(n_tokens > 0 ? n_tokens : std::min(2048 + block / 4, most));
  std::vector<double> ratios, warm_ms, cold_ms;
  bool equal = true;
  int64_t nominal = 0, effective = 0;
  for (int round = 0; round < kRounds; round++) {
    std::vector<int32_t> document = plain_tokens(model, n + static_cast<size_t>(round) * 7);
    document.erase(document.begin(), document.begin() + round * 7);  // another document each round
    std::vector<int32_t> second = document;
    const std::vector<int32_t> questions = plain_tokens(model, 48);
    document.insert(document.end(), questions.begin(), questions.begin() + 16);
    second.insert(second.end(), questions.begin() + 20, questions.begin() + 36);
    CARREL_ASSIGN(const Asked first, ask(engine, document, true));
    CARREL_ASSIGN(const Asked warm, ask(engine, second, true));
    CARREL_ASSIGN(const Asked cold, ask(engine, second, false));
    equal = equal && warm.logprobs == cold.logprobs;
    nominal = warm.usage.match.nominal, effective = warm.usage.match.effective;
    warm_ms.push_back(static_cast<double>(warm.usage.ttft_ns) / 1e6);
    cold_ms.push_back(static_cast<double>(cold.usage.ttft_ns) / 1e6);
    ratios.push_back(warm_ms.back() / cold_ms.back());
  }
  const double bound = static_cast<double>(n + 16 - static_cast<size_t>(effective)) / static_cast<double>(n + 16);
  return Json{{"bench", "prefix"},
              {"prompt_tokens", n + 16},
              {"nominal", nominal},
              {"effective", effective},
              {"logprobs_equal_cold", equal},
              {"ttft_warm_ms", median(warm_ms)},
              {"ttft_cold_ms", median(cold_ms)},
              {"ttft_ratio", median(ratios)},
              {"bound", bound},
              {"share_of_bound", bound / median(ratios)},
              {"bar", kPrefixBar},
              {"most_ratio", kPrefixRatio},
              {"met", equal && bound / median(ratios) >= kPrefixBar && median(ratios) <= kPrefixRatio}};
}

/// The whole prompt and answer of `context` tokens for several sequences at a time, against what the planner says of them.
Result<Json> memory(EngineRoom& room, int64_t context) {
  const Model& model = *room.model;
  CARREL_ASSIGN(const Config config, Config::load("", "", environment(), {}));
  PlanQuestion q = plan_question(config, model);
  q.context = context > 0 ? context : std::min(kMemoryContext, int64_t{model.graph().max_positions});
  q.n_sequences = kMemorySequences;
  q.process_bytes = room.process_bytes;
  CARREL_ASSIGN(const MemoryPlan plan, plan_memory(model.graph(), model.weight_bytes(), q));
  // Answers go on until the last prompt is computed, so that all are held at a time.
  const int64_t n_new = std::min(q.context / 2, kMemorySequences * (q.context / q.prefill_chunk + 2));
  std::vector<std::unique_ptr<Stream>> streams;
  for (int64_t i = 0; i < kMemorySequences; i++) {
    Request r;
    r.id = r.tenant = r.namespace_id = "bench";
    r.prompt = plain_tokens(model, static_cast<size_t>(q.context - n_new + i));
    r.prompt.erase(r.prompt.begin(), r.prompt.begin() + i);
    r.sampling.temperature = 0;
    r.max_new_tokens = n_new;
    r.ignore_end = true;
    r.reuse = r.store = false;
    CARREL_ASSIGN(auto stream, room.engine->submit(std::move(r)));
    streams.push_back(std::move(stream));
  }
  for (auto& s : streams) {
    for (bool ended = false; !ended;) {
      auto event = s->next(1000);
      if (!event) continue;
      const Finish* f = std::get_if<Finish>(&*event);
      ended = f != nullptr;
      if (ended && f->reason == FinishReason::kError) return std::unexpected(f->error);
    }
  }
  const int64_t planned = plan.total_bytes + model.mapped_bytes(), peak = peak_resident_bytes();
  const double ratio = static_cast<double>(peak) / static_cast<double>(planned);
  const bool counts = model.weight_bytes() >= kMemoryCounts, inside = ratio >= kMemoryLeast && ratio <= kMemoryMost;
  return Json{{"bench", "memory"},
              {"sequences", plan.n_sequences},
              {"context", plan.context},
              {"planned_bytes", planned},
              {"planned_weights", plan.weight_bytes},
              {"planned_activations", plan.activation_bytes + plan.input_bytes + plan.scratch_bytes},
              {"planned_state", plan.states_bytes},
              {"process_bytes", plan.process_bytes},
              {"mapped_bytes", model.mapped_bytes()},
              {"peak_resident_bytes", peak},
              {"ratio", ratio},
              {"least", kMemoryLeast},
              {"most", kMemoryMost},
              {"counts", counts},
              {"met", inside || !counts}};
}

Result<Json> bench_model(const BenchArgs& args) {
  std::map<std::string, std::string> flags;
  if (!args.model.empty()) flags["model.path"] = args.model;
  if (!args.ops.empty()) flags["devices.ops"] = args.ops;
  if (args.threads > 0) flags["devices.threads"] = std::to_string(args.threads);
  CARREL_ASSIGN(auto room, open_engine_room(Env::real(), args.common.data_dir, "", flags));
  Model& model = *room.model;
  const BenchSubject subject = subject_of(model);
  CARREL_ASSIGN(Json figure, args.what == "decode"    ? decode(Env::real(), subject, args.tokens)
                             : args.what == "prefill" ? prefill(Env::real(), subject, args.tokens)
                             : args.what == "memory"  ? memory(room, args.tokens)
                             : args.what == "reuse"   ? bench_reuse(model)
                                                      : prefix(*room.engine, args.tokens));
  figure["model"] = model.name();
  figure["ops"] = model.op_set();
  figure["threads"] = model.team().size();
  return figure;
}

/// A model that nobody has trained, of the shape that a configuration names.
Result<Json> bench_shape(const BenchArgs& args) {
  if (!args.model.empty()) return fail(Code::kInvalidArgument, "a model or a shape is measured; leave one of them out", "--shape");
  if (args.what != "decode" && args.what != "prefill")
    return fail(Code::kInvalidArgument, "is measured by decode and prefill; " + args.what + " needs a model with a tokenizer", "--shape");
  CARREL_ASSIGN(const auto drawn, draw_subject(Env::real(), args.shape, args.weights, args.ops, args.threads));
  CARREL_ASSIGN(Json figure, (args.what == "decode" ? decode : prefill)(Env::real(), drawn->subject, args.tokens));
  figure["model"] = args.shape + ", weights drawn at random";
  figure["weights_bytes"] = drawn->subject.file_bytes;
  figure["ops"] = drawn->ops->name();
  figure["threads"] = drawn->team->size();
  return figure;
}

}  // namespace

int cmd_bench(const BenchArgs& args) {
  log_setup("warn", LogFormat::kText);
  auto figure = args.shape.empty() ? bench_model(args) : bench_shape(args);
  if (!figure) return report(figure.error(), args.common);
  if (args.common.json) {
    std::printf("%s\n", figure->dump(2).c_str());
  } else if (args.what == "reuse") {
    print_reuse(*figure);
  } else {
    for (const auto& [key, value] : figure->items())
      std::printf("%-22s %s\n", key.c_str(), value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
  }
  return (*figure)["met"].get<bool>() ? 0 : 1;
}

}  // namespace carrel
