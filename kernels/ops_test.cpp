// Ops that know one token at a time, experts and the canary: against the reference within stated bounds, and their bits on every path. Ops
// over states: ops_state_test.cpp.
#include "kernels/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/test_world.h"

namespace carrel {
namespace {

using test::noise;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Act kActs[] = {Act::kSilu, Act::kGeluTanh, Act::kSigmoid, Act::kIdentity, Act::kSwigluOai};

/// The sets under test: both paths where the machine has them, several teams.
struct Sets {
  ThreadTeam one{1}, three{3};
  std::unique_ptr<Ops> reference = make_ops(OpSet::kReference, nullptr).value();
  std::unique_ptr<Ops> exact = make_ops(OpSet::kExact, &one, CpuPath::kAvx2).value();
  std::unique_ptr<Ops> other;
  Sets() {
    const bool wide = cpu::path_available(cpu::Path::kAvx512);
    if (!wide) std::puts("skipped: AVX-512 against AVX2 (this machine has no AVX-512)");
    other = make_ops(OpSet::kExact, &three, wide ? CpuPath::kAvx512 : CpuPath::kAvx2).value();
  }
};

void expect_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * 4), 0);
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, float bound) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_LE(std::fabs(a[i] - b[i]), bound * (1 + std::fabs(b[i]))) << "element " << i;
}

TEST(Ops, elements_have_the_bits_of_the_scalar_functions) {
  Sets sets;
  for (const int n : {1, 7, 16, 33, 100003}) {
    std::vector<float> x = noise(1, static_cast<size_t>(n), 30.0f), up = noise(2, static_cast<size_t>(n)), got(x.size()), other(x.size()),
                       want(x.size());
    x[0] = kNan;
    for (const Act act : kActs) {
      for (const float limit : {0.0f, 0.7f}) {
        sets.exact->gated(act, x.data(), up.data(), limit, n, got.data());
        sets.other->gated(act, x.data(), up.data(), limit, n, other.data());
        sets.reference->gated(act, x.data(), up.data(), limit, n, want.data());
        expect_bits(got, other);
        EXPECT_TRUE(std::isnan(got[0]));
        got[0] = want[0] = 0;
        expect_bits(got, want);
      }
    }
    got = other = x;
    sets.exact->softcap(7.5f, n, got.data());
    sets.other->softcap(7.5f, n, other.data());
    expect_bits(got, other);
    for (int i = 1; i < n; ++i) ASSERT_EQ(got[static_cast<size_t>(i)], cpu::tanh_of(x[static_cast<size_t>(i)] / 7.5f) * 7.5f);
    for (const float scale : {1.0f, 0.22f}) {
      sets.exact->add(x.data(), up.data(), scale, n, got.data());
      sets.other->add(x.data(), up.data(), scale, n, other.data());
      expect_bits(got, other);
      for (int i = 1; i < n; ++i) {
        ASSERT_EQ(got[static_cast<size_t>(i)], std::fmaf(scale, up[static_cast<size_t>(i)], x[static_cast<size_t>(i)]));
      }
    }
    got = other = up;
    sets.exact->scale(0.3f, n, got.data());
    sets.other->scale(0.3f, n, other.data());
    expect_bits(got, other);
    ASSERT_EQ(got.back(), 0.3f * up.back());
    for (const int width : {1, n}) {
      sets.exact->gate_rows(x.data(), up.data(), n / width, width, got.data());
      sets.other->gate_rows(x.data(), up.data(), n / width, width, other.data());
      sets.reference->gate_rows(x.data(), up.data(), n / width, width, want.data());
      expect_bits(got, other);
      got[0] = want[0] = 0;
      if (width == 1) expect_bits(got, want);
    }
  }
}

TEST(Ops, norms_and_rotation) {
  Sets sets;
  for (const int dim : {1, 5, 16, 64, 100, 576}) {
    const int n_rows = dim == 576 ? 301 : 3;
    const std::vector<float> x = noise(3, static_cast<size_t>(n_rows * dim), 5.0f), w = noise(4, static_cast<size_t>(dim));
    std::vector<float> got(x.size()), other(x.size()), want(x.size());
    for (const float* weight : {w.data(), static_cast<const float*>(nullptr)}) {
      sets.exact->rms_norm(x.data(), weight, 1e-6f, n_rows, dim, got.data(), 1);
      sets.other->rms_norm(x.data(), weight, 1e-6f, n_rows, dim, other.data(), 1);
      sets.reference->rms_norm(x.data(), weight, 1e-6f, n_rows, dim, want.data(), 1);
      expect_bits(got, other);
      expect_near(got, want, 1e-6f);
    }
    const std::vector<float> several = noise(17, static_cast<size_t>(2 * dim));  // weights of rows in turn
    sets.exact->rms_norm(x.data(), several.data(), 1e-6f, n_rows, dim, got.data(), 2);
    sets.other->rms_norm(x.data(), several.data(), 1e-6f, n_rows, dim, other.data(), 2);
    sets.reference->rms_norm(x.data(), several.data(), 1e-6f, n_rows, dim, want.data(), 2);
    expect_bits(got, other);
    expect_near(got, want, 1e-6f);
  }
  for (const int dims : {2, 10, 32, 64}) {
    RopeSpec spec;
    for (int i = 0; i < dims / 2; ++i) spec.inv_freq.push_back(std::pow(10000.0, -2.0 * i / dims));
    const std::vector<int32_t> positions = {0, 1, 17, 131071};
    RopeTable table;
    make_rope_table(spec, positions, table);
    for (size_t t = 0; t < positions.size(); ++t) {
      for (size_t i = 0; i < spec.inv_freq.size(); ++i) {
        EXPECT_EQ(table.cos[t * spec.inv_freq.size() + i], static_cast<float>(std::cos(positions[t] * spec.inv_freq[i])));
        EXPECT_EQ(table.sin[t * spec.inv_freq.size() + i], static_cast<float>(std::sin(positions[t] * spec.inv_freq[i])));
      }
    }
    const std::vector<float> x = noise(5, static_cast<size_t>(4 * 3 * (dims + 3)));
    for (const bool pairs : {false, true}) {
      for (const bool inverse : {false, true}) {
        const RopeArgs args{3, dims + 3, 2, dims, pairs, inverse};
        std::vector<float> got = x, other = x, want = x;
        sets.exact->rope(got.data(), args, table, 4);
        sets.other->rope(other.data(), args, table, 4);
        sets.reference->rope(want.data(), args, table, 4);
        expect_bits(got, other);
        expect_near(got, want, 3e-7f);
        const RopeArgs back{3, dims + 3, 2, dims, pairs, !inverse};
        sets.exact->rope(got.data(), back, table, 4);
        expect_near(got, x, 1e-6f);
      }
    }
  }
}

TEST(Ops, hyper_connections) {
  Sets sets;
  for (const auto& [n, width] : {std::pair{2, 128}, {4, 33}, {3, 7}, {kMaxStreams, 5}}) {
    constexpr int kTokens = 70;
    const std::vector<float> fn = noise(6, static_cast<size_t>((2 + n) * n * n * width), 0.2f), scale = noise(7, 3),
                             base = noise(8, static_cast<size_t>((2 + n) * n));
    const std::vector<float> x = noise(9, static_cast<size_t>(kTokens * n * width), 3.0f),
                             f = noise(10, static_cast<size_t>(kTokens * width));
    const HcArgs args{n, width, 20, 1e-6f, 1e-6f, fn.data(), scale.data(), base.data()};
    const auto all = [&](Ops& ops, int first, int n_tokens) {
      const auto count = static_cast<size_t>(n_tokens);
      std::vector<float> y(count * static_cast<size_t>(width)), post(count * static_cast<size_t>(n)),
          comb(post.size() * static_cast<size_t>(n)), out(y.size() * static_cast<size_t>(n)), head(y);
      ops.hc_pre(x.data() + first * n * width, args, n_tokens, y.data(), post.data(), comb.data());
      ops.hc_post(f.data() + first * width, x.data() + first * n * width, post.data(), comb.data(), n, width, n_tokens, out.data());
      ops.hc_head(x.data() + first * n * width, args, n_tokens, head.data());
      for (const auto* v : {&post, &comb, &out, &head}) y.insert(y.end(), v->begin(), v->end());
      return y;
    };
    const std::vector<float> got = all(*sets.exact, 0, kTokens);
    expect_bits(got, all(*sets.other, 0, kTokens));
    expect_near(got, all(*sets.reference, 0, kTokens), 3e-6f);
    const std::vector<float> one = all(*sets.other, 41, 1);
    ASSERT_EQ(std::memcmp(one.data(), got.data() + 41 * width, static_cast<size_t>(width) * 4), 0);
    for (int k = 0; k < n; ++k) {  // columns of comb sum to 1
      float sum = 0;
      for (int j = 0; j < n; ++j) sum += one[static_cast<size_t>(width + n + j * n + k)];
      EXPECT_NEAR(sum, 1.0f, 1e-5f);
    }
  }
}

TEST(Ops, routing_breaks_ties_to_the_lower_index_and_ranks_nan_last) {
  Sets sets;
  const std::vector<float> scores = {1, 3, 3, 3, 0, -0.0f, 0, -1, kNan, 2, kNan, kNan};
  const std::vector<int32_t> tokens = {0, 1, 2};
  for (Ops* ops : {sets.reference.get(), sets.exact.get(), sets.other.get()}) {
    std::vector<int32_t> ids(6);
    std::vector<float> weights(6);
    ops->route({4, 2, RouteScore::kSqrtSoftplus, nullptr, nullptr, true, 1.0f}, scores.data(), tokens, ids.data(), weights.data());
    EXPECT_EQ(ids, (std::vector<int32_t>{1, 2, 0, 1, 0, 1})) << ops->name();
    EXPECT_FLOAT_EQ(weights[0] + weights[1], 1.0f);
    const std::vector<int32_t> table = {3, 0, 1, 2, 2, 0};  // hash layers: ids come out ascending
    ops->route({4, 2, RouteScore::kSqrtSoftplus, nullptr, table.data(), true, 2.5f}, scores.data(), std::vector<int32_t>{2, 0, 1},
               ids.data(), weights.data());
    EXPECT_EQ(ids, (std::vector<int32_t>{0, 2, 0, 3, 1, 2})) << ops->name();
  }
}

TEST(Ops, routing_agrees) {
  Sets sets;
  constexpr int kExperts = 67, kTop = 6, kTokens = 100;
  const std::vector<float> scores = noise(11, kTokens * kExperts, 4.0f), bias = noise(12, kExperts, 0.3f);
  const std::vector<int32_t> tokens(kTokens, 0);
  for (const RouteScore score : {RouteScore::kSoftmax, RouteScore::kSqrtSoftplus, RouteScore::kSigmoid, RouteScore::kSoftmaxOfChosen}) {
    for (const bool normalize : {true, false}) {
      for (const float* b : {bias.data(), static_cast<const float*>(nullptr)}) {
        const RouteArgs args{kExperts, kTop, score, b, nullptr, normalize, 1.5f, 0.25f};
        std::vector<int32_t> got(kTokens * kTop), other(got), want(got);
        std::vector<float> got_weights(got.size()), other_weights(got.size()), want_weights(got.size());
        sets.exact->route(args, scores.data(), tokens, got.data(), got_weights.data());
        sets.other->route(args, scores.data(), tokens, other.data(), other_weights.data());
        sets.reference->route(args, scores.data(), tokens, want.data(), want_weights.data());
        EXPECT_EQ(got, other);
        EXPECT_EQ(got, want);
        expect_bits(got_weights, other_weights);
        expect_near(got_weights, want_weights, 1e-6f);
        std::vector<int32_t> one(kTop);
        std::vector<float> one_weights(kTop);
        sets.other->route(args, scores.data() + 71 * kExperts, std::span(tokens).first(1), one.data(), one_weights.data());
        EXPECT_EQ(std::memcmp(one.data(), got.data() + 71 * kTop, kTop * 4), 0);
        EXPECT_EQ(std::memcmp(one_weights.data(), got_weights.data() + 71 * kTop, kTop * 4), 0);
      }
    }
  }
}

TEST(Ops, a_nan_score_spoils_the_weights_of_its_token_only_when_it_is_chosen) {
  Sets sets;
  const std::vector<float> scores = {kNan, 3, 1, kNan, kNan, 2};
  const std::vector<int32_t> tokens = {0, 0};
  for (Ops* ops : {sets.reference.get(), sets.exact.get(), sets.other.get()}) {
    std::vector<int32_t> ids(4);
    std::vector<float> weights(4);
    ops->route({3, 2, RouteScore::kSoftmaxOfChosen}, scores.data(), tokens, ids.data(), weights.data());
    EXPECT_EQ(ids, (std::vector<int32_t>{1, 2, 0, 2})) << ops->name();
    EXPECT_FLOAT_EQ(weights[0], 1 / (1 + std::exp(-2.0f))) << ops->name();
    EXPECT_TRUE(std::isnan(weights[2]) && std::isnan(weights[3])) << ops->name();
  }
}

/// Experts in the form a set wants.
struct ExpertWeights {
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::vector<float>> biases;
  std::vector<Expert> experts;

  ExpertWeights(Ops& ops, DType type, int n_experts, int width, int inner, bool biased = false) {
    for (int e = 0; e < n_experts; ++e) {
      experts.push_back({add(ops, type, inner, width, e), add(ops, type, inner, width, e + 100), add(ops, type, width, inner, e + 200)});
      if (!biased) continue;
      experts.back().gate_bias = bias(inner, e);
      experts.back().up_bias = bias(inner, e + 100);
      experts.back().down_bias = bias(width, e + 200);
    }
  }
  const float* bias(int n, int seed) {
    return biases.emplace_back(noise(static_cast<uint64_t>(seed + 600), static_cast<size_t>(n), 2.0f)).data();
  }
  Matrix add(Ops& ops, DType type, int64_t n_rows, int64_t n_cols, int seed) {
    const std::vector<float> values = noise(static_cast<uint64_t>(seed + 300), static_cast<size_t>(n_rows * n_cols), 0.3f);
    const Form form = ops.wanted_form(type == DType::kQ8_0 ? Form::kI8 : form_of(type));
    std::vector<uint16_t> half;
    for (const float v : values) half.push_back(f32_to_bf16(v));
    const bool plain_f32 = type == DType::kQ8_0;
    const auto bytes = plain_f32 ? std::as_bytes(std::span(values)) : std::as_bytes(std::span(half));
    const size_t n = packed_bytes(form, n_rows, n_cols);
    auto& blob = memory.emplace_back(n + 64);
    std::byte* data = blob.data() + (64 - reinterpret_cast<uintptr_t>(blob.data()) % 64) % 64;
    EXPECT_TRUE(pack_matrix(plain_f32 ? DType::kF32 : DType::kBF16, bytes, n_rows, n_cols, form, std::span(data, n)).has_value());
    return {form, n_rows, n_cols, data};
  }
};

TEST(Ops, experts_do_not_depend_on_the_other_tokens) {
  Sets sets;
  constexpr int kExperts = 5, kTop = 2, kTokens = 600, kWidth = 64, kInner = 96;
  const std::vector<float> x = noise(13, kTokens * kWidth), weights = noise(14, kTokens * kTop);
  std::vector<int32_t> ids;
  for (int t = 0; t < kTokens; ++t) {
    const int first = t * 7 % (kExperts - 1);
    ids.push_back(first);
    ids.push_back(first + 1 + t % (kExperts - 1 - first));
  }
  std::vector<float> got(x.size()), want(x.size()), one(kWidth);
  const auto fast_one = make_ops(OpSet::kFast, &sets.one, CpuPath::kAvx2).value(), fast_three = make_ops(OpSet::kFast, &sets.three).value();
  for (const Act act : kActs) {
    const bool biased = act != Act::kSilu;
    const ExpertWeights rows(*sets.reference, DType::kBF16, kExperts, kWidth, kInner, biased);
    sets.reference->experts(rows.experts, act, 1.0f, x.data(), ids.data(), weights.data(), kTop, kTokens, want.data());
    for (const DType type : {DType::kBF16, DType::kQ8_0}) {
      for (const auto& [a, b] : {std::pair{sets.exact.get(), sets.other.get()}, {fast_one.get(), fast_three.get()}}) {
        const ExpertWeights packed(*a, type, kExperts, kWidth, kInner, biased);
        a->experts(packed.experts, act, 1.0f, x.data(), ids.data(), weights.data(), kTop, kTokens, got.data());
        expect_near(got, want, type == DType::kBF16 ? 3e-6f : 0.1f);
        for (const int t : {0, 1, 299, 511, 512, 599}) {
          b->experts(packed.experts, act, 1.0f, x.data() + t * kWidth, ids.data() + t * kTop, weights.data() + t * kTop, kTop, 1,
                     one.data());
          ASSERT_EQ(std::memcmp(one.data(), got.data() + t * kWidth, kWidth * 4), 0) << b->name() << " token " << t;
        }
      }
    }
  }
}

TEST(Ops, products_that_go_together_take_every_gate) {
  Sets sets;
  constexpr int kWidth = 64, kInner = 96, kTokens = 300;
  const auto fast_one = make_ops(OpSet::kFast, &sets.one, CpuPath::kAvx2).value(), fast_three = make_ops(OpSet::kFast, &sets.three).value();
  const std::vector<float> x = noise(17, kTokens * kWidth);
  for (Ops* ops : {sets.exact.get(), sets.other.get(), fast_one.get(), fast_three.get()}) {
    for (const DType type : {DType::kBF16, DType::kQ8_0}) {
      const ExpertWeights weights(*ops, type, 1, kWidth, kInner, true);
      const Expert& w = weights.experts[0];
      for (const Act act : kActs) {
        for (const int n : {1, 3, 7, kTokens}) {
          std::vector<float> gate(static_cast<size_t>(n * kInner)), up(gate), mid(gate), got(gate), y(static_cast<size_t>(n * kWidth)),
              z(y);
          ops->linear(w.gate, w.gate_bias, x.data(), kWidth, n, gate.data(), kInner);
          ops->linear(w.up, w.up_bias, x.data(), kWidth, n, up.data(), kInner);
          ops->gated(act, gate.data(), up.data(), 0.8f, n * kInner, mid.data());
          ops->linear(w.down, w.down_bias, mid.data(), kInner, n, y.data(), kWidth);
          const LinearOut g{w.gate, w.gate_bias, gate.data(), kInner}, u{w.up, w.up_bias, up.data(), kInner};
          ops->gated_linears(g, u, act, 0.8f, x.data(), kWidth, n, got.data());
          expect_bits(got, mid);
          ops->feed_forward(g, u, act, 0.8f, {w.down, w.down_bias, z.data(), kWidth}, x.data(), kWidth, n, got.data());
          expect_bits(z, y);
        }
      }
    }
  }
}

TEST(Ops, embedding_and_products_take_every_form) {
  Sets sets;
  const auto fast = make_ops(OpSet::kFast, &sets.three).value();
  for (Ops* ops : {sets.reference.get(), sets.exact.get(), fast.get()}) {
    const ExpertWeights w(*ops, DType::kBF16, 1, 64, 96);
    const std::vector<int32_t> ids = {95, 0, 3};
    std::vector<float> rows(3 * 64), want(3 * 64);
    ops->embed(w.experts[0].gate, ids, 2.0f, rows.data());
    for (size_t t = 0; t < 3; ++t) dequantize_row(w.experts[0].gate, ids[t], std::span(want).subspan(t * 64, 64));
    for (float& v : want) v *= 2.0f;
    expect_bits(rows, want);
    const std::vector<float> x = noise(15, 3 * 70), bias = noise(16, 96);
    std::vector<float> y(3 * 100, -7.0f);
    ops->linear(w.experts[0].gate, bias.data(), x.data(), 70, 3, y.data(), 100);
    for (size_t t = 0; t < 3; ++t) {
      for (size_t r = 0; r < 96; ++r) {
        std::vector<float> row(64);
        dequantize_row(w.experts[0].gate, static_cast<int64_t>(r), row);
        double sum = bias[r];
        for (size_t k = 0; k < 64; ++k) sum += static_cast<double>(row[k]) * x[t * 70 + k];
        ASSERT_NEAR(y[t * 100 + r], sum, 2e-5);
      }
      EXPECT_EQ(y[t * 100 + 96], -7.0f);
    }
  }
}

TEST(Ops, rank_keys_order_like_the_rule) {
  const std::vector<float> falling = {INFINITY, 3e38f, 1.5f, 1e-40f, 0.0f, -1e-40f, -2.0f, -3e38f, -INFINITY, kNan};
  for (size_t i = 0; i + 1 < falling.size(); ++i) EXPECT_LT(cpu::rank_key(falling[i], 9), cpu::rank_key(falling[i + 1], 0)) << i;
  EXPECT_LT(cpu::rank_key(-0.0f, 1), cpu::rank_key(0.0f, 2));
  EXPECT_LT(cpu::rank_key(0.0f, 1), cpu::rank_key(-0.0f, 2));
  EXPECT_LT(cpu::rank_key(-kNan, 1), cpu::rank_key(kNan, 2));
}

TEST(Ops, canary_is_the_same_on_every_path_and_tells_sets_apart) {
  ThreadTeam one(1), four(4);
  for (const OpSet set : {OpSet::kExact, OpSet::kFast}) {
    const std::string want = numerics_canary(*make_ops(set, &one, CpuPath::kAvx2).value());
    EXPECT_EQ(want.size(), 64u);
    EXPECT_EQ(numerics_canary(*make_ops(set, &four, CpuPath::kAvx2).value()), want);
    if (cpu::path_available(cpu::Path::kAvx512)) {
      EXPECT_EQ(numerics_canary(*make_ops(set, &four, CpuPath::kAvx512).value()), want);
    }
  }
  const auto exact = make_ops(OpSet::kExact, &one).value(), fast = make_ops(OpSet::kFast, &one).value();
  EXPECT_NE(numerics_canary(*exact), numerics_canary(*fast));
  EXPECT_EQ(numerics_canary(*exact), numerics_canary(*exact));
  const auto reference = make_ops(OpSet::kReference, nullptr).value();
  EXPECT_EQ(numerics_canary(*reference), numerics_canary(*reference));
}

}  // namespace
}  // namespace carrel
