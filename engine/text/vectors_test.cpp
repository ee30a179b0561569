// The vectors of our own making (testdata/make_vectors.py): every pipeline step, split pattern and normal form against the reference.
#include <map>
#include <set>

#include "engine/text/pipeline.h"
#include "engine/text/text_testdata.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_steps.h"

namespace carrel {
namespace {

using nlohmann::json;

std::shared_ptr<const Tokenizer> load(const std::string& name) {
  auto t = Tokenizer::from_json({testdata(name + ".tokenizer.json"), {}, {}});
  EXPECT_TRUE(t) << name << ": " << t.error().text();
  return t.value_or(nullptr);
}

TEST(OwnVectors, ids_and_text) {
  std::map<std::string, std::shared_ptr<const Tokenizer>> tokenizers;
  for (const json& j : testdata_lines("vectors.jsonl")) {
    const std::string name = j["tokenizer"], text = j["text"];
    if (!tokenizers.contains(name)) tokenizers[name] = load(name);
    ASSERT_TRUE(tokenizers[name]);
    const Tokenizer& t = *tokenizers[name];
    const auto check = [&](const char* field, EncodeOptions options) {
      auto got = t.encode(text, options);
      ASSERT_TRUE(got) << got.error().text();
      EXPECT_EQ(json(*got), j[field]) << name << " " << field << " " << j["text"];
    };
    check("ids", {false, true});
    check("ids_special", {true, true});
    check("ids_plain", {false, false});
    if (!j.contains("dec")) continue;
    const auto ids = j["ids_special"].get<std::vector<int32_t>>();
    EXPECT_EQ(json(t.decode(ids, false)), j["dec"]) << name << " " << j["text"];
    EXPECT_EQ(json(t.decode(ids, true)), j["dec_skip"]) << name << " " << j["text"];
  }
  EXPECT_EQ(tokenizers.size(), 7u);
}

TEST(OwnVectors, splits) {
  for (const json& j : testdata_lines("splits.jsonl")) {
    tok::PreTokenizer splitter;
    auto read = tok::read_pre_tokenizer(
        {{"type", "Split"}, {"pattern", {{"Regex", j["pattern"]}}}, {"behavior", j["behavior"]}, {"invert", j["invert"]}}, splitter);
    ASSERT_TRUE(read) << j["pattern"] << read.error().text();
    auto words = splitter.run(j["text"].get<std::string>(), true);
    ASSERT_TRUE(words) << words.error().text();
    std::vector<std::string> pieces;
    for (const tok::Span& s : words->spans)
      pieces.push_back(tok::to_utf8(std::u32string_view(words->text).substr(s.begin, s.end - s.begin)));
    EXPECT_EQ(json(pieces), j["pieces"]) << j["pattern"] << " " << j["behavior"] << " " << j["text"];
  }
}

TEST(OwnVectors, normal_forms) {
  const std::map<std::string, tok::NormalForm> forms = {
      {"NFC", tok::NormalForm::kNfc}, {"NFD", tok::NormalForm::kNfd}, {"NFKC", tok::NormalForm::kNfkc}, {"NFKD", tok::NormalForm::kNfkd}};
  for (const json& j : testdata_lines("normal_forms.jsonl")) {
    auto out = tok::normalize(j["text"].get<std::string>(), forms.at(j["form"]));
    ASSERT_TRUE(out) << out.error().text();
    EXPECT_EQ(json(*out), j["out"]) << j;
  }
}

}  // namespace
}  // namespace carrel
