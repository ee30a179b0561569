#include "engine/state/needs.h"

#include <algorithm>

#include "engine/state/prefix_index.h"

namespace carrel {

int64_t peak_pages(const StateSpec& group, int block_size, int64_t n_tokens, int64_t max_step_tokens) {
  if (group.kind == StateKind::kRecurrent) return 0;
  const int64_t n_blocks = (n_tokens + block_size - 1) / block_size;
  const int64_t step_blocks = (std::min(max_step_tokens, n_tokens) + block_size - 1) / block_size + 1;
  if (group.kind == StateKind::kWindow) return std::min(n_blocks, window_blocks(group, block_size) + step_blocks);
  if (group.kind == StateKind::kTail) return std::min(n_blocks, 1 + step_blocks);
  return n_blocks;
}

size_t slot_bytes(const ModelState& model) {
  return (model.slot_bytes + PagePool::kAlignment - 1) / PagePool::kAlignment * PagePool::kAlignment;
}

size_t sequence_bytes(const ModelState& model, int64_t n_tokens, int64_t max_step_tokens) {
  size_t n = slot_bytes(model);
  for (const StateSpec& g : model.groups)
    n += static_cast<size_t>(peak_pages(g, model.block_size, n_tokens, max_step_tokens)) * page_bytes(g, model.block_size);
  return n;
}

size_t register_bytes(const ModelState& model) {
  size_t n = 0;
  for (const StateSpec& g : model.groups)
    if (g.kind == StateKind::kRecurrent) n += page_bytes(g, model.block_size);
  return n;
}

int64_t ladder_blocks(const ModelState& model) {
  constexpr int64_t kTokensWithoutLogs = 1024;
  const size_t registers = register_bytes(model);
  size_t logs = 0;
  for (const StateSpec& g : model.groups)
    if (is_log(g.kind)) logs += page_bytes(g, model.block_size);
  if (registers == 0) return 0;
  if (logs == 0) return std::max<int64_t>(1, kTokensWithoutLogs / model.block_size);
  return static_cast<int64_t>((registers + logs - 1) / logs);
}

}  // namespace carrel
