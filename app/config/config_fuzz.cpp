// libFuzzer program: see fuzz_drive.h. Corpus: testdata/config.
#include <cstdint>
#include <cstdlib>

#include "app/config/fuzz_drive.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (!carrel::fuzz::config({reinterpret_cast<const char*>(data), size})) std::abort();
  return 0;
}
