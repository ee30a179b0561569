#include <gtest/gtest.h>

#include <filesystem>

#include "base/env.h"
#include "base/hash.h"
#include "base/log.h"

namespace carrel {
namespace {

TEST(Hash, KnownVectors) {
  EXPECT_EQ(to_hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string key = "Jefe", text = "what do ya want for nothing?";
  EXPECT_EQ(to_hex(hmac_sha256(std::as_bytes(std::span(key)), std::as_bytes(std::span(text)))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");  // RFC 4231, test case 2
  const std::string digits = "123456789";
  EXPECT_EQ(crc32(std::as_bytes(std::span(digits))), 0xCBF43926u);
}

TEST(Hash, HexRefusesWhatIsNotHex) {
  EXPECT_EQ(from_hex("4142"), "AB");
  EXPECT_FALSE(from_hex("414"));
  EXPECT_FALSE(from_hex("4g"));
}

TEST(Env, AtomicWriteReplacesWholeFile) {
  Env* env = Env::real();
  const std::string dir = testing::TempDir() + "carrel_env_test";
  ASSERT_TRUE(env->remove_all(dir));
  ASSERT_TRUE(env->make_dirs(dir));
  ASSERT_TRUE(write_file_atomic(env, dir + "/a", "one"));
  ASSERT_TRUE(write_file_atomic(env, dir + "/a", "two"));
  EXPECT_EQ(read_file(env, dir + "/a").value(), "two");
  EXPECT_EQ(env->list(dir)->size(), 1u);
  EXPECT_FALSE(read_file(env, dir + "/a", 2));
  EXPECT_EQ(read_file(env, dir + "/b").error().code, Code::kNotFound);
  EXPECT_FALSE(env->open(dir, Open::kRead));
}

TEST(Log, MessagesCannotBreakAJsonLine) { EXPECT_EQ(json_escape("a \"b\" \\ c\n\x01"), R"(a \"b\" \\ c\u000a\u0001)"); }

}  // namespace
}  // namespace carrel
