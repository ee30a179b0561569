#include "engine/text/stop.h"

#include <gtest/gtest.h>

namespace carrel {
namespace {

struct Fed {
  std::string text;
  std::optional<size_t> stop;
};

Fed feed(std::vector<std::string> stops, const std::vector<std::string>& tokens) {
  auto m = StopMatcher::create(std::move(stops));
  EXPECT_TRUE(m);
  Fed fed;
  for (const std::string& t : tokens) {
    StopMatcher::Out out = m->push(t);
    fed.text += out.text;
    if (out.stop) fed.stop = out.stop;
  }
  fed.text += m->flush();
  return fed;
}

TEST(Cases, case_state_e1) {
  Fed fed = feed({"DEFGHIJ"}, {"abc", "DEF", "G", "HI", "J", "never"});
  EXPECT_EQ(fed.text, "abc");
  EXPECT_EQ(fed.stop, 0u);
  fed = feed({"DE"}, {"abc", "DEF", "more"});
  EXPECT_EQ(fed.text, "abc");
  EXPECT_EQ(fed.stop, 0u);
  // Nothing of the stop string leaves while it is still open.
  auto m = StopMatcher::create({"DEFGHIJ"});
  ASSERT_TRUE(m);
  EXPECT_EQ(m->push("xDEF").text, "x");
  EXPECT_EQ(m->push("GHI").text, "");
  EXPECT_EQ(m->push("Kz").text, "DEFGHIKz");
}

TEST(Stop, every_way_to_cut_the_text_gives_the_same) {
  const std::string text = "aabaabaaab<|end|>xx";
  const std::vector<std::string> stops = {"aabaaab", "aaab<", "end"};
  const Fed whole = feed(stops, {text});
  EXPECT_EQ(whole.text, "aab");
  EXPECT_EQ(whole.stop, 0u);
  for (unsigned cuts = 0; cuts < 1u << (text.size() - 1); cuts += 7) {
    std::vector<std::string> tokens(1);
    for (size_t i = 0; i < text.size(); ++i) {
      tokens.back() += text[i];
      if (i + 1 < text.size() && (cuts >> i & 1) != 0) tokens.emplace_back();
    }
    const Fed fed = feed(stops, tokens);
    ASSERT_EQ(fed.text, whole.text) << cuts;
    ASSERT_EQ(fed.stop, whole.stop) << cuts;
  }
}

TEST(Stop, several_that_end_together_the_longest_wins) {
  const Fed fed = feed({"c", "bc", "abc"}, {"xab", "c"});
  EXPECT_EQ(fed.text, "x");
  EXPECT_EQ(fed.stop, 2u);
}

TEST(Stop, flush_gives_what_was_held) {
  EXPECT_EQ(feed({"\n\nUser:"}, {"hello", "\n", "\nUser"}).text, "hello\n\nUser");
  EXPECT_EQ(feed({}, {"all", "passes"}).text, "allpasses");
}

TEST(Stop, limits) {
  EXPECT_FALSE(StopMatcher::create({""}));
  EXPECT_FALSE(StopMatcher::create(std::vector<std::string>(65, "x")));
  EXPECT_FALSE(StopMatcher::create({std::string(4097, 'x')}));
  EXPECT_TRUE(StopMatcher::create({std::string(4096, 'x')}));
}

}  // namespace
}  // namespace carrel
