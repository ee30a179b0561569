// The fuzzers' corpus, each file as it is, cut, and with bits flipped; and an entry as version 1 of the store wrote it.
#include <gtest/gtest.h>

#include "base/fuzz_corpus.h"
#include "engine/model/fuzz_drive.h"
#include "engine/model/store.h"

namespace carrel {
namespace {

const std::string kData = "engine/model/testdata";

template <bool (*drive)(std::span<const std::byte>)>
bool text(std::string_view s) {
  return drive(std::as_bytes(std::span(s)));
}

TEST(Corpus, safetensors) {
  fuzz::run_corpus(kData + "/safetensors", 10, text<fuzz::safetensors>);
}
TEST(Corpus, gguf) {
  fuzz::run_corpus(kData + "/gguf", 13, text<fuzz::gguf>);
}
TEST(Corpus, store) {
  fuzz::run_corpus(kData + "/store", 2, text<fuzz::store>);
}

TEST(Corpus, family) {
  fuzz::run_corpus(kData + "/family", 40, text<fuzz::family>, {.n_cuts = 40, .n_changes = 300});
}

/// Seeds of good models are built to the end: what the fuzzer changes in them meets every line of a family.
TEST(Corpus, family_seeds_become_models) {
  for (const char* seed : {"llama", "qwen3_moe",

                           "lfm2", "lfm2_gguf", "lfm2_moe", "lfm2_moe_gguf", "qwen3_next", "qwen3_next_gguf", "qwen3_5_text",
                           "qwen3_5_text_gguf", "qwen3_5_moe_text", "qwen3_5_moe_text_gguf", "qwen3_5_nested", "gpt_oss", "gpt_oss_gguf",
                           "granitemoehybrid", "granitemoehybrid_gguf", "granitemoehybrid_dense", "granitemoehybrid_dense_gguf"}) {
    const auto file = read_file(Env::real(), kData + "/family/" + seed);
    ASSERT_TRUE(file) << seed;
    const std::string config = file->substr(1);
    const SourceFormat format = ((*file)[0] & 0xDF) == 'G' ? SourceFormat::kGguf : SourceFormat::kHuggingFace;
    const auto family = find_family(format, config);
    ASSERT_TRUE(family) << seed;
    fuzz::AnyWeights weights(false);
    const auto graph = (*family)->build(format, config, weights, {});
    EXPECT_TRUE(graph) << seed << ": " << graph.error().text();
  }
}

constexpr const char* kDigest = "1fc0b1790b9a9df3616edbcf816fa555f52d9b8c727ec04d9669c35aee75bf88";

constexpr const char* kDigestWithIdentity = "98096d79e3da346f4813cbd3c860f9be6990b614badb230fe4e4434385542807";

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
  EXPECT_EQ(to_hex(*model->weights->model_digest()), kDigest);  // written before entries held the model's identity
  EXPECT_EQ((*model->weights->vector("norm", 5, 1))[4], 6.0f);
  EXPECT_EQ((*model->weights->table("ids", 4))[2], 4);
  EXPECT_EQ(model->source->chat_template(), "{{ messages[0].content }}");
  std::vector<float> row(32);
  dequantize_row(*model->weights->matrix({.tensor = "w", .row_begin = 0, .n_rows = 18, .n_cols = 32, .unpair_rows = 0}), 17, row);
  for (int i = 0; i < 32; i++) EXPECT_EQ(row[static_cast<size_t>(i)], static_cast<float>((17 * 32 + i) * 37 % 101 - 50) / 8);
}

TEST(Corpus, import_writes_the_same_entry_as_ever) {
  const std::string dir = ::testing::TempDir() + "/carrel_corpus_store";
  ASSERT_TRUE(Env::real()->remove_all(dir));
  ImportOptions o;
  o.name = "small";
  const auto entry =
      import_model(Env::real(), kData + "/small_model", dir, o, [](SourceFormat, const std::string&, Weights& w) { return ask(w); });
  ASSERT_TRUE(entry) << entry.error().text();
  EXPECT_EQ(entry->digest, kDigestWithIdentity);
  EXPECT_TRUE(Env::real()->remove_all(dir));
}

}  // namespace
}  // namespace carrel
