// The edge of the folder: exceptions of a render become Errors here.
#include "engine/text/jinja/template.h"

#include <new>

#include "engine/text/jinja/interp.h"
#include "engine/text/jinja/parser.h"

namespace carrel::jinja {

Result<Template> Template::parse(std::string_view source, const ParseLimits& limits) {
  CARREL_ASSIGN(std::shared_ptr<const Program> program, parse_program(source, limits));
  return Template(std::move(program));
}

Result<std::string> Template::render(const Value& variables, const RenderLimits& limits, const Clock& clock) const {
  CARREL_ASSIGN(TextBody text, render_marked(variables, limits, clock));
  return std::move(text.bytes);
}

Result<TextBody> Template::render_marked(const Value& variables, const RenderLimits& limits, const Clock& clock) const {
  try {
    return Interp(*program_, limits, clock).run(variables);
  } catch (RenderError& e) {
    return std::unexpected(std::move(e.error));
  } catch (const std::bad_alloc&) {
    return fail(Code::kExhausted, "there is not enough memory to render the template");
  }
}

}  // namespace carrel::jinja
