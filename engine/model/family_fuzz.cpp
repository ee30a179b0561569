// libFuzzer program: see fuzz_drive.h. Corpus: testdata/family.
#include <cstdlib>

#include "engine/model/fuzz_drive.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (!carrel::fuzz::family(std::as_bytes(std::span(data, size)))) std::abort();
  return 0;
}
