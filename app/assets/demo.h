// What is linked into the binary: the demo model's files as they lie in app/assets/demo-model/, and the limits of `carrel golden`.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

namespace carrel {

/// Name → content, for open_folder_in_memory. The bytes live as long as the process.
std::map<std::string, std::span<const std::byte>> demo_model_files();
/// samples.json: prompts with the answers that the model must give.
std::span<const std::byte> demo_samples();

/// Names of the model's files whose SHA-256 is not the one that was written down when they were made; empty: the model is whole.
std::vector<std::string> damaged_demo_files();
/// tests/golden/limits.json.
std::string golden_limits();
/// docs/examples/house.txt: sentences that the demo model can look facts up in.
std::string example_facts();

constexpr const char* kDemoModelName = "demo";

}  // namespace carrel
