// The native checkpoint in every spelling and with either type of experts: one model, the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "engine/model/family.h"
#include "engine/model/plain_state.h"
#include "engine/model/safetensors.h"
#include "engine/model/source.h"
#include "kernels/float8.h"

namespace carrel {
namespace {

const std::string kNative = "tests/golden/models/deepseek_v4/tiny_a_native";
constexpr int kExperts = 8;

/// A tensor with bytes of its own.
struct Tensor {
  DType type = DType::kF32;
  std::vector<int64_t> shape;
  std::string bytes;
};
using Tensors = std::map<std::string, Tensor>;

Tensors read_native() {
  const auto source = open_source(Env::real(), kNative).value();
  Tensors out;
  for (const std::string& name : source->tensor_names()) {
    const TensorInfo* t = source->find(name);
    out[name] = {t->dtype, t->shape, {reinterpret_cast<const char*>(t->bytes.data()), t->bytes.size()}};
  }
  return out;
}

/// A model in memory over these tensors and the native configuration with some keys changed.
struct Model {
  std::string config, file;
  std::unique_ptr<ModelSource> source;
};
std::unique_ptr<Model> make_model(const Tensors& tensors, const nlohmann::json& changes = nlohmann::json::object()) {
  auto m = std::make_unique<Model>();
  nlohmann::json config = nlohmann::json::parse(read_file(Env::real(), kNative + "/config.json").value());
  config.merge_patch(changes);
  m->config = config.dump();
  std::vector<TensorInfo> list;
  for (const auto& [name, t] : tensors)
    list.push_back({.name = name, .dtype = t.type, .unsupported_type = "", .shape = t.shape, .bytes = std::as_bytes(std::span(t.bytes))});
  m->file = write_safetensors(list);
  m->source = open_folder_in_memory(
                  {{"config.json", std::as_bytes(std::span(m->config))}, {"model.safetensors", std::as_bytes(std::span(m->file))}})
                  .value();
  return m;
}

/// Logits after a prompt that fills some groups; the error's text when the model cannot be built.
Result<std::vector<float>> run(const Model& m, OpSet set) {
  ThreadTeam team(1);
  CARREL_ASSIGN(const auto ops, make_ops(set, &team));
  const auto weights = weights_from_source(*m.source, [&](Form stored) { return ops->wanted_form(stored); });
  CARREL_ASSIGN(const Family* family, find_family(m.source->format(), m.source->config_json()));
  CARREL_ASSIGN(const Graph graph, family->build(m.source->format(), m.source->config_json(), *weights, {}));
  PlainSequence sequence(&graph.state);
  GraphRunner runner(&graph, ops.get(), 64);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 40; i++) tokens.push_back((i * 37 + 5) % 512);
  const std::vector<int32_t> rows = {3, 20, 39};
  const float* logits = sequence.run(runner, tokens, rows);
  return std::vector<float>(logits, logits + 3 * 512);
}

std::string replaced(std::string s, const std::string& from, const std::string& to) {
  const size_t at = s.find(from);
  return at == std::string::npos ? s : s.replace(at, from.size(), to);
}

/// 2.2, spelling 2.
std::string resaved_name(const std::string& name) {
  if (name == "head.weight" || name.starts_with("mtp.")) return name;
  if (name == "embed.weight") return "model.embed_tokens.weight";
  if (name.starts_with("hc_head_")) return "model.hc_head.hc_" + name.substr(8);
  return "model." + replaced(name, "attn.kv_norm.weight", "attn.norm.weight");
}

/// 2.2, spelling 3; scales are called after the weight's whole name.
std::string module_name(std::string name) {
  static const std::pair<const char*, const char*> kNames[] = {
      {"attn.indexer.compressor.wkv.", "self_attn.compressor.indexer.kv_proj."},
      {"attn.indexer.compressor.wgate.", "self_attn.compressor.indexer.gate_proj."},
      {"attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias"},
      {"attn.indexer.compressor.norm.", "self_attn.compressor.indexer.kv_norm."},
      {"attn.indexer.wq_b.", "self_attn.compressor.indexer.q_b_proj."},
      {"attn.indexer.weights_proj.", "self_attn.compressor.indexer.scorer.weights_proj."},
      {"attn.compressor.wkv.", "self_attn.compressor.kv_proj."},
      {"attn.compressor.wgate.", "self_attn.compressor.gate_proj."},
      {"attn.compressor.ape", "self_attn.compressor.position_bias"},
      {"attn.compressor.norm.", "self_attn.compressor.kv_norm."},
      {"attn.wq_a.", "self_attn.q_a_proj."},
      {"attn.q_norm.", "self_attn.q_a_norm."},
      {"attn.wq_b.", "self_attn.q_b_proj."},
      {"attn.wkv.", "self_attn.kv_proj."},
      {"attn.kv_norm.", "self_attn.kv_norm."},
      {"attn.wo_a.", "self_attn.o_a_proj."},
      {"attn.wo_b.", "self_attn.o_b_proj."},
      {"attn.attn_sink", "self_attn.sinks"},
      {"hc_attn_", "attn_hc."},
      {"hc_ffn_", "ffn_hc."},
      {"ffn.gate.bias", "mlp.gate.e_score_correction_bias"},
      {"ffn.gate.", "mlp.gate."},
      {"ffn.experts.", "mlp.experts."},
      {"ffn.shared_experts.", "mlp.shared_experts."},
      {"attn_norm.", "input_layernorm."},
      {"ffn_norm.", "post_attention_layernorm."}};
  if (name.starts_with("mtp.")) return name;
  if (name == "head.weight") return "lm_head.weight";
  if (name == "embed.weight") return "model.embed_tokens.weight";
  if (name.starts_with("hc_head_")) return "model.hc_head.hc_" + name.substr(8);
  const bool scale = name.ends_with(".scale");
  for (const auto& [from, to] : kNames) {
    if (name.find(from) == std::string::npos) continue;
    name = replaced(name, from, to);
    break;
  }
  for (const auto& [from, to] : {std::pair(".w1.", ".gate_proj."), {".w2.", ".down_proj."}, {".w3.", ".up_proj."}})
    name = replaced(name, from, to);
  if (scale) name = replaced(name, ".scale", ".weight_scale_inv");
  return "model." + name;
}

template <class Fn>
Tensors renamed(const Tensors& from, Fn name) {
  Tensors out;
  for (const auto& [n, t] : from) out[name(n)] = t;
  return out;
}

/// Experts as [E, 2I, H] with gate rows first, and [E, H, I].
Tensors fused(const Tensors& from) {
  Tensors out = renamed(from, module_name);
  for (int layer = 0; layer < 5; layer++) {
    const std::string p = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    const auto join = [&](const std::string& to, std::initializer_list<const char*> parts, const std::string& suffix) {
      Tensor all;
      for (int e = 0; e < kExperts; e++) {
        int64_t n_rows = 0;
        for (const char* part : parts) {
          const Tensor t = out.extract(p + std::to_string(e) + "." + part + suffix).mapped();
          all.type = t.type;
          n_rows += t.shape[0];
          all.shape = {kExperts, n_rows, t.shape[1]};
          all.bytes += t.bytes;
        }
      }
      out[p + to] = all;
    };
    join("gate_up_proj", {"gate_proj", "up_proj"}, ".weight");
    join("gate_up_proj_scale_inv", {"gate_proj", "up_proj"}, ".weight_scale_inv");
    join("down_proj", {"down_proj"}, ".weight");
    join("down_proj_scale_inv", {"down_proj"}, ".weight_scale_inv");
  }
  return out;
}

/// fp4 experts as fp8 with one scale per tile, by the rule of the official converter (2.3).
Tensors with_fp8_experts(Tensors all) {
  for (auto& [name, t] : all) {
    if (t.type != DType::kI8) continue;
    Tensor& scales = all[replaced(name, ".weight", ".scale")];
    const auto scale_of = [](char c) { return e8m0_to_f32(static_cast<uint8_t>(c)); };
    float top = 0;
    for (const char c : scales.bytes) top = std::max(top, scale_of(c));
    std::string codes;
    for (size_t i = 0; i < 2 * t.bytes.size(); i++) {
      const auto pair = static_cast<uint8_t>(t.bytes[i / 2]);
      const float value = e2m1_to_f32(i % 2 == 0 ? pair & 15 : pair >> 4) * scale_of(scales.bytes[i / 32]);
      codes += static_cast<char>(f32_to_e4m3(value / (top / 64)));
      EXPECT_EQ(e4m3_to_f32(static_cast<uint8_t>(codes.back())) * (top / 64), value);
    }
    t = {DType::kF8E4M3, {t.shape[0], 2 * t.shape[1]}, codes};
    const float tile = top / 64;
    scales = {DType::kF32, {1, 1}, std::string(reinterpret_cast<const char*>(&tile), 4)};
  }
  return all;
}

TEST(DeepseekV4, native_weights_in_every_spelling_are_one_model) {
  const Tensors native = read_native();
  for (const OpSet set : {OpSet::kExact, OpSet::kFast}) {
    const auto want = run(*make_model(native), set);
    ASSERT_TRUE(want) << want.error().text();
    for (const Tensors& other : {renamed(native, resaved_name), renamed(native, module_name), fused(native)}) {
      const auto got = run(*make_model(other), set);
      ASSERT_TRUE(got) << got.error().text();
      EXPECT_EQ(std::memcmp(got->data(), want->data(), want->size() * 4), 0);
    }
  }
}

TEST(DeepseekV4, experts_may_be_fp8) {
  const Tensors native = read_native(), fp8 = with_fp8_experts(native);
  const auto want = run(*make_model(native), OpSet::kExact);
  for (const OpSet set : {OpSet::kReference, OpSet::kExact, OpSet::kFast}) {
    const auto got = run(*make_model(fp8, {{"expert_dtype", nullptr}}), set);
    ASSERT_TRUE(got) << got.error().text();
    if (set == OpSet::kExact) {
      EXPECT_EQ(std::memcmp(got->data(), want->data(), want->size() * 4), 0);
    }
    for (size_t i = 0; i < want->size(); i++) ASSERT_NEAR((*got)[i], (*want)[i], 2e-4) << i;
  }
}

TEST(DeepseekV4, fast_keeps_weights_as_they_came) {
  const auto m = make_model(read_native());
  ThreadTeam team(1);
  const auto ops = make_ops(OpSet::kFast, &team).value();
  const auto weights = weights_from_source(*m->source, [&](Form stored) { return ops->wanted_form(stored); });
  const auto graph = find_family(m->source->format(), m->config).value()->build(m->source->format(), m->config, *weights, {});
  ASSERT_TRUE(graph) << graph.error().text();
  int n_x4 = 0, n_f8 = 0;
  for (const Node& n : graph->nodes) {
    if (const auto* e = std::get_if<node::Experts>(&n)) {
      for (const Expert& one : e->experts) n_x4 += (one.gate.form == Form::kX4) + (one.up.form == Form::kX4) + (one.down.form == Form::kX4);
    }
    if (const auto* l = std::get_if<node::Linear>(&n)) n_f8 += l->w.form == Form::kF8;
  }
  EXPECT_EQ(n_x4, 5 * 8 * 3);
  EXPECT_EQ(n_f8, 5 * (4 + 2 + 3) + 2);  // wq_a wq_b wkv wo_b, wo_a in two groups, shared experts; two indexers
  EXPECT_LT(weights->memory_bytes(), weights->file_bytes() * 13 / 10);  // rows are padded to 16, columns of 32 carry a whole scale
}

TEST(DeepseekV4, what_is_not_understood_is_refused_by_name) {
  const Tensors native = read_native();
  const auto says = [&](const Tensors& tensors, const nlohmann::json& config, Code code, const std::string& part) {
    const auto r = run(*make_model(tensors, config), OpSet::kFast);
    ASSERT_FALSE(r) << part;
    EXPECT_EQ(r.error().code, code) << r.error().text();
    EXPECT_NE(r.error().text().find(part), std::string::npos) << r.error().text();
  };
  says(native, {{"quantization_config", {{"quant_method", "gptq"}}}}, Code::kUnsupported,
       "quantization_config.quant_method: 'gptq' is not read");
  says(native, {{"quantization_config", {{"fmt", "e5m2"}}}}, Code::kUnsupported, "quantization_config.fmt");
  says(native, {{"quantization_config", {{"activation_scheme", "static"}}}}, Code::kUnsupported, "activation_scheme");
  says(native, {{"quantization_config", {{"weight_block_size", {64, 64}}}}}, Code::kUnsupported, "weight_block_size");
  says(native, {{"expert_dtype", "int4"}}, Code::kUnsupported, "expert_dtype: 'int4'");
  Tensors bad = native;
  bad.erase("layers.0.attn.wq_a.scale");
  says(bad, nlohmann::json::object(), Code::kUnsupported, "'layers.0.attn.wq_a.weight' has the type F8_E4M3, whose values need a tensor of scales");
  bad = native;
  bad["layers.2.attn.wkv.scale"].shape = {1};
  says(bad, nlohmann::json::object(), Code::kCorrupt, "'layers.2.attn.wkv.scale'");
  bad = native;
  bad["layers.1.ffn.experts.3.w2.scale"].bytes[5] = static_cast<char>(0xFF);
  says(bad, nlohmann::json::object(), Code::kCorrupt, "'layers.1.ffn.experts.3.w2.weight': row 5, column 0 has the scale NaN");
  bad = native;
  bad["layers.4.attn.wo_a.weight"].bytes[64] = 0x7F;
  says(bad, nlohmann::json::object(), Code::kCorrupt, "'layers.4.attn.wo_a.weight'");
  says(native, {{"num_nextn_predict_layers", "x"}}, Code::kCorrupt, "num_nextn_predict_layers");
}

}  // namespace
}  // namespace carrel
