#include "tests/seed.h"

#include <gtest/gtest-spi.h>

namespace carrel {
namespace {

TEST(Seed, OnlyWholeNumbersAreSeeds) {
  EXPECT_EQ(parse_seed("0"), 0u);
  EXPECT_EQ(parse_seed("18446744073709551615"), UINT64_MAX);
  for (const char* garbage : {"", "x", "12x", "-1", "+1", " 7", "7 ", "0x10", "1.5", "18446744073709551616"})
    EXPECT_FALSE(parse_seed(garbage)) << garbage;
}

TEST(Seed, GarbageInTheEnvironmentFailsTheTest) {
  std::optional<uint64_t> seed = 5;
  EXPECT_TRUE(read_seed("CARREL_TEST_OF_SEEDS", &seed));
  EXPECT_EQ(seed, 5u);
  ASSERT_EQ(setenv("CARREL_TEST_OF_SEEDS", "42", 1), 0);
  EXPECT_TRUE(read_seed("CARREL_TEST_OF_SEEDS", &seed));
  EXPECT_EQ(seed, 42u);
  ASSERT_EQ(setenv("CARREL_TEST_OF_SEEDS", "garbage", 1), 0);
  bool read = true;
  EXPECT_NONFATAL_FAILURE(read = read_seed("CARREL_TEST_OF_SEEDS", &seed), "is \"garbage\", which is no seed");
  EXPECT_FALSE(read);
  ASSERT_EQ(unsetenv("CARREL_TEST_OF_SEEDS"), 0);
}

}  // namespace
}  // namespace carrel
