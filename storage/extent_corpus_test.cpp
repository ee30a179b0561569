// The extent fuzzer's corpus.
#include "base/fuzz_corpus.h"
#include "storage/fuzz_drive.h"

namespace carrel {
namespace {

TEST(ExtentFuzz, corpus) {
  fuzz::run_corpus("storage/testdata/extent", 14, fuzz::extent, {.n_cuts = 40, .n_changes = 400});
}

}  // namespace
}  // namespace carrel
