#include "engine/schedule/fair_queue.h"

#include <gtest/gtest.h>

namespace carrel {
namespace {

TEST(FairQueue, RefusesBeyondItsDepth) {
  FairQueue q(2);
  EXPECT_TRUE(q.push(1, "a", Priority::kOnline));
  EXPECT_TRUE(q.push(2, "a", Priority::kOnline));
  EXPECT_FALSE(q.push(3, "b", Priority::kOnline));
  q.push_front(4, "a", Priority::kOnline);  // preempted work is never refused
  EXPECT_EQ(q.size(), 3u);
  EXPECT_TRUE(q.remove(1));
  EXPECT_FALSE(q.remove(1));
}

TEST(FairQueue, ManyOfOneTenantDoNotStandBeforeAnother) {
  FairQueue q(100);
  for (uint64_t i = 0; i < 10; i++) q.push(i, "loud", Priority::kOnline);
  q.push(100, "quiet", Priority::kOnline);
  q.charge("loud", 5000);
  EXPECT_EQ(q.order().front(), 100u);
}

TEST(FairQueue, OnlineBeforeBatch) {
  FairQueue q(10);
  q.push(1, "a", Priority::kBatch);
  q.push(2, "a", Priority::kOnline);
  EXPECT_EQ(q.order(), (std::vector<uint64_t>{2, 1}));
}

TEST(FairQueue, AbsenceEarnsNoCredit) {
  FairQueue q(10);
  q.push(1, "a", Priority::kOnline);
  q.charge("a", 1000);
  q.push(2, "b", Priority::kOnline);  // arrives at the present level
  q.charge("b", 10);
  EXPECT_EQ(q.order(), (std::vector<uint64_t>{1, 2}));
}

TEST(FairQueue, ServiceEvensOutUnderLoad) {
  FairQueue q(100);
  uint64_t next = 0;
  std::map<uint64_t, std::string> who;
  std::map<std::string, int> served;
  for (int i = 0; i < 20; i++)
    for (const char* t : {"a", "b"}) who[next] = t, q.push(next++, t, Priority::kOnline);
  for (int i = 0; i < 20; i++) {
    const uint64_t id = q.order().front();
    q.remove(id);
    served[who[id]]++;
    q.charge(who[id], who[id] == "a" ? 300 : 100);  // a's requests cost three times as much
  }
  EXPECT_EQ(served["a"], 5);
  EXPECT_EQ(served["b"], 15);
}

}  // namespace
}  // namespace carrel
