// Elementary functions with bits of their own: the same operations in the same order for one float and for a vector of floats, so that no
// result depends on a C library or on an instruction path.
//
// A "vector" V is any type with the small vocabulary below; F1 (one float) is here, F16 (sixteen) in simd.h. Error bounds are stated at
// each function and tested over dense sweeps. Pure, any thread.
#pragma once
#include <bit>
#include <cstdint>

namespace carrel::cpu {

#define CARREL_INLINE [[gnu::always_inline]] inline
#define CARREL_LAMBDA_INLINE __attribute__((always_inline))

/// One float with the vocabulary of a vector.
struct F1 {
  float v;
  CARREL_INLINE static F1 set(float x) { return {x}; }
};
CARREL_INLINE F1 operator+(F1 a, F1 b) {
  return {a.v + b.v};
}
CARREL_INLINE F1 operator-(F1 a, F1 b) {
  return {a.v - b.v};
}
CARREL_INLINE F1 operator*(F1 a, F1 b) {
  return {a.v * b.v};
}
CARREL_INLINE F1 operator/(F1 a, F1 b) {
  return {a.v / b.v};
}
CARREL_INLINE F1 fma(F1 a, F1 b, F1 c) {
  return {__builtin_fmaf(a.v, b.v, c.v)};
}
/// The second operand where either is NaN, as the instruction does.
CARREL_INLINE F1 max(F1 a, F1 b) {
  return {a.v > b.v ? a.v : b.v};
}
CARREL_INLINE F1 min(F1 a, F1 b) {
  return {a.v < b.v ? a.v : b.v};
}
CARREL_INLINE F1 sqrt(F1 a) {
  return {__builtin_sqrtf(a.v)};
}
CARREL_INLINE F1 abs(F1 a) {
  return {std::bit_cast<float>(std::bit_cast<uint32_t>(a.v) & 0x7FFFFFFFu)};
}
/// |a| with the sign of b.
CARREL_INLINE F1 with_sign(F1 a, F1 b) {
  return {std::bit_cast<float>((std::bit_cast<uint32_t>(a.v) & 0x7FFFFFFFu) | (std::bit_cast<uint32_t>(b.v) & 0x80000000u))};
}
/// a < b ? x : y (y where either is NaN).
CARREL_INLINE F1 if_less(F1 a, F1 b, F1 x, F1 y) {
  return a.v < b.v ? x : y;
}
/// 2^n from t = 1.5·2^23 + n, n in [-126, 127].
CARREL_INLINE F1 pow2_of_shifted(F1 t) {
  return {std::bit_cast<float>((std::bit_cast<uint32_t>(t.v) << 23) + 0x3F800000u)};
}

/// e^x split as 2^n (1 + y): returns y for r = x - n ln 2, |r| ≤ ln2/2, and 2^n. For x in [-87.3, 88].
template <class V>
CARREL_INLINE V exp_parts(V x, V* scale) {
  const V shift = V::set(12582912.0f);  // 1.5·2^23: adding it rounds to an integer
  const V t = fma(x, V::set(1.44269504088896341f), shift);
  const V n = t - shift;
  V r = fma(n, V::set(-0.693359375f), x);  // ln 2 in two parts, the first with 9 bits: exact product
  r = fma(n, V::set(2.12194440054690583e-4f), r);
  V q = V::set(1.3926250831497611e-3f);
  q = fma(q, r, V::set(8.363232883682618e-3f));
  q = fma(q, r, V::set(4.166655421298415e-2f));
  q = fma(q, r, V::set(0.16666576666119928f));
  q = fma(q, r, V::set(0.5f));
  *scale = pow2_of_shifted(t);
  return fma(r * r, q, r);
}

/// exp_of for x ≤ 88, one comparison less.
template <class V>
CARREL_INLINE V exp_of_low(V x) {
  V scale;
  const V y = exp_parts(x, &scale);
  const V e = (V::set(1.0f) + y) * scale;
  return if_less(x, V::set(-87.3f), V::set(0.0f), e);
}

/// e^x, error ≤ 1.1 ulp; 0 below -87.3 (results under the smallest normal number), infinity above 88.3; NaN stays NaN.
template <class V>
CARREL_INLINE V exp_of(V x) {
  return if_less(V::set(88.3f), x, V::set(__builtin_inff()), exp_of_low(x));
}

/// 1 / (1 + e^-x), error ≤ 2.5 ulp where the result is a normal number.
template <class V>
CARREL_INLINE V sigmoid_of(V x) {
  const V one = V::set(1.0f);
  const V e = exp_of_low(V::set(0.0f) - abs(x));
  return if_less(x, V::set(0.0f), e, one) / (one + e);
}

/// x sigmoid(x), error ≤ 3 ulp.
template <class V>
CARREL_INLINE V silu_of(V x) {
  return x * sigmoid_of(x);
}

/// tanh x, error ≤ 2.5 ulp.
template <class V>
CARREL_INLINE V tanh_of(V x) {
  const V one = V::set(1.0f);
  const V a = min(V::set(10.0f), abs(x));  // tanh is 1 from 9.02 on; a NaN stays (second operand)
  V scale;
  const V y = exp_parts(V::set(-2.0f) * a, &scale);
  const V m = fma(y, scale, scale - one);  // e^(-2a) - 1
  return with_sign((V::set(0.0f) - m) / (V::set(2.0f) + m), x);
}

/// The tanh form of GELU, 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))), written as x sigmoid(2u) so that nothing cancels. Error ≤ 8e-7 |x|.
template <class V>
CARREL_INLINE V gelu_tanh_of(V x) {
  const V u = fma(x * x * x, V::set(0.044715f), x) * V::set(1.59576912160573071f);
  return x * sigmoid_of(u);
}

/// ln(1 + u) for u in [0, 1], error ≤ 2 ulp: 2 atanh(s), s = u / (2 + u).
template <class V>
CARREL_INLINE V log1p_unit(V u) {
  const V s = u / (V::set(2.0f) + u);
  const V z = s * s;
  V q = V::set(0.2322432922402335f);
  q = fma(q, z, V::set(0.21706575800880373f));
  q = fma(q, z, V::set(0.28592357994302836f));
  q = fma(q, z, V::set(0.3999970633192972f));
  q = fma(q, z, V::set(0.6666666732052742f));
  return fma(z * s, q, s + s);
}

/// ln(1 + e^x), error ≤ 3 ulp where the result is a normal number.
template <class V>
CARREL_INLINE V softplus_of(V x) {
  const V e = exp_of_low(V::set(0.0f) - abs(x));
  return max(V::set(0.0f), x) + log1p_unit(e);
}

inline float exp_of(float x) {
  return exp_of(F1{x}).v;
}
inline float sigmoid_of(float x) {
  return sigmoid_of(F1{x}).v;
}
inline float silu_of(float x) {
  return silu_of(F1{x}).v;
}
inline float tanh_of(float x) {
  return tanh_of(F1{x}).v;
}
inline float gelu_tanh_of(float x) {
  return gelu_tanh_of(F1{x}).v;
}
inline float softplus_of(float x) {
  return softplus_of(F1{x}).v;
}
/// 1 / sqrt(x): two correctly rounded operations.
inline float rsqrt_of(float x) {
  return 1.0f / __builtin_sqrtf(x);
}

/// sin and cos in float64 for |x| ≤ 1e7, absolute error ≤ 2e-16: reduction by π/2 in three parts (each step exact or one rounding), then
/// Taylor polynomials on [-π/4, π/4].
struct SinCos {
  double sin, cos;
};
SinCos sincos_of(double x);

}  // namespace carrel::cpu
