#include "base/block_queue.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/aligned.h"
#include "base/fault_env.h"

namespace carrel {
namespace {

constexpr size_t kUnit = 4096;

std::shared_ptr<AlignedBytes> filled(size_t n, int value) {
  auto bytes = std::make_shared<AlignedBytes>(AlignedBytes::allocate(n).value());
  std::fill_n(bytes->data(), n, static_cast<std::byte>(value));
  return bytes;
}

BlockOp op(BlockOp::Kind kind, const std::shared_ptr<File>& file, uint64_t offset, const std::shared_ptr<AlignedBytes>& bytes) {
  return {kind, file, offset, bytes ? bytes->span() : std::span<std::byte>(), bytes};
}

std::vector<BlockDone> wait_all(BlockQueue& queue, int64_t deadline_ns) {
  std::vector<BlockDone> all;
  while (queue.n_under_way() != 0) {
    auto some = queue.wait(deadline_ns).value();
    if (some.empty()) break;
    for (BlockDone& d : some) all.push_back(std::move(d));
  }
  return all;
}

class BlockQueueTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / ("carrel_blocks." + std::to_string(::getpid()));
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::filesystem::path dir_;
};

TEST_P(BlockQueueTest, WritesSyncsAndReadsInAnyNumber) {
  Env* env = Env::real();
  auto queue = env->block_queue(8, GetParam());
  if (!GetParam() && std::string(queue->name()) != "io_uring") {
    printf("skipped: the kernel refuses io_uring\n");
    GTEST_SKIP();
  }
  const std::shared_ptr<File> file = env->open_blocks(dir_ / "f", Open::kCreate).value();
  ASSERT_TRUE(file->reserve(64 * kUnit));
  EXPECT_EQ(file->size(), 64 * kUnit);
  const int64_t deadline = env->mono_ns() + int64_t{20'000'000'000};
  for (size_t i = 0; i < 8; i++)
    ASSERT_TRUE(queue->submit(i, op(BlockOp::Kind::kWrite, file, i * kUnit, filled(kUnit, static_cast<int>(i)))));
  EXPECT_EQ(queue->submit(9, op(BlockOp::Kind::kSync, file, 0, nullptr)).error().code, Code::kUnavailable);
  auto done = wait_all(*queue, deadline);
  ASSERT_EQ(done.size(), 8u);
  for (const BlockDone& d : done) EXPECT_EQ(d.n, kUnit);
  ASSERT_TRUE(queue->submit(1, op(BlockOp::Kind::kSync, file, 0, nullptr)));
  EXPECT_EQ(wait_all(*queue, deadline).at(0).n, size_t{0});
  const auto out = filled(8 * kUnit, 99);
  ASSERT_TRUE(queue->submit(7, op(BlockOp::Kind::kRead, file, 0, out)));
  done = wait_all(*queue, deadline);
  EXPECT_EQ(done.at(0).id, 7u);
  for (size_t i = 0; i < 8; i++) EXPECT_EQ(static_cast<size_t>(out->data()[i * kUnit]), i);
  ASSERT_TRUE(queue->submit(1, op(BlockOp::Kind::kRead, file, 63 * kUnit, filled(2 * kUnit, 0))));
  EXPECT_EQ(wait_all(*queue, deadline).at(0).n, kUnit) << "the end of the file";
  EXPECT_TRUE(queue->wait(0).value().empty());
  printf("block queue: %s, direct: %d\n", queue->name(), file->direct());
}

INSTANTIATE_TEST_SUITE_P(Both, BlockQueueTest, testing::Values(false, true));

// A pipe that nobody writes to is the one device that can be made to hang.
class HungFile final : public File {
 public:
  HungFile() { EXPECT_EQ(::pipe(ends_), 0); }
  ~HungFile() override {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  Result<size_t> read_at(uint64_t, std::span<std::byte> out) override {
    return static_cast<size_t>(::read(ends_[0], out.data(), out.size()));
  }
  Status write_at(uint64_t, std::span<const std::byte>) override { return {}; }
  Status truncate(uint64_t) override { return {}; }
  Status sync() override { return {}; }
  Result<uint64_t> size() override { return uint64_t{0}; }
  int descriptor() const override { return ends_[0]; }
  void wake() { EXPECT_EQ(::write(ends_[1], "x", 1), 1); }

 private:
  int ends_[2];
};

TEST_P(BlockQueueTest, AHungReadKeepsItsBufferUntilItEnds) {
  Env* env = Env::real();
  auto queue = env->block_queue(4, GetParam());
  const auto file = std::make_shared<HungFile>();
  auto buffer = filled(kUnit, 0);
  const std::weak_ptr<AlignedBytes> watch = buffer;
  ASSERT_TRUE(queue->submit(5, op(BlockOp::Kind::kRead, file, 0, buffer)));
  buffer.reset();
  EXPECT_TRUE(queue->wait(env->mono_ns() + 20'000'000).value().empty());
  EXPECT_EQ(queue->n_under_way(), 1u);
  EXPECT_FALSE(watch.expired());
  file->wake();
  const auto done = wait_all(*queue, env->mono_ns() + int64_t{20'000'000'000});
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].n, size_t{1});
  EXPECT_TRUE(watch.expired());
}

TEST(RealEnv, BlocksAreNeverOpenedThroughALink) {
  const std::filesystem::path dir = std::filesystem::temp_directory_path() / ("carrel_links." + std::to_string(::getpid()));
  std::filesystem::create_directories(dir);
  ASSERT_TRUE(write_file_atomic(Env::real(), dir / "theirs", "x"));
  std::filesystem::create_symlink(dir / "theirs", dir / "link");
  EXPECT_EQ(Env::real()->open_blocks(dir / "link", Open::kReadWrite).error().code, Code::kDenied);
  EXPECT_TRUE(Env::real()->open_blocks(dir / "theirs", Open::kReadWrite));
  EXPECT_GT(Env::real()->free_bytes(dir).value(), 0u);
  std::filesystem::remove_all(dir);
}

TEST(FaultEnv, QueuesFailAtSubmissionAndCompletion) {
  FaultEnv env;
  const std::shared_ptr<File> file = env.open_blocks("/f", Open::kCreate).value();
  auto queue = env.block_queue(4, false);
  const auto run = [&](BlockOp::Kind kind, int value) -> Result<size_t> {
    CARREL_TRY(queue->submit(1, op(kind, file, 0, kind == BlockOp::Kind::kSync ? nullptr : filled(kUnit, value))));
    return queue->wait(env.mono_ns()).value().at(0).n;
  };
  using Kind = BlockOp::Kind;
  env.fail_at(1, FaultEnv::Fault::kIo);
  EXPECT_EQ(run(Kind::kWrite, 1).error().code, Code::kIo);
  EXPECT_EQ(file->size(), 0u);
  env.fail_at(2, FaultEnv::Fault::kNoSpace);
  EXPECT_EQ(run(Kind::kWrite, 1).error().code, Code::kExhausted);
  EXPECT_EQ(run(Kind::kWrite, 1), kUnit);
  env.fail_at(2, FaultEnv::Fault::kShortRead);
  EXPECT_EQ(run(Kind::kRead, 0), kUnit / 2);
  EXPECT_EQ(run(Kind::kSync, 0), size_t{0});
  EXPECT_EQ(run(Kind::kWrite, 2), kUnit);
  env.crash_at(1);
  EXPECT_FALSE(run(Kind::kSync, 0));
  env.power_loss(FaultEnv::Loss::kNone);
  EXPECT_EQ(read_file(&env, "/f").value()[0], 2);
}

TEST(FaultEnv, HungOperationsMoveTheClockAndComeLate) {
  using Kind = BlockOp::Kind;
  for (const uint64_t call : {1, 2}) {
    FaultEnv env;
    const std::shared_ptr<File> file = env.open_blocks("/f", Open::kCreate).value();
    auto queue = env.block_queue(4, false);
    env.set_hang_ms(5000);
    env.fail_at(call, FaultEnv::Fault::kHang);
    const int64_t start = env.mono_ns();
    ASSERT_TRUE(queue->submit(1, op(Kind::kWrite, file, 0, filled(kUnit, 1))));
    EXPECT_TRUE(queue->wait(start + 1'000'000'000).value().empty());
    EXPECT_EQ(env.mono_ns(), start + 1'000'000'000);
    EXPECT_EQ(file->size().value(), call == 1 ? 0u : kUnit);
    EXPECT_EQ(wait_all(*queue, start + int64_t{60'000'000'000}).at(0).n, kUnit);
    EXPECT_EQ(env.mono_ns(), start + int64_t{5'000'000'000});
    EXPECT_EQ(file->size().value(), kUnit);
  }
}

TEST(FaultEnv, LimitedSpace) {
  FaultEnv env;
  env.limit_space(2 * kUnit);
  auto file = env.open("/f", Open::kCreate).value();
  EXPECT_TRUE(file->reserve(2 * kUnit));
  EXPECT_EQ(env.free_bytes("/").value(), 0u);
  EXPECT_TRUE(file->write_at(kUnit, filled(kUnit, 1)->span()));
  EXPECT_EQ(file->write_at(kUnit + 1, filled(kUnit, 1)->span()).error().code, Code::kExhausted);
  env.limit_space(UINT64_MAX);
  EXPECT_TRUE(file->write_at(kUnit + 1, filled(kUnit, 1)->span()));
}

}  // namespace
}  // namespace carrel
