// Numbers of a configuration that multiply, divide or are added to what every token computes: one that no model has is refused by its key,
// for the model would run and its answers would be noise. Pure; any thread.
#pragma once
#include <string>

#include "engine/model/config_reader.h"

namespace carrel {

constexpr double kSmallestEps = 1e-30;  // not 0 as float32
constexpr double kSmallestScale = 1e-6, kLargestScale = 1e6;
constexpr double kSmallestRopeBase = 2, kLargestRopeBase = 1e12;

/// Added under the root of a norm.
inline float eps_of(const ConfigReader& c, const std::string& key) {
  return static_cast<float>(c.number_in(key, kSmallestEps, 1));
}
inline float eps_or(const ConfigReader& c, const std::string& key, double fallback) {
  return c.has(key) ? eps_of(c, key) : static_cast<float>(fallback);
}
inline float scale_of(const ConfigReader& c, const std::string& key) {
  return static_cast<float>(c.number_in(key, kSmallestScale, kLargestScale));
}
inline float scale_or(const ConfigReader& c, const std::string& key, double fallback) {
  return c.has(key) ? scale_of(c, key) : static_cast<float>(fallback);
}
/// A clamp or a softcap: 0 and an absent key mean none.
inline float limit_or_none(const ConfigReader& c, const std::string& key) {
  return c.number_or(key, 0) == 0 ? 0 : scale_of(c, key);
}
inline double rope_base_or(const ConfigReader& c, const std::string& key, double fallback) {
  return c.has(key) ? c.number_in(key, kSmallestRopeBase, kLargestRopeBase) : fallback;
}

}  // namespace carrel
