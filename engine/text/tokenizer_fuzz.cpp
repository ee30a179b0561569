// libFuzzer target: bytes up to the first 0xFF are a tokenizer.json, the rest is a text. tokenizer_fuzz_test.cpp runs it over a small
// corpus.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t border = std::min(input.find('\xFF'), input.size());
  const std::string_view text = border < input.size() ? input.substr(border + 1) : std::string_view("a <s> b\n12");
  auto tokenizer = carrel::Tokenizer::from_json({input.substr(0, border), {}, {}});
  if (!tokenizer) return 0;
  for (bool special : {false, true}) {
    auto ids = (*tokenizer)->encode(text, {true, special});
    if (!ids) continue;
    for (int32_t id : *ids) {
      if (id < 0 || id >= (*tokenizer)->vocab_size()) std::abort();
    }
    (*tokenizer)->decode(*ids, special);
  }
  return 0;
}
