// See the header.
#include "engine/model/random_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <unordered_map>

#include "engine/model/config_reader.h"
#include "engine/model/packing.h"

namespace carrel {
namespace {

constexpr int64_t kTile = 128;  // columns per scale of e4m3

bool names(const std::string& tensor, std::string_view part) {
  return tensor.find(part) != std::string::npos;
}

class RandomWeights final : public LoadedWeights {
 public:
  RandomWeights(const std::string& config_json, const ConfigReader& config, DType stored, FormChooser choose)
      : digest_(sha256(config_json)),
        stored_(stored),
        choose_(std::move(choose)),
        n_experts_(config.integer_or("n_routed_experts", 1, 1, INT32_MAX)),
        tied_(config.flag_or("tie_word_embeddings", true)),
        coded_(config.has("quantization_config")),
        fp4_experts_(config.text_or("expert_dtype", "") == "fp4") {}

  /// A checkpoint in the newest published spelling: of each choice that a family gives, experts one by one, no text model inside a larger
  /// one, a head only where the configuration wants one, no bias that may lack, scales where it says that weights have them.
  bool has(const std::string& tensor) const override {
    if (names(tensor, "language_model") || tensor.ends_with("gate_up_proj") || tensor.ends_with("_scale_inv")) return false;
    if (tensor.ends_with(".bias")) return false;
    if (names(tensor, "lm_head")) return !tied_;
    return !tensor.ends_with(".scale") || coded_;
  }
  std::vector<int64_t> shape(const std::string& /*tensor*/) const override { return {}; }

  Result<Matrix> matrix(const MatrixRequest& r) override {
    const std::string id = r.id();
    if (const auto it = matrices_.find(id); it != matrices_.end()) return it->second;
    const DType type = type_of(r);
    Matrix m{choose_(form_of(type)), r.n_rows, r.n_cols, nullptr};
    CARREL_ASSIGN(const auto out, arena_.take(packed_bytes(m.form, r.n_rows, r.n_cols)));
    const Bytes drawn = draw(type, r.n_rows * r.n_cols, r.n_cols);
    const std::vector<float> scales(type == DType::kF8E4M3 ? static_cast<size_t>(r.n_rows * ((r.n_cols + kTile - 1) / kTile)) : 0,
                                    std::exp2f(static_cast<float>(-magnitude(r.n_cols))));
    CARREL_TRY(type == DType::kF8E4M3 ? pack_f8(drawn, scales, r.n_rows, r.n_cols, m.form, out)
                                      : pack_matrix(type, drawn, r.n_rows, r.n_cols, m.form, out));
    file_bytes_ += static_cast<int64_t>(drawn.size() + scales.size());
    m.data = out.data();
    matrices_.emplace(id, m);
    return m;
  }

  Result<const float*> vector(const std::string& tensor, int64_t n, float add) override {
    CARREL_ASSIGN(const auto out, arena_.take(static_cast<size_t>(n) * sizeof(float)));
    float* v = reinterpret_cast<float*>(out.data());
    const bool norm = names(tensor, "norm"), rate = names(tensor, "A_log");
    std::uniform_real_distribution<float> small(-0.1f, 0.1f);
    for (int64_t i = 0; i < n; i++) v[i] = (norm ? 1.0f : rate ? 0.5f : add) + small(rng_);
    file_bytes_ += n * static_cast<int64_t>(sizeof(float));
    return v;
  }

  /// The only tables are those of DeepSeek-V4: experts by token id.
  Result<const int32_t*> table(const std::string& /*tensor*/, int64_t n) override {
    CARREL_ASSIGN(const auto out, arena_.take(static_cast<size_t>(n) * sizeof(int32_t)));
    int32_t* v = reinterpret_cast<int32_t*>(out.data());
    for (int64_t i = 0; i < n; i++) v[i] = static_cast<int32_t>(i * 7 % n_experts_);
    return v;
  }

  std::vector<TensorUse> tensors() const override { return {}; }  // there is no checkpoint
  int64_t memory_bytes() const override { return arena_.used_bytes(); }
  int64_t file_bytes() const override { return file_bytes_; }
  Result<Digest> model_digest() const override { return digest_; }

 private:
  DType type_of(const MatrixRequest& r) const {
    if (r.tensor.ends_with("_blocks")) return DType::kMXFP4;
    if (!r.scales.empty()) return fp4_experts_ && names(r.tensor, "ffn.experts.") ? DType::kMXFP4 : DType::kF8E4M3;
    return r.n_cols % 32 == 0 ? stored_ : DType::kBF16;
  }

  /// Trained weights are of the size of 2^-k = 1 / sqrt(n_cols).
  static int magnitude(int64_t n_cols) { return std::bit_width(static_cast<uint64_t>(n_cols)) / 2; }

  Bytes draw(DType type, int64_t n, int64_t n_cols) {
    const int k = magnitude(n_cols);
    Bytes out(bytes_of(type, static_cast<size_t>(n)));
    for (size_t at = 0; at < out.size(); at += 8) {
      const uint64_t bits = rng_();
      std::memcpy(out.data() + at, &bits, std::min<size_t>(8, out.size() - at));
    }
    const auto put16 = [](std::byte* p, uint16_t v) { std::memcpy(p, &v, sizeof(v)); };
    const auto each = [&](const auto& block) {
      for (size_t at = 0; at < out.size(); at += static_cast<size_t>(block_shape(type).n_bytes)) block(out.data() + at);
    };
    const auto sixteenth = [&](float v) { return f32_to_f16(std::ldexp(v, -k)); };
    switch (type) {
      case DType::kBF16:  // the drawn sign and mantissa, another exponent
        each([&](std::byte* p) {
          uint16_t v = 0;
          std::memcpy(&v, p, sizeof(v));
          put16(p, static_cast<uint16_t>((v & 0x807F) | ((126 - k) << 7)));
        });
        break;
      case DType::kQ8_0:
        each([&](std::byte* p) { put16(p, sixteenth(1.0f / 64)); });
        break;
      case DType::kQ4_1:
        each([&](std::byte* p) { put16(p, sixteenth(1.0f / 4)), put16(p + 2, sixteenth(-2.0f)); });
        break;
      case DType::kMXFP4:
        each([&](std::byte* p) { *p = static_cast<std::byte>(126 - k); });
        break;
      default:
        each([](std::byte* p) { *p &= std::byte{0xBF}; });
        break;  // e4m3 below 2: no NaN
    }
    return out;
  }

  const Digest digest_;
  const DType stored_;
  const FormChooser choose_;
  const int64_t n_experts_;
  const bool tied_, coded_, fp4_experts_;
  std::mt19937_64 rng_{1};
  WeightArena arena_;
  int64_t file_bytes_ = 0;
  std::unordered_map<std::string, Matrix> matrices_;  // by request id
};

}  // namespace

Result<std::unique_ptr<LoadedWeights>> random_weights(const std::string& config_json, DType stored, FormChooser choose) {
  if (stored != DType::kBF16 && stored != DType::kQ8_0 && stored != DType::kQ4_1)
    return fail(Code::kUnsupported, "is " + std::string(to_string(stored)) + "; weights are drawn as BF16, Q8_0 or Q4_1", "stored type");
  CARREL_ASSIGN(const ConfigReader config, ConfigReader::parse(config_json));
  auto out = std::make_unique<RandomWeights>(config_json, config, stored, std::move(choose));
  CARREL_TRY(config.status());
  return out;
}

}  // namespace carrel
