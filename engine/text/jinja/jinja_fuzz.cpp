// libFuzzer program: bytes up to the first 0xFF are a template, the rest is the JSON of its variables. Corpus: testdata/jinja_fuzz.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carrel::jinja;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t border = std::min(input.find('\xFF'), input.size());
  const auto t = Template::parse(input.substr(0, border));
  if (!t) return 0;
  const auto given = value_from_json(border < input.size() ? input.substr(border + 1) : std::string_view());
  const Value vars = given && given->is(Kind::kDict) ? *given : make_dict({});
  RenderLimits limits;
  limits.max_steps = 200'000;
  limits.max_output_bytes = size_t{1} << 20;
  limits.allow_list_changes = true;
  const auto out = t->render_marked(vars, limits, {});
  if (!out) return 0;
  const size_t covered = out->runs.empty() ? 0 : out->runs.back().end;
  if (covered != out->bytes.size() || !valid_utf8(out->bytes)) std::abort();
  return 0;
}
