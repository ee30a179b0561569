// libFuzzer program: see engine/text/fuzz_drive.h. Corpus: testdata/jinja.
#include <cstdlib>

#include "engine/text/fuzz_drive.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (!carrel::fuzz::jinja({reinterpret_cast<const char*>(data), size})) std::abort();
  return 0;
}
