// Running a model over vectors, see golden_run.h and golden.h.
#include "engine/model/golden_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/model/safetensors.h"

namespace carrel {

Result<std::shared_ptr<VectorFile>> VectorFile::open(Env* env, const std::string& path) {
  auto out = std::make_shared<VectorFile>();
  CARREL_ASSIGN(out->content_, read_file(env, path));
  CARREL_ASSIGN(SafetensorsFile parsed, read_safetensors(std::as_bytes(std::span(out->content_)), path));
  for (TensorInfo& t : parsed.tensors) {
    out->names_.push_back(t.name);
    out->tensors_.emplace(t.name, std::move(t));
  }
  return out;
}

const TensorInfo* VectorFile::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::vector<float> VectorFile::floats(const std::string& name) const {
  const TensorInfo* t = find(name);
  if (!t || !t->unsupported_type.empty() || t->dtype != DType::kF32) return {};
  std::vector<float> out(static_cast<size_t>(t->n_elements()));
  to_f32(t->dtype, t->bytes, out);
  return out;
}

std::vector<int32_t> VectorFile::ints(const std::string& name) const {
  const TensorInfo* t = find(name);
  if (!t || !t->unsupported_type.empty() || t->dtype != DType::kI32) return {};
  std::vector<int32_t> out(static_cast<size_t>(t->n_elements()));
  std::memcpy(out.data(), t->bytes.data(), t->bytes.size());
  return out;
}

DType auto_kv_dtype(OpSet set) {
  return set == OpSet::kFast ? DType::kBF16 : DType::kF32;
}

Result<std::unique_ptr<GoldenModel>> load_golden_model(const OpenSource& open, OpSet set, CpuPath path, int threads, DType kv_dtype) {
  auto m = std::make_unique<GoldenModel>();
  CARREL_ASSIGN(m->source, open());
  m->team = std::make_unique<ThreadTeam>(threads);
  CARREL_ASSIGN(m->ops, make_ops(set, m->team.get(), path));
  CARREL_ASSIGN(const Family* family, find_family(m->source->format(), m->source->config_json()));
  m->weights = weights_from_source(*m->source, [ops = m->ops.get()](Form stored) { return ops->wanted_form(stored); });
  BuildOptions build;
  build.kv_dtype = kv_dtype;
  CARREL_ASSIGN(m->graph, build_graph(*family, m->source->format(), m->source->config_json(), *m->weights, build));
  for (const std::string& name : m->source->tensor_names()) {
    const DType type = m->source->find(name)->dtype;
    m->quantised |= block_shape(type).n_values > 1 || type == DType::kU8 || type == DType::kI8;  // bytes of two fp4
  }
  return m;
}

void note_error(GoldenFile& out, double ratio, const std::string& at) {
  out.bound_used = true;
  if (std::isnan(ratio)) ratio = INFINITY;
  if (ratio > out.worst) {
    out.worst = ratio;
    out.worst_at = at;
  }
}

std::vector<float> run_tokens(const GoldenModel& model, std::span<const int32_t> tokens, std::span<const int> steps,
                              std::span<const int32_t> wanted, PlainSequence& sequence, const GraphRunner::Probe& probe) {
  const size_t vocab = static_cast<size_t>(model.graph.vocab);
  GraphRunner runner(&model.graph, model.ops.get(), steps.empty() ? 1 : *std::max_element(steps.begin(), steps.end()));
  if (probe) runner.set_probe(probe);
  std::vector<float> out;
  std::vector<int32_t> rows;
  size_t at = 0, next_wanted = 0, step = 0;
  while (at < tokens.size()) {
    const size_t n = std::min(tokens.size() - at, step < steps.size() ? static_cast<size_t>(steps[step]) : 1);
    ++step;
    rows.clear();
    for (; next_wanted < wanted.size() && static_cast<size_t>(wanted[next_wanted]) < at + n; ++next_wanted) {
      rows.push_back(wanted[next_wanted] - static_cast<int32_t>(at));
    }
    const float* logits = sequence.run(runner, tokens.subspan(at, n), rows);
    sequence.commit();
    out.insert(out.end(), logits, logits + rows.size() * vocab);
    at += n;
  }
  return out;
}

namespace {

struct Prompt {
  std::string name;  // "129"
  std::vector<int32_t> ids, pos, greedy;
  std::vector<float> logits, last;  // last: after all greedy tokens but one; may be empty
  std::vector<int32_t> tokens;      // ids and greedy, without the last
  std::vector<int32_t> wanted;      // positions whose logits are looked at, ascending
};

std::vector<Prompt> read_prompts(const VectorFile& file, int max_length) {
  std::vector<Prompt> out;
  for (const std::string& name : file.names()) {
    if (!name.starts_with("prompt.") || !name.ends_with(".ids")) continue;
    Prompt p;
    p.name = name.substr(7, name.size() - 11);
    const std::string k = "prompt." + p.name + ".";
    p.ids = file.ints(k + "ids");
    if (max_length > 0 && p.ids.size() > static_cast<size_t>(max_length)) continue;
    p.pos = file.ints(k + "pos");
    p.greedy = file.ints(k + "greedy");
    p.logits = file.floats(k + "logits");
    p.last = file.floats(k + "greedy_last_logits");
    p.tokens = p.ids;
    if (!p.greedy.empty()) p.tokens.insert(p.tokens.end(), p.greedy.begin(), p.greedy.end() - 1);
    p.wanted = p.pos;
    for (size_t i = p.ids.size() - 1; i < p.tokens.size(); ++i) p.wanted.push_back(static_cast<int32_t>(i));
    std::sort(p.wanted.begin(), p.wanted.end());
    p.wanted.erase(std::unique(p.wanted.begin(), p.wanted.end()), p.wanted.end());
    out.push_back(std::move(p));
  }
  return out;
}

/// Chunks of 1 to 69 tokens, the same for a length every time, over the prompt; the continuation goes token by token.
std::vector<int> chunk_sizes(size_t n_prompt) {
  std::vector<int> out;
  uint32_t x = static_cast<uint32_t>(n_prompt) * 2654435761u + 12345u;
  for (size_t at = 0; at < n_prompt;) {
    x = x * 1664525u + 1013904223u;
    const size_t n = std::min<size_t>(n_prompt - at, 1 + (x >> 16) % 69);
    out.push_back(static_cast<int>(n));
    at += n;
  }
  return out;
}

size_t row_of(const Prompt& p, int32_t position) {
  return static_cast<size_t>(std::lower_bound(p.wanted.begin(), p.wanted.end(), position) - p.wanted.begin());
}

double largest_difference(const float* a, const float* b, size_t n) {
  double worst = 0;
  for (size_t i = 0; i < n; ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(d <= worst)) worst = std::isnan(d) ? INFINITY : d;
  }
  return worst;
}

size_t argmax(const float* row, size_t n) {
  return static_cast<size_t>(std::max_element(row, row + n) - row);
}

void compare_logits(const Prompt& p, const std::vector<float>& got, size_t vocab, double bound, GoldenFile& out) {
  for (size_t i = 0; i < p.pos.size(); ++i) {
    const double e = largest_difference(got.data() + row_of(p, p.pos[i]) * vocab, p.logits.data() + i * vocab, vocab);
    note_error(out, e / bound, "prompt " + p.name + " position " + std::to_string(p.pos[i]));
  }
  if (!p.last.empty()) {
    const double e = largest_difference(got.data() + (p.wanted.size() - 1) * vocab, p.last.data(), vocab);
    note_error(out, e / bound, "prompt " + p.name + " last greedy position");
  }
}

void compare_greedy(const Prompt& p, const std::vector<float>& got, size_t vocab, GoldenFile& out) {
  for (size_t i = 0; i < p.greedy.size(); ++i) {
    const size_t row = row_of(p, static_cast<int32_t>(p.ids.size() + i) - 1);
    if (argmax(got.data() + row * vocab, vocab) != static_cast<size_t>(p.greedy[i])) {
      out.failures.push_back("prompt " + p.name + ": greedy token " + std::to_string(i) + " differs");
      return;
    }
  }
}

struct Distance {
  double kl = 0;
  int64_t same_best = 0, rows = 0;
};

/// KL(exact || fast) and argmax agreement, summed over rows.
void add_distance(const std::vector<float>& exact, const std::vector<float>& fast, size_t vocab, Distance& d) {
  const auto log_sum = [&](const float* row) {
    const float top = *std::max_element(row, row + vocab);
    double sum = 0;
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(row[i]) - top);
    return top + std::log(sum);
  };
  for (size_t r = 0; r < exact.size() / vocab; ++r) {
    const float *a = exact.data() + r * vocab, *b = fast.data() + r * vocab;
    const double la = log_sum(a), lb = log_sum(b);
    for (size_t i = 0; i < vocab; ++i) d.kl += std::exp(a[i] - la) * ((a[i] - la) - (b[i] - lb));
    d.same_best += argmax(a, vocab) == argmax(b, vocab);
    ++d.rows;
  }
}

/// One forward, and chunks with single tokens: the same bits are promised.
std::vector<float> run_prompt(const GoldenModel& m, const Prompt& p, GoldenFile& out) {
  PlainSequence whole(&m.graph.state), parts(&m.graph.state);
  const std::vector<int> one = {static_cast<int>(p.tokens.size())};
  std::vector<float> full = run_tokens(m, p.tokens, one, p.wanted, whole);
  const std::vector<float> chunked = run_tokens(m, p.tokens, chunk_sizes(p.ids.size()), p.wanted, parts);
  if (std::memcmp(full.data(), chunked.data(), full.size() * sizeof(float)) != 0) {
    const size_t vocab = static_cast<size_t>(m.graph.vocab);
    size_t row = 0;
    while (std::memcmp(&full[row * vocab], &chunked[row * vocab], vocab * sizeof(float)) == 0) ++row;
    out.failures.push_back("prompt " + p.name + " position " + std::to_string(p.wanted[row]) + ": chunks give other bits than one forward");
  }
  return full;
}

Status check_fast_limits(const OpenSource& open, const std::vector<Prompt>& prompts, const FastLimits& limits, const GoldenOptions& options,
                         GoldenFile& out) {
  CARREL_ASSIGN(const auto exact, load_golden_model(open, OpSet::kExact, options.path, options.threads, DType::kF32));
  CARREL_ASSIGN(const auto fast, load_golden_model(open, OpSet::kFast, options.path, options.threads, auto_kv_dtype(OpSet::kFast)));
  const size_t vocab = static_cast<size_t>(exact->graph.vocab);
  Distance d;
  for (const Prompt& p : prompts) {
    PlainSequence sequence(&exact->graph.state);
    const std::vector<int> one = {static_cast<int>(p.tokens.size())};
    const std::vector<float> want = run_tokens(*exact, p.tokens, one, p.wanted, sequence);
    add_distance(want, run_prompt(*fast, p, out), vocab, d);
  }
  out.limits_used = true;
  out.mean_kl_limit = limits.mean_kl, out.top1_limit = limits.top1;
  out.mean_kl = d.kl / static_cast<double>(std::max<int64_t>(d.rows, 1));
  out.top1 = static_cast<double>(d.same_best) / static_cast<double>(std::max<int64_t>(d.rows, 1));
  if (!(out.mean_kl <= limits.mean_kl)) {
    out.failures.push_back("mean KL against exact " + std::to_string(out.mean_kl) + " is above the limit " +
                           std::to_string(limits.mean_kl));
  }
  if (out.top1 < limits.top1) {
    out.failures.push_back("top-1 agreement with exact " + std::to_string(out.top1) + " is below the limit " + std::to_string(limits.top1));
  }
  return {};
}

}  // namespace

Status check_model(const OpenSource& open, const GoldenVectors& vectors, const FastLimits& limits, const GoldenOptions& options,
                   GoldenFile& out) {
  const std::vector<Prompt> prompts = read_prompts(*vectors.file, options.max_length);
  out.n_prompts = static_cast<int>(prompts.size());
  if (prompts.empty() && options.max_length == 0) out.failures.emplace_back("golden.safetensors holds no prompt");
  CARREL_ASSIGN(const auto model, load_golden_model(open, options.ops, options.path, options.threads, DType::kF32));
  const bool fast = options.ops == OpSet::kFast;
  const size_t vocab = static_cast<size_t>(model->graph.vocab);
  for (const Prompt& p : prompts) {
    if (fast && model->quantised) break;  // no bound is meant for rounded activations
    if (p.logits.size() != p.pos.size() * vocab)
      return fail(Code::kCorrupt, "logits of another size than the model's vocabulary", "prompt " + p.name);
    const std::vector<float> got = run_prompt(*model, p, out);
    compare_logits(p, got, vocab, fast ? vectors.wide : vectors.tight, out);
    compare_greedy(p, got, vocab, out);
  }
  if (options.localise && !(fast && model->quantised)) localise(*model, vectors, out);
  return fast ? check_fast_limits(open, prompts, limits, options, out) : Status{};
}

}  // namespace carrel
