// Float64 sine and cosine (see math.h). Pure, any thread.
#include "kernels/cpu/math.h"

namespace carrel::cpu {

SinCos sincos_of(double x) {
  constexpr double kShift = 6755399441055744.0;  // 1.5·2^52: adding it rounds to an integer
  const double shifted = x * 0.63661977236758134308 + kShift;
  const double n = shifted - kShift;
  const auto quadrant = static_cast<int>(std::bit_cast<uint64_t>(shifted) & 3u);
  // π/2 in three parts of 53 bits. n has at most 23 bits, so the first product and difference are exact under fma.
  const double r1 = __builtin_fma(n, -0x1.921fb54442d18p+0, x);
  const double r2 = __builtin_fma(n, -0x1.1a62633145c07p-54, r1);
  const double r = __builtin_fma(n, 0x1.f1976b7ed8fbcp-110, r2);
  const double z = r * r;
  constexpr double kSin[] = {1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,
                             1.0 / 362880.0,          -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
  constexpr double kCos[] = {1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0,
                             1.0 / 40320.0,          -1.0 / 720.0,         1.0 / 24.0,        -0.5};
  double p = kSin[0], q = kCos[0];
  for (int i = 1; i < 8; ++i) {
    p = __builtin_fma(p, z, kSin[i]);
    q = __builtin_fma(q, z, kCos[i]);
  }
  const double s = __builtin_fma(p * z, r, r);
  const double c = __builtin_fma(q, z, 1.0);
  switch (quadrant) {
    case 0: return {s, c};
    case 1: return {c, -s};
    case 2: return {-s, -c};
    default: return {-c, s};
  }
}

}  // namespace carrel::cpu
