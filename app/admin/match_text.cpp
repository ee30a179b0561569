#include "app/admin/match_text.h"

#include <nlohmann/json.hpp>

namespace carrel {

namespace {

using Json = nlohmann::ordered_json;

std::string count(int64_t n) {
  return std::to_string(n) + (n == 1 ? " token" : " tokens");
}

std::string sentence_of(const Json& v) {
  const auto group = v.at("group").get<std::string>(), kind = v.at("kind").get<std::string>();
  return "- " + group + (group == kind ? "" : " (" + kind + ")") + " cannot resume at token " +
         std::to_string(v.at("position").get<int64_t>()) + ": " + v.at("reason").get<std::string>() + " [" +
         v.at("residency").get<std::string>() + "].\n  What would cure it: " + v.at("cure").get<std::string>() + ".\n";
}

std::string text_of(const Json& j) {
  const auto at = [&](const char* name) { return j.at(name).get<int64_t>(); };
  const int64_t n = at("prompt_tokens"), most = at("most"), nominal = at("nominal"), effective = at("effective");
  std::string out = "prompt of tenant " + j.at("tenant").get<std::string>() + ": " + count(n) + ", of which " + count(most) +
                    " could be reused (whole blocks of " + std::to_string(at("block_tokens")) +
                    ", and the last token is always computed)\n";
  if (const int64_t context = at("context_tokens"); n >= context)
    out += "it does not fit: the model's context is " + count(context) +
           ", answer included, so a request with it is refused; what is told below is of its cache alone\n";
  if (!j.at("reuse_enabled").get<bool>())
    return out + "reuse is switched off (cache.prefix_reuse.enabled): every prompt is computed whole\n";
  out += "known:  " + count(nominal) + " (nominal match)\nreused: " + count(effective) + " (effective hit)";
  if (at("restored") > 0) out += ", " + std::to_string(at("restored")) + " of them come back from host memory first";
  out += "\n";
  if (most == 0) return out + "the prompt is shorter than a block: there is nothing that could be reused\n";
  if (nominal < most)
    out += "from token " + std::to_string(nominal) +
           " on the prompt is not known for this tenant: never seen there, or dropped to make room, or purged\n";
  if (effective == nominal) return out + (nominal > 0 ? "every state is there: the whole known part is reused\n" : "");
  out += "the other " + count(nominal - effective) + " of the known part would be computed again, because:\n";
  for (const Json& v : j.at("veto")) out += sentence_of(v);
  return out;
}

}  // namespace

Result<std::string> explain_text(const std::string& document) {
  try {
    return text_of(Json::parse(document));
  } catch (const Json::exception& e) {
    return fail(Code::kCorrupt, std::string("the server's explanation cannot be read: ") + e.what());
  }
}

}  // namespace carrel
