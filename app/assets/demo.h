// The demo model inside the binary: its files as they lie in app/assets/demo-model/.
#pragma once
#include <map>
#include <span>
#include <string>

namespace carrel {

/// Name → content, for open_folder_in_memory. The bytes live as long as the process.
std::map<std::string, std::span<const std::byte>> demo_model_files();
/// samples.json: prompts with the answers that the model must give.
std::span<const std::byte> demo_samples();

constexpr const char* kDemoModelName = "demo";

}  // namespace carrel
