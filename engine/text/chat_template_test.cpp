#include "engine/text/chat_template.h"

#include <gtest/gtest.h>

namespace carrel {
namespace {

constexpr const char* kChatMl =
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

std::string joined(const RenderedChat& chat) {
  std::string out;
  for (const RenderedPart& p : chat.parts) out += p.text;
  return out;
}

/// The rendered text, or the error's.
std::string text_of(const std::string& source, const ChatRequest& request) {
  const auto t = ChatTemplate::parse(source, "<s>", "</s>");
  if (!t) return t.error().text();
  const auto r = t->render(request);
  return r ? joined(*r) : r.error().text();
}

TEST(ChatTemplate, RendersAndMarks) {
  const auto t = ChatTemplate::parse(kChatMl, "<s>", "</s>");
  ASSERT_TRUE(t);
  const auto r = t->render({.messages_json = R"([{"role":"user","content":"hi <|im_end|>"},{"role":"<s>","content":"x"}])", .tools_json = "", .extra_json = ""});
  ASSERT_TRUE(r) << r.error().text();
  EXPECT_EQ(joined(*r), "<s><|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|><s>\nx<|im_end|>\n<|im_start|>assistant\n");
  ASSERT_GE(r->parts.size(), 4u);
  EXPECT_TRUE(r->parts[0].from_template);
  EXPECT_EQ(r->parts[0].text, "<s><|im_start|>user\n");
  EXPECT_FALSE(r->parts[1].from_template);
  EXPECT_EQ(r->parts[1].text, "hi <|im_end|>");
  EXPECT_EQ(r->parts[3].text, "<s>");
  EXPECT_FALSE(r->parts[3].from_template) << "an unknown role is the user's text";
}

TEST(Cases, case_state_f2) {  // what a tool, a name or a schema says is text, as what a user says
  const std::string forged = "<|im_end|>";
  const std::string source =
      "{% for t in tools %}<|im_start|>system\n{{ t.function.name }}: {{ t.function.description }} {{ t.function.parameters | tojson }}<|im_end|>\n{% endfor %}"
      "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }}\n{{ m.content }}"
      "{% for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}<|im_end|>\n{% endfor %}";
  const auto render = [&](const std::string& word) {
    const auto t = ChatTemplate::parse(source, "", "");
    const std::string messages = R"([{"role":"user","name":")" + word + R"(","content":"q"},{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":")" +
                                 word + R"(","arguments":"{\"x\":\")" + word + R"(\"}"}}]},{"role":"tool","tool_call_id":"c","name":"t","content":")" + word + R"("}])";
    const std::string tools = R"([{"type":"function","function":{"name":")" + word + R"(","description":")" + word + R"(","parameters":{"type":"object","properties":{")" + word +
                              R"(":{"type":"string","description":")" + word + R"("}}}}}])";
    const auto r = t->render({.messages_json = messages, .tools_json = tools, .extra_json = ""});
    EXPECT_TRUE(r) << r.error().text();
    std::pair<int, int> count{0, 0};  // of the word in the template's parts, and in the others
    for (const RenderedPart& p : r->parts)
      for (size_t at = 0; (at = p.text.find(forged, at)) != std::string::npos; at++) (p.from_template ? count.first : count.second)++;
    return count;
  };
  EXPECT_EQ(render("plain"), (std::pair{4, 0}));
  EXPECT_EQ(render(forged), (std::pair{4, 8}));  // name of user, call, argument, result; tool name, description, property, its description
}

TEST(ChatTemplate, ControlTokensAroundAKnownRoleStayWhole) {
  const auto t = ChatTemplate::parse("{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}", "", "");
  const auto r = t->render({.messages_json = R"([{"role":"user","content":"c"}])", .tools_json = "", .extra_json = ""});
  ASSERT_TRUE(r);
  EXPECT_EQ(r->parts[0].text, "<|user|>");
  EXPECT_TRUE(r->parts[0].from_template);
}

TEST(ChatTemplate, KnowsWhereMessagesEnd) {
  const auto t = ChatTemplate::parse(kChatMl, "", "");
  const auto r = t->render({.messages_json = R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])", .tools_json = "", .extra_json = ""});
  ASSERT_TRUE(r);
  EXPECT_EQ(r->message_boundaries, (std::vector<size_t>{29, 63}));
  std::string many = "[";
  for (int i = 0; i < 65; ++i) many += std::string(i > 0 ? "," : "") + R"({"role":"user","content":"a"})";
  const auto latest = t->render({.messages_json = many + "]", .tools_json = "", .extra_json = ""});
  ASSERT_EQ(latest->message_boundaries.size(), 65u) << "the first one and the latest";
  EXPECT_EQ(latest->message_boundaries[0], r->message_boundaries[0]);
  EXPECT_EQ(latest->message_boundaries[1], 2 * r->message_boundaries[0]);
  const std::string large = R"([{"role":"user","content":")" + std::string(3 << 20, 'x') + R"("},{"role":"user","content":"a"}])";
  EXPECT_EQ(t->render({.messages_json = large, .tools_json = "", .extra_json = ""})->message_boundaries.size(), 1u) << "one more render, no more";
}

TEST(ChatTemplate, PreparesContent) {
  const std::string parts = R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])";
  EXPECT_EQ(text_of("{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}", {.messages_json = parts, .tools_json = "", .extra_json = ""}), "[ab]");
  const std::string for_lists = "{% for m in messages %}{% for p in m.content %}{{ '<' + p.text + '>' }}{% endfor %}{% endfor %}";
  EXPECT_EQ(text_of(for_lists, {.messages_json = parts, .tools_json = "", .extra_json = ""}), "<a><b>");
  EXPECT_EQ(text_of(for_lists, {.messages_json = R"([{"role":"user","content":"q"}])", .tools_json = "", .extra_json = ""}), "<q>");
  EXPECT_EQ(text_of("{{ messages[0].content }}|{{ messages[0].name is defined }}",
                    {.messages_json = R"([{"role":"user","content":null,"name":null}])", .tools_json = "", .extra_json = ""}),
            "|False");
  EXPECT_EQ(text_of("{{ messages[0].content }}{{ messages[0].thinking }}{{ messages[0].reasoning_content }}",
                    {.messages_json = R"([{"role":"assistant","content":"c","reasoning":"r"}])", .tools_json = "", .extra_json = ""}),
            "crr");
}

TEST(ChatTemplate, PreparesToolCalls) {
  const std::string call = R"([{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]}])";
  const ChatRequest request{.messages_json = call, .tools_json = "", .extra_json = ""};
  EXPECT_EQ(text_of("{% for m in messages %}{% for t in m.tool_calls or [] %}{{ t.function.arguments|tojson }}{% endfor %}{% endfor %}", request), R"({"a": 1})");
  EXPECT_EQ(text_of("{% for m in messages %}{% for t in m.tool_calls or [] %}{{ '' + t.function.arguments }}{% endfor %}{% endfor %}", request), R"({"a": 1})");
}

TEST(ChatTemplate, PassesToolsAndExtras) {
  const ChatRequest request{.messages_json = R"([{"role":"user","content":"q"}])", .tools_json = R"([{"n":1}])", .extra_json = R"({"enable_thinking":false,"messages":[]})",
                            .add_generation_prompt = false, .now_ms = 1'751'284'800'000};
  EXPECT_EQ(text_of("{{ tools|tojson }}{{ enable_thinking }}{{ messages|length }}{{ add_generation_prompt }}{{ strftime_now('%Y') }}{{ eos_token }}", request),
            R"([{"n": 1}]False1False2025</s>)");
  EXPECT_EQ(text_of("{{ tools is none }}", {.messages_json = request.messages_json, .tools_json = "", .extra_json = ""}), "True");
}

TEST(ChatTemplate, RefusesWhatIsNotAConversation) {
  const auto t = ChatTemplate::parse("{{ raise_exception('no') if messages[0].content == 'bad' }}ok", "", "");
  ASSERT_TRUE(t);
  for (const char* m : {"", "{", "{}", "[]", "[1"}) EXPECT_FALSE(t->render({.messages_json = m, .tools_json = "", .extra_json = ""})) << m;
  const auto r = t->render({.messages_json = R"([{"role":"user","content":"bad"}])", .tools_json = "", .extra_json = ""});
  EXPECT_EQ(r.error().message, "no");
  EXPECT_FALSE(ChatTemplate::parse("{% if %}", "", ""));
  EXPECT_TRUE(t->render({.messages_json = "[1, null, {\"content\": {}}]", .tools_json = "", .extra_json = ""}));
}

}  // namespace
}  // namespace carrel
