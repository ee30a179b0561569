// How float32 values become small integers, here and in every kernel that does it. Inlined by force: an out-of-line copy of the AVX-512 files must
// not serve other machines. Pure.
#pragma once
#include <cmath>

namespace carrel::cpu {

/// value = scale * code, code = nearest_even(value * inverse), |code| <= most.
struct CodeScale {
  float scale, inverse;
};

/// From the largest magnitude of the values. Inverse 0 means that all codes count as 0: below 1e-30 (scale 0), and where a value is not finite (scale NaN).
[[gnu::always_inline]] inline CodeScale code_scale(float top, float most) {
  if (!(top < INFINITY)) return {NAN, 0};
  if (top < 1e-30f) return {0, 0};
  return {top / most, most / top};
}

}  // namespace carrel::cpu
