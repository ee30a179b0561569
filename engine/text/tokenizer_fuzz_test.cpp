// The fuzz target over its corpus, and over mangled copies of a real file.
#include <random>

#include "engine/text/text_testdata.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
#include "engine/text/tokenizer_fuzz.cpp"  // the target is no part of a library

namespace carrel {
namespace {

void feed(const std::string& s) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(s.data()), s.size());
}

TEST(TokenizerFuzz, corpus) {
  const std::string dir = "engine/text/testdata/fuzz_corpus";
  auto names = Env::real()->list(dir);
  ASSERT_TRUE(names) << names.error().text();
  EXPECT_GE(names->size(), 8u);
  for (const std::string& name : *names) feed(testdata("fuzz_corpus/" + name));
}

TEST(TokenizerFuzz, mangled_files) {
  std::mt19937 random(11);
  for (const char* name : {"llama3", "spm", "han_middle"}) {
    const std::string whole = testdata(std::string(name) + ".tokenizer.json");
    const std::string small = nlohmann::json::parse(whole).dump();
    for (int round = 0; round < 150; ++round) {
      std::string s = small;
      if (round % 3 == 0) s.resize(random() % s.size());
      for (size_t n = random() % 4; n > 0 && !s.empty(); --n) s[random() % s.size()] = static_cast<char>(random());
      if (s.size() > 40 && round % 5 == 0) s.erase(random() % (s.size() - 30), random() % 30);
      feed(s);
    }
  }
}

}  // namespace
}  // namespace carrel
