#include "kernels/cpu/peak.h"

#include <gtest/gtest.h>

namespace carrel::cpu {
namespace {

TEST(Peak, bounds_are_positive_and_ordered) {
  ThreadTeam team(2);
  Env* env = Env::real();
  EXPECT_GT(read_bandwidth(env, team, size_t{32} << 20).value(), 1e8);
  const double int8 = int8_dot_peak(env, team, Path::kAvx2), f32 = f32_fma_peak(env, team, Path::kAvx2);
  EXPECT_GT(f32, 1e9);
  EXPECT_GT(int8, 1e9);
  EXPECT_FALSE(read_bandwidth(env, team, size_t{1} << 60));
  if (!path_available(Path::kAvx512)) {
    std::printf("skipped: AVX-512 peaks, this machine lacks AVX-512 with VNNI and BF16\n");
    GTEST_SKIP();
  }
  EXPECT_GT(int8_dot_peak(env, team, Path::kAvx512), 1e9);
  EXPECT_GT(f32_fma_peak(env, team, Path::kAvx512), 1e9);
}

}  // namespace
}  // namespace carrel::cpu
