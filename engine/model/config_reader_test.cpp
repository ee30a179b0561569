#include "engine/model/config_reader.h"

#include <gtest/gtest.h>

#include <cmath>

namespace carrel {
namespace {

ConfigReader reader(const std::string& json) {
  auto r = ConfigReader::parse(json);
  EXPECT_TRUE(r) << r.error().text();
  return *std::move(r);
}

TEST(ConfigReader, ReadsValuesAndDefaults) {
  const ConfigReader c = reader(R"({"a": 3, "b": 4.0, "f": 1e-3, "t": "x", "flag": true, "n": null, "list": [1, 2], "s": {"in": 7}})");
  EXPECT_EQ(c.integer("a", 0, 10), 3);
  EXPECT_EQ(c.integer("b", 0, 10), 4) << "a whole number written as a float";
  EXPECT_EQ(c.integer_or("n", 9, 0, 10), 9) << "null is absent";
  EXPECT_EQ(c.number("f"), 1e-3);
  EXPECT_EQ(c.text("t"), "x");
  EXPECT_TRUE(c.flag_or("flag", false));
  EXPECT_EQ(c.integers("list"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(c.section("s").integer("in", 0, 10), 7);
  EXPECT_EQ(c.section("absent").integer_or("in", 5, 0, 10), 5);
  EXPECT_TRUE(c.status());
}

TEST(ConfigReader, FirstErrorSticksAndNamesTheKey) {
  const ConfigReader c = reader(R"({"a": 1.5, "s": {"n": "seven"}})");
  c.section("s").integer("n", 0, 10);
  c.integer("a", 0, 10);
  ASSERT_FALSE(c.status());
  EXPECT_EQ(c.status().error().code, Code::kCorrupt);
  EXPECT_EQ(c.status().error().where, "config s.n");
}

TEST(ConfigReader, RefusesEveryWrongType) {
  for (const char* json :
       {R"({"k": "1"})", R"({"k": []})", R"({"k": {}})", R"({"k": true})", R"({"k": 1e300})", R"({"k": -1})", R"({"k": 0.5})", "{}"}) {
    const ConfigReader c = reader(json);
    c.integer("k", 0, 100);
    EXPECT_FALSE(c.status()) << json;
  }
  for (const char* json : {R"({"k": [1, "2"]})", R"({"k": 3})", R"({"k": {"a": 1}})"}) {
    const ConfigReader c = reader(json);
    c.integers("k");
    EXPECT_FALSE(c.status()) << json;
  }
}

TEST(ConfigReader, InfinityInAListIsWhatTheCallerSays) {
  for (const char* text : {R"({"limit": [0.0, Infinity]})", R"({"limit": [0.0, {"__float__": "Infinity"}]})"}) {
    const ConfigReader c = reader(text);
    EXPECT_EQ(c.numbers("limit", INFINITY), (std::vector<double>{0, INFINITY}));
    EXPECT_TRUE(c.status());
    EXPECT_TRUE(c.numbers("limit").empty());
    EXPECT_FALSE(c.status());
  }
}

TEST(ConfigReader, BareInfinityReadsAsAbsent) {
  const ConfigReader c = reader(R"({"limit": Infinity, "low": -Infinity, "name": "Infinity"})");
  EXPECT_FALSE(c.has("limit"));
  EXPECT_FALSE(c.has("low"));
  EXPECT_EQ(c.text("name"), "Infinity");
}

TEST(ConfigReader, RefusesWhatIsNoObject) {
  for (const char* json : {"", "[]", "3", "{", R"({"a": )"}) EXPECT_FALSE(ConfigReader::parse(json)) << json;
}

}  // namespace
}  // namespace carrel
