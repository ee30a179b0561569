#include "app/lifecycle/folder_lock.h"

#include <gtest/gtest.h>

namespace carrel {
namespace {

TEST(FolderLock, OneHolderAtATime) {
  {
    auto first = FolderLock::take(testing::TempDir());
    ASSERT_TRUE(first) << first.error().text();
    FolderLock moved = std::move(*first);
    EXPECT_EQ(FolderLock::take(testing::TempDir()).error().code, Code::kUnavailable);
  }
  EXPECT_TRUE(FolderLock::take(testing::TempDir()));
  EXPECT_EQ(FolderLock::take("/no/such/folder").error().code, Code::kIo);
}

}  // namespace
}  // namespace carrel
