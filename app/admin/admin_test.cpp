// What is told of drills that fail and of matches, without a model: the words that nobody wants to see first when they matter.
#include <gtest/gtest.h>

#include "app/admin/drill_run.h"
#include "app/admin/match_text.h"
#include "app/admin/state_report.h"
#include "app/admin/table.h"

namespace carrel {
namespace {

DrillRun one_failed() {
  DrillRun run;
  run.model = "m";
  run.show_damage = true;
  DrillReport good{.name = "missing-window", .verdict = DrillVerdict::kPassed, .reason = "", .cases = {}, .ms = 3};
  good.cases.push_back({.damage = "window: record evicted at token 64",
                        .nominal = 128,
                        .effective = 64,
                        .counter = "vetoes{window}",
                        .after = 1,
                        .tokens_equal = true,
                        .logits_equal = true,
                        .answer = "right",
                        .would_have_answered = "wrong\nindeed",
                        .failure = ""});
  DrillReport bad{
      .name = "bit-flip", .verdict = DrillVerdict::kFailed, .reason = "kv: the tokens differ from the cold run", .cases = {}, .ms = 1};
  run.reports = {good, bad};
  return run;
}

TEST(DrillRun, AFailureIsNamedAndFails) {
  const DrillRun run = one_failed();
  EXPECT_FALSE(run.passed());
  const std::string text = drills_text(run);
  EXPECT_NE(text.find("1 passed, 1 failed, 0 not applicable to m"), std::string::npos) << text;
  EXPECT_NE(text.find("FAILED bit-flip: kv: the tokens differ from the cold run\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("passed means"), std::string::npos);
  EXPECT_NE(text.find("wrong indeed"), std::string::npos) << text;
  EXPECT_NE(drills_json(run).find("\"passed\": false"), std::string::npos);
}

TEST(DrillRun, OneThatWasStoppedHasNotPassed) {
  DrillRun run = one_failed();
  run.reports.pop_back();
  EXPECT_TRUE(run.passed());
  run.complete = false;
  EXPECT_FALSE(run.passed());
}

TEST(DrillRun, NamesAreChecked) {
  EXPECT_TRUE(check_drill_names({"toctou", "half-block"}));
  const Status wrong = check_drill_names({"toctou", "half-blok"});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, Code::kInvalidArgument);
  EXPECT_NE(wrong.error().text().find("half-block"), std::string::npos);
}

TEST(DrillRun, NamesGivenTwiceAreOne) {
  EXPECT_EQ(distinct_names({"toctou", "half-block", "toctou", "bit-flip", "half-block"}),
            (std::vector<std::string>{"toctou", "half-block", "bit-flip"}));
}

TEST(MatchText, SaysWhoShortenedAndWhatWouldCureIt) {
  const std::string head =
      R"({"tenant":"t","prompt_tokens":300,"context_tokens":4096,"block_tokens":128,"most":256,"reuse_enabled":true,"nominal":256,"restored":0,)";
  const std::string text = *explain_text(
      head +
      R"("effective":128,"veto":[{"kind":"tail","group":"csa.tail","position":256,"residency":"evicted","reason":"R","cure":"C"}]})");
  EXPECT_NE(text.find("the other 128 tokens"), std::string::npos) << text;
  EXPECT_NE(text.find("- csa.tail (tail) cannot resume at token 256: R [evicted].\n  What would cure it: C.\n"), std::string::npos) << text;
  EXPECT_NE(explain_text(head + R"("effective":256,"veto":[]})")->find("every state is there"), std::string::npos);
  std::string beyond = head + R"("effective":256,"veto":[]})";
  EXPECT_EQ(explain_text(beyond)->find("does not fit"), std::string::npos);
  beyond.replace(beyond.find("4096"), 4, "300");
  EXPECT_NE(explain_text(beyond)->find("it does not fit: the model's context is 300 tokens, answer included"), std::string::npos);
  for (const char* bad : {"", "[]", "{}", "{\"tenant\":5}"}) EXPECT_EQ(explain_text(bad).error().code, Code::kCorrupt) << bad;
}

TEST(StateReport, TheStartLogHasALineAGroupAndALineAKind) {
  const ModelState state{
      .groups = {{.name = "a", .n_layers = 2, .ratio = 1, .row_elems = 16}, {.name = "b", .n_layers = 1, .ratio = 1, .row_elems = 16}},
      .block_size = 64};
  const auto lines = state_lines(state, {});
  ASSERT_EQ(lines.size(), 4u);  // one for all, two groups, one kind
  EXPECT_NE(lines[1].find("state a kind=compressed_kv layers=2"), std::string::npos) << lines[1];
  EXPECT_NE(lines[3].find("a hit needs: every block from the first token to the point"), std::string::npos) << lines[3];
}

TEST(Table, CountsCharactersAndLeavesNoBlanksAtTheEnd) {
  Table t;
  t.row({"→", "x"});
  t.row({"ab", "y"});
  t.row({"c", ""});
  EXPECT_EQ(t.text(), "→   x\nab  y\nc\n");
}

}  // namespace
}  // namespace carrel
