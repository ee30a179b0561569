// Choice of an op set, and the rotary tables that all sets share. See ops.h.
#include "kernels/ops.h"

#include "kernels/cpu/math.h"
#include "kernels/cpu/reference_ops.h"
#include "kernels/cpu/vector_ops.h"

namespace carrel {

void Ops::linears(std::span<const LinearOut> outs, const float* x, int64_t x_stride, int n_tokens) {
  for (const LinearOut& o : outs) {
    linear(o.w, o.bias, x, x_stride, n_tokens, o.y, o.y_stride);
    for (int t = 0; o.sum != nullptr && t < n_tokens; ++t)
      add(o.y + t * o.y_stride, o.add + t * o.y_stride, 1.0f, o.w.n_rows, o.sum + t * o.y_stride);
  }
}

void Ops::gated_linears(const LinearOut& gate, const LinearOut& up, Act act, float limit, const float* x, int64_t x_stride, int n_tokens,
                        float* y) {
  linear(gate.w, gate.bias, x, x_stride, n_tokens, gate.y, gate.y_stride);
  linear(up.w, up.bias, x, x_stride, n_tokens, up.y, up.y_stride);
  gated(act, gate.y, up.y, limit, n_tokens * gate.w.n_rows, y);
}

void Ops::feed_forward(const LinearOut& gate, const LinearOut& up, Act act, float limit, const LinearOut& down, const float* x,
                       int64_t x_stride, int n_tokens, float* mid) {
  gated_linears(gate, up, act, limit, x, x_stride, n_tokens, mid);
  linears(std::span(&down, 1), mid, down.w.n_cols, n_tokens);
}

void make_rope_table(const RopeSpec& spec, std::span<const int32_t> positions, RopeTable& table) {
  table.half = static_cast<int>(spec.inv_freq.size());
  table.cos.resize(positions.size() * spec.inv_freq.size());
  table.sin.resize(table.cos.size());
  size_t i = 0;
  for (const int32_t p : positions) {
    for (const double f : spec.inv_freq) {
      const cpu::SinCos turn = cpu::sincos_of(p * f);
      table.cos[i] = static_cast<float>(turn.cos * spec.mscale);
      table.sin[i++] = static_cast<float>(turn.sin * spec.mscale);
    }
  }
}

Result<std::unique_ptr<Ops>> make_ops(OpSet set, ThreadTeam* team, CpuPath path) {
  if (set == OpSet::kReference) return std::make_unique<cpu::ReferenceOps>();
  cpu::Path chosen = cpu::best_path();
  if (path != CpuPath::kAuto) chosen = path == CpuPath::kAvx512 ? cpu::Path::kAvx512 : cpu::Path::kAvx2;
  if (chosen == cpu::Path::kScalar || !cpu::path_available(chosen)) {
    return fail(Code::kUnsupported, "this processor lacks the instructions of the path; AVX2 with FMA is the least that Carrel runs on",
                std::string(to_string(chosen)));
  }
  return std::make_unique<cpu::VectorOps>(set == OpSet::kFast, team, chosen);
}

}  // namespace carrel
