// Formulas of 1.2; see the header.
#include "engine/model/families/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/model/families/numbers.h"

namespace carrel {

namespace {

constexpr int64_t kMaxLength = int64_t{1} << 40;

std::vector<double> linear_frequencies(double theta, int dims, double factor) {
  std::vector<double> f = rope_frequencies(theta, dims);
  for (double& v : f) v /= factor;
  return f;
}

struct Llama3Params {
  double factor, low, high, original_length;
};

std::vector<double> llama3_frequencies(double theta, int dims, const Llama3Params& p) {
  std::vector<double> f = rope_frequencies(theta, dims);
  for (double& v : f) {
    const double wavelength = 2 * std::numbers::pi / v;
    if (wavelength < p.original_length / p.high) continue;
    if (wavelength > p.original_length / p.low) {
      v /= p.factor;
      continue;
    }
    const double t = (p.original_length / wavelength - p.low) / (p.high - p.low);
    v *= (1 - t) / p.factor + t;
  }
  return f;
}

double positive(const ConfigReader& c, const std::string& key, double fallback) {
  const double v = c.number_or(key, fallback);
  if (v >= kSmallestScale && v <= kLargestRopeBase) return v;
  c.error(Code::kCorrupt, "is 0, negative or absurd", key);
  return 1;
}

}  // namespace

std::vector<double> rope_frequencies(double theta, int dims) {
  std::vector<double> f(static_cast<size_t>(dims / 2));
  for (size_t i = 0; i < f.size(); ++i) f[i] = std::pow(theta, -2.0 * static_cast<double>(i) / dims);
  return f;
}

std::vector<double> yarn_frequencies(double theta, int dims, const YarnParams& yarn) {
  const auto corr = [&](double rotations) {
    return dims * std::log(yarn.original_length / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double lo = corr(yarn.beta_fast), hi = corr(yarn.beta_slow);
  if (yarn.truncate) {
    lo = std::floor(lo);
    hi = std::ceil(hi);
  }
  lo = std::max(lo, 0.0);
  hi = std::min(hi, dims - 1.0);
  if (lo == hi) hi += 0.001;
  std::vector<double> f = rope_frequencies(theta, dims);
  for (size_t i = 0; i < f.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - lo) / (hi - lo), 0.0, 1.0);
    f[i] = f[i] / yarn.factor * ramp + f[i] * (1 - ramp);
  }
  return f;
}

RopeSpec rope_from_section(const ConfigReader& scaling, double theta, int dims, int max_positions) {
  RopeSpec spec;
  const std::string type = scaling.text_or("rope_type", scaling.text_or("type", "default"));
  if (type == "default") {
    spec.inv_freq = rope_frequencies(theta, dims);
  } else if (type == "linear") {
    spec.inv_freq = linear_frequencies(theta, dims, positive(scaling, "factor", 1));
  } else if (type == "llama3") {
    Llama3Params p{positive(scaling, "factor", 8), positive(scaling, "low_freq_factor", 1), positive(scaling, "high_freq_factor", 4),
                   positive(scaling, "original_max_position_embeddings", max_positions)};
    if (!(p.high > p.low)) scaling.error(Code::kCorrupt, "must be above low_freq_factor", "high_freq_factor");
    spec.inv_freq = llama3_frequencies(theta, dims, p);
  } else if (type == "yarn") {
    YarnParams y;
    y.factor = positive(scaling, "factor", 1);
    y.original_length = positive(scaling, "original_max_position_embeddings", max_positions);
    y.beta_fast = positive(scaling, "beta_fast", 32);
    y.beta_slow = positive(scaling, "beta_slow", 1);
    y.truncate = scaling.flag_or("truncate", true);
    spec.inv_freq = yarn_frequencies(theta, dims, y);
    spec.mscale = positive(scaling, "attention_factor", 0.1 * std::log(y.factor) + 1);
  } else {
    scaling.error(Code::kUnsupported, "'" + type + "' is not a rope scaling of this version (default, linear, llama3, yarn)", "rope_type");
    spec.inv_freq = rope_frequencies(theta, dims);
  }
  return spec;
}

RopeSpec rope_from_gguf(const ConfigReader& config, const std::string& arch, double theta, int dims, int max_positions, bool truncate) {
  const std::string p = arch + ".rope.scaling.";
  RopeSpec spec;
  const std::string type = config.text_or(p + "type", "none");
  if (type == "none") {
    spec.inv_freq = rope_frequencies(theta, dims);
  } else if (type == "linear") {
    spec.inv_freq = linear_frequencies(theta, dims, positive(config, p + "factor", 1));
  } else if (type == "yarn") {
    YarnParams y;
    y.factor = positive(config, p + "factor", 1);
    y.original_length = static_cast<double>(config.integer_or(p + "original_context_length", max_positions, 1, kMaxLength));
    y.beta_fast = positive(config, p + "yarn_beta_fast", 32);
    y.beta_slow = positive(config, p + "yarn_beta_slow", 1);
    y.truncate = truncate;
    spec.inv_freq = yarn_frequencies(theta, dims, y);
    spec.mscale = positive(config, p + "attn_factor", 0.1 * std::log(y.factor) + 1);
  } else {
    config.error(Code::kUnsupported, "'" + type + "' is not a rope scaling of this version (none, linear, yarn)", p + "type");
    spec.inv_freq = rope_frequencies(theta, dims);
  }
  return spec;
}

}  // namespace carrel
