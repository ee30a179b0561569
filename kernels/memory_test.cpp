#include "kernels/memory.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace carrel {
namespace {

TEST(HugeBuffer, is_zeroed_aligned_writable_and_movable) {
  for (const bool touch : {true, false}) {
    HugeBuffer b = HugeBuffer::allocate((size_t{5} << 20) + 3, touch).value();
    ASSERT_EQ(b.size(), (size_t{5} << 20) + 3);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % (size_t{2} << 20), 0u);
    for (const std::byte v : b.span()) ASSERT_EQ(v, std::byte{0});
    b.span().back() = std::byte{9};
    HugeBuffer c = std::move(b);
    EXPECT_EQ(b.data(), nullptr);
    EXPECT_EQ(c.span().back(), std::byte{9});
    c = HugeBuffer::allocate(1).value();
    EXPECT_EQ(c.size(), 1u);
  }
}

TEST(HugeBuffer, nothing_and_too_much) {
  EXPECT_EQ(HugeBuffer::allocate(0).value().size(), 0u);
  EXPECT_EQ(HugeBuffer::allocate(size_t{1} << 60).error().code, Code::kExhausted);
  EXPECT_EQ(HugeBuffer::allocate(SIZE_MAX).error().code, Code::kExhausted);
}

}  // namespace
}  // namespace carrel
