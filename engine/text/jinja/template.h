// A Jinja2 template as published chat templates use it: parsed once, rendered many times, bounded in every direction.
//
// The environment is that of transformers: trim_blocks, lstrip_blocks, no autoescape, loop controls, `generation` blocks, an
// immutable sandbox, lenient undefined, tojson without HTML escapes, raise_exception and strftime_now.
// Threads: a Template never changes after parse; render may run on many threads at once. It reads no clock and no file.
// Errors: kInvalidArgument with the template's own words when it calls raise_exception, or when the source is not well-formed;
// kUnsupported when the template cannot render these values; kExhausted when a limit is reached. `where` names the line.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/text/jinja/value.h"

namespace carrel::jinja {

struct ParseLimits {
  size_t max_source_bytes = size_t{4} << 20;
  uint32_t max_depth = 150;  // nesting of blocks and of expressions
};

struct RenderLimits {
  uint64_t max_steps = 20'000'000;                  // evaluations, items walked, 16 bytes copied: each one step
  size_t max_output_bytes = size_t{64} << 20;       // of the result and of every string on the way
  uint32_t max_depth = 600;                         // nested evaluations; a macro call takes about six
  bool allow_list_changes = false;                  // list.append and list.pop, refused by transformers (Kimi-K2 calls them)
};

/// The time strftime_now shows.
struct Clock {
  int64_t unix_ms = 0;
  int32_t utc_offset_min = 0;
};

struct Program;

class Template {
 public:
  static Result<Template> parse(std::string_view source, const ParseLimits& limits = {});

  /// `variables` is a dict with string keys.
  Result<std::string> render(const Value& variables, const RenderLimits& limits, const Clock& clock) const;
  /// The same with the origin of every byte.
  Result<TextBody> render_marked(const Value& variables, const RenderLimits& limits, const Clock& clock) const;

 private:
  explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
  std::shared_ptr<const Program> program_;
};

}  // namespace carrel::jinja
