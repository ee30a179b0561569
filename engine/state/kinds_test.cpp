// The words of kinds and vetoes: complete, in the order of the vocabulary, and the same in the handbook.
#include "engine/state/kinds.h"

#include <gtest/gtest.h>

#include "base/env.h"
#include "engine/state/match.h"

namespace carrel {
namespace {

TEST(Kinds, EachHasItsWordsInTheOrderOfTheVocabulary) {
  ASSERT_EQ(kind_table().size(), std::size(kStateKinds));
  for (size_t i = 0; i < kind_table().size(); i++) {
    const KindWords& k = kind_table()[i];
    EXPECT_EQ(k.kind, kStateKinds[i]);
    EXPECT_EQ(&words_of(k.kind), &k);
    for (const auto text : {k.what, k.life, k.restore, k.hit}) EXPECT_GT(text.size(), 10u) << to_string(k.kind);
  }
}

TEST(Kinds, TheHandbookHasTheSameTables) {
  const std::string state = read_file(Env::real(), "docs/state.md").value_or("");
  EXPECT_NE(state.find(kinds_markdown()), std::string::npos) << "docs/state.md must hold:\n" << kinds_markdown();
  const std::string explain = read_file(Env::real(), "docs/operate/explain.md").value_or("");
  EXPECT_NE(explain.find(vetoes_markdown()), std::string::npos) << "docs/operate/explain.md must hold:\n" << vetoes_markdown();
}

TEST(Kinds, FiguresAddUpToThePage) {
  const StateSpec log{.name = "csa", .kind = StateKind::kCompressedKv, .n_layers = 2, .ratio = 4, .row_elems = 33, .dtype = DType::kF32};
  const GroupFigures f = figures_of(log, 128);
  EXPECT_EQ(f.row_bytes, 132u);
  EXPECT_EQ(f.bytes_per_token, 66);
  EXPECT_EQ(f.bytes_per_point, 0u);
  EXPECT_EQ(f.page_bytes, f.padding_bytes + 2 * 32 * 132);
  const StateSpec registers{
      .name = "conv", .kind = StateKind::kRecurrent, .n_layers = 3, .ratio = 0, .row_elems = 10, .n_rows = 2, .dtype = DType::kF32};
  const GroupFigures r = figures_of(registers, 64);
  EXPECT_EQ(r.bytes_per_point, 3u * 2 * 40);
  EXPECT_EQ(r.bytes_per_token, 0);
  EXPECT_EQ(r.page_bytes, r.padding_bytes + r.bytes_per_point);
}

TEST(Kinds, EveryResidencyIsExplained) {
  for (const StateKind kind : kStateKinds) {
    for (const std::string_view residency : veto_residencies()) {
      const VetoWords words = explain_veto(kind, residency);
      EXPECT_EQ(words.reason.find("not known"), std::string::npos) << residency;
      EXPECT_FALSE(words.cure.empty());
    }
  }
  EXPECT_NE(explain_veto(StateKind::kTail, "lost at sea").reason.find("lost at sea"), std::string::npos);
}

/// What the hit rule can answer is what the words are for.
TEST(Kinds, ResidenciesOfTheHitRuleAreKnown) {
  const ModelState model{.groups = {{.name = "kv", .n_layers = 1, .ratio = 1, .row_elems = 16}}, .block_size = 64};
  const std::vector<RowLayout> layouts{layout_of(model.groups[0], 64)};
  const RecordRule rule{layouts, 1, 1};
  const auto known = [](std::string_view word) {
    return std::find(veto_residencies().begin(), veto_residencies().end(), word) != veto_residencies().end();
  };
  Block block;
  block.records.resize(1);
  block.lost = {RecordState::kEmpty};
  EXPECT_TRUE(known(residency(block, 0, rule)));
  for (const RecordState lost : {RecordState::kEvicted, RecordState::kQuarantined}) {
    block.lost = {lost};
    EXPECT_TRUE(known(residency(block, 0, rule)));
  }
  alignas(64) std::byte bytes[64];
  block.records[0] = std::make_unique<Record>();
  Record& r = *block.records[0];
  const auto fresh = [&] { r.data = bytes, r.n_rows = 64, r.layout = r.epoch = 1; };
  fresh();
  EXPECT_EQ(residency(block, 0, rule), "");
  fresh();
  r.n_rows = 1;
  EXPECT_TRUE(known(residency(block, 0, rule)));
  fresh();
  r.layout = 2;
  EXPECT_TRUE(known(residency(block, 0, rule)));
  fresh();
  r.epoch = 0;
  EXPECT_TRUE(known(residency(block, 0, rule)));
  fresh();
  r.data = bytes + 4;
  EXPECT_TRUE(known(residency(block, 0, rule)));
}

}  // namespace
}  // namespace carrel
