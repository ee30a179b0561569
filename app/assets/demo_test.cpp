#include "app/assets/demo.h"

#include <gtest/gtest.h>

#include "base/env.h"

namespace carrel {
namespace {

TEST(Assets, AreTheFilesOfTheRepository) {
  for (const auto& [name, bytes] : demo_model_files()) {
    const std::string content(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    EXPECT_TRUE(content == *read_file(Env::real(), "app/assets/demo-model/" + name)) << name;
  }
  EXPECT_EQ(golden_limits(), *read_file(Env::real(), "tests/golden/limits.json"));
}

TEST(Assets, EveryFileOfTheDemoIsWhole) {
  EXPECT_EQ(damaged_demo_files(), std::vector<std::string>{}) << "new files? then the table of demo.cpp: sha256sum app/assets/demo-model/*";
}

}  // namespace
}  // namespace carrel
