// The AVX-512 table of vector_kernels.h; called only where the machine has it.
#define CARREL_SIMD_NS avx512
#include "kernels/cpu/vector_kernels_impl.h"

namespace carrel::cpu {
const VectorKernels& vector_avx512() { return avx512::kKernels; }
}  // namespace carrel::cpu
