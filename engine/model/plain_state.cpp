// See the header.
#include "engine/model/plain_state.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "engine/model/graph.h"
#include "kernels/packed_rows.h"

namespace carrel {

void PlainSequence::Free::operator()(std::byte* p) const {
  std::free(p);
}

PlainSequence::Page PlainSequence::poisoned(size_t n_bytes) {
  const size_t rounded = std::max<size_t>((n_bytes + 63) / 64 * 64, 64);
  Page page(static_cast<std::byte*>(std::aligned_alloc(64, rounded)));
  if (!page) std::abort();
  std::memset(page.get(), 0xFF, rounded);  // NaN as float32 and as bfloat16
  return page;
}

PlainSequence::PlainSequence(const ModelState* model, bool capture)
    : model_(model), layout_(plain_layout(*model)), capture_(capture), pages_(model->groups.size()), page_pointers_(model->groups.size()) {
  slot_ = poisoned(model->slot_bytes);
}

void PlainSequence::reserve(int n_tokens) {
  const auto n_blocks = static_cast<size_t>((n_tokens + model_->block_size - 1) / model_->block_size);
  for (size_t g = 0; g < pages_.size(); ++g) {
    while (pages_[g].size() < n_blocks) {
      const bool kept = capture_ || model_->groups[g].kind != StateKind::kRecurrent;
      pages_[g].push_back(kept ? poisoned(page_bytes(model_->groups[g], model_->block_size)) : Page());
      page_pointers_[g].push_back(pages_[g].back().get());
    }
  }
}

const Batch& PlainSequence::begin(std::span<const int32_t> tokens, std::span<const int32_t> outputs) {
  const auto n = static_cast<int32_t>(tokens.size());
  reserve(n_past_ + n);
  group_pointers_.clear();
  for (const std::vector<std::byte*>& pointers : page_pointers_) group_pointers_.push_back(pointers.data());
  positions_.resize(tokens.size());
  std::iota(positions_.begin(), positions_.end(), n_past_);
  seq_of_.assign(tokens.size(), 0);
  step_ = SeqStep{0, n, n_past_, group_pointers_, slot_.get()};
  batch_ = Batch{n, model_->block_size, tokens, positions_, seq_of_, std::span(&step_, 1), outputs};
  return batch_;
}

const float* PlainSequence::run(GraphRunner& runner, std::span<const int32_t> tokens, std::span<const int32_t> outputs) {
  const auto logits = runner.run(begin(tokens, outputs), layout_);
  if (!logits) std::abort();  // planned for other pages: a fault of the caller
  return *logits;
}

void PlainSequence::commit() {
  n_past_ += batch_.n_tokens;
  for (size_t g = 0; g < pages_.size(); ++g) {
    if (model_->groups[g].kind != StateKind::kWindow) continue;
    const int first_seen = n_past_ - model_->groups[g].window + 1;
    for (size_t b = 0; b < pages_[g].size() && static_cast<int>(b + 1) * model_->block_size <= first_seen; ++b) {
      pages_[g][b].reset();
      page_pointers_[g][b] = nullptr;
    }
  }
}

std::vector<float> PlainSequence::row(int group, int layer, int64_t r) const {
  StateRows rows{group, layer, layout_of(model_->groups[static_cast<size_t>(group)], model_->block_size)};
  std::vector<float> out(static_cast<size_t>(rows.layout.row_elems));
  unpack_row(rows.layout.dtype, rows.row(step_, r), rows.layout.row_elems, out.data());
  return out;
}

std::vector<float> PlainSequence::register_row(const Registers& registers, int64_t r) const {
  std::vector<float> out(static_cast<size_t>(registers.layout.row_elems));
  const std::byte* row = registers.live(step_) + static_cast<size_t>(r) * registers.layout.row_stride_bytes;
  to_f32(registers.layout.dtype, {row, registers.layout.row_stride_bytes}, out);
  return out;
}

std::span<const float> PlainSequence::ring_row(const Ring& ring, int position) const {
  const float* begin = reinterpret_cast<const float*>(slot_.get() + ring.offset_bytes);
  return {begin + static_cast<ptrdiff_t>(position % ring.n_rows) * ring.row_elems, static_cast<size_t>(ring.row_elems)};
}

}  // namespace carrel
