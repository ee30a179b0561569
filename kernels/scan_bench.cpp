// Prints what the ops of recurrent layers take per token beside the bounds measured in the same run, interleaved, medians. One token: every
// state of a model is read and written once, so the bound is memory. 512 tokens: a state stays near, and the bound is the vector units: a
// delta rule takes four operations per 16 elements of state and token, Mamba2 three; a convolution reads and writes a row. Usage:
// scan_bench [n_threads] [avx2 | avx512].
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/peak.h"
#include "kernels/memory.h"
#include "kernels/ops.h"

namespace carrel::cpu {
namespace {

constexpr int kRounds = 9, kTokens = 512, kBlock = 4096;

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

std::vector<float> values(size_t n, float scale = 1.0f) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; i++) v[i] = scale * (static_cast<float>((i * 40503) % 2001) / 1000.0f - 1);
  return v;
}

/// An op over the registers of `n_layers` layers: apply(layer, batch).
struct Model {
  std::string name;
  RowLayout layout;
  int n_layers;
  double vector_ops;  // per element of state and token; 0: bounded by its rows
  std::function<void(const Registers&, const Batch&)> apply;
};

RowLayout registers_layout(DType dtype, int row_elems, int n_rows) {
  RowLayout l{dtype, row_elems, n_rows, 0, bytes_of(dtype, static_cast<size_t>(row_elems)), 0};
  l.layer_stride_bytes = (l.row_stride_bytes * static_cast<size_t>(n_rows) + 63) / 64 * 64;
  return l;
}

/// Seconds of a step of n tokens through all layers, which go on from what they hold.
double seconds(const Model& m, std::byte* slot, int n_layers, int n_tokens) {
  std::vector<std::byte*> pages(2, nullptr);
  std::byte* const* table = pages.data();
  const std::vector<int32_t> zeros(static_cast<size_t>(n_tokens), 0);
  const SeqStep seq{0, n_tokens, 1, std::span(&table, 1), slot};
  const Batch batch{n_tokens, kBlock, zeros, zeros, zeros, std::span(&seq, 1), {}};
  Env* env = Env::real();
  const int64_t from = env->mono_ns();
  for (int layer = 0; layer < n_layers; layer++) m.apply({0, layer, m.layout, 0}, batch);
  return static_cast<double>(env->mono_ns() - from) / 1e9;
}

Status bench(const Model& m, ThreadTeam& team, Path path) {
  const size_t layer_bytes = m.layout.layer_stride_bytes;
  CARREL_ASSIGN(HugeBuffer slot, HugeBuffer::allocate(layer_bytes * static_cast<size_t>(m.n_layers)));
  CARREL_ASSIGN(HugeBuffer flush, HugeBuffer::allocate(size_t{400} << 20));
  std::memset(slot.data(), 0, layer_bytes * static_cast<size_t>(m.n_layers));
  std::memset(flush.data(), 1, flush.span().size());
  Env* env = Env::real();
  std::vector<double> one, many, bandwidth, peak;
  for (int round = 0; round < kRounds; round++) {
    peak.push_back(f32_fma_peak(env, team, path));
    many.push_back(seconds(m, slot.data(), 2, kTokens) / 2 / kTokens);
    bandwidth.push_back(read_bandwidth(env, team, std::span<const std::byte>(flush.span())));  // and the states leave the caches
    one.push_back(seconds(m, slot.data(), m.n_layers, 1) / m.n_layers);
  }
  const double traffic = 2.0 * static_cast<double>(layer_bytes) / median(bandwidth);
  std::printf("%-38s per layer: 1 token %7.2f us", m.name.c_str(), median(one) * 1e6);
  if (m.vector_ops > 0) std::printf(" = %.2f of bandwidth (%.1f GB/s)", traffic / median(one), median(bandwidth) / 1e9);
  std::printf(" | 512 tokens %6.2f us a token", median(many) * 1e6);
  if (m.vector_ops == 0) {
    const double rows = 2.0 * sizeof(float) * m.layout.row_elems / median(bandwidth);
    std::printf(" = %.2f of bandwidth on what it reads and writes", rows / median(many));
  } else {
    const double arithmetic = 2 * m.vector_ops * static_cast<double>(layer_bytes / sizeof(float)) / median(peak);
    std::printf(" = %.2f of vector peak, %.2f of the traffic of one", arithmetic / median(many), median(many) / traffic);
  }
  std::printf("\n");
  return {};
}

Status run(ThreadTeam& team, Path path) {
  CARREL_ASSIGN(const std::unique_ptr<Ops> ops, make_ops(OpSet::kFast, &team, path == Path::kAvx2 ? CpuPath::kAvx2 : CpuPath::kAvx512));
  const std::vector<float> x = values(size_t{kTokens} * 8448), gates = values(size_t{kTokens} * 256), w = values(size_t{4} * 8448, 0.3f),
                           a(128, -0.5f);
  std::vector<float> y(size_t{kTokens} * 8448);
  const DeltaArgs delta{16, 32, 128, 128, a.data(), w.data(), false, 1e-6f, 0.088f};
  const SsmArgs ssm{128, 64, 1, 128, a.data(), w.data(), w.data()};
  const ShortConvArgs conv{8192, 4, w.data(), nullptr, true}, short_conv{2048, 3, w.data(), nullptr, false};
  const auto conv_of = [&](const ShortConvArgs& args) {
    return [&](const Registers& r, const Batch& b) { ops->short_conv(x.data(), args, r, b, y.data()); };
  };
  const Model models[] = {
      {"delta rule, 32 heads of 128 x 128", registers_layout(DType::kF32, 128, 32 * 128), 36, 4,
       [&](const Registers& r, const Batch& b) { ops->delta_scan(x.data(), gates.data(), gates.data() + 7, delta, r, b, y.data()); }},
      {"Mamba2, 128 heads of 64 x 128", registers_layout(DType::kF32, 64, 128 * 128), 36, 3,
       [&](const Registers& r, const Batch& b) { ops->ssm_scan(x.data(), gates.data(), ssm, r, b, y.data()); }},
      {"convolution, 8192 channels, 4 taps", registers_layout(DType::kBF16, 8192, 3), 36, 0, conv_of(conv)},
      {"convolution, 2048 channels, 3 taps", registers_layout(DType::kBF16, 2048, 2), 10, 0, conv_of(short_conv)},
  };
  for (const Model& m : models) CARREL_TRY(bench(m, team, path));
  return {};
}

}  // namespace
}  // namespace carrel::cpu

int main(int argc, char** argv) {
  using namespace carrel;
  ThreadTeam team(argc > 1 ? std::atoi(argv[1]) : 2);
  const cpu::Path path = argc > 2 && std::strcmp(argv[2], "avx2") == 0 ? cpu::Path::kAvx2 : cpu::best_path();
  std::printf("%d threads, %s\n", team.size(), std::string(cpu::to_string(path)).c_str());
  if (const Status s = cpu::run(team, path); !s) {
    std::fprintf(stderr, "%s\n", s.error().text().c_str());
    return 1;
  }
  return 0;
}
