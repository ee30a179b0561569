// The fuzzers' corpus, each file as it is, cut, and with bits flipped; and an entry as version 1 of the store wrote it.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "engine/model/fuzz_drive.h"
#include "engine/model/store.h"

namespace carrel {
namespace {

namespace fs = std::filesystem;
const std::string kData = "engine/model/testdata";

void run_corpus(const std::string& name, int at_least, bool (*drive)(std::span<const std::byte>)) {
  int n = 0;
  std::mt19937_64 rng(11);
  for (const auto& file : fs::directory_iterator(kData + "/" + name)) {
    std::ifstream in(file.path(), std::ios::binary);
    std::string text(std::istreambuf_iterator<char>(in), {});
    const auto bytes = std::as_bytes(std::span(text));
    EXPECT_TRUE(drive(bytes)) << file.path();
    for (size_t cut = 0; cut < bytes.size(); cut += 1 + bytes.size() / 100)
      EXPECT_TRUE(drive(bytes.first(cut))) << file.path() << " cut at " << cut;
    for (int i = 0; i < 500; i++) {
      char& c = text[rng() % text.size()];
      const char was = std::exchange(c, static_cast<char>(rng()));
      EXPECT_TRUE(drive(bytes)) << file.path() << " with a changed byte, round " << i;
      if (i % 4 != 0) c = was;  // some changes pile up
    }
    n++;
  }
  EXPECT_GE(n, at_least);
}

TEST(Corpus, safetensors) {
  run_corpus("safetensors", 10, fuzz::safetensors);
}
TEST(Corpus, gguf) {
  run_corpus("gguf", 13, fuzz::gguf);
}
TEST(Corpus, store) {
  run_corpus("store", 2, fuzz::store);
}

constexpr const char* kDigest = "1fc0b1790b9a9df3616edbcf816fa555f52d9b8c727ec04d9669c35aee75bf88";

Status ask(Weights& w) {
  CARREL_TRY(w.matrix({.tensor = "w", .row_begin = 0, .n_rows = 18, .n_cols = 32, .unpair_rows = 0}));
  CARREL_TRY(w.matrix({.tensor = "w", .row_begin = 2, .n_rows = 4, .n_cols = 32, .unpair_rows = 4}));
  CARREL_TRY(w.matrix({.tensor = "f", .row_begin = 0, .n_rows = 3, .n_cols = 5, .unpair_rows = 0}));
  CARREL_TRY(w.vector("norm", 5, 1));
  CARREL_TRY(w.table("ids", 4));
  return {};
}

TEST(Corpus, an_entry_of_version_1_still_loads) {
  const auto model = open_stored_model(Env::real(), kData + "/stored/" + kDigest, [](Form f) { return f; }, StoreVerify::kFull);
  ASSERT_TRUE(model) << model.error().text();
  ASSERT_TRUE(ask(*model->weights));
  EXPECT_EQ((*model->weights->vector("norm", 5, 1))[4], 6.0f);
  EXPECT_EQ((*model->weights->table("ids", 4))[2], 4);
  EXPECT_EQ(model->source->chat_template(), "{{ messages[0].content }}");
  std::vector<float> row(32);
  dequantize_row(*model->weights->matrix({.tensor = "w", .row_begin = 0, .n_rows = 18, .n_cols = 32, .unpair_rows = 0}), 17, row);
  for (int i = 0; i < 32; i++) EXPECT_EQ(row[static_cast<size_t>(i)], static_cast<float>((17 * 32 + i) * 37 % 101 - 50) / 8);
}

TEST(Corpus, import_still_writes_what_version_1_wrote) {
  const std::string dir = ::testing::TempDir() + "/carrel_corpus_store";
  ASSERT_TRUE(Env::real()->remove_all(dir));
  ImportOptions o;
  o.name = "small";
  const auto entry =
      import_model(Env::real(), kData + "/small_model", dir, o, [](SourceFormat, const std::string&, Weights& w) { return ask(w); });
  ASSERT_TRUE(entry) << entry.error().text();
  EXPECT_EQ(entry->digest, kDigest);
  EXPECT_TRUE(Env::real()->remove_all(dir));
}

}  // namespace
}  // namespace carrel
