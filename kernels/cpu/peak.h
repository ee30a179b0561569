// What this machine can do at most, measured in the same run as the figure that is held against it (`carrel bench`): read bandwidth over
// huge pages, and the multiply-add rate of an instruction path's own instructions with all operands in registers. Threads: the caller and
// its team; other work on the machine lowers the figures.
#pragma once
#include <cstddef>
#include <span>

#include "base/env.h"
#include "base/error.h"
#include "kernels/cpu/linear.h"

namespace carrel::cpu {

/// Bytes per second at which the team reads n_bytes of new memory, best of five passes. Errors: no memory.
Result<double> read_bandwidth(Env* env, ThreadTeam& team, size_t n_bytes);

/// The same over memory that exists, one pass: what a kernel could reach on exactly these bytes. Interleave with the kernel and compare
/// medians.
double read_bandwidth(Env* env, ThreadTeam& team, std::span<const std::byte> bytes);

/// Operations per second (a multiply-add is two) of the whole team, one pass of about ten milliseconds. kScalar is measured as kAvx2.
double int8_dot_peak(Env* env, ThreadTeam& team, Path path);
double f32_fma_peak(Env* env, ThreadTeam& team, Path path);

}  // namespace carrel::cpu
