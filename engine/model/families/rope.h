// Rotary frequencies from a configuration (architectures reference, 1.2). Pure.
#pragma once
#include <string>
#include <vector>

#include "engine/model/config_reader.h"
#include "kernels/ops.h"

namespace carrel {

/// theta^(-2i/dims), i < dims/2.
std::vector<double> rope_frequencies(double theta, int dims);

struct YarnParams {
  double factor = 1;
  double original_length = 0;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
};
std::vector<double> yarn_frequencies(double theta, int dims, const YarnParams& yarn);

/// The scaling that a Hugging Face section describes (`rope_type` or `type`: default, linear, llama3, yarn), applied to theta. Errors stick
/// to `scaling`: kUnsupported names another type. max_positions stands in for an absent original length.
RopeSpec rope_from_section(const ConfigReader& scaling, double theta, int dims, int max_positions);

/// The same from GGUF keys `<arch>.rope.scaling.*`; truncate: of YaRN, which no key says.
RopeSpec rope_from_gguf(const ConfigReader& config, const std::string& arch, double theta, int dims, int max_positions,
                        bool truncate = true);

}  // namespace carrel
