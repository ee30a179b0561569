// Seeds that the environment gives to a random test. Something that is no number must not become a run with seed 0 that proves nothing.
#pragma once
#include <gtest/gtest.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace carrel {

/// A whole number in decimal digits, all of the text.
inline std::optional<uint64_t> parse_seed(std::string_view text) {
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return seed;
}

/// False: the variable is set and is no seed; the test has failed then. Not set: *seed stays as it is.
inline bool read_seed(const char* variable, std::optional<uint64_t>* seed) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return true;
  if (const auto given = parse_seed(text)) {
    *seed = given;
    return true;
  }
  ADD_FAILURE() << variable << " is \"" << text << "\", which is no seed: give a number from 0 to 18446744073709551615";
  return false;
}

}  // namespace carrel
