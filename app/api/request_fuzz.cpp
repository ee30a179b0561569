// libFuzzer program: see fuzz_drive.h. Corpus: testdata/request.
#include <cstdlib>

#include "app/api/fuzz_drive.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (!carrel::fuzz::request({reinterpret_cast<const char*>(data), size})) std::abort();
  return 0;
}
