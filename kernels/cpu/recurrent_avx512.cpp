// The AVX-512 table of recurrent_kernels.h.
#define CARREL_SIMD_NS avx512
#include "kernels/cpu/recurrent_kernels_impl.h"

namespace carrel::cpu {
const RecurrentKernels& recurrent_avx512() {
  return avx512::kRecurrent;
}
}  // namespace carrel::cpu
