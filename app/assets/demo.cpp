#include "app/assets/demo.h"

#include "base/hash.h"

#define CARREL_ASSET(name)                           \
  extern "C" const std::byte carrel_asset_##name[];  \
  extern "C" const std::byte carrel_asset_##name##_end[];

CARREL_ASSET(config)
CARREL_ASSET(generation_config)
CARREL_ASSET(tokenizer)
CARREL_ASSET(tokenizer_config)
CARREL_ASSET(model)
CARREL_ASSET(samples)
CARREL_ASSET(golden_limits)
CARREL_ASSET(house)

namespace carrel {

namespace {
constexpr std::pair<const char*, const char*> kSha256[] = {
    {"config.json", "e721c1cbf873d6d990a96a8df251d83f47bf6686f8ed3edde5bdba97a4c6b299"},
    {"generation_config.json", "0c81a3d97257e6d990ff84abb292a435584aa33fb7b948be548efaf7eeb09144"},
    {"model.safetensors", "c612de3fd2b3456a58fab7b72e98eb218712637efb25a1ab1d179c93f50f8600"},
    {"tokenizer.json", "14d9c85c1054a6816242b1d0ea55b67a02fdd1fe6787649c51df0c83cc2c82e8"},
    {"tokenizer_config.json", "5fbe8e7a6d5e889fd218f7d2f8f07e93d61aa540d17c98eb5b4ca6c87aea4d04"},
};
}  // namespace

#define CARREL_SPAN(name) std::span(carrel_asset_##name, carrel_asset_##name##_end)

std::map<std::string, std::span<const std::byte>> demo_model_files() {
  return {{"config.json", CARREL_SPAN(config)},
          {"generation_config.json", CARREL_SPAN(generation_config)},
          {"tokenizer.json", CARREL_SPAN(tokenizer)},
          {"tokenizer_config.json", CARREL_SPAN(tokenizer_config)},
          {"model.safetensors", CARREL_SPAN(model)}};
}

std::span<const std::byte> demo_samples() { return CARREL_SPAN(samples); }

std::vector<std::string> damaged_demo_files() {
  std::vector<std::string> out;
  const auto files = demo_model_files();
  for (const auto& [name, digest] : kSha256)
    if (to_hex(sha256(files.at(name))) != digest) out.emplace_back(name);
  return out;
}

namespace {
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
}  // namespace

std::string golden_limits() {
  return text_of(CARREL_SPAN(golden_limits));
}
std::string example_facts() {
  return text_of(CARREL_SPAN(house));
}

}  // namespace carrel
