// libFuzzer program: see fuzz_drive.h. Corpus: testdata/extent.
#include <cstdlib>

#include "storage/fuzz_drive.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (!carrel::fuzz::extent({reinterpret_cast<const char*>(data), size})) std::abort();
  return 0;
}
