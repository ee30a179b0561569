// What the fuzzers of this folder do with bytes, and what must hold then. Shared by the *_fuzz.cpp programs and the test that runs their corpus;
// linked into neither the product nor its libraries.
#pragma once
#include <algorithm>
#include <string_view>

#include "engine/text/jinja/template.h"
#include "engine/text/tokenizer.h"

namespace carrel::fuzz {

/// Bytes up to the first 0xFF are a tokenizer.json, the rest is a text.
inline bool tokenizer(std::string_view input) {
  const size_t border = std::min(input.find('\xFF'), input.size());
  const std::string_view text = border < input.size() ? input.substr(border + 1) : std::string_view("a <s> b\n12");
  auto tokenizer = Tokenizer::from_json({input.substr(0, border), {}, {}});
  if (!tokenizer) return !tokenizer.error().message.empty();
  for (bool special : {false, true}) {
    auto ids = (*tokenizer)->encode(text, {true, special});
    if (!ids) continue;
    for (int32_t id : *ids)
      if (id < 0 || id >= (*tokenizer)->vocab_size()) return false;
    (*tokenizer)->decode(*ids, special);
  }
  return true;
}

/// Bytes up to the first 0xFF are a template, the rest is the JSON of its variables.
inline bool jinja(std::string_view input) {
  using namespace carrel::jinja;
  const size_t border = std::min(input.find('\xFF'), input.size());
  const auto t = Template::parse(input.substr(0, border));
  if (!t) return !t.error().message.empty();
  const auto given = value_from_json(border < input.size() ? input.substr(border + 1) : std::string_view());
  const Value vars = given && given->is(Kind::kDict) ? *given : make_dict({});
  RenderLimits limits;
  limits.max_steps = 200'000;
  limits.max_output_bytes = size_t{1} << 20;
  limits.allow_list_changes = true;
  const auto out = t->render_marked(vars, limits, {});
  if (!out) return !out.error().message.empty();
  const size_t covered = out->runs.empty() ? 0 : out->runs.back().end;
  return covered == out->bytes.size() && valid_utf8(out->bytes);
}

}  // namespace carrel::fuzz
