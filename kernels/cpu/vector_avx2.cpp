// The AVX2 table of vector_kernels.h.
#define CARREL_SIMD_NS avx2
#include "kernels/cpu/vector_kernels_impl.h"

namespace carrel::cpu {
const VectorKernels& vector_avx2() { return avx2::kKernels; }
}  // namespace carrel::cpu
