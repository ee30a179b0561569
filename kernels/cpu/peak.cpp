// Times the loops of peak_kernels.h over a team. Owns no state.
#include "kernels/cpu/peak.h"

#include <algorithm>
#include <atomic>

#include "kernels/cpu/peak_kernels.h"
#include "kernels/memory.h"

namespace carrel::cpu {
namespace {

constexpr int kPasses = 5;
constexpr int64_t kRounds = 400'000;  // about a millisecond
constexpr int64_t kPieces = 8;        // per member: one that is late costs its share only

/// Rate of one pass; fn(begin, end) works on units [begin, end) and returns something that depends on the work.
template <class Fn>
double rate(Env* env, ThreadTeam& team, int64_t n_units, double work_per_unit, const Fn& fn) {
  std::atomic<int> sink{0};
  const int64_t from = env->mono_ns();
  team.run(n_units, 1, [&](int64_t b, int64_t e) { sink.fetch_add(fn(b, e), std::memory_order_relaxed); });
  const int64_t ns = std::max<int64_t>(1, env->mono_ns() - from);
  return work_per_unit * static_cast<double>(n_units) / static_cast<double>(ns) * 1e9;
}

}  // namespace

double read_bandwidth(Env* env, ThreadTeam& team, std::span<const std::byte> bytes) {
  constexpr int64_t kUnit = 64 << 10;
  const auto n = static_cast<int64_t>(bytes.size()) / kUnit;
  return rate(env, team, n, kUnit, [&](int64_t b, int64_t e) { return read_lines(bytes.data() + b * kUnit, (e - b) * (kUnit / 64)); });
}

Result<double> read_bandwidth(Env* env, ThreadTeam& team, size_t n_bytes) {
  CARREL_ASSIGN(const HugeBuffer buffer, HugeBuffer::allocate(n_bytes));
  double best = 0;
  for (int pass = 0; pass < kPasses; pass++) best = std::max(best, read_bandwidth(env, team, std::span<const std::byte>(buffer.span())));
  return best;
}

double int8_dot_peak(Env* env, ThreadTeam& team, Path path) {
  const bool wide = path == Path::kAvx512;
  return rate(env, team, team.size() * kPieces, static_cast<double>(kRounds) * kPeakChains * (wide ? 128 : 64),
              [&](int64_t b, int64_t e) { return wide ? peak_int8_avx512((e - b) * kRounds) : peak_int8_avx2((e - b) * kRounds); });
}

double f32_fma_peak(Env* env, ThreadTeam& team, Path path) {
  const bool wide = path == Path::kAvx512;
  return rate(env, team, team.size() * kPieces, static_cast<double>(kRounds) * kPeakChains * (wide ? 32 : 16), [&](int64_t b, int64_t e) {
    return static_cast<int>(wide ? peak_f32_avx512((e - b) * kRounds) : peak_f32_avx2((e - b) * kRounds));
  });
}

}  // namespace carrel::cpu
