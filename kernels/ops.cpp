// Choice of an op set, and the rotary tables that all sets share. See ops.h.
#include "kernels/ops.h"

#include "kernels/cpu/math.h"
#include "kernels/cpu/reference_ops.h"

namespace carrel {

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
  (void)team;
  (void)path;
  if (set == OpSet::kReference) return std::make_unique<cpu::ReferenceOps>();
  return fail(Code::kUnsupported, "this op set is not built");
}

}  // namespace carrel
