#include "engine/drill/bench.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

namespace carrel::drill {

namespace {

constexpr int64_t kChunk = 192;  // tokens of a step: crosses blocks and is crossed by them
constexpr size_t kCopies = 6;    // of what the prompt needs, as the budget of a manager

/// The lowest of the largest.
int32_t best(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Where the registers of a group begin in the slot; the graph knows.
size_t slot_offset(const Graph& graph, int group) {
  for (const Node& n : graph.nodes) {
    const auto* conv = std::get_if<node::ShortConv>(&n);
    const auto* delta = std::get_if<node::DeltaScan>(&n);
    const auto* ssm = std::get_if<node::SsmScan>(&n);
    const Registers* r = conv ? &conv->columns : delta ? &delta->state : ssm ? &ssm->state : nullptr;
    if (r != nullptr && r->group == group) return r->slot_offset_bytes;
  }
  return 0;
}

}  // namespace

struct Bench::Impl {
  const Model& model;
  std::vector<int32_t> prompt;
  int n_new;
  bool reuse;
  ThreadTeam team{1};
  std::unique_ptr<Ops> ops;
  std::unique_ptr<GraphRunner> runner;
  bool hold_plans = false;

  Impl(const Model& m, std::span<const int32_t> p, int n, bool r) : model(m), prompt(p.begin(), p.end()), n_new(n), reuse(r) {}

  const Graph& graph() const { return model.graph(); }

  /// One step over the sequence's next tokens; logits of the last one.
  Result<std::span<const float>> step(const StateManager& manager, Sequence& seq, std::span<const int32_t> tokens) {
    CARREL_TRY(seq.reserve(static_cast<int64_t>(tokens.size())));
    const auto n = static_cast<int32_t>(tokens.size()), past = static_cast<int32_t>(seq.n_past());
    std::vector<int32_t> positions(tokens.size()), seq_of(tokens.size(), 0);
    std::iota(positions.begin(), positions.end(), past);
    const SeqStep s{0, n, past, seq.pages(), seq.slot(), seq.restored()};
    const int32_t last = n - 1;
    const Batch batch{n, graph().state.block_size, tokens, positions, seq_of, std::span(&s, 1), std::span(&last, 1)};
    const LayoutStamp layout = manager.layout_stamp();
    if (layout != runner->layout() && !hold_plans) runner->replan(layout);
    CARREL_ASSIGN(const float* logits, runner->run(batch, layout));
    CARREL_TRY(seq.advance(tokens));
    return std::span(logits, static_cast<size_t>(graph().vocab));
  }

  /// What is left of the tokens, then the answer.
  Result<Run> finish(const StateManager& manager, Sequence& seq, std::vector<int32_t> tokens) {
    Run out;
    out.match = seq.match();
    while (static_cast<int>(out.tokens.size()) < n_new) {
      const auto past = static_cast<size_t>(seq.n_past());
      const size_t n = std::min(static_cast<size_t>(kChunk), tokens.size() - past);
      CARREL_ASSIGN(const auto logits, step(manager, seq, std::span(tokens).subspan(past, n)));
      if (past + n < tokens.size()) continue;
      out.logits.insert(out.logits.end(), logits.begin(), logits.end());
      out.tokens.push_back(best(logits));
      tokens.push_back(out.tokens.back());
    }
    return out;
  }

  void blank(Sequence& seq, const std::vector<size_t>& groups) {
    const ModelState& state = graph().state;
    for (const size_t g : groups) {
      const size_t n_bytes = page_bytes(state.groups[g], state.block_size);
      const int64_t n_blocks = seq.n_past() / state.block_size;
      for (int64_t b = 0; b < n_blocks; b++)
        if (std::byte* page = seq.pages()[g][b]) std::memset(page, 0, n_bytes);
      if (state.groups[g].kind == StateKind::kRecurrent) std::memset(seq.slot() + slot_offset(graph(), static_cast<int>(g)), 0, n_bytes);
    }
  }
};

Result<std::unique_ptr<Bench>> Bench::create(const Model& model, std::span<const int32_t> prompt, int n_new, bool reuse) {
  auto impl = std::make_unique<Impl>(model, prompt, n_new, reuse);
  CARREL_ASSIGN(impl->ops, model.make_private_ops(&impl->team));
  impl->runner = std::make_unique<GraphRunner>(&model.graph(), impl->ops.get(), static_cast<int>(kChunk));
  return std::unique_ptr<Bench>(new Bench(std::move(impl)));
}

Bench::Bench(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Bench::~Bench() = default;

void Bench::hold_plans(bool on) {
  impl_->hold_plans = on;
}
const GraphRunner::Counts& Bench::graph_counts() const {
  return impl_->runner->counts();
}

const Model& Bench::model() const {
  return impl_->model;
}
const ModelState& Bench::state() const {
  return impl_->graph().state;
}
std::span<const int32_t> Bench::prompt() const {
  return impl_->prompt;
}
int64_t Bench::n_blocks() const {
  return (static_cast<int64_t>(impl_->prompt.size()) - 1) / state().block_size;
}

Result<std::unique_ptr<StateManager>> Bench::fresh(bool stranger) const {
  const auto n_tokens = static_cast<int64_t>(impl_->prompt.size()) + impl_->n_new;
  const auto n_pages = static_cast<size_t>((n_tokens + state().block_size - 1) / state().block_size);
  StateConfig c;
  c.model = state();
  c.model_digest = impl_->model.digest();
  if (stranger) c.model_digest[0] ^= std::byte{1};
  c.numerics_id = impl_->model.numerics_id();
  c.kernel_layout_id = page_layout_id(state());
  for (const StateSpec& g : state().groups) c.budget_bytes += kCopies * n_pages * page_bytes(g, state().block_size);
  for (size_t i = 0; i < n_pages; i++) c.host_budget_bytes += kCopies * 4 * kExtentUnitBytes;  // extents are padded
  c.host_budget_bytes += 2 * c.budget_bytes;
  c.budget_bytes += kCopies * (state().slot_bytes + 64);
  c.max_step_tokens = kChunk;
  c.reuse = impl_->reuse;
  c.label = "drill";
  return StateManager::create(std::move(c));
}

AdmitRequest Bench::ask() const {
  AdmitRequest r;
  r.tokens = impl_->prompt;
  r.namespace_id = "drill";
  r.namespace_secret = sha256("carrel drill");
  r.max_new_tokens = impl_->n_new;
  return r;
}

std::string Bench::words(std::span<const int32_t> tokens) const {
  const Tokenizer& t = impl_->model.tokenizer();
  if (t.vocab_size() > impl_->graph().vocab) return {};  // the tokenizer is another model's
  std::vector<int32_t> answer;
  for (const int32_t id : tokens) {
    if (t.is_end(id)) break;
    answer.push_back(id);
  }
  return t.decode(answer);
}

Result<Run> Bench::run(StateManager& manager) {
  return run(manager, impl_->prompt, true, true);
}

Result<Run> Bench::run(StateManager& manager, std::span<const int32_t> prompt, bool reuse, bool store) {
  AdmitRequest r = ask();
  r.tokens = prompt;
  r.reuse = reuse;
  r.store = store;
  return run(manager, r);
}

Result<Run> Bench::run(StateManager& manager, const AdmitRequest& r) {
  for (;;) {
    CARREL_ASSIGN(Admission admission, manager.admit(r));
    if (!admission.sequence) {  // another thread of the drill computes this prefix right now
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      continue;
    }
    return impl_->finish(manager, *admission.sequence, {r.tokens.begin(), r.tokens.end()});
  }
}

Result<Run> Bench::run_blanked(const std::vector<size_t>& groups) {
  CARREL_ASSIGN(const auto manager, fresh());
  AdmitRequest r = ask();
  r.reuse = r.store = false;
  CARREL_ASSIGN(Admission admission, manager->admit(r));
  Sequence& seq = *admission.sequence;
  const int64_t point = n_blocks() * state().block_size;
  while (seq.n_past() < point) {
    const int64_t n = std::min(kChunk, point - seq.n_past());
    CARREL_TRY(impl_->step(*manager, seq, std::span(impl_->prompt).subspan(static_cast<size_t>(seq.n_past()), static_cast<size_t>(n))));
  }
  impl_->blank(seq, groups);
  return impl_->finish(*manager, seq, impl_->prompt);
}

bool equal_logits(const Run& a, const Run& b) {
  return a.logits.size() == b.logits.size() && std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)) == 0;
}

}  // namespace carrel::drill
