// What one step computes, and where its sequences keep their state: the only things a kernel knows of the world.
//
// A step holds n_tokens token rows; each sequence owns a contiguous run of them, at positions n_past, n_past+1, … State rows live in pages;
// a page holds the rows of ONE block of block_size tokens for ALL layers of one group (design: state). All pointers are borrowed from the
// state manager for the length of the step; pages of published records are never written.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/dtype.h"

namespace carrel {

/// Where rows of a group lie inside its pages. Row r of layer l of a sequence: page r / rows_per_page, byte
/// l * layer_stride_bytes + (r % rows_per_page) * row_stride_bytes. dtype is kF32 or kBF16.
struct RowLayout {
  DType dtype = DType::kF32;
  int row_elems = 0;
  int rows_per_page = 0;
  int ratio = 1;  // tokens per row; 0 for registers (a page holds the value at its block's end)
  size_t row_stride_bytes = 0;
  size_t layer_stride_bytes = 0;
};

/// One sequence in the step.
struct SeqStep {
  int32_t first_token = 0;  // row of its first token in the step
  int32_t n_tokens = 0;
  int32_t n_past = 0;  // tokens already in the state
  /// pages[group][block]: null where the sequence holds none (window pages left behind, registers that are not kept). Size: groups × blocks
  /// up to the end of this step.
  std::span<std::byte* const* const> pages;
  std::byte* slot = nullptr;  // rings of the sequence (tails not yet compressed) and its registers
  /// Registers are not in the slot yet: they are those of the page of block n_past / block_size - 1 (the step after a hit).
  bool restored = false;
};

struct Batch {
  int32_t n_tokens = 0;
  int32_t block_size = 0;
  std::span<const int32_t> ids;        // [n_tokens]
  std::span<const int32_t> positions;  // [n_tokens]
  std::span<const int32_t> seq_of;     // [n_tokens] index into seqs
  std::span<const SeqStep> seqs;
  std::span<const int32_t> outputs;  // token rows whose logits are wanted, ascending
};

/// Rows of one layer of one group, as an operand of an op.
struct StateRows {
  int group = 0;
  int layer = 0;  // index inside the group
  RowLayout layout;

  std::byte* row(const SeqStep& seq, int64_t r) const {
    std::byte* page = seq.pages[static_cast<size_t>(group)][r / layout.rows_per_page];
    return page + static_cast<size_t>(layer) * layout.layer_stride_bytes +
           static_cast<size_t>(r % layout.rows_per_page) * layout.row_stride_bytes;
  }
};

/// Registers of one layer of a recurrent group: the value after so many tokens, overwritten token by token. They live in the sequence's
/// slot, laid out there as in a page, and a step leaves those after its last token there.
///   before the step: zeros when n_past is 0; from a page when `restored`; else from the slot.
///   capture: where a step passes the end of a block for which the sequence holds a page, it writes the registers of that position there
///   too.
struct Registers {
  int group = 0;
  int layer = 0;  // index inside the group
  RowLayout layout;
  size_t slot_offset_bytes = 0;  // of the group

  std::byte* live(const SeqStep& seq) const { return seq.slot + slot_offset_bytes + layer_offset(); }
  /// Null: the registers at the end of this block are not kept.
  std::byte* at(const SeqStep& seq, int64_t block) const {
    std::byte* page = seq.pages[static_cast<size_t>(group)][block];
    return page == nullptr ? nullptr : page + layer_offset();
  }
  size_t layer_offset() const { return static_cast<size_t>(layer) * layout.layer_stride_bytes; }
  size_t layer_bytes() const { return layout.row_stride_bytes * static_cast<size_t>(layout.rows_per_page); }
};

/// A ring of float32 rows in the sequence's slot: position p at row p % n_rows.
struct Ring {
  size_t offset_bytes = 0;
  int n_rows = 0;
  int row_elems = 0;
};

}  // namespace carrel
