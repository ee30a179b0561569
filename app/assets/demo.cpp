#include "app/assets/demo.h"

#define CARREL_ASSET(name)                           \
  extern "C" const std::byte carrel_asset_##name[];  \
  extern "C" const std::byte carrel_asset_##name##_end[];

CARREL_ASSET(config)
CARREL_ASSET(generation_config)
CARREL_ASSET(tokenizer)
CARREL_ASSET(tokenizer_config)
CARREL_ASSET(model)
CARREL_ASSET(samples)

namespace carrel {

#define CARREL_SPAN(name) std::span(carrel_asset_##name, carrel_asset_##name##_end)

std::map<std::string, std::span<const std::byte>> demo_model_files() {
  return {{"config.json", CARREL_SPAN(config)},
          {"generation_config.json", CARREL_SPAN(generation_config)},
          {"tokenizer.json", CARREL_SPAN(tokenizer)},
          {"tokenizer_config.json", CARREL_SPAN(tokenizer_config)},
          {"model.safetensors", CARREL_SPAN(model)}};
}

std::span<const std::byte> demo_samples() { return CARREL_SPAN(samples); }

}  // namespace carrel
