// Real checkpoints against a float32 reference, position by position; see golden_real.h. The prompt goes through in steps of 64 tokens, so
// that the logits of a long one need not be held at once; with `fast`, exact and fast steps alternate.
#include "engine/model/golden_real.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/model/source_text.h"
#include "engine/text/chat_template.h"
#include "engine/text/golden_text.h"

namespace carrel {
namespace {

constexpr size_t kStepTokens = 64;
constexpr size_t kBest = 20;
constexpr size_t kShownFailures = 20;
constexpr const char* kLong = "long";
// Of inner values, relative to their root mean square: the residual stream of Gemma grows to a thousand. Vectors have five decimals.
constexpr double kTraceBound = 1e-3, kTraceRounding = 1e-5;

std::string file_name(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

/// "SmolLM2-135M-Instruct.Q4_1.gguf" is "smollm2-135m-instruct-q4_1".
std::string folder_name_for(const std::string& gguf) {
  std::string out = file_name(gguf);
  out.resize(out.size() - std::string_view(".gguf").size());
  for (char& c : out) c = c == '.' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

Result<std::string> sha256_of_file(Env* env, const std::string& path) {
  CARREL_ASSIGN(const auto file, env->open(path, Open::kRead));
  Sha256 sum;
  Bytes buffer(size_t{1} << 20);
  for (uint64_t at = 0;;) {
    CARREL_ASSIGN(const size_t n, file->read_at(at, buffer));
    if (n == 0) return to_hex(sum.finish());
    sum.update(std::span(buffer).first(n));
    at += n;
  }
}

/// Every .gguf of the files and folders that the caller named, those whose name fits the vectors first.
Result<std::vector<std::string>> candidates(Env* env, const std::vector<std::string>& models, const std::string& wanted) {
  std::vector<std::string> out;
  for (const std::string& m : models) {
    if (!env->exists(m)) return fail(Code::kNotFound, "there is no such file or folder of models", m);
    if (!env->is_dir(m)) {
      if (m.ends_with(".gguf")) out.push_back(m);
      continue;
    }
    CARREL_ASSIGN(const std::vector<std::string> names, env->list(m));
    for (const std::string& n : names)
      if (n.ends_with(".gguf")) out.push_back(m + "/" + n);
  }
  std::stable_partition(out.begin(), out.end(), [&](const std::string& f) { return folder_name_for(f) == wanted; });
  return out;
}

Result<std::string> find_model(Env* env, const GoldenOptions& options, const std::string& sha256, const std::string& wanted) {
  CARREL_ASSIGN(const std::vector<std::string> files, candidates(env, options.models, wanted));
  for (const std::string& f : files) {
    CARREL_ASSIGN(const std::string is, sha256_of_file(env, f));
    if (is == sha256) return f;
    if (folder_name_for(f) == wanted)
      return fail(Code::kCorrupt, "has SHA-256 " + is + ", but the vectors were made from " + sha256 + "; fetch it again", f);
  }
  return fail(Code::kNotFound, "no .gguf file with SHA-256 " + sha256 + " among the models that were named", wanted);
}

size_t argmax(std::span<const float> row) {
  return static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

double log_sum_of(std::span<const float> row) {
  const float top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float x : row) sum += std::exp(x - top);
  return top + std::log(sum);
}

/// KL(a || b); the sums of exponentials are known.
double divergence(std::span<const float> a, double log_sum_a, std::span<const float> b, double log_sum_b) {
  const auto shift = static_cast<float>(log_sum_a);
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += static_cast<double>(std::exp(a[i] - shift)) * (static_cast<double>(a[i]) - static_cast<double>(b[i]));
  return sum + log_sum_b - log_sum_a;
}

/// Largest difference among the 20 best of `a`.
double top_difference(std::span<const float> a, std::span<const float> b) {
  std::array<size_t, kBest> best{};
  const size_t n = std::min(kBest, a.size());
  size_t held = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (held == n && !(a[i] > a[best[n - 1]])) continue;
    size_t at = held < n ? held++ : n - 1;
    for (; at > 0 && a[i] > a[best[at - 1]]; --at) best[at] = best[at - 1];
    best[at] = i;
  }
  double worst = 0;
  for (size_t i = 0; i < held; ++i) worst = std::max(worst, std::abs(static_cast<double>(a[best[i]]) - static_cast<double>(b[best[i]])));
  return worst;
}

/// What one prompt shows about the fast path, over the positions of the prompt.
struct FastTotals {
  double kl = 0, top_difference = 0, logprob = 0;
  int64_t rows = 0, same_best = 0;
  std::vector<int32_t> greedy;
};

/// A model with the state of one prompt.
struct Walker {
  Walker(const GoldenModel& m)
      : vocab(static_cast<size_t>(m.graph.vocab)), runner(&m.graph, m.ops.get(), kStepTokens), sequence(&m.graph.state) {}
  /// Logits of every token, valid until the next step.
  const float* step(std::span<const int32_t> tokens, std::span<const int32_t> rows) {
    const float* logits = sequence.run(runner, tokens, rows);
    sequence.commit();
    return logits;
  }
  size_t vocab;
  GraphRunner runner;
  PlainSequence sequence;
};

class RealCheck {
 public:
  RealCheck(const RealVectors& vectors, const RealLimits& limits, const GoldenOptions& options, GoldenFile& out)
      : vectors_(vectors), limits_(limits), options_(options), out_(out) {}

  Status run(const OpenSource& open) {
    const bool fast = options_.ops == OpSet::kFast;
    CARREL_ASSIGN(const auto careful,
                  load_golden_model(open, fast ? OpSet::kExact : options_.ops, options_.path, options_.threads, DType::kF32));
    std::unique_ptr<GoldenModel> served;
    if (fast) {
      CARREL_ASSIGN(served, load_golden_model(open, OpSet::kFast, options_.path, options_.threads, auto_kv_dtype(OpSet::kFast)));
    }
    for (const RealPrompt& p : vectors_.prompts) {
      if (options_.max_length > 0 && p.ids.size() > static_cast<size_t>(options_.max_length)) continue;
      CARREL_TRY(check_ids(p, *careful));
      prompt(p, *careful, served.get());
      if (options_.localise && !p.trace.empty()) trace(p, *careful);
      ++out_.n_prompts;
    }
    out_.limits_used = fast;
    return {};
  }

 private:
  /// Nothing may index beyond the vocabulary or the context.
  Status check_ids(const RealPrompt& p, const GoldenModel& m) const {
    const auto known = [&](int32_t id) { return id >= 0 && id < m.graph.vocab; };
    bool ok = std::all_of(p.ids.begin(), p.ids.end(), known) && std::all_of(p.greedy.begin(), p.greedy.end(), known);
    const auto all_known = [&](const std::vector<RealLogit>& list) {
      return std::all_of(list.begin(), list.end(), [&](const RealLogit& l) { return known(l.id); });
    };
    ok = ok && all_known(p.top);
    for (const auto& [position, list] : p.at) ok = ok && all_known(list);
    ok = ok && p.ids.size() + p.greedy.size() <= static_cast<size_t>(m.graph.max_positions);
    return ok ? Status{} : fail(Code::kCorrupt, "prompt " + p.id + " has ids or lengths that the model does not have");
  }

  void prompt(const RealPrompt& p, const GoldenModel& careful, const GoldenModel* served) {
    std::vector<int32_t> tokens = p.ids;
    if (!p.greedy.empty()) tokens.insert(tokens.end(), p.greedy.begin(), p.greedy.end() - 1);
    Walker a(careful);
    std::unique_ptr<Walker> b = served == nullptr ? nullptr : std::make_unique<Walker>(*served);
    FastTotals totals;
    std::vector<int32_t> rows;
    for (size_t at = 0; at < tokens.size(); at += rows.size()) {
      const auto part = std::span(tokens).subspan(at, std::min(kStepTokens, tokens.size() - at));
      rows.resize(part.size());
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
      const float* exact = a.step(part, rows);
      const float* fast = b ? b->step(part, rows) : nullptr;
      for (size_t i = 0; i < rows.size(); ++i) {
        const std::span row(exact + i * a.vocab, a.vocab);
        const double log_sum = log_sum_of(row);
        compare(p, at + i, row, log_sum);
        if (fast != nullptr) add(p, at + i, row, log_sum, std::span(fast + i * a.vocab, a.vocab), totals);
      }
    }
    if (b) judge(p, totals);
  }

  /// One position of the careful path against the reference.
  void compare(const RealPrompt& p, size_t position, std::span<const float> row, double log_sum) {
    const size_t last = p.ids.size() - 1;
    double worst = 0;
    const auto hold = [&](double is, double want) { worst = std::isnan(is) ? INFINITY : std::max(worst, std::abs(is - want)); };
    if (position < last) hold(static_cast<double>(row[static_cast<size_t>(p.ids[position + 1])]) - log_sum, p.logprobs[position]);
    for (const auto& [at, list] : p.at) {
      if (static_cast<size_t>(at) != position) continue;
      for (const RealLogit& l : list) hold(row[static_cast<size_t>(l.id)], l.logit);
    }
    if (position == last) {
      hold(log_sum, p.log_sum);
      for (const RealLogit& l : p.top) hold(row[static_cast<size_t>(l.id)], l.logit);
    }
    note_error(out_, worst / kRealBound, "prompt " + p.id + " position " + std::to_string(position));
    const size_t step = position - std::min(position, last);
    if (position >= last && step < p.greedy.size() && argmax(row) != static_cast<size_t>(p.greedy[step]))
      failed("prompt " + p.id + ": greedy token " + std::to_string(step) + " differs");
  }

  void add(const RealPrompt& p, size_t position, std::span<const float> exact, double log_sum, std::span<const float> fast, FastTotals& t) {
    const size_t best = argmax(fast);
    if (position + 1 >= p.ids.size()) t.greedy.push_back(static_cast<int32_t>(best));
    if (position >= p.ids.size()) return;
    const double fast_log_sum = log_sum_of(fast);
    t.kl += divergence(exact, log_sum, fast, fast_log_sum);
    t.top_difference += top_difference(exact, fast);
    t.same_best += argmax(exact) == best;
    if (position + 1 < p.ids.size()) t.logprob += static_cast<double>(fast[static_cast<size_t>(p.ids[position + 1])]) - fast_log_sum;
    ++t.rows;
  }

  void judge(const RealPrompt& p, const FastTotals& t) {
    const bool is_long = p.id == kLong;
    const auto n = static_cast<double>(t.rows);
    const auto hold = [&](const char* what, double is, double limit) { note_error(out_, is / limit, "prompt " + p.id + " " + what); };
    hold("mean KL", t.kl / n, is_long ? limits_.mean_kl_long : limits_.mean_kl);
    hold("mean difference of the 20 best", t.top_difference / n, limits_.top20_mean);
    if (p.ids.size() > 1) {
      const double mean = t.logprob / static_cast<double>(p.ids.size() - 1);
      hold("mean log probability", std::abs(mean - p.logprob_mean), is_long ? limits_.logprob_long : limits_.logprob);
    }
    const double same = static_cast<double>(t.same_best) / n;
    if (is_long) {
      out_.mean_kl_limit = limits_.mean_kl_long, out_.top1_limit = limits_.argmax_long;
      out_.mean_kl = t.kl / n;
      out_.top1 = same;
      if (same < limits_.argmax_long)
        failed("prompt long: the best token is that of exact at " + std::to_string(same) + " of the positions only");
    }
    for (size_t i = 0; i < p.greedy.size() && p.margins[i] >= limits_.greedy_margin; ++i) {
      if (t.greedy[i] == p.greedy[i]) continue;
      failed("prompt " + p.id + ": greedy token " + std::to_string(i) + " of the fast path differs at a margin of " +
             std::to_string(p.margins[i]));
      break;
    }
  }

  /// The residual stream at the last position, stage by stage.
  void trace(const RealPrompt& p, const GoldenModel& m) {
    std::map<std::string, std::vector<float>> seen;
    Walker walker(m);
    walker.runner.set_probe([&](const Value& value, const void* data, int n_rows) {
      if (value.is_int || n_rows == 0) return;
      const auto* last = static_cast<const float*>(data) + static_cast<size_t>(n_rows - 1) * static_cast<size_t>(value.width);
      seen[value.name].assign(last, last + value.width);
    });
    for (size_t at = 0; at < p.ids.size(); at += kStepTokens) {
      const auto part = std::span(p.ids).subspan(at, std::min(kStepTokens, p.ids.size() - at));
      const auto row = static_cast<int32_t>(part.size()) - 1;
      walker.step(part, std::span(&row, 1));
    }
    for (const RealStage& s : p.trace) {
      const double ratio = stage_error(s, seen[s.value]);
      note_error(out_, ratio, "prompt " + p.id + " " + s.value);
      if (out_.first_off.empty() && !(ratio <= 1)) out_.first_off = s.value + " of prompt " + p.id;
    }
  }

  static double stage_error(const RealStage& s, const std::vector<float>& got) {
    if (got.size() < s.first.size() || got.empty()) return INFINITY;
    double squares = 0, worst = 0;
    for (const float x : got) squares += static_cast<double>(x) * static_cast<double>(x);
    worst = std::abs(std::sqrt(squares / static_cast<double>(got.size())) - s.rms);
    for (size_t i = 0; i < s.first.size(); ++i) worst = std::max(worst, std::abs(static_cast<double>(got[i]) - s.first[i]));
    return worst / (kTraceBound * s.rms + kTraceRounding);
  }

  void failed(const std::string& what) {
    if (out_.failures.size() < kShownFailures) out_.failures.push_back(what);
  }

  const RealVectors& vectors_;
  const RealLimits& limits_;
  const GoldenOptions& options_;
  GoldenFile& out_;
};

/// tokens.json, and the ids and rendered chats of the prompts.
Status check_front(Env* env, const std::string& dir, const RealVectors& vectors, const ModelSource& source, GoldenFile& out) {
  CARREL_ASSIGN(const auto tokenizer, tokenizer_of(source));
  CARREL_ASSIGN(const GoldenTextReport report, check_token_cases(env, *tokenizer, dir + "/tokens.json"));
  out.n_checks += report.n_checks;
  out.failures.insert(out.failures.end(), report.failures.begin(), report.failures.end());
  const auto spelled = [&](std::optional<int32_t> id) { return id ? std::string(tokenizer->token_text(*id)) : std::string(); };
  for (const RealPrompt& p : vectors.prompts) {
    ++out.n_checks;
    CARREL_ASSIGN(const std::vector<int32_t> ids, tokenizer->encode(p.text, {.add_special = true, .parse_special = true}));
    if (ids != p.ids) out.failures.push_back("prompt " + p.id + ": other token ids");
    if (p.messages_json.empty()) continue;
    ++out.n_checks;
    CARREL_ASSIGN(const ChatTemplate chat,
                  ChatTemplate::parse(source.chat_template(), spelled(tokenizer->bos_id()), spelled(tokenizer->eos_id())));
    ChatRequest request;
    request.messages_json = p.messages_json;
    request.add_generation_prompt = p.add_generation_prompt;
    CARREL_ASSIGN(const RenderedChat rendered, chat.render(request));
    std::string text;
    for (const RenderedPart& part : rendered.parts) text += part.text;
    if (text != p.text) out.failures.push_back("prompt " + p.id + ": the chat template gives another text");
  }
  return {};
}

}  // namespace

Status check_real(Env* env, const std::string& dir, const RealLimits& limits, const GoldenOptions& options, GoldenFile& out) {
  CARREL_ASSIGN(const RealVectors vectors, read_real_vectors(env, dir));
  if (options.models.empty()) {
    out.skipped = "needs the checkpoint with SHA-256 " + vectors.model_sha256 + "; name its file or folder with --models";
    return {};
  }
  CARREL_ASSIGN(const std::string file, find_model(env, options, vectors.model_sha256, file_name(dir)));
  const OpenSource open = [&] { return open_source(env, file); };
  CARREL_ASSIGN(const auto source, open());
  CARREL_TRY(check_front(env, dir, vectors, *source, out));
  return RealCheck(vectors, limits, options, out).run(open);
}

}  // namespace carrel
