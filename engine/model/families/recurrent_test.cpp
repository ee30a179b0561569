#include "engine/model/families/recurrent.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace carrel {
namespace {

TEST(Recurrent, ExpIsThatOfTheLibraryAlmostToTheBit) {
  double worst = 0;
  for (double x = -690; x < 690; x += 0.00731) worst = std::max(worst, std::fabs(exp_of(x) / std::exp(x) - 1));
  EXPECT_LT(worst, 2 * std::numeric_limits<double>::epsilon());
  EXPECT_EQ(exp_of(0), 1);
  EXPECT_EQ(exp_of(1e300), HUGE_VAL);
  EXPECT_EQ(exp_of(-1e300), 0);
  EXPECT_TRUE(std::isnan(exp_of(std::nan(""))));
}

}  // namespace
}  // namespace carrel
