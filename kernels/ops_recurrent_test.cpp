// Ops over registers (convolution, gated delta rule, Mamba2): exact and fast against the reference within stated bounds; their bits, and
// those of the registers they keep and leave, against every way to schedule the same work. Numbers of pitfalls: architectures reference 10.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/linear.h"
#include "kernels/ops.h"
#include "kernels/test_world.h"

namespace carrel {
namespace {

using test::noise;
using test::Step;

constexpr int kBlock = 64;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
enum Group { kConv, kDelta, kSsm, kGroups };
enum Input { kConvX, kQkv, kA, kB, kXbc, kDt };
constexpr int kOnlyLayer = 1;  // of two: layer 0 must stay as it is

/// Shapes of the three ops; odd ones on purpose.
struct Shape {
  int channels, kernel;
  bool bias, silu;
  int nk, nv, dk, dv;
  bool tiled;
  int heads, head_dim, groups, state_dim;
};
constexpr Shape kShapes[] = {
    {515, 4, false, true, 2, 4, 16, 24, false, 4, 16, 2, 12},
    {37, 3, true, false, 1, 3, 5, 7, false, 3, 70, 1, 9},
    {256, 2, false, false, 2, 4, 128, 128, true, 2, 64, 2, 128},
    {300, 6, true, true, 3, 3, 33, 100, false, 6, 1, 2, 3},
};

/// Weights of a shape, fixed by it.
struct Weights {
  std::vector<float> conv, conv_bias, delta_a, delta_bias, ssm_a, ssm_d, ssm_bias;
  ShortConvArgs conv_args;
  DeltaArgs delta;
  SsmArgs ssm;

  explicit Weights(const Shape& s)
      : conv(noise(1, n(s.kernel * s.channels))),
        conv_bias(noise(2, n(s.channels))),
        delta_a(negative(3, s.nv)),
        delta_bias(noise(4, n(s.nv))),
        ssm_a(negative(5, s.heads)),
        ssm_d(noise(6, n(s.heads))),
        ssm_bias(noise(7, n(s.heads))),
        conv_args{s.channels, s.kernel, conv.data(), s.bias ? conv_bias.data() : nullptr, s.silu},
        delta{s.nk, s.nv, s.dk, s.dv, delta_a.data(), delta_bias.data(), s.tiled, 1e-6f, 1.0f / std::sqrt(static_cast<float>(s.dk))},
        ssm{s.heads, s.head_dim, s.groups, s.state_dim, ssm_a.data(), ssm_d.data(), ssm_bias.data(), 0.01f, 1.5f} {}

  static size_t n(int count) { return static_cast<size_t>(count); }
  static std::vector<float> negative(uint64_t seed, int count) {
    std::vector<float> v = noise(seed, n(count), 0.5f);
    for (float& x : v) x -= 0.51f;
    return v;
  }
};

/// Whether a sequence keeps the registers at the end of a block.
bool keeps(int sequence, size_t block) {
  return sequence % 2 == 1 || block % 3 == 1;
}

/// The three layers over some sequences, whose registers and pages it owns. Everything is NaN until written.
class World {
 public:
  World(const Shape& shape, DType columns, std::vector<int> lengths, uint64_t seed = 1)
      : lengths_(lengths), s_(shape), w_(shape), in_(lengths, seed), states_(lengths.size()) {
    groups_ = {test::shape_of(columns, s_.channels, 0, kBlock, 2, s_.kernel - 1),
               test::shape_of(DType::kF32, s_.dv, 0, kBlock, 2, s_.nv * s_.dk),
               test::shape_of(DType::kF32, s_.head_dim, 0, kBlock, 2, s_.heads * s_.state_dim)};
    size_t offset = 64;
    for (int g = 0; g < kGroups; ++g) {
      registers_[g] = {g, kOnlyLayer, group(g).layout, offset};
      offset += group(g).page_bytes;
    }
    for (test::SeqState& s : states_) s.slot.assign(offset / sizeof(float), kNan);
  }

  void step(Ops& ops, const Step& step) {
    for (const auto& [s, n] : step) grow(s, state(s).n_past + n);
    const auto b = test::build_batch(states_, step, kBlock);
    for (size_t i = 0; i < step.size(); ++i) {
      b->seqs[i].restored = restored_[step[i].first];
      restored_[step[i].first] = false;
    }
    const auto in = [&](int name, int width, float scale = 1.0f) { return in_.gather(step, *b, name, width, scale); };
    const auto rows = [&](int width) { return std::vector<float>(static_cast<size_t>(b->batch.n_tokens * width), kNan); };
    std::vector<float> y = rows(s_.channels);
    ops.short_conv(in(kConvX, s_.channels).data(), w_.conv_args, registers_[kConv], b->batch, y.data());
    out_.scatter(step, *b, kConv, s_.channels, y);
    y = rows(s_.nv * s_.dv);
    ops.delta_scan(in(kQkv, 2 * s_.nk * s_.dk + s_.nv * s_.dv).data(), in(kA, s_.nv, 2.0f).data(), in(kB, s_.nv, 3.0f).data(), w_.delta,
                   registers_[kDelta], b->batch, y.data());
    out_.scatter(step, *b, kDelta, s_.nv * s_.dv, y);
    y = rows(s_.heads * s_.head_dim);
    ops.ssm_scan(in(kXbc, s_.heads * s_.head_dim + 2 * s_.groups * s_.state_dim).data(), in(kDt, s_.heads, 3.0f).data(), w_.ssm,
                 registers_[kSsm], b->batch, y.data());
    out_.scatter(step, *b, kSsm, s_.heads * s_.head_dim, y);
    for (const auto& [s, n] : step) state(s).n_past += n;
  }
  void run(Ops& ops, const std::vector<Step>& steps) {
    for (const Step& s : steps) step(ops, s);
  }

  /// The layer's registers of a group as bytes: those in the slot, or those kept at the end of a block (empty: not kept).
  std::vector<std::byte> live(int s, int g) {
    const std::byte* slot = reinterpret_cast<const std::byte*>(state(s).slot.data());
    const std::byte* begin = slot + registers_[g].slot_offset_bytes + registers_[g].layer_offset();
    return {begin, begin + registers_[g].layer_bytes()};
  }
  std::vector<std::byte> kept(int s, int g, size_t block) {
    const std::byte* page = state(s).groups[static_cast<size_t>(g)].pages[block];
    if (page == nullptr) return {};
    return {page + registers_[g].layer_offset(), page + registers_[g].layer_offset() + registers_[g].layer_bytes()};
  }
  std::vector<float> floats(const std::vector<std::byte>& bytes, int g) const {
    std::vector<float> v(bytes.size() / (group(g).layout.dtype == DType::kF32 ? 4 : 2));
    to_f32(group(g).layout.dtype, bytes, v);
    return v;
  }

  /// Makes sequence `s` one that has just hit the prefix of `blocks` of `other`: pages copied, slot dirty.
  void restore(int s, World& other, int from, size_t blocks) {
    grow(s, static_cast<int>(blocks) * kBlock);
    for (int g = 0; g < kGroups; ++g) {
      auto& page = state(s).groups[static_cast<size_t>(g)];
      page.memory[blocks - 1] = other.state(from).groups[static_cast<size_t>(g)].memory[blocks - 1];
      page.pages[blocks - 1] = page.memory[blocks - 1].data();
    }
    std::fill(state(s).slot.begin(), state(s).slot.end(), kNan);
    state(s).n_past = static_cast<int>(blocks) * kBlock;
    restored_[s] = true;
  }

  test::SeqState& state(int s) { return states_[static_cast<size_t>(s)]; }
  const test::GroupShape& group(int g) const { return groups_[static_cast<size_t>(g)]; }
  const Registers& registers(int g) const { return registers_[g]; }
  const std::map<std::pair<int, int>, std::vector<float>>& outputs() const { return out_.all(); }
  test::Inputs& inputs() { return in_; }
  const std::vector<int>& lengths() const { return lengths_; }

 private:
  void grow(int s, int n_tokens) {
    state(s).grow(groups_, n_tokens, kBlock);
    for (test::GroupPages& g : state(s).groups) {
      for (size_t b = 0; b < g.pages.size(); ++b) {
        if (!keeps(s, b) && static_cast<int>(b + 1) * kBlock > state(s).n_past) g.pages[b] = nullptr;
      }
    }
  }

  std::vector<int> lengths_;
  Shape s_;
  Weights w_;
  test::Inputs in_;
  test::Outputs out_;
  std::vector<test::SeqState> states_;
  std::vector<test::GroupShape> groups_;
  Registers registers_[kGroups];
  std::map<int, bool> restored_;
};

/// Everything that two worlds have computed has the same bits: outputs, live registers, registers kept. from: positions before it are not
/// compared.
void expect_same(World& a, World& b, const std::string& what, int from = 0) {
  for (const auto& [key, v] : a.outputs()) {
    const std::vector<float>& w = b.outputs().at(key);
    ASSERT_EQ(v.size(), w.size());
    const size_t width = v.size() / static_cast<size_t>(a.state(key.first).n_past), begin = static_cast<size_t>(from) * width;
    for (size_t i = begin; i < v.size(); ++i) {
      ASSERT_EQ(std::memcmp(&v[i], &w[i], 4), 0) << what << ": sequence " << key.first << " op " << key.second << " token " << i / width
                                                 << " element " << i % width << ": " << v[i] << " and " << w[i];
    }
  }
  for (int s = 0; s < static_cast<int>(a.lengths().size()); ++s) {
    for (int g = 0; g < kGroups; ++g) {
      ASSERT_EQ(a.live(s, g), b.live(s, g)) << what << ": registers of sequence " << s << " op " << g;
      for (size_t block = static_cast<size_t>(from / kBlock); block < static_cast<size_t>(a.lengths()[static_cast<size_t>(s)] / kBlock);
           ++block) {
        ASSERT_EQ(a.kept(s, g, block), b.kept(s, g, block))
            << what << ": kept registers of sequence " << s << " op " << g << " block " << block;
      }
    }
  }
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want, float bound, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_LE(std::fabs(got[i] - want[i]), bound * (1 + std::fabs(want[i]))) << what << " element " << i;
}

std::unique_ptr<Ops> make(OpSet set, ThreadTeam* team, CpuPath path = CpuPath::kAuto) {
  return make_ops(set, team, path).value();
}

const std::vector<int> kLengths = {1, 130, 64, 300, 5, 129};

class RecurrentTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Ops, RecurrentTest, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return info.param == DType::kF32 ? "f32" : "bf16"; });

TEST_P(RecurrentTest, agrees_with_the_reference) {
  ThreadTeam team(2);
  const auto reference = make(OpSet::kReference, nullptr), exact = make(OpSet::kExact, &team);
  for (const Shape& shape : kShapes) {
    World got(shape, GetParam(), kLengths), want(shape, GetParam(), kLengths);
    const std::vector<Step> steps = test::random_schedule(kLengths, 3, 90);
    got.run(*exact, steps);
    want.run(*reference, steps);
    for (const auto& [key, v] : want.outputs()) expect_close(got.outputs().at(key), v, 3e-6f, "op " + std::to_string(key.second));
    for (int s = 0; s < static_cast<int>(kLengths.size()); ++s) {
      EXPECT_EQ(got.live(s, kConv), want.live(s, kConv));
      for (int g = 0; g < kGroups; ++g) expect_close(got.floats(got.live(s, g), g), want.floats(want.live(s, g), g), 3e-6f, "registers");
      for (size_t b = 0; b < static_cast<size_t>(kLengths[static_cast<size_t>(s)] / kBlock); ++b) {
        EXPECT_EQ(got.kept(s, kConv, b), want.kept(s, kConv, b));
        EXPECT_EQ(got.kept(s, kSsm, b).size(), want.kept(s, kSsm, b).size());
      }
    }
  }
}

TEST_P(RecurrentTest, bits_do_not_depend_on_schedule_threads_or_path) {
  ThreadTeam one(1);
  const auto base = make(OpSet::kExact, &one, CpuPath::kAvx2);
  if (!cpu::path_available(cpu::Path::kAvx512)) std::puts("skipped: AVX-512 against AVX2 (this machine has no AVX-512)");
  for (const Shape& shape : kShapes) {
    World want(shape, GetParam(), kLengths);
    want.run(*base, test::whole_schedule(kLengths));
    for (const auto& [key, v] : want.outputs()) {
      for (const float x : v) ASSERT_FALSE(std::isnan(x)) << "poison reached op " << key.second;
    }
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      const int n_threads = 1 + static_cast<int>(seed) % 4, longest = seed == 1 ? 1 : seed == 2 ? 2 : seed < 6 ? 70 : 300;
      ThreadTeam team(n_threads);
      const bool wide = seed % 2 == 0 && cpu::path_available(cpu::Path::kAvx512);
      const auto ops = make(seed % 3 == 0 ? OpSet::kFast : OpSet::kExact, &team, wide ? CpuPath::kAvx512 : CpuPath::kAvx2);
      World got(shape, GetParam(), kLengths);
      got.run(*ops, test::random_schedule(kLengths, seed, longest));
      expect_same(want, got, "seed " + std::to_string(seed) + (wide ? " AVX-512" : " AVX2"));
    }
  }
}

TEST_P(RecurrentTest, pitfall_2_a_page_holds_the_registers_at_the_end_of_its_block) {
  ThreadTeam team(2);
  const auto ops = make(OpSet::kExact, &team);
  for (const Shape& shape : kShapes) {
    World whole(shape, GetParam(), kLengths);
    whole.run(*ops, test::random_schedule(kLengths, 7, 200));
    for (const int s : {1, 3, 5}) {
      for (size_t b = 0; b < static_cast<size_t>(kLengths[static_cast<size_t>(s)] / kBlock); ++b) {
        World stopped(shape, GetParam(), kLengths);
        const int n = static_cast<int>(b + 1) * kBlock;
        stopped.run(*ops, {{{s, n - 37}}, {{s, 37}}});
        for (int g = 0; g < kGroups; ++g) {
          EXPECT_EQ(whole.kept(s, g, b), stopped.live(s, g)) << "sequence " << s << " block " << b << " op " << g;
          EXPECT_EQ(stopped.kept(s, g, b), stopped.live(s, g)) << "a step that ends with a block";
        }
      }
    }
  }
}

TEST_P(RecurrentTest, pitfall_7_a_restored_page_goes_on_like_a_cold_run_and_is_never_written) {
  ThreadTeam team(3);
  const auto ops = make(OpSet::kExact, &team);
  const int s = 3;  // keeps every block
  for (const Shape& shape : kShapes) {
    World cold(shape, GetParam(), kLengths);
    cold.run(*ops, test::random_schedule(kLengths, 11, 150));
    for (const size_t blocks : {1u, 3u}) {
      for (const int first : {1, 2, 3, 41, kLengths[3] - static_cast<int>(blocks) * kBlock}) {
        World warm(shape, GetParam(), kLengths);
        warm.restore(s, cold, s, blocks);
        std::vector<std::vector<std::byte>> before;
        for (int g = 0; g < kGroups; ++g) before.push_back(warm.state(s).groups[static_cast<size_t>(g)].memory[blocks - 1]);
        warm.step(*ops, {{s, first}});
        // Beside another sequence that starts and one that decodes, each in its own phase.
        warm.step(*ops, {{1, 130}, {5, 128}});
        for (int n = kLengths[3] - warm.state(s).n_past; n > 0; n = kLengths[3] - warm.state(s).n_past) {
          Step step = {{s, std::min(n, 50)}};
          if (warm.state(5).n_past < 129) step.insert(step.begin(), {5, 1});
          warm.step(*ops, step);
        }
        if (warm.state(5).n_past < 129) warm.step(*ops, {{5, 1}});
        warm.run(*ops, {{{0, 1}, {2, 64}, {4, 5}}});
        expect_same(cold, warm, "hit of " + std::to_string(blocks) + " blocks", static_cast<int>(blocks) * kBlock);
        for (int g = 0; g < kGroups; ++g) {
          EXPECT_EQ(before[static_cast<size_t>(g)], warm.state(s).groups[static_cast<size_t>(g)].memory[blocks - 1])
              << "published page written";
        }
      }
    }
  }
}

TEST_P(RecurrentTest, pitfall_6_chunks_shorter_than_the_taps_keep_the_older_columns) {
  ThreadTeam team(2);
  const auto ops = make(OpSet::kExact, &team);
  const std::vector<int> lengths = {9, 9};
  for (const Shape& shape : kShapes) {
    World whole(shape, GetParam(), lengths), split(shape, GetParam(), lengths);
    whole.run(*ops, {{{0, 9}}, {{1, 9}}});
    split.run(*ops, {{{0, 1}, {1, 2}}, {{0, 2}, {1, 1}}, {{0, 1}, {1, 1}}, {{0, 3}, {1, 1}}, {{0, 1}, {1, 2}}, {{0, 1}, {1, 2}}});
    expect_same(whole, split, "chunks of one and two");
  }
}

TEST_P(RecurrentTest, pitfall_9_a_slot_holds_nothing_of_its_former_sequence) {
  ThreadTeam team(2);
  const auto ops = make(OpSet::kExact, &team);
  const std::vector<int> lengths = {70, 70};
  for (const Shape& shape : kShapes) {
    World fresh(shape, GetParam(), lengths), used(shape, GetParam(), lengths);
    fresh.run(*ops, {{{0, 70}}, {{1, 70}}});
    used.step(*ops, {{0, 70}});
    used.state(1).slot = used.state(0).slot;
    used.step(*ops, {{1, 1}});
    used.step(*ops, {{1, 69}});
    expect_same(fresh, used, "slot of another sequence");
  }
}

TEST_P(RecurrentTest, other_layers_and_sequences_stay_as_they_are) {
  ThreadTeam team(2);
  const auto ops = make(OpSet::kExact, &team);
  const std::vector<int> lengths = {140, 140, 140};
  for (const Shape& shape : kShapes) {
    World clean(shape, GetParam(), lengths), spoilt(shape, GetParam(), lengths);
    const std::vector<Step> steps = test::random_schedule(lengths, 2, 60);
    clean.run(*ops, steps);
    const int conv_at = 20 * shape.channels, widths[] = {shape.channels, 2 * shape.nk * shape.dk + shape.nv * shape.dv};
    spoilt.inputs().of(1, kConvX, widths[0])[static_cast<size_t>(conv_at)] = kNan;
    spoilt.inputs().of(1, kQkv, widths[1])[static_cast<size_t>(21 * widths[1] - 1)] = kNan;  // v of the last head
    spoilt.run(*ops, steps);
    for (const auto& [key, v] : clean.outputs()) {
      const std::vector<float>& w = spoilt.outputs().at(key);
      const bool same = std::memcmp(v.data(), w.data(), v.size() * 4) == 0;
      EXPECT_EQ(same, key.first != 1 || key.second == kSsm) << "sequence " << key.first << " op " << key.second;
      for (size_t i = 0; key.first == 1 && i < w.size(); ++i) {
        const size_t width = w.size() / 140, t = i / width, c = i % width;
        const bool conv = key.second == kConv && c == 0 && t >= 20 && t < 20 + static_cast<size_t>(shape.kernel);
        const bool scan = key.second == kDelta && c == width - 1 && t >= 20;
        ASSERT_EQ(std::isnan(w[i]), conv || scan) << "op " << key.second << " token " << t << " element " << c;
      }
    }
    for (int s = 0; s < 3; ++s) {  // layer 0
      for (int g = 0; g < kGroups; ++g) {
        const size_t begin = clean.registers(g).slot_offset_bytes / sizeof(float);
        for (size_t i = 0; i < clean.group(g).layout.layer_stride_bytes / sizeof(float); ++i) {
          ASSERT_TRUE(std::isnan(clean.state(s).slot[begin + i]));
        }
        for (const auto& page : clean.state(s).groups[static_cast<size_t>(g)].memory) {
          for (size_t i = 0; i < clean.group(g).layout.layer_stride_bytes; ++i) ASSERT_EQ(page[i], std::byte{0xFF});
        }
      }
    }
  }
}

TEST(RecurrentOps, inputs_are_rounded_before_any_tap_reads_them) {
  const float x = 1.00390625f + 0x1p-12f;  // rounds up to 1.0078125 in bfloat16
  for (const OpSet set : {OpSet::kReference, OpSet::kExact, OpSet::kFast}) {
    const auto ops = make(set, nullptr);
    const test::GroupShape shape = test::shape_of(DType::kBF16, 1, 0, kBlock, 1, 2);
    std::vector<test::SeqState> states(1);
    states[0].slot.assign(64, kNan);
    states[0].grow({shape}, 2, kBlock);
    const auto b = test::build_batch(states, {{0, 2}}, kBlock);
    const std::vector<float> in = {x, x}, weight = {100, 10, 1};
    std::vector<float> y(2);
    ops->short_conv(in.data(), {1, 3, weight.data(), nullptr, false}, {0, 0, shape.layout, 0}, b->batch, y.data());
    EXPECT_EQ(y[0], 1.0078125f) << ops->name();
    EXPECT_EQ(y[1], 11 * 1.0078125f) << ops->name();
  }
}

/// The formulas of 3.4 and 6.1 by hand: one head, one row, one lane, two tokens.
TEST(RecurrentOps, decay_comes_before_the_memory_and_the_update_before_the_output) {
  for (const OpSet set : {OpSet::kReference, OpSet::kExact}) {
    const auto ops = make(set, nullptr);
    const test::GroupShape shape = test::shape_of(DType::kF32, 1, 0, kBlock, 1, 1);
    std::vector<test::SeqState> states(1);
    states[0].slot.assign(64, kNan);
    states[0].grow({shape}, 2, kBlock);
    const auto b = test::build_batch(states, {{0, 2}}, kBlock);
    const Registers state{0, 0, shape.layout, 0};
    const float a_log = -0.7f, bias = 0.3f;
    const std::vector<float> qkv = {2, 3, 0.5f, 4, -5, 0.25f}, a = {0.1f, 0.2f}, beta = {0.4f, -0.6f};
    std::vector<float> y(2);
    DeltaArgs delta{1, 1, 1, 1, &a_log, &bias, false, 0, 0.5f};
    ops->delta_scan(qkv.data(), a.data(), beta.data(), delta, state, b->batch, y.data());
    double s = 0;
    for (size_t t = 0; t < 2; ++t) {
      const double k = qkv[3 * t + 1] > 0 ? 1 : -1;
      s *= std::exp(a_log * std::log1p(std::exp(static_cast<double>(a[t] + bias))));
      s += k * (qkv[3 * t + 2] - s * k) / (1 + std::exp(-static_cast<double>(beta[t])));
      EXPECT_NEAR(y[t], s * 0.5, 1e-6) << ops->name() << " token " << t;
    }
    const float d = 0.9f;
    ops->ssm_scan(qkv.data(), a.data(), {1, 1, 1, 1, &a_log, &d, &bias, 0, 1.0f}, state, b->batch, y.data());
    s = 0;
    for (size_t t = 0; t < 2; ++t) {
      const double step = std::min(1.0, std::log1p(std::exp(static_cast<double>(a[t] + bias))));
      s = std::exp(step * a_log) * s + step * qkv[3 * t] * qkv[3 * t + 1];
      EXPECT_NEAR(y[t], s * qkv[3 * t + 2] + d * qkv[3 * t], 1e-5) << ops->name() << " token " << t;
    }
  }
}

}  // namespace
}  // namespace carrel
