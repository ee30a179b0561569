// The request fuzzer's corpus, and what a body may cost.
#include "base/fuzz_corpus.h"
#include "app/api/fields.h"
#include "app/api/fuzz_drive.h"

namespace carrel {
namespace {

TEST(RequestFuzz, corpus) {
  fuzz::run_corpus("app/api/testdata/request", 40, fuzz::request, {.n_cuts = 12, .n_changes = 20});
}

GenerateCall parsed(Dialect dialect, const std::string& body) {
  auto call = parse_generate(dialect, body, *fuzz::demo_model(), {"t", "k", "n", {}}, {}, Env::real(), "req-1");
  EXPECT_TRUE(call) << call.error().text();
  return call ? std::move(*call) : GenerateCall{};
}

std::string refusal(const std::string& body) {
  const auto call = parse_generate(Dialect::kChat, body, *fuzz::demo_model(), {"t", "k", "n", {}}, {}, Env::real(), "req-1");
  return call ? "accepted" : call.error().where;
}

TEST(RequestFuzz, NestedFieldsOfTheWrongTypeAreNamed) {
  const std::string head = R"({"model":"demo","messages":[{"role":"user","content":)";
  EXPECT_EQ(refusal(head + R"([{"type":5,"text":"a"}]}]})"), "messages[0].content");
  EXPECT_EQ(refusal(head + R"("a"}],"response_format":{"type":7}})"), "response_format");
  EXPECT_EQ(refusal(head + R"("a"}],"stream":true,"stream_options":{"include_usage":"yes"}})"), "stream_options.include_usage");
  EXPECT_EQ(refusal(head + R"("a"}],"logit_bias":{"5\u0000x":1}})"), "logit_bias");
  EXPECT_TRUE(parsed(Dialect::kChat, head + R"("a"}],"stream":true,"stream_options":{"include_usage":true}})").include_usage);
}

TEST(RequestFuzz, ContainersByTheMillionAreRefusedUnbuilt) {
  const auto lists = [](int n) {
    std::string s = "{\"messages\":[[]";
    for (int i = 1; i < n; i++) s += ",[]";
    return s + "]}";
  };
  EXPECT_TRUE(parse_body(lists(19'000)));
  const auto refused = parse_body(lists(21'000));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("20000 objects and lists"), std::string::npos);
  EXPECT_TRUE(parse_body("{\"a\":\"" + std::string(100'000, '[') + "\"}"));  // brackets of a text are none
}

TEST(RequestFuzz, ObjectsOfTooManyMembersAreRefusedUnbuilt) {
  const auto object = [](int n) {
    std::string s = "{";
    for (int i = 0; i < n; i++) s += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
    return s + "}";
  };
  EXPECT_TRUE(parse_body(object(5000)));
  const auto refused = parse_body(object(6000));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("too many members"), std::string::npos);
  std::string many = "{\"a\":[{}";
  for (int i = 0; i < 100; i++) many += "," + object(1000);
  EXPECT_FALSE(parse_body(many + "]}"));
  EXPECT_TRUE(parse_body("{\"a\":\"" + std::string(100'000, ':') + "\"}"));  // colons of a text are no members
}

TEST(RequestFuzz, LongBodiesEnd) {
  const size_t n = fuzz::long_bytes();
  const std::string chat = R"({"model":"demo","messages":[)", user = R"({"role":"user","content":")";
  for (const char* piece : {"a", " ", "ab ", "\\n", "\\u0000", "<|", "<|im_start|>", "1", "\xF0\x9F\x98\x80", "\xCC\x81"}) {
    EXPECT_TRUE(fuzz::feed(fuzz::request, fuzz::repeated(chat + user, piece, n) + "\"}]}")) << piece;
    EXPECT_TRUE(fuzz::feed(fuzz::request, fuzz::repeated(R"({"model":"demo","prompt":")", piece, n) + "\"}")) << piece;
    EXPECT_TRUE(fuzz::feed(fuzz::request, fuzz::repeated(R"({"text":")", piece, n) + "\"}")) << piece;
  }
  EXPECT_TRUE(fuzz::feed(fuzz::request, fuzz::repeated(chat + user + "x\"}", "," + user + "\"}", n) + "]}"));
  EXPECT_TRUE(fuzz::feed(fuzz::request, fuzz::repeated(R"({"model":"demo","prompt":[1)", ",1", n) + "]}"));
  EXPECT_TRUE(fuzz::feed(fuzz::request, fuzz::repeated(R"({"tokens":[1)", ",1", n) + "]}"));
  EXPECT_TRUE(fuzz::feed(fuzz::request, fuzz::repeated(R"({"model":")", "m", n) + "\"}"));
  EXPECT_TRUE(fuzz::feed(fuzz::request, fuzz::repeated("{", R"("a":1,)", n) + R"("b":1})"));
}

}  // namespace
}  // namespace carrel
