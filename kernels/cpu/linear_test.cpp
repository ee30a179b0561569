#include "kernels/cpu/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>

#include "kernels/blocks.h"
#include "kernels/float8.h"

namespace carrel::cpu {
namespace {

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0, DType::kQ4_0,  DType::kQ4_1,  DType::kQ5_0,
                            DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kMXFP4, DType::kF8E4M3};

/// A packed matrix of random codes (all codes occur) with scales around 0.01.
struct Weights {
  Weights(DType type, int64_t n_rows, int64_t n_cols, std::mt19937& rng) {
    std::normal_distribution<float> normal;
    std::vector<std::byte> rows(bytes_of(type, static_cast<size_t>(n_rows * n_cols)));
    for (size_t at = 0; at < rows.size(); at += 4) {
      const auto bits = static_cast<uint32_t>(rng());
      std::memcpy(&rows[at], &bits, std::min<size_t>(4, rows.size() - at));
    }
    if (type == DType::kF8E4M3) {
      make_f8(rows, n_rows, n_cols, rng);
      return;
    }
    const auto size = static_cast<size_t>(block_shape(type).n_bytes);
    for (size_t at = 0; at < rows.size(); at += size) {
      const float v = normal(rng) * 0.05f;
      const uint16_t d = f32_to_f16(v), m = f32_to_f16(normal(rng) * 0.05f), b = f32_to_bf16(v);
      const bool plain = block_shape(type).n_values == 1;
      if (type == DType::kF32) std::memcpy(&rows[at], &v, 4);
      if (plain && type != DType::kF32) std::memcpy(&rows[at], type == DType::kF16 ? &d : &b, 2);
      if (type == DType::kMXFP4) rows[at] = static_cast<std::byte>(113 + rng() % 10);
      if (!plain && type != DType::kMXFP4) std::memcpy(&rows[at + (type == DType::kQ6_K ? 208 : 0)], &d, 2);
      if (!plain && layout_has_min(type)) std::memcpy(&rows[at + 2], &m, 2);
    }
    blob.resize(packed_bytes(form_of(type), n_rows, n_cols));
    EXPECT_TRUE(pack_matrix(type, rows, n_rows, n_cols, form_of(type), blob));
    m = {form_of(type), n_rows, n_cols, blob.data()};
  }
  void make_f8(std::vector<std::byte>& codes, int64_t n_rows, int64_t n_cols, std::mt19937& rng) {
    for (std::byte& c : codes)
      if (is_e4m3_nan(static_cast<uint8_t>(c))) c = std::byte{0};
    std::vector<float> scales(static_cast<size_t>(n_rows * ((n_cols + 127) / 128)));
    for (float& s : scales) s = std::normal_distribution<float>()(rng) * 0.001f;
    blob.resize(packed_bytes(Form::kF8, n_rows, n_cols));
    EXPECT_TRUE(pack_f8(codes, scales, n_rows, n_cols, Form::kF8, blob));
    m = {Form::kF8, n_rows, n_cols, blob.data()};
  }
  static bool layout_has_min(DType t) { return t == DType::kQ4_1 || t == DType::kQ5_1 || t == DType::kQ4_K || t == DType::kQ5_K; }

  std::vector<std::byte> blob;
  Matrix m;
};

std::vector<float> random_floats(size_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& f : v) f = normal(rng) * (rng() % 50 == 0 ? 20.0f : 1.0f);
  return v;
}

std::vector<Path> simd_paths() {
  std::vector<Path> paths = {Path::kAvx2};
  if (path_available(Path::kAvx512)) {
    paths.push_back(Path::kAvx512);
  } else {
    std::printf("skipped: AVX-512 products, this machine lacks AVX-512 with VNNI and BF16\n");
  }
  return paths;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Linear, every_path_thread_count_and_batch_gives_the_same_bits) {
  std::mt19937 rng(11);
  Scratch scratch;
  std::vector<std::unique_ptr<ThreadTeam>> teams;
  for (int n = 1; n <= 4; n++) teams.push_back(std::make_unique<ThreadTeam>(n));
  for (const DType type : kTypes) {
    const int unit = block_shape(type).n_values;
    for (int n_tokens = 1; n_tokens <= 33; n_tokens += n_tokens < 14 ? 1 : 3) {
      const int64_t n_rows = 1 + static_cast<int64_t>(rng() % 150);
      const int64_t n_cols =
          unit == 1 ? 1 + static_cast<int64_t>(rng() % 160) : unit * (1 + static_cast<int64_t>(rng() % (unit == 32 ? 40 : 5)));
      const int64_t xs = n_cols + static_cast<int64_t>(rng() % 9), ys = n_rows + static_cast<int64_t>(rng() % 7);
      const Weights w(type, n_rows, n_cols, rng);
      const std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * xs), rng),
                               b = random_floats(static_cast<size_t>(n_rows), rng);
      const float* bias = rng() % 2 == 0 ? b.data() : nullptr;
      std::vector<float> want(static_cast<size_t>(n_tokens * ys), 7.0f);  // 7: what lies between the rows must stay
      linear_packed(w.m, bias, x.data(), xs, n_tokens, want.data(), ys, nullptr, Path::kScalar, scratch);
      for (const Path path : simd_paths()) {
        const std::string what = std::string(to_string(type)) + " " + std::string(to_string(path)) + " rows " + std::to_string(n_rows) +
                                 " cols " + std::to_string(n_cols) + " tokens " + std::to_string(n_tokens);
        for (const auto& team : teams) {
          std::vector<float> got(want.size(), 7.0f);
          linear_packed(w.m, bias, x.data(), xs, n_tokens, got.data(), ys, team.get(), path, scratch);
          ASSERT_TRUE(same_bits(want, got)) << what << " threads " << team->size();
        }
        std::vector<float> alone(want.size(), 7.0f);
        for (int t = 0; t < n_tokens; t++)
          linear_packed(w.m, bias, x.data() + t * xs, xs, 1, alone.data() + t * ys, ys, nullptr, path, scratch);
        ASSERT_TRUE(same_bits(want, alone)) << what << " one by one";
      }
    }
  }
}

TEST(Linear, large_products_cross_every_chunk_border) {
  std::mt19937 rng(5);
  Scratch scratch;
  ThreadTeam team(3);
  for (const DType type : kTypes) {
    const int64_t n_rows = 83, n_cols = 1280;
    const int n_tokens = 403;
    const Weights w(type, n_rows, n_cols, rng);
    const std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * n_cols), rng);
    std::vector<float> want(static_cast<size_t>(n_tokens * n_rows));
    for (int t = 0; t < n_tokens; t++)
      linear_packed(w.m, nullptr, &x[static_cast<size_t>(t * n_cols)], n_cols, 1, &want[static_cast<size_t>(t * n_rows)], n_rows, nullptr,
                    Path::kAvx2, scratch);
    for (const Path path : simd_paths()) {
      std::vector<float> got(want.size());
      linear_packed(w.m, nullptr, x.data(), n_cols, n_tokens, got.data(), n_rows, &team, path, scratch);
      ASSERT_TRUE(same_bits(want, got)) << to_string(type) << " " << to_string(path);
    }
  }
}

TEST(Linear, agrees_with_float64_on_dequantized_weights) {
  std::mt19937 rng(9);
  Scratch scratch;
  for (const DType type : kTypes) {
    const int64_t n_rows = 40, n_cols = 512;
    const Weights w(type, n_rows, n_cols, rng);
    const std::vector<float> x = random_floats(static_cast<size_t>(n_cols), rng);
    std::vector<float> y(static_cast<size_t>(n_rows)), row(static_cast<size_t>(n_cols));
    linear_packed(w.m, nullptr, x.data(), n_cols, 1, y.data(), n_rows, nullptr, best_path(), scratch);
    for (int64_t r = 0; r < n_rows; r++) {
      dequantize_row(w.m, r, row);
      double dot = 0, weight = 0, top = 0;
      for (size_t k = 0; k < row.size(); k++) {
        dot += static_cast<double>(row[k]) * x[k];
        weight += static_cast<double>(row[k]) * row[k];
        top = std::max(top, std::fabs(static_cast<double>(x[k])));
      }
      // Rounding errors of the activations, at most half a step of 1/127 of a group's top each, are independent: six deviations.
      const double bound = block_shape(type).n_values == 1 ? 1e-3 : 6 * std::sqrt(weight / 12) * top / 127;
      EXPECT_NEAR(y[static_cast<size_t>(r)], dot, bound) << to_string(type) << " row " << r;
    }
  }
}

float act_of(Act act, float gate, float up) {
  return (act == Act::kSilu ? 2.0f : 3.0f) * gate - up;
}
void apply(Act act, const float* gate, const float* up, float limit, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i++) y[i] = act_of(act, gate[i], up[i]) + limit;
}

TEST(Linear, products_of_one_x_are_the_same_together_and_alone) {
  std::mt19937 rng(12);
  Scratch scratch;
  ThreadTeam team(2);
  const int64_t n_cols = 512;
  for (int round = 0; round < 24; round++) {
    const int n_tokens = 1 + static_cast<int>(rng() % (round % 2 == 0 ? 20 : 600));
    const std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * n_cols), rng);
    std::vector<std::unique_ptr<Weights>> weights;
    std::vector<std::vector<float>> want, got, add, bias;
    const size_t n = 1 + rng() % 4;
    for (size_t i = 0; i < n; i++) {
      weights.push_back(std::make_unique<Weights>(kTypes[rng() % 3 == 0 ? rng() % std::size(kTypes) : 3 + round % 9],
                                                  1 + static_cast<int64_t>(rng() % 90), n_cols, rng));
      const auto size = static_cast<size_t>(n_tokens * weights[i]->m.n_rows);
      add.push_back(random_floats(size, rng));
      bias.push_back(random_floats(static_cast<size_t>(weights[i]->m.n_rows), rng));
      want.emplace_back(size);
      got.emplace_back(size);
      linear_packed(weights[i]->m, i % 2 == 0 ? bias[i].data() : nullptr, x.data(), n_cols, n_tokens, want[i].data(), weights[i]->m.n_rows,
                    nullptr, Path::kAvx2, scratch);
      for (size_t j = 0; i == 1 && j < size; j++) want[i][j] += add[i][j];
    }
    for (const Path path : simd_paths()) {
      std::vector<LinearOut> outs;
      for (size_t i = 0; i < n; i++) {
        outs.push_back({weights[i]->m, i % 2 == 0 ? bias[i].data() : nullptr, got[i].data(), weights[i]->m.n_rows});
        if (i == 1) outs[i].add = add[i].data(), outs[i].sum = got[i].data();
      }
      linear_packed(outs, x.data(), n_cols, n_tokens, &team, path, scratch);
      for (size_t i = 0; i < n; i++)
        ASSERT_TRUE(same_bits(want[i], got[i])) << to_string(weights[i]->m.form) << " " << to_string(path) << " tokens " << n_tokens;
    }
  }
}

TEST(Linear, gating_of_two_products_is_the_same_as_one_by_one) {
  std::mt19937 rng(13);
  Scratch scratch;
  ThreadTeam team(2);
  const int64_t n_cols = 512;
  for (const DType type : kTypes) {
    for (const int n_tokens : {1, 7, 8, 9, 300}) {
      const int64_t n_rows = 16 + static_cast<int64_t>(rng() % 60);
      const Weights gate(type, n_rows, n_cols, rng), up(type, n_rows, n_cols, rng);
      const std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * n_cols), rng),
                               bias = random_floats(static_cast<size_t>(n_rows), rng);
      std::vector<float> a(static_cast<size_t>(n_tokens * n_rows)), b(a.size()), want(a.size()), got(a.size());
      linear_packed(gate.m, bias.data(), x.data(), n_cols, n_tokens, a.data(), n_rows, nullptr, Path::kAvx2, scratch);
      linear_packed(up.m, nullptr, x.data(), n_cols, n_tokens, b.data(), n_rows, nullptr, Path::kAvx2, scratch);
      apply(Act::kGeluTanh, a.data(), b.data(), 0.5f, static_cast<int64_t>(a.size()), want.data());
      for (const Path path : simd_paths()) {
        gated_packed({gate.m, bias.data(), a.data(), n_rows}, {up.m, nullptr, b.data(), n_rows}, {Act::kGeluTanh, 0.5f, got.data(), apply},
                     x.data(), n_cols, n_tokens, &team, path, scratch);
        ASSERT_TRUE(same_bits(want, got)) << to_string(type) << " " << to_string(path) << " tokens " << n_tokens;
      }
    }
  }
}

TEST(Linear, feed_forward_is_the_same_as_one_by_one) {
  std::mt19937 rng(14);
  Scratch scratch;
  ThreadTeam team(2);
  for (const DType type : kTypes) {
    constexpr int64_t n_cols = 512;
    std::vector<std::pair<Weights, Weights>> wide;  // gate and up of 1, 2 and 3 times 256 rows; to draw them costs more than to multiply
    for (const int64_t n : {256, 512, 768}) wide.emplace_back(Weights(type, n, n_cols, rng), Weights(type, n, n_cols, rng));
    for (const DType down_type : {type, DType::kQ8_0, DType::kQ6_K, DType::kBF16}) {
      for (const int n_tokens : {1, 8, 9, 33, 300}) {
        const auto& [gate, up] = wide[rng() % 3];
        const int64_t n_inner = gate.m.n_rows, n_rows = 16 + static_cast<int64_t>(rng() % 60);
        const Weights down(down_type, n_rows, n_inner, rng);
        const std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * n_cols), rng),
                                 bias = random_floats(static_cast<size_t>(n_inner), rng),
                                 add = random_floats(static_cast<size_t>(n_tokens * n_rows), rng);
        std::vector<float> a(static_cast<size_t>(n_tokens * n_inner)), b(a.size()), mid(a.size()), want(add.size()), got(add.size());
        const Gating gating{Act::kGeluTanh, 0.5f, mid.data(), apply};
        const auto run = [&](auto feed, std::vector<float>& sum, Path path) {
          const LinearOut out{down.m, nullptr, sum.data(), n_rows, add.data(), sum.data()};
          feed({gate.m, nullptr, a.data(), n_inner}, {up.m, bias.data(), b.data(), n_inner}, gating, out, x.data(), n_cols, n_tokens, &team,
               path, scratch);
        };
        run(
            [](const LinearOut& g, const LinearOut& u, const Gating& act, const LinearOut& out, const float* in, int64_t stride, int n,
               ThreadTeam* threads, Path path, Scratch& s) {
              gated_packed(g, u, act, in, stride, n, threads, path, s);
              linear_packed(std::span(&out, 1), act.y, g.w.n_rows, n, threads, path, s);
            },
            want, Path::kAvx2);
        for (const Path path : simd_paths()) {
          run(feed_forward_packed, got, path);
          ASSERT_TRUE(same_bits(want, got)) << to_string(type) << " " << to_string(down_type) << " " << to_string(path) << " tokens "
                                            << n_tokens;
        }
      }
    }
  }
}

TEST(Linear, fp8_weights_give_the_bits_of_the_same_weights_in_float32) {
  std::mt19937 rng(15);
  Scratch scratch;
  ThreadTeam team(2);
  for (const int n_tokens : {1, 2, 5, 13, 200}) {
    const int64_t n_rows = 1 + static_cast<int64_t>(rng() % 90), n_cols = 1 + static_cast<int64_t>(rng() % 500);
    const Weights w(DType::kF8E4M3, n_rows, n_cols, rng);
    std::vector<std::byte> wide(packed_bytes(Form::kF32, n_rows, n_cols));
    ASSERT_TRUE(repack_matrix(w.m, Form::kF32, wide));
    const std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * n_cols), rng);
    std::vector<float> want(static_cast<size_t>(n_tokens * n_rows)), got(want.size());
    linear_f32({Form::kF32, n_rows, n_cols, wide.data()}, nullptr, x.data(), n_cols, n_tokens, want.data(), n_rows, nullptr, best_path());
    for (const Path path : simd_paths()) {
      linear_packed(w.m, nullptr, x.data(), n_cols, n_tokens, got.data(), n_rows, &team, path, scratch);
      ASSERT_TRUE(same_bits(want, got)) << to_string(path) << " tokens " << n_tokens << " cols " << n_cols;
    }
  }
}

TEST(Linear, every_scale_of_fp4_is_exact) {
  // One code and one activation at a time: y = value · 127 · (x / 127) without any rounding, down to denormals.
  Scratch scratch;
  for (int e = 0; e <= kLargestX4Scale; e++) {
    std::vector<std::byte> rows(size_t{16} * 17), blob(packed_bytes(Form::kX4, 16, 32));
    for (size_t r = 0; r < 16; r++) rows[17 * r] = static_cast<std::byte>(e), rows[17 * r + 1] = static_cast<std::byte>(r);
    ASSERT_TRUE(pack_matrix(DType::kMXFP4, rows, 16, 32, Form::kX4, blob));
    std::vector<float> x(32), y(16);
    x[0] = 127;
    for (const Path path : {Path::kScalar, Path::kAvx2, best_path()}) {
      linear_packed({Form::kX4, 16, 32, blob.data()}, nullptr, x.data(), 32, 1, y.data(), 16, nullptr, path, scratch);
      for (size_t r = 0; r < 16; r++)
        ASSERT_EQ(y[r], static_cast<float>(std::ldexp(static_cast<double>(e2m1_to_f32(static_cast<uint8_t>(r))), e - 127) * 127))
            << to_string(path) << " scale " << e << " code " << r;
    }
  }
}

TEST(Linear, f32_product_needs_no_scratch_and_is_the_same) {
  std::mt19937 rng(2);
  Scratch scratch;
  const Weights w(DType::kF32, 37, 150, rng);
  const std::vector<float> x = random_floats(size_t{9} * 150, rng);
  std::vector<float> a(size_t{9} * 37), b(a.size());
  linear_packed(w.m, nullptr, x.data(), 150, 9, a.data(), 37, nullptr, Path::kAvx2, scratch);
  linear_f32(w.m, nullptr, x.data(), 150, 9, b.data(), 37, nullptr, best_path());
  EXPECT_TRUE(same_bits(a, b));
  EXPECT_TRUE(scratch.words.empty());
}

TEST(Linear, a_token_that_is_not_finite_poisons_itself_only) {
  std::mt19937 rng(4);
  Scratch scratch;
  for (const DType type : {DType::kQ4_1, DType::kQ8_0, DType::kQ6_K, DType::kMXFP4, DType::kF8E4M3, DType::kBF16}) {
    const Weights w(type, 32, 256, rng);
    std::vector<float> x = random_floats(size_t{3} * 256, rng);
    std::vector<float> clean(size_t{3} * 32), y(clean.size());
    for (const Path path : simd_paths())
      for (const float bad : {NAN, INFINITY}) {
        linear_packed(w.m, nullptr, x.data(), 256, 3, clean.data(), 32, nullptr, path, scratch);
        std::vector<float> dirty = x;
        dirty[256 + 77] = bad;
        linear_packed(w.m, nullptr, dirty.data(), 256, 3, y.data(), 32, nullptr, path, scratch);
        EXPECT_EQ(std::memcmp(clean.data(), y.data(), 32 * 4), 0);
        EXPECT_EQ(std::memcmp(&clean[64], &y[64], 32 * 4), 0);
        EXPECT_FALSE(std::isfinite(y[32])) << to_string(type);
      }
  }
}

TEST(Linear, extreme_activations_stay_equal_on_every_path) {
  std::mt19937 rng(6);
  Scratch scratch;
  for (const DType type : {DType::kQ4_1, DType::kQ5_0, DType::kQ8_0, DType::kQ6_K, DType::kMXFP4}) {
    const Weights w(type, 16, 256, rng);
    for (const float scale : {0.0f, 1e-40f, 1e-31f, 1e-29f, 1e30f}) {
      std::vector<float> x = random_floats(256, rng), want(16), got(16);
      for (float& v : x) v *= scale;
      linear_packed(w.m, nullptr, x.data(), 256, 1, want.data(), 16, nullptr, Path::kScalar, scratch);
      for (const Path path : simd_paths()) {
        linear_packed(w.m, nullptr, x.data(), 256, 1, got.data(), 16, nullptr, path, scratch);
        EXPECT_TRUE(same_bits(want, got)) << to_string(type) << " scale " << scale;
      }
      EXPECT_TRUE(std::isfinite(want[0]));
    }
  }
}

}  // namespace
}  // namespace carrel::cpu
