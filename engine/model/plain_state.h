// The state of one sequence in plainly allocated pages: for golden checks, tests and benches, where no state manager is wanted.
//
// Every page and ring starts as NaN, so that a kernel that reads what nothing wrote shows it; window pages that the next query cannot see
// are dropped (null), as the state manager does. Threads: one.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/state/spec.h"
#include "kernels/batch.h"

namespace carrel {

class GraphRunner;

class PlainSequence {
 public:
  /// capture: keeps the registers of recurrent groups at the end of every block, too.
  explicit PlainSequence(const ModelState* model, bool capture = false);

  /// Makes the pages of the first n_tokens tokens now: a measured step then works on memory that is there, as a serving engine's does.
  void reserve(int n_tokens);
  /// A step of this sequence alone over the next tokens, with pages for them. outputs: rows of this step whose logits are wanted,
  /// ascending. Both spans are borrowed. Valid until the next call of begin() or commit().
  const Batch& begin(std::span<const int32_t> tokens, std::span<const int32_t> outputs);
  /// begin(), and the step run; returns the logits of `outputs`. The runner must be one for plain sequences of this model.
  const float* run(GraphRunner& runner, std::span<const int32_t> tokens, std::span<const int32_t> outputs);
  /// The step has run: its tokens are in the state.
  void commit();

  int n_past() const { return n_past_; }
  /// Row r of a layer of a group, widened. The page must be there.
  std::vector<float> row(int group, int layer, int64_t r) const;
  std::span<const float> ring_row(const Ring& ring, int position) const;
  /// Row `r` of a layer's registers as they are now, widened.
  std::vector<float> register_row(const Registers& registers, int64_t r) const;

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  using Page = std::unique_ptr<std::byte, Free>;
  static Page poisoned(size_t n_bytes);

  const ModelState* model_;
  const LayoutStamp layout_;
  const bool capture_;
  std::vector<std::vector<Page>> pages_;                // [group][block]
  std::vector<std::vector<std::byte*>> page_pointers_;  // the same, as kernels want it
  std::vector<std::byte* const*> group_pointers_;
  Page slot_;
  std::vector<int32_t> positions_, seq_of_;
  SeqStep step_;
  Batch batch_;
  int n_past_ = 0;
};

}  // namespace carrel
