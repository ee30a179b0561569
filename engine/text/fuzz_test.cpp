// The fuzzers' corpora, mangled copies of real files, and long hostile texts, which must end in bounded time.
#include "base/fuzz_corpus.h"
#include "engine/text/fuzz_drive.h"
#include "engine/text/text_testdata.h"

namespace carrel {
namespace {

TEST(TextFuzz, tokenizer_corpus) {
  fuzz::run_corpus("engine/text/testdata/tokenizer", 12, fuzz::tokenizer, {.n_cuts = 50, .n_changes = 100});
}

TEST(TextFuzz, jinja_corpus) {
  fuzz::run_corpus("engine/text/jinja/testdata/jinja", 27, fuzz::jinja, {.n_cuts = 50, .n_changes = 100});
}

TEST(TextFuzz, mangled_files) {
  std::mt19937 random(11);
  for (const char* name : {"llama3", "spm", "han_middle"}) {
    const std::string whole = testdata(std::string(name) + ".tokenizer.json");
    const std::string small = nlohmann::json::parse(whole).dump();
    for (int round = 0; round < 150; ++round) {
      std::string s = small;
      if (round % 3 == 0) s.resize(random() % s.size());
      for (size_t n = random() % 4; n > 0 && !s.empty(); --n) s[random() % s.size()] = static_cast<char>(random());
      if (s.size() > 40 && round % 5 == 0) s.erase(random() % (s.size() - 30), random() % 30);
      EXPECT_TRUE(fuzz::feed(fuzz::tokenizer, s)) << name << ", round " << round;
    }
  }
}

TEST(TextFuzz, long_templates_end) {
  const size_t n = fuzz::long_bytes();
  for (const char* head : {"", "{{ ", "{% if ", "{{ a.", "{{ 'x' if a else "}) {
    for (const char* piece : {"{{", "}}", "{%", "{#", "{{ a }}", "{{- a -}}\n ", "{% if a %}", "{% elif a %}", "{% set a = 1 %}", "{% for x in a %}", "{% endfor %}",
                              "{% macro m(a) %}{% endmacro %}", "(", "[", "{", "-", "not ", "a.", "a|e|", "a+", "'", "\"", "\\", "a[", "a(", "1,", "2**", "a~", "a and ",
                              "a is b or ", "a if b else ", "{1:", " ", "\n", "\r", "\xE3\x80\x80", "\xFE"})
      EXPECT_TRUE(fuzz::feed(fuzz::jinja, fuzz::repeated(head, piece, n))) << head << piece;
  }
}

/// A tokenizer of the letters a and b with more fields, and a text for it.
std::string tokenizer_with(const std::string& fields, std::string_view text) {
  return R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"aa":2,"aaaa":3},"merges":["a a","aa aa"]})" + fields + "}\xFF" + std::string(text);
}

std::string list_of(size_t n, const std::string& item) {
  std::string s = "[";
  for (size_t i = 0; i < n; i++) s += (i == 0 ? "" : ",") + item;
  return s + "]";
}

TEST(TextFuzz, long_tokenizer_files_end) {
  const size_t n = fuzz::long_bytes();
  const std::string as(n, 'a'), blanks(n, ' ');
  std::string tokens = "[";
  for (int i = 0; i < 20000; i++) tokens += (i == 0 ? "" : ",") + (R"({"id":)" + std::to_string(i + 4) + R"(,"content":"a)" + std::string(20, 'a') + std::to_string(i) + "\"}");
  tokens += "]";
  const std::string grow = R"({"type":"Replace","pattern":{"String":"a"},"content":")" + std::string(64, 'a') + "\"}";
  const std::string nfc = R"({"type":"NFC"})";
  for (const std::string& file : {
           tokenizer_with(R"(,"added_tokens":)" + tokens, as),
           tokenizer_with(R"(,"normalizer":{"type":"Sequence","normalizers":)" + list_of(64, nfc) + R"(},"added_tokens":)" + tokens, as),
           tokenizer_with(R"(,"normalizer":{"type":"Sequence","normalizers":)" + list_of(60, R"({"type":"Sequence","normalizers":)" + list_of(60, nfc) + "}") + "}", as),
           tokenizer_with(R"(,"normalizer":{"type":"Sequence","normalizers":)" + list_of(12, grow) + "}", as),
           tokenizer_with(R"(,"decoder":{"type":"Sequence","decoders":)" + list_of(12, grow) + "}", "b"),
           tokenizer_with(R"(,"added_tokens":[{"id":4,"content":" ","lstrip":true,"rstrip":true}])", blanks),
           tokenizer_with(R"(,"added_tokens":[{"id":4,"content":")" + std::string(n / 2, 'a') + "b\"}]", as),
           tokenizer_with(R"(,"added_tokens":[{"id":4,"content":")" + std::string(511, 'a') + "b\"}]", as),
           tokenizer_with(R"(,"normalizer":{"type":"Prepend","prepend":")" + as + "\"}", as),
       }) {
    EXPECT_TRUE(fuzz::feed(fuzz::tokenizer, file)) << file.substr(0, 200);
  }
}

TEST(TextFuzz, growth_is_refused_by_name) {
  const std::string grow = R"({"type":"Replace","pattern":{"String":"a"},"content":")" + std::string(64, 'a') + "\"}";
  const auto load = [](const std::string& s) { return Tokenizer::from_json({std::string_view(s).substr(0, s.find('\xFF')), {}, {}}); };
  const auto grown = load(tokenizer_with(R"(,"decoder":{"type":"Sequence","decoders":)" + list_of(5, grow) + "}", ""));
  ASSERT_FALSE(grown);
  EXPECT_NE(grown.error().text().find("64-fold"), std::string::npos);
  const auto tokenizer = load(tokenizer_with(R"(,"normalizer":{"type":"Sequence","normalizers":)" + list_of(5, grow) + "}", ""));
  ASSERT_TRUE(tokenizer) << tokenizer.error().text();
  const auto ids = (*tokenizer)->encode("aaaa");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, Code::kExhausted);
  EXPECT_FALSE(load(tokenizer_with(R"(,"added_tokens":[{"id":4,"content":")" + std::string(513, 'a') + "\"}]", "")));
}

TEST(TextFuzz, many_parts_are_encoded_in_linear_time) {
  const std::string file = tokenizer_with(R"(,"added_tokens":[{"id":4,"content":"<x>","special":true}])", "");
  const auto tokenizer = Tokenizer::from_json({std::string_view(file).substr(0, file.find('\xFF')), {}, {}});
  ASSERT_TRUE(tokenizer) << tokenizer.error().text();
  std::vector<TextPart> parts;
  for (int i = 0; i < 200'000; i++) parts.push_back({"<x>a", i % 2 == 0});
  const auto ids = (*tokenizer)->encode_parts(parts);
  ASSERT_TRUE(ids);
  EXPECT_EQ(std::count(ids->begin(), ids->end(), 4), 100'000);  // the other half is not the template's
}

}  // namespace
}  // namespace carrel
