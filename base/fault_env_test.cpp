#include "base/fault_env.h"

#include <gtest/gtest.h>

#include "base/codec.h"

namespace carrel {
namespace {

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(FaultEnv, UnsyncedDataAndNamesAreLost) {
  FaultEnv env;
  ASSERT_TRUE(make_dirs_durable(&env, "/d"));
  auto synced = env.open("/d/synced", Open::kCreate).value();
  ASSERT_TRUE(synced->write_at(0, bytes("old")));
  ASSERT_TRUE(synced->sync());
  ASSERT_TRUE(env.sync_dir("/d"));
  ASSERT_TRUE(synced->write_at(0, bytes("new")));
  auto nameless = env.open("/d/nameless", Open::kCreate).value();
  ASSERT_TRUE(nameless->write_at(0, bytes("x")));
  ASSERT_TRUE(nameless->sync());
  env.power_loss(FaultEnv::Loss::kUnsynced);
  EXPECT_EQ(read_file(&env, "/d/synced").value(), "old");
  EXPECT_FALSE(env.exists("/d/nameless"));
  EXPECT_FALSE(synced->write_at(0, bytes("late"))) << "a handle outlived the power loss";
}

TEST(FaultEnv, ProcessDeathLosesNothing) {
  FaultEnv env;
  ASSERT_TRUE(env.make_dirs("/d"));
  ASSERT_TRUE(env.open("/d/a", Open::kCreate).value()->write_at(0, bytes("abc")));
  env.power_loss(FaultEnv::Loss::kNone);
  EXPECT_EQ(read_file(&env, "/d/a").value(), "abc");
  auto f = env.open("/d/a", Open::kReadWrite).value();
  env.crash_at(1);
  EXPECT_FALSE(f->write_at(0, bytes("A")));
  EXPECT_FALSE(f->write_at(1, bytes("B"))) << "a write after the crash";
  env.power_loss(FaultEnv::Loss::kNone);
  EXPECT_EQ(read_file(&env, "/d/a").value(), "Abc");
}

TEST(FaultEnv, AtomicWriteIsOldOrNewAtEveryCrash) {
  for (const auto loss : {FaultEnv::Loss::kUnsynced, FaultEnv::Loss::kNone, FaultEnv::Loss::kRandom}) {
    for (uint64_t k = 1; k < 20; k++) {
      FaultEnv env(k);
      ASSERT_TRUE(make_dirs_durable(&env, "/d"));
      ASSERT_TRUE(write_file_atomic(&env, "/d/f", "one"));
      env.crash_at(k);
      const bool acknowledged = write_file_atomic(&env, "/d/f", "two").has_value();
      EXPECT_EQ(acknowledged, !env.crashed());
      env.power_loss(loss);
      const std::string content = read_file(&env, "/d/f").value();
      EXPECT_TRUE(content == "two" || (!acknowledged && content == "one")) << content << " after a crash at " << k;
    }
  }
}

TEST(FaultEnv, FaultsHitTheChosenCallOnce) {
  FaultEnv env;
  ASSERT_TRUE(env.make_dirs("/d"));
  auto f = env.open("/d/a", Open::kCreate).value();
  env.fail_at(1, FaultEnv::Fault::kNoSpace);
  EXPECT_EQ(f->write_at(0, bytes("abcd")).error().code, Code::kExhausted);
  ASSERT_TRUE(f->write_at(0, bytes("abcd")));
  env.fail_at(2, FaultEnv::Fault::kShortRead);
  std::byte out[4];
  EXPECT_EQ(f->read_at(0, out), 4u);
  EXPECT_EQ(f->read_at(0, out), 2u);
  env.fail_at(1, FaultEnv::Fault::kIo);
  EXPECT_EQ(f->sync().error().code, Code::kIo);
  EXPECT_TRUE(f->sync());
}

TEST(FaultEnv, ClockMovesOnlyByTheTest) {
  FaultEnv env;
  const int64_t wall = env.wall_ms(), mono = env.mono_ns();
  env.jump_wall_ms(-3'600'000);
  EXPECT_EQ(env.wall_ms(), wall - 3'600'000);
  EXPECT_EQ(env.mono_ns(), mono);
  env.sleep_ms(5);
  EXPECT_EQ(env.mono_ns(), mono + 5'000'000);
}

TEST(Codec, RoundTripAndShortInput) {
  ByteWriter w;
  w.u8(7);
  w.u16(0x1234);
  w.u32(0x89abcdef);
  w.u64(uint64_t{1} << 63);
  w.i64(-2);
  w.field("text");
  EXPECT_EQ(static_cast<int>(w.bytes()[1]), 0x34) << "little-endian";
  ByteReader r(w.bytes());
  EXPECT_EQ(r.u8(), 7);
  EXPECT_EQ(r.u16(), 0x1234);
  EXPECT_EQ(r.u32(), 0x89abcdefu);
  EXPECT_EQ(r.u64(), uint64_t{1} << 63);
  EXPECT_EQ(r.i64(), -2);
  EXPECT_EQ(r.text_field(), "text");
  EXPECT_EQ(r.left(), 0u);
  for (size_t cut = 0; cut < 12; cut++) {
    ByteReader shortened(std::span(w.bytes()).last(12).first(cut));
    EXPECT_EQ(shortened.field().error().code, Code::kCorrupt);
  }
}

}  // namespace
}  // namespace carrel
