// Reads the vectors in engine/text/testdata for the tests of this folder. Tests run in the root of the repository.
#pragma once
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/env.h"

namespace carrel {

inline std::string testdata(const std::string& name) {
  auto text = read_file(Env::real(), "engine/text/testdata/" + name);
  EXPECT_TRUE(text) << text.error().text();
  return text.value_or("");
}

/// The objects of a .jsonl file.
inline std::vector<nlohmann::json> testdata_lines(const std::string& name) {
  const std::string text = testdata(name);
  std::vector<nlohmann::json> out;
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    if (end > at) out.push_back(nlohmann::json::parse(text.substr(at, end - at)));
  }
  EXPECT_FALSE(out.empty()) << name;
  return out;
}

}  // namespace carrel
