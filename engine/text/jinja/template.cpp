#include "engine/text/jinja/template.h"

#include "engine/text/jinja/interp.h"
#include "engine/text/jinja/parser.h"

namespace carrel::jinja {

Result<Template> Template::parse(std::string_view source, const ParseLimits& limits) {
  if (source.size() > limits.max_source_bytes) return fail(Code::kExhausted, "the template is larger than " + std::to_string(limits.max_source_bytes) + " bytes");
  if (!valid_utf8(source)) return fail(Code::kInvalidArgument, "the template is not UTF-8");
  CARREL_ASSIGN(auto program, parse_program(source, limits));
  return Template(std::move(program));
}

Result<TextBody> Template::render_marked(const Value& variables, const RenderLimits& limits, const Clock& clock) const {
  try {
    return Interp(*program_, variables, limits, clock).run();
  } catch (Raise& r) {
    return std::unexpected(std::move(r.error));
  }
}

Result<std::string> Template::render(const Value& variables, const RenderLimits& limits, const Clock& clock) const {
  CARREL_ASSIGN(TextBody body, render_marked(variables, limits, clock));
  return std::move(body.bytes);
}

}  // namespace carrel::jinja
