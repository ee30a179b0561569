// See the header.
#include "app/cli/bench_subject.h"

#include <algorithm>
#include <thread>

#include "engine/model/family.h"
#include "engine/model/random_weights.h"

namespace carrel {
namespace {

double bytes_of(const Matrix& m) {
  return static_cast<double>(packed_bytes(m.form, m.n_rows, m.n_cols));
}

/// Calls f(matrix, times) for each matrix that one token multiplies; of experts, as many as it takes.
template <class F>
void each_matrix(const Graph& graph, const F& f) {
  for (const Node& n : graph.nodes) {
    if (const auto* l = std::get_if<node::Linear>(&n)) f(l->w, 1, l->y == graph.logits);
    if (const auto* e = std::get_if<node::Experts>(&n); e != nullptr && !e->experts.empty())
      for (const Matrix* m : {&e->experts[0].gate, &e->experts[0].up, &e->experts[0].down}) f(*m, e->top_k, false);
  }
}

double state_bytes(const ModelState& state, int64_t n_past) {
  double n = 0;
  for (const StateSpec& s : state.groups) {
    const double rows = s.kind == StateKind::kRecurrent || s.kind == StateKind::kTail ? 2 * s.n_rows  // read and written
                        : s.kind == StateKind::kWindow ? static_cast<double>(std::min<int64_t>(s.window, n_past))
                                                       : static_cast<double>(n_past / s.ratio);
    n += rows * s.n_layers * static_cast<double>(layout_of(s, state.block_size).row_stride_bytes);
  }
  return n;
}

Result<std::string> read_config(Env* env, const std::string& path) {
  auto text = read_file(env, path, 4 << 20);
  if (!text) return fail(text.error().code, "cannot be read: " + text.error().message + "; --shape wants a config.json", path);
  return text;
}

/// The graph of a configuration and its weights; errors name keys.
Result<std::unique_ptr<DrawnSubject>> draw(const std::string& json, const std::string& weights, const std::string& ops, int threads) {
  CARREL_ASSIGN(const Family* family, find_family(SourceFormat::kHuggingFace, json));
  auto d = std::make_unique<DrawnSubject>();
  d->team = std::make_unique<ThreadTeam>(threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  CARREL_ASSIGN(d->ops, make_ops(ops == "reference" ? OpSet::kReference : ops == "exact" ? OpSet::kExact : OpSet::kFast, d->team.get()));
  const DType stored = weights == "q8_0" ? DType::kQ8_0 : weights == "q4_1" ? DType::kQ4_1 : DType::kBF16;
  CARREL_ASSIGN(d->weights, random_weights(json, stored, [o = d->ops.get()](Form form) { return o->wanted_form(form); }));
  CARREL_ASSIGN(d->graph, family->build(SourceFormat::kHuggingFace, json, *d->weights, {.kv_dtype = d->ops->kv_dtype()}));
  d->subject = {&d->graph, d->ops.get(), d->team.get(), nullptr, d->weights->file_bytes(), d->weights->memory_bytes()};
  return d;
}

}  // namespace

BenchSubject subject_of(Model& model) {
  return {&model.graph(), &model.ops(), &model.team(), &model.tokenizer(), model.file_bytes(), model.weight_bytes()};
}

Result<std::unique_ptr<DrawnSubject>> draw_subject(Env* env, const std::string& config, const std::string& weights, const std::string& ops,
                                                   int threads) {
  CARREL_ASSIGN(const std::string json, read_config(env, config));
  auto drawn = draw(json, weights, ops, threads);
  if (!drawn) return fail(drawn.error().code, drawn.error().where + ": " + drawn.error().message, config);
  return drawn;
}

std::vector<int32_t> plain_tokens(const Graph& graph, const Tokenizer* tokenizer, size_t n) {
  std::vector<int32_t> ids;
  uint32_t x = 12345;
  while (ids.size() < n) {
    x = x * 1664525u + 1013904223u;
    const int32_t id = static_cast<int32_t>(x % static_cast<uint32_t>(graph.vocab));
    if (tokenizer == nullptr || (!tokenizer->is_special(id) && !tokenizer->is_end(id))) ids.push_back(id);
  }
  return ids;
}

double linear_macs(const Graph& graph) {
  double macs = 0;
  each_matrix(graph, [&](const Matrix& m, int times, bool head) {
    if (!head) macs += times * static_cast<double>(m.n_rows) * static_cast<double>(m.n_cols);
  });
  return macs;
}

bool on_integers(const BenchSubject& of) {
  double integers = 0;
  each_matrix(*of.graph, [&](const Matrix& m, int times, bool /*head*/) {
    const bool plain =
        m.form == Form::kF32 || m.form == Form::kF16 || m.form == Form::kBF16 || m.form == Form::kRows || m.form == Form::kF8;
    integers += (plain ? -1.0 : 1.0) * times * static_cast<double>(m.n_rows) * static_cast<double>(m.n_cols);
  });
  return integers > 0;
}

double bytes_per_token(const BenchSubject& of, int64_t n_past) {
  double weights = 0;
  each_matrix(*of.graph, [&](const Matrix& m, int times, bool /*head*/) { weights += times * bytes_of(m); });
  return weights * static_cast<double>(of.file_bytes) / static_cast<double>(of.memory_bytes) + state_bytes(of.graph->state, n_past);
}

}  // namespace carrel
