// The corpus of a fuzzer as a test: what each *_fuzz.cpp does with bytes, done with every file of its testdata folder. For tests alone;
// linked into no library.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.h"

namespace carrel::fuzz {

/// Feeds bytes to a parser; false when what it answers breaks a promise. The bytes end where their memory ends, so that a
/// sanitizer sees a read beyond them.
using Drive = bool (*)(std::string_view);

/// What is done with each file beyond reading it as it is. Both are deterministic.
struct Mangling {
  size_t n_cuts = 100;   // shorter copies, spread over the length
  size_t n_changes = 500;  // copies with a byte changed; one change in four stays for the next
};

inline bool feed(Drive drive, std::string_view bytes) {
  const std::vector<char> exact(bytes.begin(), bytes.end());
  return drive({exact.data(), exact.size()});
}

/// Length of a hostile text: enough that quadratic work is minutes; CARREL_LONG asks for more.
inline size_t long_bytes() { return std::getenv("CARREL_LONG") != nullptr ? size_t{1} << 20 : size_t{256} << 10; }

/// `head`, then `piece` until there are `n_bytes`: what is quadratic in its length does not end before the suite's time limit.
inline std::string repeated(std::string_view head, std::string_view piece, size_t n_bytes) {
  std::string s(head);
  while (s.size() < n_bytes) s += piece;
  return s;
}

/// Every file of `dir` (relative to the root of the repository, where tests run), of which there must be `at_least` so many.
inline void run_corpus(const std::string& dir, size_t at_least, Drive drive, Mangling mangling = {}) {
  const auto names = Env::real()->list(dir);
  ASSERT_TRUE(names) << names.error().text();
  EXPECT_GE(names->size(), at_least) << dir;
  std::mt19937_64 random(11);
  for (const std::string& name : *names) {
    auto read = read_file(Env::real(), dir + "/" + name);
    ASSERT_TRUE(read) << read.error().text();
    std::string& text = *read;
    EXPECT_TRUE(feed(drive, text)) << name;
    for (size_t i = 0; i < std::min(mangling.n_cuts, text.size()); i++) {
      const size_t cut = text.size() * i / std::min(mangling.n_cuts, text.size());
      EXPECT_TRUE(feed(drive, std::string_view(text).substr(0, cut))) << name << " cut at " << cut;
    }
    for (size_t i = 0; i < mangling.n_changes && !text.empty(); i++) {
      char& c = text[random() % text.size()];
      const char was = std::exchange(c, static_cast<char>(random()));
      EXPECT_TRUE(feed(drive, text)) << name << " with a changed byte, round " << i;
      if (i % 4 != 0) c = was;
    }
  }
}

}  // namespace carrel::fuzz
