// Ops of the vector sets over registers: convolution and scans.
#include "kernels/cpu/reference_ops.h"
#include "kernels/cpu/vector_ops.h"

namespace carrel::cpu {

void VectorOps::short_conv(const float* x, const ShortConvArgs& args, const Registers& columns, const Batch& batch, float* y) {
  ReferenceOps().short_conv(x, args, columns, batch, y);
}

void VectorOps::delta_scan(const float* qkv, const float* a, const float* b, const DeltaArgs& args, const Registers& state,
                           const Batch& batch, float* y) {
  ReferenceOps().delta_scan(qkv, a, b, args, state, batch, y);
}

void VectorOps::ssm_scan(const float* xbc, const float* dt, const SsmArgs& args, const Registers& state, const Batch& batch, float* y) {
  ReferenceOps().ssm_scan(xbc, dt, args, state, batch, y);
}

}  // namespace carrel::cpu
