// The configuration fuzzer's corpus, and what a hostile file may cost.
#include "app/config/fuzz_drive.h"
#include "base/fuzz_corpus.h"

namespace carrel {
namespace {

TEST(ConfigFuzz, corpus) {
  fuzz::run_corpus("app/config/testdata/config", 40, fuzz::config, {.n_cuts = 40, .n_changes = 100});
}

TEST(ConfigFuzz, LongFilesEnd) {
  for (const char* head : {"", "a: ", "- ", "{", "server:\n  port: "}) {
    for (const char* piece : {"a", "a:\n", "a: b\n", "- ", "- a\n", "[", "]", "{", "{a: ", "&a ", "*a ", "? ", ": ", "'", "''", "\"", "\\", "|\n", ">\n ", "#", "!", "%", " ", "\n", "\t", ",", "a,", "---\n",
                              "<<: ", "{a: b},", "[a],", "x: &a {y: *a}\n", "\xC2\x85"})
      EXPECT_TRUE(fuzz::feed(fuzz::config, fuzz::repeated(head, piece, 256 << 10))) << head << piece;
  }
}

TEST(ConfigFuzz, LimitsAreNamed) {
  const auto refusal = [](const std::string& text) {
    const auto c = Config::load(text, "f.yaml", {}, {});
    return c ? std::string() : c.error().text();
  };
  EXPECT_NE(refusal(fuzz::repeated("", "# text\n", (256 << 10) + 1)).find("is larger than"), std::string::npos);
  EXPECT_NE(refusal("model: {path: \"\xC3(\"}").find("not UTF-8"), std::string::npos);
  EXPECT_NE(refusal("cache: {offload: {host_memory_size: 99999999999TiB}}").find("must be a size"), std::string::npos);
  std::string bomb = "a0: &a0 {x: {}}\n";
  for (int i = 1; i < 6; i++) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " {";
    for (int k = 0; k < 50; k++) bomb += "k" + std::to_string(k) + ": *a" + std::to_string(i - 1) + ", ";
    bomb += "z: {}}\n";
  }
  EXPECT_NE(refusal(bomb).find("entries"), std::string::npos);
}

}  // namespace
}  // namespace carrel
