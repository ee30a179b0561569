#include "kernels/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace carrel {
namespace {

TEST(ThreadTeam, every_element_once_for_any_size_and_grain) {
  for (const int n_threads : {1, 2, 3, 4, 7}) {
    ThreadTeam team(n_threads);
    EXPECT_EQ(team.size(), n_threads);
    for (const int64_t grain : {1, 3, 16})
      for (const int64_t n : {0, 1, 2, 15, 16, 17, 100, 1000}) {
        std::vector<int> count(static_cast<size_t>(n), 0);
        std::atomic<int> bad_borders{0};
        team.run(n, grain, [&](int64_t b, int64_t e) {
          if (b % grain != 0 || (e % grain != 0 && e != n) || b >= e) bad_borders++;
          for (int64_t i = b; i < e; i++) count[static_cast<size_t>(i)]++;
        });
        EXPECT_EQ(bad_borders, 0);
        for (const int c : count) ASSERT_EQ(c, 1) << n_threads << " threads, n " << n << ", grain " << grain;
      }
  }
}

TEST(ThreadTeam, results_are_visible_after_each_of_many_short_loops) {
  ThreadTeam team(4);
  std::vector<int64_t> v(64, 0);
  for (int round = 1; round <= 5000; round++) {
    team.run(64, 1, [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; i++) v[static_cast<size_t>(i)] += i;
    });
    ASSERT_EQ(v[63], 63 * round);
    ASSERT_EQ(v[31], 31 * round);
  }
}

TEST(ThreadTeam, wakes_workers_that_went_to_sleep) {
  ThreadTeam team(3);
  for (int round = 0; round < 20; round++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int64_t> sum{0};
    team.run(100, 1, [&](int64_t b, int64_t e) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));  // long enough for the caller to sleep in its wait
      for (int64_t i = b; i < e; i++) sum += i;
    });
    ASSERT_EQ(sum, 4950);
  }
}

TEST(ThreadTeam, does_not_wait_for_a_member_that_has_not_begun) {
  // One element blocks until all others are done: only possible when the other members take over the rest of its owner's share.
  ThreadTeam team(2);
  std::atomic<int> finished{0};
  team.run(64, 1, [&](int64_t b, int64_t e) {
    if (b == 0)
      while (finished < 64 - e) std::this_thread::yield();
    finished += static_cast<int>(e - b);
  });
  EXPECT_EQ(finished, 64);
}

}  // namespace
}  // namespace carrel
