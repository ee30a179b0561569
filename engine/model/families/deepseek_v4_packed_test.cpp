// Packed rows in a seeded model of the published geometry (heads of 512 with 64 rotary, an indexer of 128) with few and narrow layers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "base/env.h"
#include "engine/model/family.h"
#include "engine/model/plain_state.h"
#include "engine/model/safetensors.h"
#include "engine/model/source.h"
#include "kernels/packed_rows.h"

namespace carrel {
namespace {

constexpr int kHidden = 64, kVocab = 128, kHeads = 2, kDim = 512, kRank = 32, kGroups = 2, kIndexHeads = 4, kIndexDim = 128, kExperts = 4,
              kWidth = 32, kTokens = 300;

/// Tensors of published names, float32, from one seed.
class SeededModel {
 public:
  SeededModel() {
    matrix("embed.weight", kVocab, kHidden, 1);
    matrix("head.weight", kVocab, kHidden, 0.3f);
    norm("norm.weight", kHidden);
    streams("hc_head_", 4, 1);
    const int ratios[] = {0, 4, 128, 4};
    for (int i = 0; i < 4; i++) layer("layers." + std::to_string(i) + ".", ratios[i], i == 0);
    std::vector<TensorInfo> list;
    for (const auto& [name, t] : tensors_)
      list.push_back({.name = name, .dtype = t.type, .unsupported_type = "", .shape = t.shape, .bytes = std::as_bytes(std::span(t.bytes))});
    file_ = write_safetensors(list);
    source_ =
        open_folder_in_memory({{"config.json", std::as_bytes(std::span(config_))}, {"model.safetensors", std::as_bytes(std::span(file_))}})
            .value();
  }
  const ModelSource& source() const { return *source_; }

 private:
  struct Tensor {
    DType type = DType::kF32;
    std::vector<int64_t> shape;
    std::string bytes;
  };

  void put(const std::string& name, std::vector<int64_t> shape, float middle, float scale) {
    Tensor& t = tensors_[name];
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    t.shape = std::move(shape);
    for (int64_t i = 0; i < n; i++) {
      const float v = middle + scale * static_cast<float>(static_cast<int32_t>(rng_()) * 0x1p-31);  // even over ±scale
      t.bytes.append(reinterpret_cast<const char*>(&v), sizeof v);
    }
  }
  void matrix(const std::string& name, int rows, int cols, float gain) {
    put(name, {rows, cols}, 0, gain * 1.7f / std::sqrt(static_cast<float>(cols)));
  }
  void norm(const std::string& name, int n) { put(name, {n}, 1, 0.3f); }
  void streams(const std::string& p, int n_mixes, int n_scales) {
    put(p + "fn", {n_mixes, 4 * kHidden}, 0, 0.1f);
    put(p + "base", {n_mixes}, 0, 0.5f);
    put(p + "scale", {n_scales}, 0.5f, 0.2f);
  }
  void compressor(const std::string& p, int ratio, int dim) {
    const int width = (ratio == 4 ? 2 : 1) * dim;
    matrix(p + "wkv.weight", width, kHidden, 1);
    matrix(p + "wgate.weight", width, kHidden, 2);
    put(p + "ape", {ratio, width}, 0, 0.5f);
    norm(p + "norm.weight", dim);
  }
  void layer(const std::string& p, int ratio, bool hash) {
    norm(p + "attn_norm.weight", kHidden);
    norm(p + "ffn_norm.weight", kHidden);
    streams(p + "hc_attn_", 24, 3);
    streams(p + "hc_ffn_", 24, 3);
    matrix(p + "attn.wq_a.weight", kRank, kHidden, 1);
    norm(p + "attn.q_norm.weight", kRank);
    matrix(p + "attn.wq_b.weight", kHeads * kDim, kRank, 1);
    matrix(p + "attn.wkv.weight", kDim, kHidden, 1);
    norm(p + "attn.kv_norm.weight", kDim);
    matrix(p + "attn.wo_a.weight", kGroups * kRank, kHeads * kDim / kGroups, 1);
    matrix(p + "attn.wo_b.weight", kHidden, kGroups * kRank, 1);
    put(p + "attn.attn_sink", {kHeads}, 0, 1);
    if (ratio > 0) compressor(p + "attn.compressor.", ratio, kDim);
    if (ratio == 4) {
      compressor(p + "attn.indexer.compressor.", 4, kIndexDim);
      matrix(p + "attn.indexer.wq_b.weight", kIndexHeads * kIndexDim, kRank, 1);
      matrix(p + "attn.indexer.weights_proj.weight", kIndexHeads, kHidden, 1);
    }
    matrix(p + "ffn.gate.weight", kExperts, kHidden, 1);
    if (!hash) put(p + "ffn.gate.bias", {kExperts}, 0, 0.1f);
    if (hash) {
      Tensor& t = tensors_[p + "ffn.gate.tid2eid"];
      t.type = DType::kI64;
      t.shape = {kVocab, 2};
      for (int64_t i = 0; i < 2 * kVocab; i++) {
        const int64_t e = i % 2 == 0 ? i / 2 % 2 : 2 + i / 2 % 2;
        t.bytes.append(reinterpret_cast<const char*>(&e), sizeof e);
      }
    }
    for (int e = 0; e <= kExperts; e++) {
      const std::string x = p + (e == kExperts ? "ffn.shared_experts." : "ffn.experts." + std::to_string(e) + ".");
      matrix(x + "w1.weight", kWidth, kHidden, 1);
      matrix(x + "w3.weight", kWidth, kHidden, 1);
      matrix(x + "w2.weight", kHidden, kWidth, 1);
    }
  }

  std::mt19937 rng_{20260801};
  std::map<std::string, Tensor> tensors_;
  std::string config_ =
      nlohmann::json{{"model_type", "deepseek_v4"},
                     {"num_hidden_layers", 4},
                     {"hidden_size", kHidden},
                     {"vocab_size", kVocab},
                     {"num_attention_heads", kHeads},
                     {"head_dim", kDim},
                     {"qk_rope_head_dim", 64},
                     {"q_lora_rank", kRank},
                     {"o_groups", kGroups},
                     {"o_lora_rank", kRank},
                     {"sliding_window", 128},
                     {"max_position_embeddings", 4096},
                     {"compress_ratios", {0, 4, 128, 4}},
                     {"num_hash_layers", 1},
                     {"index_n_heads", kIndexHeads},
                     {"index_head_dim", kIndexDim},
                     {"index_topk", 24},
                     {"n_routed_experts", kExperts},
                     {"num_experts_per_tok", 2},
                     {"moe_intermediate_size", kWidth},
                     {"routed_scaling_factor", 1.5},
                     {"swiglu_limit", 10.0},
                     {"rms_norm_eps", 1e-6},
                     {"rope_scaling",
                      {{"type", "yarn"}, {"factor", 16}, {"original_max_position_embeddings", 256}, {"beta_fast", 32}, {"beta_slow", 1}}}}
          .dump();
  std::string file_;
  std::unique_ptr<ModelSource> source_;
};

const SeededModel& model() {
  static const SeededModel m;
  return m;
}

struct Outcome {
  std::vector<float> logits;               // [kTokens][kVocab]
  std::vector<std::vector<float>> window;  // rows of layer 0 that are still held
};

Outcome run(OpSet set, DType kv, int chunk, CpuPath path = CpuPath::kAuto, int threads = 1) {
  ThreadTeam team(threads);
  const auto ops = make_ops(set, &team, path).value();
  const auto weights = weights_from_source(model().source(), [&](Form stored) { return ops->wanted_form(stored); });
  const Family* family = find_family(model().source().format(), model().source().config_json()).value();
  BuildOptions options;
  options.kv_dtype = kv;
  const auto graph = family->build(model().source().format(), model().source().config_json(), *weights, options);
  EXPECT_TRUE(graph) << graph.error().text();
  Outcome out;
  PlainSequence sequence(&graph->state);
  GraphRunner runner(&*graph, ops.get(), chunk);
  for (int at = 0; at < kTokens; at += chunk) {
    std::vector<int32_t> tokens, rows;
    for (int i = at; i < std::min(kTokens, at + chunk); i++) {
      tokens.push_back((i * i * 7 + i * 13 + 5) % kVocab);
      rows.push_back(i - at);
    }
    const float* logits = sequence.run(runner, tokens, rows);
    sequence.commit();
    out.logits.insert(out.logits.end(), logits, logits + rows.size() * kVocab);
  }
  for (int r = kTokens - 40; r < kTokens; r++) out.window.push_back(sequence.row(0, 0, r));
  return out;
}

/// The run over the whole prompt on one thread that several tests look at, made once.
const Outcome& whole_run(OpSet set, DType kv) {
  static std::map<std::pair<OpSet, DType>, Outcome> made;
  const auto [at, is_new] = made.try_emplace({set, kv});
  if (is_new) at->second = run(set, kv, kTokens);
  return at->second;
}

bool same_bits(const Outcome& a, const Outcome& b) {
  return std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)) == 0;
}

/// Mean over positions of KL(a || b).
double mean_kl(const Outcome& a, const Outcome& b) {
  double kl = 0;
  for (size_t t = 0; t < kTokens; t++) {
    const float *x = &a.logits[t * kVocab], *y = &b.logits[t * kVocab];
    double zx = 0, zy = 0;
    for (int i = 0; i < kVocab; i++) zx += std::exp(static_cast<double>(x[i])), zy += std::exp(static_cast<double>(y[i]));
    for (int i = 0; i < kVocab; i++) kl += std::exp(x[i]) / zx * (x[i] - std::log(zx) - y[i] + std::log(zy));
  }
  return kl / kTokens;
}

TEST(DeepseekV4Packed, sets_agree_on_the_published_geometry_and_differ_from_plain_rows) {
  const Outcome& reference = whole_run(OpSet::kReference, DType::kPackedKv);
  const Outcome& plain = whole_run(OpSet::kExact, DType::kF32);
  for (const OpSet set : {OpSet::kExact, OpSet::kFast}) {
    const Outcome& packed = whole_run(set, DType::kPackedKv);
    const double off = mean_kl(reference, packed), other = mean_kl(plain, packed);
    EXPECT_LE(off, 1e-6);
    EXPECT_GE(other, 1e-4);
  }
}

TEST(DeepseekV4Packed, bits_depend_on_no_chunk_thread_or_path) {
  for (const OpSet set : {OpSet::kExact, OpSet::kFast}) {
    const Outcome want = run(set, DType::kPackedKv, kTokens, CpuPath::kAvx2);
    EXPECT_TRUE(same_bits(run(set, DType::kPackedKv, 1, CpuPath::kAuto, 2), want));
    EXPECT_TRUE(same_bits(run(set, DType::kPackedKv, 37, CpuPath::kAuto, 3), want));
  }
}

TEST(DeepseekV4Packed, a_row_is_the_plain_row_rounded) {
  for (const OpSet set : {OpSet::kReference, OpSet::kExact}) {
    const Outcome &packed = whole_run(set, DType::kPackedKv), &plain = whole_run(set, DType::kF32);
    std::vector<std::byte> bytes(row_bytes(DType::kPackedKv, kDim));
    for (size_t i = 0; i < plain.window.size(); i++) {  // of layer 0, which sees no rounding before
      std::vector<float> want(kDim);
      pack_row(DType::kPackedKv, plain.window[i].data(), kDim, bytes.data());
      unpack_row(DType::kPackedKv, bytes.data(), kDim, want.data());
      ASSERT_EQ(packed.window[i], want) << i;
      ASSERT_NE(packed.window[i], plain.window[i]) << i;
    }
  }
}

TEST(DeepseekV4Packed, sizes_are_those_of_the_published_rows) {
  const auto weights = weights_from_source(model().source(), [](Form stored) { return stored; });
  const Family* family = find_family(model().source().format(), model().source().config_json()).value();
  BuildOptions options;
  options.kv_dtype = DType::kPackedKv;
  const auto graph = family->build(model().source().format(), model().source().config_json(), *weights, options);
  ASSERT_TRUE(graph) << graph.error().text();
  std::map<std::string, size_t> bytes;
  for (const StateSpec& g : graph->state.groups) bytes[g.name] = layout_of(g, graph->state.block_size).row_stride_bytes;
  EXPECT_EQ(
      bytes,
      (std::map<std::string, size_t>{
          {"window", 584}, {"csa", 584}, {"hca", 584}, {"csa.index", 68}, {"csa.tail", 4 * 2 * 512}, {"csa.index.tail", 4 * 2 * 128}}));
}

TEST(DeepseekV4Packed, another_geometry_is_refused_by_name) {
  const auto source = open_source(Env::real(), "tests/golden/models/deepseek_v4/tiny_a_native").value();
  const auto weights = weights_from_source(*source, [](Form stored) { return stored; });
  BuildOptions options;
  options.kv_dtype = DType::kPackedKv;
  const auto graph =
      find_family(source->format(), source->config_json()).value()->build(source->format(), source->config_json(), *weights, options);
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().code, Code::kUnsupported);
  EXPECT_NE(graph.error().text().find("model.kv_dtype: packed rows need"), std::string::npos) << graph.error().text();
  EXPECT_NE(graph.error().text().find("16 of 32"), std::string::npos) << graph.error().text();
}

}  // namespace
}  // namespace carrel
