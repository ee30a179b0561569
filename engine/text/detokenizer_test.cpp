#include "engine/text/detokenizer.h"

#include <cstdio>
#include <map>

#include "engine/text/pipeline.h"
#include "engine/text/text_testdata.h"

namespace carrel {
namespace {

/// A SentencePiece vocabulary of byte tokens (ids 3..258), "▁" (259) and "▁a" (260).
std::shared_ptr<const Tokenizer> byte_tokens(bool add_space_prefix) {
  GgufVocab v;
  v.model = "llama";
  v.add_space_prefix = add_space_prefix;
  v.tokens = {"<unk>", "<s>", "</s>"};
  v.token_types = {GgufVocab::kUnknown, GgufVocab::kControl, GgufVocab::kControl};
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(b));
    v.tokens.push_back(name);
    v.token_types.push_back(GgufVocab::kByte);
  }
  for (const char* t : {"\xE2\x96\x81",
                        "\xE2\x96\x81"
                        "a"}) {
    v.tokens.push_back(t);
    v.token_types.push_back(GgufVocab::kNormal);
  }
  v.scores.assign(v.tokens.size(), 0);
  v.bos_id = 1;
  v.eos_id = 2;
  auto t = Tokenizer::from_gguf(v);
  EXPECT_TRUE(t) << t.error().text();
  return t.value_or(nullptr);
}

std::vector<int32_t> ids_of(std::string_view bytes) {
  std::vector<int32_t> ids;
  for (char c : bytes) ids.push_back(3 + static_cast<uint8_t>(c));
  return ids;
}

std::string stream(const Tokenizer& t, const std::vector<int32_t>& ids, std::vector<std::string>* pieces = nullptr) {
  Detokenizer d(t);
  std::string all;
  for (int32_t id : ids) {
    const std::string piece = d.push(id);
    if (pieces != nullptr) pieces->push_back(piece);
    all += piece;
  }
  return all + d.flush();
}

TEST(Cases, case_state_e3) {
  auto t = byte_tokens(false);
  ASSERT_TRUE(t);
  // Every code point of four bytes in steps, whole and cut short, each byte a token.
  for (char32_t c = 0x10000; c <= tok::kMaxCodePoint; c += 0x3FD) {
    std::string bytes;
    tok::append_utf8(bytes, c);
    std::vector<std::string> pieces;
    ASSERT_EQ(stream(*t, ids_of(bytes), &pieces), bytes);
    ASSERT_EQ(pieces, (std::vector<std::string>{"", "", "", bytes}));
    for (size_t n = 1; n < 4; ++n) ASSERT_EQ(stream(*t, ids_of(bytes.substr(0, n))), tok::kReplacement);
  }
  // A token that begins with a space in the middle keeps it.
  std::vector<int32_t> ids = ids_of("x");
  ids.push_back(260);
  EXPECT_EQ(stream(*t, ids), "x a");
}

/// Every way to spread the bytes of a character over tokens, by a byte-level vocabulary with all the pieces.
TEST(Cases, case_state_e3_every_split) {
  const std::string emoji = "\xF0\x9F\x98\x80";
  GgufVocab v;
  v.model = "gpt2";
  v.pre = "gpt-2";
  std::map<std::string, int32_t> id_of;
  const auto place = [&](const std::string& bytes) {
    std::string spelling;
    for (char b : bytes) tok::append_utf8(spelling, tok::char_of_byte(static_cast<uint8_t>(b)));
    if (id_of.try_emplace(bytes, static_cast<int32_t>(v.tokens.size())).second) v.tokens.push_back(spelling);
  };
  for (size_t begin = 0; begin < 4; ++begin) {
    for (size_t n = 1; begin + n <= 4; ++n) place(emoji.substr(begin, n));
  }
  auto t = Tokenizer::from_gguf(v);
  ASSERT_TRUE(t) << t.error().text();
  for (unsigned cuts = 0; cuts < 8; ++cuts) {
    std::vector<int32_t> ids;
    for (size_t begin = 0, i = 1; i <= 4; ++i) {
      if (i < 4 && (cuts >> (i - 1) & 1) == 0) continue;
      ids.push_back(id_of[emoji.substr(begin, i - begin)]);
      begin = i;
    }
    EXPECT_EQ(stream(**t, ids), emoji) << cuts;
  }
}

TEST(Detokenizer, ill_formed_bytes) {
  auto t = byte_tokens(false);
  ASSERT_TRUE(t);
  const std::string r(tok::kReplacement);
  EXPECT_EQ(stream(*t, ids_of("A\x80"
                              "A")),
            "A" + r + "A");
  EXPECT_EQ(stream(*t, ids_of("\xC0\xAF")), r + r);
  EXPECT_EQ(stream(*t, ids_of("\xED\xA0\x80")), r + r + r);
  EXPECT_EQ(stream(*t, ids_of("\xE4\xBD"
                              "A")),
            r + "A");
  EXPECT_EQ(stream(*t, ids_of("\xF4\x90\x80\x80")), r + r + r + r);
  EXPECT_EQ(stream(*t, ids_of("\xF0\x9F\xE4\xBD\xA0")), r + "\xE4\xBD\xA0");
}

TEST(Detokenizer, prefix_space_is_dropped_once_and_control_tokens_are_skipped) {
  auto t = byte_tokens(true);
  ASSERT_TRUE(t);
  EXPECT_EQ(stream(*t, {1, 260, 260}), "a a");
  EXPECT_EQ(stream(*t, {259, 259, 260}), "  a");
  EXPECT_EQ(t->decode(std::vector<int32_t>{1, 260, 2}, false), "<s> a</s>");
  EXPECT_EQ(t->decode(std::vector<int32_t>{-1, 260, 1 << 30}), "a");
}

}  // namespace
}  // namespace carrel
