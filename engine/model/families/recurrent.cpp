// See the header.
#include "engine/model/families/recurrent.h"

#include <cmath>

namespace carrel {

StateSpec conv_registers(int n_layers, int n_channels, int kernel) {
  return {"conv", StateKind::kRecurrent, n_layers, 0, n_channels, kernel - 1, 0, DType::kF32};
}

const float* conv_taps(GraphBuilder& b, const std::string& tensor, int n_channels, int kernel) {
  const auto n = static_cast<size_t>(n_channels), k = static_cast<size_t>(kernel);
  const float* from = b.vector(tensor, int64_t{n_channels} * kernel);
  if (from == nullptr) return nullptr;
  std::vector<float> taps(n * k);
  for (size_t c = 0; c < n; ++c)
    for (size_t j = 0; j < k; ++j) taps[j * n + c] = from[c * k + j];
  return b.keep(std::move(taps));
}

double exp_of(double x) {
  if (!(std::fabs(x) < 700)) return x > 0 ? HUGE_VAL : x < 0 ? 0 : x;  // NaN stays
  const double k = std::nearbyint(x * 1.4426950408889634);
  const double r = std::fma(k, -1.9082149292705877e-10, std::fma(k, -0.693147180369123816490, x));  // ln 2 in two parts
  double sum = 1;
  for (int n = 14; n > 0; --n) sum = std::fma(sum, r / n, 1.0);
  return std::ldexp(sum, static_cast<int>(k));
}

const float* decay_rates(GraphBuilder& b, const std::string& tensor, int n, bool is_log) {
  const float* from = b.vector(tensor, n);
  if (from == nullptr || !is_log) return from;
  std::vector<float> rates(static_cast<size_t>(n));
  for (size_t h = 0; h < rates.size(); ++h) rates[h] = static_cast<float>(-exp_of(from[h]));
  return b.keep(std::move(rates));
}

}  // namespace carrel
