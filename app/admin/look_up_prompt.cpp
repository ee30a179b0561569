#include "app/admin/look_up_prompt.h"

#include <string>

#include "app/api/generate.h"
#include "app/assets/demo.h"

namespace carrel {

namespace {

// A fact beyond the window, and neither among the first rows nor among the last ones, which an indexer without keys would choose.
constexpr const char* kQuestion = "What is the code of the saffron door?";
constexpr const char* kFact = "The code of the saffron door is 19-26.";

std::vector<std::string> sentences(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(". ", at), text.size());
    std::string one = text.substr(at, end - at);
    while (!one.empty() && (one.back() == '\n' || one.back() == '.')) one.pop_back();
    if (!one.empty()) out.push_back(one + ".");
    at = end + 2;
  }
  return out;
}

Result<std::vector<int32_t>> tokens_of(const Model& model, const std::vector<std::string>& facts, size_t from, size_t left_out) {
  std::string text;
  for (size_t i = from; i < facts.size(); i++)
    if (i != left_out) text += (text.empty() ? "" : " ") + facts[i];
  const std::string messages =
      R"([{"role":"user","content":")" + text + R"(\n\n)" + kQuestion + R"("}])";  // nothing in the facts needs escapes
  CARREL_ASSIGN(ChatTokens chat, chat_tokens(model, messages, "", true, "", 0));
  return std::move(chat.tokens);
}

}  // namespace

Result<std::vector<int32_t>> look_up_prompt(const Model& model) {
  const auto block = static_cast<size_t>(model.graph().state.block_size);
  const std::vector<std::string> facts = sentences(example_facts());
  for (size_t from = 0; from < facts.size() && facts[from] != kFact; from++) {
    for (size_t left_out = facts.size(); left_out > from; left_out--) {
      if (left_out < facts.size() && facts[left_out] == kFact) continue;
      CARREL_ASSIGN(std::vector<int32_t> tokens, tokens_of(model, facts, from, left_out));
      if (tokens.size() % block == 1 && tokens.size() > 4 * block)
        return tokens;  // the boundary lies before the last token, which is computed
    }
  }
  return fail(Code::kInternal, "the look-up text cannot be cut to whole blocks of " + std::to_string(block) + " tokens", model.name());
}

}  // namespace carrel
