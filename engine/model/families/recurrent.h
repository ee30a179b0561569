// What recurrent mixers of several families share: the convolution's weights and registers, decay constants, limits of sizes.
//
// Used by the loading thread; errors stick in the GraphBuilder.
#pragma once
#include <string>

#include "engine/model/graph_builder.h"

namespace carrel {

constexpr int kMaxTaps = 64;
/// Elements of one layer's registers: 256 MiB of float32, an order above what is published.
constexpr int64_t kMaxRegisterElems = int64_t{1} << 26;

/// The last kernel - 1 inputs of a convolution, oldest first: float32 whatever the keys and values are stored as. Rounding them to bfloat16
/// was nearly all of the distance of `fast` from `exact`, and they are a few rows.
StateSpec conv_registers(int n_layers, int n_channels, int kernel);
/// A tensor [channels][1][K] or [channels][K] as [K][channels].
const float* conv_taps(GraphBuilder& b, const std::string& tensor, int n_channels, int kernel);
/// e^x within two parts in 2^52, the same with every C library: a power of two times a polynomial.
double exp_of(double x);
/// Of n decay rates per head: -exp(A_log). GGUF files hold that already.
const float* decay_rates(GraphBuilder& b, const std::string& tensor, int n, bool is_log);

}  // namespace carrel
