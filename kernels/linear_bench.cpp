// Prints what the matrix products reach beside the bounds measured in the same run, interleaved, medians: share of read bandwidth (on the
// file's bytes) for 1 and 8 tokens, share of the path's own peak for 512. Usage: linear_bench [n_threads] [scalar-free path: avx2 |
// avx512]. Matrices are those of a SmolLM2 block (K types: rows of 512 and 1536), enough of them to exceed the caches.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/peak.h"
#include "kernels/memory.h"

namespace carrel::cpu {
namespace {

constexpr int kRounds = 9;

struct Shape {
  int64_t n_rows, n_cols;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

/// One layer's matrices of a type, then copies of them up to about `target_bytes`: the loops read it from end to end as a model does.
struct Model {
  HugeBuffer memory;
  std::vector<Matrix> matrices;
  size_t file_bytes = 0;
  int64_t n_weights = 0;
};

Result<Model> build(DType type, size_t target_bytes) {
  const bool k_type = block_shape(type).n_values == 256;
  const int64_t narrow = k_type ? 512 : 576;
  const std::vector<Shape> layer = {{576, narrow},  {192, narrow},  {192, narrow}, {576, narrow},
                                    {1536, narrow}, {1536, narrow}, {576, 1536}};
  size_t packed = 0, file = 0;
  for (const Shape& s : layer) {
    packed += (packed_bytes(form_of(type), s.n_rows, s.n_cols) + 63) / 64 * 64;
    file += bytes_of(type, static_cast<size_t>(s.n_rows * s.n_cols));
  }
  const size_t copies = std::max<size_t>(1, target_bytes / file);
  Model m;
  CARREL_ASSIGN(m.memory, HugeBuffer::allocate(packed * copies));
  std::byte* at = m.memory.data();
  for (size_t c = 0; c < copies; c++)
    for (const Shape& s : layer) {
      const size_t n = packed_bytes(form_of(type), s.n_rows, s.n_cols);
      for (size_t i = 0; i < n; i++) at[i] = static_cast<std::byte>(0x20 | ((i * 2654435761u) >> 13 & 0x1F));  // no NaN, no denormal
      m.matrices.push_back({form_of(type), s.n_rows, s.n_cols, at});
      m.n_weights += s.n_rows * s.n_cols;
      at += (n + 63) / 64 * 64;
    }
  m.file_bytes = file * copies;
  return m;
}

double seconds(const Model& m, size_t n_matrices, int n_tokens, const std::vector<float>& x, std::vector<float>& y, ThreadTeam& team,
               Path path, Scratch& scratch) {
  Env* env = Env::real();
  const int64_t from = env->mono_ns();
  for (size_t i = 0; i < n_matrices; i++)
    linear_packed(m.matrices[i], nullptr, x.data(), m.matrices[i].n_cols, n_tokens, y.data(), m.matrices[i].n_rows, &team, path, scratch);
  return static_cast<double>(env->mono_ns() - from) / 1e9;
}

Status bench_type(DType type, ThreadTeam& team, Path path) {
  CARREL_ASSIGN(const Model m, build(type, size_t{400} << 20));
  Env* env = Env::real();
  Scratch scratch;
  std::vector<float> x(size_t{512} * 1536), y(size_t{512} * 1536);
  for (size_t i = 0; i < x.size(); i++) x[i] = static_cast<float>((i * 40503) % 2001) / 1000.0f - 1;
  const bool plain = block_shape(type).n_values == 1;
  std::vector<double> one, eight, many, bandwidth, peak;
  const size_t per_layer = 7;
  double layer_ops = 0;
  for (size_t i = 0; i < per_layer; i++) layer_ops += 2.0 * 512 * static_cast<double>(m.matrices[i].n_rows * m.matrices[i].n_cols);
  for (int round = 0; round < kRounds; round++) {
    bandwidth.push_back(read_bandwidth(env, team, std::span<const std::byte>(m.memory.span())));
    one.push_back(static_cast<double>(m.file_bytes) / seconds(m, m.matrices.size(), 1, x, y, team, path, scratch));
    eight.push_back(static_cast<double>(m.file_bytes) / seconds(m, m.matrices.size(), 8, x, y, team, path, scratch));
    peak.push_back(plain ? f32_fma_peak(env, team, path) : int8_dot_peak(env, team, path));
    many.push_back(2 * layer_ops / seconds(m, 2 * per_layer, 512, x, y, team, path, scratch));
  }
  std::printf("%-5s 1 token %6.1f GB/s = %.2f of %5.1f | 8 tokens %6.1f GB/s = %.2f | 512 tokens %7.0f GOP/s = %.2f of %6.0f\n",
              std::string(to_string(type)).c_str(), median(one) / 1e9, median(one) / median(bandwidth), median(bandwidth) / 1e9,
              median(eight) / 1e9, median(eight) / median(bandwidth), median(many) / 1e9, median(many) / median(peak), median(peak) / 1e9);
  return {};
}

}  // namespace
}  // namespace carrel::cpu

int main(int argc, char** argv) {
  using namespace carrel;
  ThreadTeam team(argc > 1 ? std::atoi(argv[1]) : 2);
  const cpu::Path path = argc > 2 && std::strcmp(argv[2], "avx2") == 0 ? cpu::Path::kAvx2 : cpu::best_path();
  std::printf("%d threads, %s\n", team.size(), std::string(cpu::to_string(path)).c_str());
  for (const DType type : {DType::kQ4_1, DType::kQ8_0, DType::kQ5_0, DType::kQ4_K, DType::kQ6_K, DType::kMXFP4, DType::kF8E4M3, DType::kBF16}) {
    if (argc > 3 && to_string(type) != argv[3]) continue;
    if (const Status s = cpu::bench_type(type, team, path); !s) {
      std::fprintf(stderr, "%s\n", s.error().text().c_str());
      return 1;
    }
  }
  return 0;
}
