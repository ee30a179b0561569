#include "engine/text/tokenizer.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "engine/text/bpe.h"
#include "engine/text/regex.h"
#include "engine/text/text_testdata.h"
#include "engine/text/unicode.h"

namespace carrel {
namespace {

using nlohmann::json;

std::shared_ptr<const Tokenizer> load(const std::string& name) {
  auto t = Tokenizer::from_json({testdata(name + ".tokenizer.json"), {}, {}});
  EXPECT_TRUE(t) << t.error().text();
  return t.value_or(nullptr);
}

std::vector<int32_t> ids(const Result<std::vector<int32_t>>& r) {
  EXPECT_TRUE(r) << r.error().text();
  return r.value_or(std::vector<int32_t>{});
}

TEST(DemoModel, prompt_ids_of_the_samples) {
  auto json_text = read_file(Env::real(), "app/assets/demo-model/tokenizer.json");
  auto config = read_file(Env::real(), "app/assets/demo-model/tokenizer_config.json");
  auto samples = read_file(Env::real(), "app/assets/demo-model/samples.json");
  ASSERT_TRUE(json_text && config && samples);
  auto t = Tokenizer::from_json({*json_text, *config, {}});
  ASSERT_TRUE(t) << t.error().text();
  EXPECT_EQ((*t)->vocab_size(), 3072);
  EXPECT_EQ((*t)->bos_id(), 0);
  EXPECT_EQ((*t)->end_ids(), std::vector<int32_t>{1});
  size_t n = 0;
  const json all = json::parse(*samples)["samples"];
  for (const json& s : all) {
    std::vector<TextPart> parts = {{"<|bos|>", true}};
    std::vector<std::string> held;
    held.reserve(2 * s["messages"].size());
    for (const json& m : s["messages"]) {
      held.push_back("<|" + m["role"].get<std::string>() + "|>");
      parts.push_back({held.back(), true});
      held.push_back(m["content"].get<std::string>());
      parts.push_back({held.back(), false});
      parts.push_back({"<|end|>", true});
    }
    parts.push_back({"<|assistant|>", true});
    EXPECT_EQ(json(ids((*t)->encode_parts(parts))), s["prompt_ids"]) << s["name"];
    auto expected = s["expected_ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(json((*t)->decode(expected)), s["expected_text"]) << s["name"];
    ++n;
  }
  EXPECT_GE(n, 5u);
}

TEST(Tokenizer, parts_equal_the_whole_and_user_text_forges_nothing) {
  for (const char* name : {"llama3", "gpt4o_nfc", "spm", "metaspace", "digits"}) {
    auto t = load(name);
    ASSERT_TRUE(t);
    const std::string text = "<s>Hello <tool> wo</s>rd e\xCC\x81 <mask> 12";
    for (bool special : {false, true}) {
      const auto whole = ids(t->encode(text, {false, special}));
      for (size_t cut = 0; cut <= text.size(); ++cut) {
        const TextPart parts[] = {{std::string_view(text).substr(0, cut), special}, {std::string_view(text).substr(cut), special}};
        ASSERT_EQ(ids(t->encode_parts(parts)), whole) << name << " " << cut;
      }
    }
    // Control tokens of the template stay, those of the user become text, whether whole or pieced together with the template.
    const int32_t bos = *t->find_token("<s>"), eos = *t->find_token("</s>");
    const auto count = [&](std::span<const TextPart> parts) {
      const auto got = ids(t->encode_parts(parts));
      return std::count(got.begin(), got.end(), bos) + std::count(got.begin(), got.end(), eos);
    };
    const TextPart mixed[] = {{"<s>user ", true}, {"<s> </s>", false}, {"</s>", true}};
    EXPECT_EQ(count(mixed), 2) << name;
    const TextPart joined[] = {{"<s>", true}, {"x<", false}, {"/s> <", true}, {"s>", false}, {"</s>", true}};
    EXPECT_EQ(count(joined), 2) << name;
  }
}

TEST(Tokenizer, ill_formed_text_is_refused) {
  auto t = load("llama3");
  for (const char* bad : {"\x80", "a\xC3", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF"}) {
    auto r = t->encode(bad);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, Code::kInvalidArgument);
  }
  // A character cut by a border between parts is whole again in the concatenation.
  const TextPart parts[] = {{"\xC3", false}, {"\xA9", false}};
  EXPECT_EQ(ids(t->encode_parts(parts)), ids(t->encode("\xC3\xA9")));
}

TEST(Tokenizer, ends_and_fingerprints) {
  auto a = load("llama3"), b = load("llama3"), c = load("digits");
  EXPECT_EQ(a->fingerprint(), b->fingerprint());
  EXPECT_NE(a->fingerprint(), c->fingerprint());
  EXPECT_TRUE(a->is_end(*a->find_token("</s>")));
  EXPECT_TRUE(a->is_special(*a->find_token("<s>")));
  EXPECT_FALSE(a->is_special(*a->find_token("<tool>")));
  EXPECT_FALSE(a->is_end(-1));
  EXPECT_FALSE(a->is_special(1 << 30));
  const std::string text = testdata("llama3.tokenizer.json");
  const int32_t more[] = {5, 1 << 30};
  auto d = Tokenizer::from_json({text, R"({"add_bos_token":true,"bos_token":{"content":"<tool>"},"eos_token":"a"})", {}}, more);
  ASSERT_TRUE(d) << d.error().text();
  EXPECT_NE((*d)->fingerprint(), a->fingerprint());
  EXPECT_TRUE((*d)->is_end(5));
  EXPECT_TRUE((*d)->is_end(*(*d)->find_token("a")));
  EXPECT_EQ((*d)->bos_id(), (*d)->find_token("<tool>"));
}

/// Both ways of merging give the same; a long word takes n log n.
TEST(Bpe, short_and_long_ways_agree) {
  tok::BpeModel m;
  m.byte_level = true;
  std::mt19937 random(7);
  std::vector<std::string> pieces;
  for (char c = 'a'; c <= 'd'; ++c) {
    m.vocab.add(std::string(1, c), static_cast<int32_t>(pieces.size()));
    pieces.push_back(std::string(1, c));
  }
  for (uint32_t rank = 0; pieces.size() < 120;) {
    const size_t l = random() % pieces.size(), r = random() % pieces.size();
    const std::string joined = pieces[l] + pieces[r];
    if (joined.size() > 12) continue;
    if (m.vocab.add(joined, static_cast<int32_t>(pieces.size()))) pieces.push_back(joined);
    if (m.merges.find(static_cast<int32_t>(l), static_cast<int32_t>(r)) != nullptr) continue;
    m.merges.add(static_cast<int32_t>(l), static_cast<int32_t>(r), {rank++, m.vocab.find(joined)});
  }
  tok::BpeModel scored = m;
  scored.by_score = true;
  for (size_t i = 0; i < pieces.size(); ++i) scored.scores.push_back(-static_cast<float>(random() % 40));
  for (const tok::BpeModel* model : {&m, &scored}) {
    for (int round = 0; round < 3000; ++round) {
      std::string word;
      for (size_t n = random() % 48; n > 0; --n) word += static_cast<char>('a' + random() % 4);
      std::vector<int32_t> a, b;
      model->encode(word, a);
      model->encode_with_heap(word, b);
      ASSERT_EQ(a, b) << word;
      std::string back;
      for (int32_t id : a) back += pieces[static_cast<size_t>(id)];
      ASSERT_EQ(back, word);
    }
  }
}

TEST(Tokenizer, long_words_are_not_quadratic) {
  for (const char* name : {"llama3", "gpt4o_nfc", "spm", "metaspace"}) {
    auto t = load(name);
    for (const std::string unit : {"a", "reader", "A", " ", "\xE7\x9A\x84", "!", "1", "\xCC\x81"}) {
      std::string text;
      while (text.size() < 400'000) text += unit;
      const auto start = std::chrono::steady_clock::now();
      EXPECT_FALSE(ids(t->encode(text)).empty());
      // Seconds of slack for slow machines and sanitizers; a quadratic way takes minutes.
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20)) << name << " '" << unit << "'";
    }
  }
}

TEST(Tokenizer, threads_share_one) {
  auto t = load("gpt4o_nfc");
  const auto lines = testdata_lines("vectors.jsonl");
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([&] {
      for (const json& j : lines) {
        if (j["tokenizer"] != "gpt4o_nfc") continue;
        auto got = t->encode(j["text"].get<std::string>(), {false, true});
        EXPECT_EQ(json(got.value_or(std::vector<int32_t>{})), j["ids"]);
      }
    });
  }
  for (std::thread& th : threads) th.join();
}

/// A small tokenizer.json with one part replaced.
std::string variant(const std::function<void(json&)>& change) {
  json j = json::parse(testdata("llama3.tokenizer.json"));
  change(j);
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

TEST(HostileFiles, clear_errors) {
  const std::vector<std::pair<const char*, std::function<void(json&)>>> cases = {
      {"model", [](json& j) { j.erase("model"); }},
      {"vocabulary", [](json& j) { j["model"].erase("vocab"); }},
      {"range", [](json& j) { j["model"]["vocab"]["zz"] = 2'000'000'000; }},
      {"range", [](json& j) { j["model"]["vocab"]["zz"] = 1'000'000; }},
      {"range", [](json& j) { j["model"]["vocab"]["zz"] = -1; }},
      {"wrong type", [](json& j) { j["model"]["vocab"]["zz"] = "x"; }},
      {"taken", [](json& j) { j["model"]["vocab"]["zz"] = 3; }},
      {"not there", [](json& j) { j["model"]["merges"].push_back({"zz", "yy"}); }},
      {"pair", [](json& j) { j["model"]["merges"].push_back({"a"}); }},
      {"two pieces", [](json& j) { j["model"]["merges"].push_back("a b c"); }},
      {"Unigram", [](json& j) { j["model"]["type"] = "Unigram"; }},
      {"unk_token", [](json& j) { j["model"]["unk_token"] = "nowhere"; }},
      {"regular expression", [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(("; }},
      {"regular expression", [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a)\\1"; }},
      {"property", [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\p{Klingon}"; }},
      {"behavior", [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Explode"; }},
      {"supported", [](json& j) { j["normalizer"] = {{"type", "BertNormalizer"}}; }},
      {"special_tokens", [](json& j) { j["post_processor"]["special_tokens"] = json::object(); }},
      {"out of range", [](json& j) { j["post_processor"]["special_tokens"]["<s>"]["ids"] = {99999999}; }},
      {"unknown id", [](json& j) { j["post_processor"]["special_tokens"]["<s>"]["ids"] = {4000000}; }},
      {"content", [](json& j) { j["added_tokens"].push_back({{"id", 1}}); }},
      {"true or false", [](json& j) { j["added_tokens"][0]["special"] = "yes"; }},
      {"list", [](json& j) { j["added_tokens"] = "none"; }},
  };
  for (const auto& [expected, change] : cases) {
    auto r = Tokenizer::from_json({variant(change), {}, {}});
    ASSERT_FALSE(r) << expected;
    EXPECT_NE(r.error().text().find(expected), std::string::npos) << r.error().text();
  }
  std::string deep(100'000, '[');
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("{\"model\":") + deep, std::string("\xFF")}) {
    EXPECT_FALSE(Tokenizer::from_json({text, {}, {}}));
  }
}

TEST(HostileFiles, nested_sequences_are_bounded) {
  json inner = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  for (int i = 0; i < 20; ++i) inner = {{"type", "Sequence"}, {"pretokenizers", {inner}}};
  auto r = Tokenizer::from_json({variant([&](json& j) { j["pre_tokenizer"] = inner; }), {}, {}});
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().text().find("deep"), std::string::npos);
}

TEST(HostileFiles, gguf) {
  GgufVocab good;
  good.model = "llama";
  good.tokens = {"<unk>", "a", "b", "ab"};
  good.scores = {0, -1, -2, -3};
  EXPECT_TRUE(Tokenizer::from_gguf(good));
  const std::vector<std::pair<const char*, std::function<void(GgufVocab&)>>> cases = {
      {"model", [](GgufVocab& v) { v.model = "rwkv"; }},
      {"tokens", [](GgufVocab& v) { v.tokens.clear(); }},
      {"scores", [](GgufVocab& v) { v.scores.pop_back(); }},
      {"scores", [](GgufVocab& v) { v.scores[1] = std::numeric_limits<float>::quiet_NaN(); }},
      {"token_type", [](GgufVocab& v) { v.token_types = {1}; }},
      {"pre", [](GgufVocab& v) { v.model = "gpt2", v.pre = "no-such-split"; }},
      {"merges", [](GgufVocab& v) { v.model = "gpt2", v.pre = "gpt-2", v.merges = {"a z"}; }},
      {"merges", [](GgufVocab& v) { v.model = "gpt2", v.pre = "gpt-2", v.merges = {"ab"}; }},
  };
  for (const auto& [where, change] : cases) {
    GgufVocab v = good;
    change(v);
    auto r = Tokenizer::from_gguf(v);
    ASSERT_FALSE(r) << where;
    EXPECT_NE(r.error().where.find(where), std::string::npos) << r.error().text();
  }
}

TEST(Regex, limits) {
  // Exponential backtracking ends in an error, within moments.
  auto r = tok::Regex::compile("(?:a+)+(?:a+)+(?:a+)+(?:b|ce)");
  ASSERT_TRUE(r) << r.error().text();
  const auto kinds = r->kinds(std::u32string(5000, U'a'));
  auto hits = r->find_all(kinds.data(), kinds.size());
  ASSERT_FALSE(hits);
  EXPECT_EQ(hits.error().code, Code::kExhausted);
  for (const char* bad : {"(", ")", "[", "[]", "a{2000}", "\\", "\\k<x>", "*a", "(?<=a+)b", "(?R)", "(?P>x)", "(*FAIL)", "[b-a]",
                          "\\x{110000}", "[[:no:]]"}) {
    EXPECT_FALSE(tok::Regex::compile(bad)) << bad;
  }
  EXPECT_FALSE(tok::Regex::compile(std::string(300, '(') + std::string(300, ')')));
  EXPECT_FALSE(tok::Regex::compile("((((a{1000}){1000}){1000}){1000})"));
}

/// The tables themselves, by counts of Unicode 16 and by points where versions differ.
TEST(Unicode, tables) {
  const auto count = [](const char* name) {
    size_t n = 0;
    const tok::CodeSet set = tok::unicode_property(name).value_or(tok::CodeSet());
    for (const tok::CodeRange& r : set.ranges()) n += r.last - r.first + 1;
    return n;
  };
  EXPECT_EQ(count("Lu"), 1858u);
  EXPECT_EQ(count("Ll"), 2258u);
  EXPECT_EQ(count("Nd"), 760u);
  EXPECT_EQ(count("Han"), 99030u);
  EXPECT_EQ(count("Any"), 0x110000u);
  EXPECT_TRUE(tok::unicode_property("Lu")->contains(0x1C89));  // Unicode 16
  EXPECT_TRUE(tok::unicode_property("L")->contains(0x31350));  // Unicode 15
  EXPECT_FALSE(tok::unicode_property("Klingon"));
  EXPECT_EQ(tok::space_set(), *tok::unicode_property("White_Space"));
  for (char32_t c = 0; c < 0x4000; ++c)
    ASSERT_EQ(tok::is_white_space(c), tok::space_set().contains(c)) << std::hex << static_cast<uint32_t>(c);
}

TEST(Unicode, set_operations) {
  const tok::CodeSet a({{5, 9}, {1, 3}, {4, 4}}), b({{3, 6}, {100, 200}});
  EXPECT_EQ(a, tok::CodeSet({{1, 9}}));
  EXPECT_EQ(a.intersected(b), tok::CodeSet({{3, 6}}));
  EXPECT_EQ(a.complement().complement(), a);
  EXPECT_EQ(tok::CodeSet().complement().complement(), tok::CodeSet());
  EXPECT_EQ(tok::CodeSet::one('k').closed_under_case(), tok::CodeSet({{'K', 'K'}, {'k', 'k'}, {0x212A, 0x212A}}));
}

}  // namespace
}  // namespace carrel
