// A model's chat template: messages to the text of a prompt, with every byte marked as the template's own or the caller's.
//
// Immutable after parse; copies share the parsed template; any thread. Errors: kInvalidArgument (the template refuses the messages, in its own words),
// kUnsupported (it cannot render them), kExhausted (limits).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/text/jinja/template.h"

namespace carrel {

struct ChatRequest {
  std::string messages_json;  // a list of messages, as in the OpenAI dialect
  std::string tools_json;     // a list, or empty
  std::string extra_json;     // an object of further variables, or empty
  bool add_generation_prompt = true;
  int64_t now_ms = 0;  // what strftime_now shows
};

struct RenderedPart {
  std::string text;
  bool from_template = false;  // control tokens may be recognised only here
};

struct RenderedChat {
  std::vector<RenderedPart> parts;
  /// Byte offsets in the whole text where the rendering of a message ends, ascending, as far as known: places where a later turn may branch off.
  std::vector<size_t> message_boundaries;
};

class ChatTemplate {
 public:
  static Result<ChatTemplate> parse(const std::string& source, const std::string& bos_token, const std::string& eos_token);
  Result<RenderedChat> render(const ChatRequest& request) const;

 private:
  ChatTemplate(jinja::Template t, std::string bos, std::string eos) : template_(std::move(t)), bos_(std::move(bos)), eos_(std::move(eos)) {}
  Result<jinja::TextBody> render_json(const std::string& variables, int64_t now_ms) const;

  jinja::Template template_;
  std::string bos_, eos_;
  bool takes_parts_ = false;  // content may be a list of parts
};

}  // namespace carrel
