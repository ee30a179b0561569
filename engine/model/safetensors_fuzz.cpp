// libFuzzer program: see fuzz_drive.h. Corpus: testdata/safetensors.
#include <cstdlib>

#include "engine/model/fuzz_drive.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (!carrel::fuzz::safetensors(std::as_bytes(std::span(data, size)))) std::abort();
  return 0;
}
