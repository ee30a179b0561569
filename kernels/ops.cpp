// Choice of an op set, and the rotary tables that all sets share. See ops.h.
#include "kernels/ops.h"

#include "kernels/cpu/math.h"
#include "kernels/cpu/reference_ops.h"
#include "kernels/cpu/vector_ops.h"

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
