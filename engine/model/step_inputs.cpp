// Input buffers of planned steps; see step_plan.h.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "engine/model/step_plan.h"

namespace carrel {

namespace {

constexpr size_t kSystemPage = 4096;

size_t largest_page(const ModelState& state) {
  size_t n = 1;
  for (const StateSpec& g : state.groups) n = std::max(n, page_bytes(g, state.block_size));
  return n;
}

/// Columns of the page tables that this sequence's ops may look at.
size_t n_blocks_of(const SeqStep& s, int block_size) {
  return static_cast<size_t>((int64_t{s.n_past} + s.n_tokens + block_size - 1) / block_size);
}

}  // namespace

GuardPage::GuardPage(size_t n_bytes) : size_((n_bytes + kSystemPage - 1) / kSystemPage * kSystemPage) {
  void* p = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) std::abort();  // no address space left at start
  data_ = static_cast<std::byte*>(p);
}

GuardPage::~GuardPage() {
  munmap(data_, size_);
}

StepInputs::StepInputs(const Graph& graph, const StepLimits& limits, int n_blocks)
    : graph_(graph),
      n_groups_(graph.state.groups.size()),
      n_blocks_(static_cast<size_t>(n_blocks)),
      guard_(largest_page(graph.state)),
      ids_(static_cast<size_t>(limits.max_tokens)),
      positions_(ids_.size()),
      seq_of_(ids_.size()),
      outputs_(static_cast<size_t>(limits.max_outputs)),
      seqs_(static_cast<size_t>(limits.max_seqs)),
      table_(seqs_.size() * n_groups_ * n_blocks_, guard_.data()),
      used_(seqs_.size()),
      ropes_(graph.ropes.size()) {
  for (size_t row = 0; row < seqs_.size() * n_groups_; ++row) table_rows_.push_back(table_.data() + row * n_blocks_);
  for (size_t t = 0; t < ropes_.size(); ++t) {
    ropes_[t].cos.reserve(ids_.size() * graph.ropes[t].inv_freq.size());
    ropes_[t].sin.reserve(ids_.size() * graph.ropes[t].inv_freq.size());
  }
}

bool StepInputs::holds(const Batch& step) const {
  const auto fits = [&](const SeqStep& s) { return n_blocks_of(s, step.block_size) <= n_blocks_; };
  return static_cast<size_t>(step.n_tokens) <= ids_.size() && step.seqs.size() <= seqs_.size() && step.outputs.size() <= outputs_.size() &&
         std::ranges::all_of(step.seqs, fits);
}

void StepInputs::fill_table(size_t seq, const SeqStep& from) {
  const size_t n = n_blocks_of(from, graph_.state.block_size);
  for (size_t g = 0; g < n_groups_; ++g) {
    std::byte** to = columns(seq, g);
    std::copy_n(from.pages[g], n, to);
    if (used_[seq] > n) std::fill(to + n, to + used_[seq], guard_.data());
  }
  used_[seq] = n;
}

void StepInputs::fill(const Batch& step) {
  std::ranges::copy(step.ids, ids_.begin());
  std::ranges::copy(step.positions, positions_.begin());
  std::ranges::copy(step.seq_of, seq_of_.begin());
  std::ranges::copy(step.outputs, outputs_.begin());
  for (size_t s = 0; s < step.seqs.size(); ++s) {
    fill_table(s, step.seqs[s]);
    seqs_[s] = step.seqs[s];
    seqs_[s].pages = std::span(table_rows_).subspan(s * n_groups_, n_groups_);
  }
  batch_.n_tokens = step.n_tokens;
  batch_.block_size = step.block_size;
  batch_.ids = std::span(ids_).first(step.ids.size());
  batch_.positions = std::span(positions_).first(step.positions.size());
  batch_.seq_of = std::span(seq_of_).first(step.seq_of.size());
  batch_.seqs = std::span(seqs_).first(step.seqs.size());
  batch_.outputs = std::span(outputs_).first(step.outputs.size());
  for (size_t t = 0; t < ropes_.size(); ++t) make_rope_table(graph_.ropes[t], batch_.positions, ropes_[t]);
}

int table_columns(const Graph& graph) {
  return std::max(1, (graph.max_positions + graph.state.block_size - 1) / graph.state.block_size);
}

size_t StepInputs::bytes_for(const Graph& graph, const StepLimits& limits, int n_blocks) {
  const auto n_tokens = static_cast<size_t>(limits.max_tokens), n_seqs = static_cast<size_t>(limits.max_seqs);
  const size_t n_rows = n_seqs * graph.state.groups.size();
  size_t n = n_rows * (static_cast<size_t>(n_blocks) * sizeof(std::byte*) + sizeof(std::byte**)) + n_seqs * sizeof(SeqStep);
  n += (n_tokens * 3 + static_cast<size_t>(limits.max_outputs)) * sizeof(int32_t);
  for (const RopeSpec& r : graph.ropes) n += 2 * sizeof(float) * n_tokens * r.inv_freq.size();
  return n;
}

}  // namespace carrel
