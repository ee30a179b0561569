// A conversation to the text a model was trained on, by the template that came with the model.
//
// The output is split by origin: control tokens may be recognised only in parts that the template wrote, so that nothing a user, a
// tool or a document says can become one. Threads: a ChatTemplate never changes after parse; render may run on many threads at once.
// Errors: kInvalidArgument when the template refuses the conversation (its own words) or the JSON is not well-formed; kUnsupported when
// the template cannot render these values; kExhausted when a limit of the interpreter is reached.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/text/jinja/template.h"

namespace carrel {

struct ChatRequest {
  std::string messages_json;  // a list of messages as /v1/chat/completions takes them
  std::string tools_json;     // "": none
  std::string extra_json;     // "" or an object of further variables
  bool add_generation_prompt = true;
  int64_t now_ms = 0;  // what strftime_now shows
};

struct RenderedPart {
  std::string text;
  bool from_template = false;  // control tokens may be recognised only here
};

struct RenderedChat {
  std::vector<RenderedPart> parts;         // neighbours differ in origin
  std::vector<size_t> message_boundaries;  // byte offsets in the concatenation where a message ends, rising, as far as known
};

class ChatTemplate {
 public:
  static Result<ChatTemplate> parse(const std::string& source, const std::string& bos_token, const std::string& eos_token);

  /// Prepares the messages as servers do: keys with null are dropped, a null content is "", reasoning is passed under both usual
  /// names, tool-call arguments become objects and content parts become one text where the template wants them so.
  Result<RenderedChat> render(const ChatRequest& request) const;

 private:
  /// What the template was found to understand.
  struct Habits {
    bool takes_lists = false;         // content as a list of parts
    bool needs_lists = false;         // content as a list only
    bool object_arguments = true;     // tool-call arguments as an object
  };

  explicit ChatTemplate(jinja::Template t) : template_(std::move(t)) {}
  void probe();
  Result<jinja::Value> variables(const jinja::Value& messages, const ChatRequest& request) const;
  jinja::Value normal_messages(const jinja::Value& messages) const;
  jinja::Value normal_message(const jinja::Value& message) const;
  jinja::Value normal_content(const jinja::Value& content) const;
  jinja::Value normal_calls(const jinja::Value& calls) const;

  jinja::Template template_;
  std::string bos_token_, eos_token_;
  Habits habits_;
};

}  // namespace carrel
