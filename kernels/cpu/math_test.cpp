// Error bounds of the elementary functions against long double libm, over dense sweeps of the floats.
#include "kernels/cpu/math.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace carrel::cpu {
namespace {

/// Distance in units of the last place of the exact result.
double ulps(float got, long double want) {
  const float w = static_cast<float>(want);
  if (std::isinf(w) || std::isnan(w)) return std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(w) ? 0 : 1e9;
  const float a = std::fabs(w);
  const long double ulp = a < std::numeric_limits<float>::min() ? 1.401298464e-45L : std::nextafter(a, INFINITY) - static_cast<long double>(a);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - want) / ulp);
}

/// The worst error of f over every `step`-th float whose magnitude lies in [lo, hi], both signs.
template <class F, class G>
double worst(F f, G exact, float lo, float hi, uint32_t step = 211) {
  double w = 0;
  for (uint32_t u = std::bit_cast<uint32_t>(lo); u <= std::bit_cast<uint32_t>(hi); u += step) {
    const float x = std::bit_cast<float>(u);
    w = std::max(w, ulps(f(x), exact(static_cast<long double>(x))));
    w = std::max(w, ulps(f(-x), exact(-static_cast<long double>(x))));
  }
  return w;
}

TEST(Math, exp) {
  const auto f = [](float x) { return exp_of(x); };
  const auto g = [](long double x) { return std::exp(x); };
  EXPECT_LE(worst(f, g, 1e-9f, 87.25f), 1.1);
  EXPECT_EQ(exp_of(0.0f), 1.0f);
  EXPECT_EQ(exp_of(-0.0f), 1.0f);
  EXPECT_EQ(exp_of(-88.0f), 0.0f);
  EXPECT_EQ(exp_of(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(exp_of(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(exp_of(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Math, sigmoid_silu_softplus) {
  const auto sig = [](long double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); };
  EXPECT_LE(worst([](float x) { return sigmoid_of(x); }, sig, 1e-9f, 87.0f, 499), 2.5);
  EXPECT_LE(worst([](float x) { return silu_of(x); }, [&](long double x) { return x * sig(x); }, 1e-9f, 80.0f, 499), 3.0);
  const auto sp = [](long double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); };
  EXPECT_LE(worst([](float x) { return softplus_of(x); }, sp, 1e-9f, 87.0f, 499), 3.0);
  EXPECT_EQ(softplus_of(1000.0f), 1000.0f);
  EXPECT_EQ(softplus_of(-1000.0f), 0.0f);
  EXPECT_TRUE(std::isnan(softplus_of(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(sigmoid_of(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Math, tanh_and_gelu) {
  EXPECT_LE(worst([](float x) { return tanh_of(x); }, [](long double x) { return std::tanh(x); }, 1e-9f, 50.0f, 499), 2.5);
  EXPECT_TRUE(std::isnan(tanh_of(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(tanh_of(-std::numeric_limits<float>::infinity()), -1.0f);
  double worst_gelu = 0;
  for (float x = -30; x < 30; x += 0.0003f) {
    const long double v = x;
    const long double want = 0.5L * v * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0L)) * (v + 0.044715L * v * v * v)));
    const double error = static_cast<double>(std::fabs(static_cast<long double>(gelu_tanh_of(x)) - want));
    worst_gelu = std::max(worst_gelu, error / (8e-7 * std::fabs(x) + 1e-30));
  }
  EXPECT_LE(worst_gelu, 1.0);
}

TEST(Math, sincos_to_ten_million) {
  std::mt19937_64 random(7);
  double w = 0;
  const auto check = [&](double x) {
    const SinCos got = sincos_of(x);
    w = std::max(w, static_cast<double>(std::fabs(got.sin - std::sin(static_cast<long double>(x)))));
    w = std::max(w, static_cast<double>(std::fabs(got.cos - std::cos(static_cast<long double>(x)))));
  };
  for (int i = 0; i < 100000; ++i) {
    const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
    check(unit * 10);
    check(unit * 1e7);
    check(-unit * 1e4);
    check(static_cast<double>(random() % 6366197) * 1.57079632679489661923);  // next to the multiples of π/2
  }
  EXPECT_LE(w, 2e-16);
  EXPECT_EQ(sincos_of(0).sin, 0.0);
  EXPECT_EQ(sincos_of(0).cos, 1.0);
}

}  // namespace
}  // namespace carrel::cpu
