// The AVX2 table of recurrent_kernels.h.
#define CARREL_SIMD_NS avx2
#include "kernels/cpu/recurrent_kernels_impl.h"

namespace carrel::cpu {
const RecurrentKernels& recurrent_avx2() {
  return avx2::kRecurrent;
}
}  // namespace carrel::cpu
