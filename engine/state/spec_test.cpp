#include "engine/state/spec.h"

#include <gtest/gtest.h>

namespace carrel {
namespace {

StateSpec spec(StateKind kind, int ratio, int n_layers = 1, int elems = 32) {
  StateSpec s;
  s.name = std::string(to_string(kind));
  s.kind = kind;
  s.ratio = ratio;
  s.n_layers = n_layers;
  s.row_elems = elems;
  return s;
}

TEST(StateSpec, BlockIsLcmOfRatiosRaisedToAMultipleOf64) {
  const auto window = spec(StateKind::kWindow, 1);
  EXPECT_EQ(block_size_of({window}), 64);
  EXPECT_EQ(block_size_of({window, spec(StateKind::kCompressedKv, 4), spec(StateKind::kCompressedKv, 128)}), 128);
  EXPECT_EQ(block_size_of({window, spec(StateKind::kCompressedKv, 4), spec(StateKind::kCompressedKv, 16)}), 64);
  EXPECT_EQ(block_size_of({spec(StateKind::kCompressedKv, 96)}), 192);
  auto tail = spec(StateKind::kTail, 0);
  tail.n_rows = 4;
  EXPECT_EQ(block_size_of({window, tail}), 64) << "a register has no ratio";
}

TEST(StateSpec, LayoutPadsLayersNotRows) {
  auto s = spec(StateKind::kCompressedKv, 4, 3, 33);
  s.dtype = DType::kBF16;
  const RowLayout l = layout_of(s, 128);
  EXPECT_EQ(l.rows_per_page, 32);
  EXPECT_EQ(l.row_stride_bytes, 66u);
  EXPECT_EQ(l.layer_stride_bytes, 2112u);
  EXPECT_EQ(page_bytes(s, 128), 3 * 2112u);
  s.row_elems = 5;
  EXPECT_EQ(layout_of(s, 128).layer_stride_bytes, 320u);
  auto tail = spec(StateKind::kTail, 0, 2, 256);
  tail.n_rows = 4;
  EXPECT_EQ(layout_of(tail, 128).rows_per_page, 4);
  EXPECT_EQ(page_bytes(tail, 128), 2 * 4 * 256 * 4u);
}

TEST(StateSpec, RowIdKnowsRowsPageIdKnowsStrides) {
  ModelState a;
  a.groups = {spec(StateKind::kCompressedKv, 4, 3, 33)};
  a.block_size = 128;
  ModelState b = a;
  b.slot_bytes = 64;
  EXPECT_EQ(row_layout_id(a), row_layout_id(b));
  EXPECT_NE(page_layout_id(a), page_layout_id(b));
  b = a;
  b.groups[0].dtype = DType::kBF16;
  EXPECT_NE(row_layout_id(a), row_layout_id(b));
  b = a;
  b.block_size = 256;
  EXPECT_NE(row_layout_id(a), row_layout_id(b));
}

}  // namespace
}  // namespace carrel
