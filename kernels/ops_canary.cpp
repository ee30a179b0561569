// The canary of a numerics id: one small layer of each kind over fixed inputs, odd shapes, a chunk and then single tokens; the hash of
// every output bit.
//
// Whoever changes an order of operations changes this hash, and with it makes the stored state of the older build invisible. Threads: the
// caller's.
#include <array>
#include <cstring>

#include "base/hash.h"
#include "kernels/ops.h"
#include "kernels/packed_rows.h"

namespace carrel {
namespace {

constexpr int kBlock = 64;
constexpr Act kActs[] = {Act::kSilu, Act::kGeluTanh, Act::kSigmoid, Act::kIdentity, Act::kSwigluOai};
constexpr RouteScore kScores[] = {RouteScore::kSoftmax, RouteScore::kSqrtSoftplus, RouteScore::kSigmoid, RouteScore::kSoftmaxOfChosen};
constexpr int kSteps[] = {67, 1, 2, 75, 1};  // tokens of each step: crosses block and key block borders

/// Inputs without a C library: a counter through a mixer, exact in float32.
class Noise {
 public:
  std::vector<float> floats(int64_t n, float scale = 1.0f) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = scale * (static_cast<float>(next() >> 40) * 0x1p-23f - 1.0f);
    return v;
  }
  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_ = 1;
};

class Canary {
 public:
  explicit Canary(Ops& ops) : ops_(ops) {}

  std::string run() {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                             DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kMXFP4, DType::kF8E4M3}) {
      products(type);
    }
    elements();
    mixture();
    streams();
    states();
    for (const DType columns : {DType::kF32, DType::kBF16}) recurrent(columns);
    packed_states();
    return to_hex(sha_.finish());
  }

 private:
  template <class T>
  void add(const std::vector<T>& v) {
    sha_.update(std::as_bytes(std::span(v)));
  }

  /// Values of a file type. Blocks: random bytes that never reach the exponent of an f16 infinity.
  std::vector<std::byte> file_values(DType type, int64_t n) {
    std::vector<std::byte> file(bytes_of(type, static_cast<size_t>(n)));
    if (block_shape(type).n_values > 1) {
      for (std::byte& b : file) b = static_cast<std::byte>(noise_.next() % 0x3C);
      if (type == DType::kMXFP4) {
        for (size_t at = 0; at < file.size(); at += 17) file[at] = static_cast<std::byte>(120 + noise_.next() % 8);
      }
      return file;
    }
    const std::vector<float> values = noise_.floats(n);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto half = type == DType::kF16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
      if (type == DType::kF32) {
        std::memcpy(file.data() + 4 * i, &values[i], 4);
      } else {
        std::memcpy(file.data() + 2 * i, &half, 2);
      }
    }
    return file;
  }

  Matrix matrix(DType type, int64_t n_rows, int64_t n_cols) {
    const Form form = ops_.wanted_form(form_of(type));
    const size_t n = packed_bytes(form, n_rows, n_cols);
    auto& memory = matrices_.emplace_back(n + 64);
    std::byte* data = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    if (type == DType::kF8E4M3) {
      std::vector<std::byte> codes(static_cast<size_t>(n_rows * n_cols));
      for (std::byte& b : codes) {
        const uint64_t random = noise_.next();
        b = static_cast<std::byte>((random >> 8) % 0x7F | (random & 0x80));
      }
      const std::vector<float> scales = noise_.floats(n_rows * ((n_cols + 127) / 128), 0.01f);
      if (!pack_f8(codes, scales, n_rows, n_cols, form, std::span(data, n))) return {};
      return {form, n_rows, n_cols, data};
    }
    const std::vector<std::byte> file = file_values(type, n_rows * n_cols);
    const Form direct = form == Form::kRows || form == Form::kF32 ? form : form_of(type);
    if (!pack_matrix(type, file, n_rows, n_cols, direct, std::span(data, n))) return {};
    return {form, n_rows, n_cols, data};
  }

  void products(DType type) {
    const int64_t n_cols = 512;
    const Matrix w = matrix(type, 37, n_cols);
    const std::vector<float> x = noise_.floats(5 * n_cols), bias = noise_.floats(37);
    std::vector<float> y(5 * 37), one(37), rows(static_cast<size_t>(3 * n_cols));
    ops_.linear(w, bias.data(), x.data(), n_cols, 5, y.data(), 37);
    ops_.linear(w, nullptr, x.data(), n_cols, 1, one.data(), 37);
    const std::array<int32_t, 3> ids = {36, 0, 17};
    ops_.embed(w, ids, 1.5f, rows.data());
    add(y);
    add(one);
    add(rows);
  }

  void elements() {
    const std::vector<float> a = noise_.floats(3 * 77, 20.0f), b = noise_.floats(3 * 77), w = noise_.floats(2 * 77);
    std::vector<float> y(a.size());
    for (const float scale : {1.0f, 0.22f}) {
      ops_.add(a.data(), b.data(), scale, 3 * 77, y.data());
      ops_.scale(1.0f / 3, 77, y.data());
      add(y);
    }
    ops_.gate_rows(w.data(), a.data(), 3, 77, y.data());
    add(y);
    for (const int n_weights : {1, 2}) {
      ops_.rms_norm(a.data(), w.data(), 1e-6f, 3, 77, y.data(), n_weights);
      add(y);
    }
    for (const Act act : kActs) {
      ops_.gated(act, a.data(), b.data(), 0.5f, 3 * 77, y.data());
      add(y);
    }
    y = a;
    ops_.softcap(7.0f, 3 * 77, y.data());
    add(y);
    RopeTable table;
    const std::array<int32_t, 3> positions = {0, 5, 1000000};
    make_rope_table({{1.0, 0.31, 0.001, 1e-6, 1.0 / 3}, 1.1}, positions, table);
    add(table.cos);
    add(table.sin);
    for (const bool pairs : {false, true}) {
      y = a;
      ops_.rope(y.data(), {7, 11, 1, 10, pairs, pairs}, table, 3);
      add(y);
    }
  }

  void mixture() {
    constexpr int kExperts = 5, kTop = 3, kTokens = 9, kWidth = 64;
    std::vector<Expert> experts;
    for (int e = 0; e < kExperts; ++e) {
      experts.push_back({matrix(DType::kBF16, 32, kWidth), matrix(DType::kBF16, 32, kWidth), matrix(DType::kBF16, kWidth, 32)});
    }
    const std::vector<float> scores = noise_.floats(kTokens * kExperts, 3.0f), x = noise_.floats(kTokens * kWidth),
                             bias = noise_.floats(kExperts), biases = noise_.floats(kWidth);
    experts[1].gate_bias = experts[1].up_bias = experts[1].down_bias = biases.data();
    const std::vector<int32_t> tokens(kTokens, 0);
    std::vector<int32_t> ids(kTokens * kTop);
    std::vector<float> weights(ids.size()), y(x.size());
    for (const RouteScore score : kScores) {
      ops_.route({kExperts, kTop, score, bias.data(), nullptr, true, 1.5f, 1e-6f}, scores.data(), tokens, ids.data(), weights.data());
      add(ids);
      add(weights);
      ops_.experts(experts, score == RouteScore::kSoftmaxOfChosen ? Act::kSwigluOai : Act::kSilu, 10.0f, x.data(), ids.data(),
                   weights.data(), kTop, kTokens, y.data());
      add(y);
    }
  }

  void streams() {
    constexpr int kN = 3, kWidth = 29, kTokens = 4;
    const std::vector<float> fn = noise_.floats((2 + kN) * kN * kN * kWidth), scale = noise_.floats(3), base = noise_.floats((2 + kN) * kN);
    const std::vector<float> x = noise_.floats(kTokens * kN * kWidth, 4.0f);
    const HcArgs args{kN, kWidth, 20, 1e-6f, 1e-6f, fn.data(), scale.data(), base.data()};
    std::vector<float> y(kTokens * kWidth), post(kTokens * kN), comb(kTokens * kN * kN), out(x.size());
    ops_.hc_pre(x.data(), args, kTokens, y.data(), post.data(), comb.data());
    ops_.hc_post(y.data(), x.data(), post.data(), comb.data(), kN, kWidth, kTokens, out.data());
    ops_.hc_head(out.data(), args, kTokens, y.data());
    for (const auto* v : {&y, &post, &comb, &out}) add(*v);
  }

  StateRows group(int row_elems, int ratio, int tail_rows = 0) { return group(ops_.kv_dtype(), row_elems, ratio, tail_rows); }
  StateRows group(DType dtype, int row_elems, int ratio, int tail_rows) {
    RowLayout layout{dtype, row_elems, ratio ? kBlock / ratio : tail_rows, ratio, 0, 0};
    if (ratio == 0) layout.dtype = DType::kF32;
    layout.row_stride_bytes = row_bytes(layout.dtype, row_elems);
    layout.layer_stride_bytes = layout.row_stride_bytes * static_cast<size_t>(layout.rows_per_page);
    auto& pages = pages_.emplace_back();
    for (int b = 0; b < 3; ++b) pages.push_back(state_.emplace_back(layout.layer_stride_bytes, std::byte{0xFF}).data());
    tables_.push_back(pages.data());
    return {static_cast<int>(tables_.size()) - 1, 0, layout};
  }

  /// One layer over packed rows: rounded on the way in, and the indexer's queries with them.
  void packed_states() {
    constexpr int kDim = 128, kIndexDim = 32, kHeads = 3, kTop = 5, kRatio = 4;
    const StateRows window = group(DType::kPackedKv, kDim, 1, 0), rows = group(DType::kPackedKv, kDim, kRatio, 0),
                    keys = group(DType::kPackedIndex, kIndexDim, kRatio, 0);
    std::vector<float> slot(2 * kRatio * (kDim + kIndexDim));
    const std::vector<double> inv_freq = {1.0, 0.01};
    const std::vector<float> ape = noise_.floats(kRatio * kDim), norm = noise_.floats(kDim), sinks = noise_.floats(kHeads);
    const auto pool = [&](int n, int dim, size_t ring_begin, const StateRows& to, const Batch& batch) {
      const CompressArgs args{kRatio, dim, false, ape.data(), norm.data(), 1e-6f, dim - 4, 4, &inv_freq};
      const std::vector<float> c = noise_.floats(n * dim), z = noise_.floats(n * dim, 3.0f);
      ops_.compress(c.data(), z.data(), args, {ring_begin * sizeof(float), kRatio, 2 * dim}, to, to, batch);
    };
    int n_past = 0;
    for (const int n : kSteps) {
      const SeqStep seq{0, n, n_past, tables_, reinterpret_cast<std::byte*>(slot.data())};
      std::vector<int32_t> positions, zeros(static_cast<size_t>(n), 0);
      for (int i = 0; i < n; ++i) positions.push_back(n_past + i);
      const Batch batch{n, kBlock, zeros, positions, zeros, std::span(&seq, 1), {}};
      const std::vector<float> kv = noise_.floats(n * kDim), qi = noise_.floats(n * kHeads * kIndexDim), w = noise_.floats(n * kHeads),
                               q = noise_.floats(n * kHeads * kDim, 2.0f);
      std::vector<float> y(q.size());
      std::vector<int32_t> selected(static_cast<size_t>(n * kTop));
      ops_.store_rows(kv.data(), kDim, 0, window, batch);
      pool(n, kDim, 0, rows, batch);
      pool(n, kIndexDim, 2 * kRatio * kDim, keys, batch);
      ops_.index_topk(qi.data(), w.data(), kHeads, kIndexDim, kTop, keys, batch, selected.data());
      add(selected);
      ops_.sparse_attention(q.data(), window, &rows, selected.data(), kTop, {kHeads, kDim, 0.2f, 33, sinks.data()}, batch, y.data());
      add(y);
      n_past += n;
    }
  }

  void states() {
    constexpr int kDim = 24, kHeads = 6, kTop = 9;
    pages_.reserve(16);
    const StateRows plain = group(2 * 2 * kDim, 1), window = group(kDim, 1), rows = group(kDim, 4), tail = group(2 * kDim, 0, 4);
    std::vector<float> slot(8 * 4 * kDim);
    const std::vector<double> inv_freq = {1.0, 0.01};
    const std::vector<float> ape = noise_.floats(4 * 2 * kDim), norm = noise_.floats(kDim), sinks = noise_.floats(kHeads);
    const CompressArgs compress{4, kDim, true, ape.data(), norm.data(), 1e-6f, kDim - 4, 4, &inv_freq};
    int n_past = 0;
    for (const int n : kSteps) {
      const SeqStep seq{0, n, n_past, tables_, reinterpret_cast<std::byte*>(slot.data())};
      std::vector<int32_t> positions, zeros(static_cast<size_t>(n), 0);
      for (int i = 0; i < n; ++i) positions.push_back(n_past + i);
      const Batch batch{n, kBlock, zeros, positions, zeros, std::span(&seq, 1), {}};
      const std::vector<float> q = noise_.floats(n * kHeads * kDim, 2.0f), w = noise_.floats(n * kHeads),
                               z = noise_.floats(n * 2 * kDim, 3.0f);
      std::vector<float> y(q.size());
      std::vector<int32_t> selected(static_cast<size_t>(n * kTop));
      ops_.store_rows(noise_.floats(n * 4 * kDim).data(), 4 * kDim, 0, plain, batch);
      ops_.attention(q.data(), plain, {kHeads, 2, kDim, 0.2f, n % 2 ? 0 : 50, sinks.data()}, batch, y.data());
      add(y);
      ops_.store_rows(noise_.floats(n * kDim).data(), kDim, 0, window, batch);
      ops_.compress(noise_.floats(n * 2 * kDim).data(), z.data(), compress, {0, 8, 4 * kDim}, rows, tail, batch);
      ops_.index_topk(q.data(), w.data(), kHeads, kDim, kTop, rows, batch, selected.data());
      add(selected);
      ops_.sparse_attention(q.data(), window, &rows, selected.data(), kTop, {kHeads, kDim, 0.2f, 33, sinks.data()}, batch, y.data());
      add(y);
      ops_.sparse_attention(q.data(), window, &rows, nullptr, 0, {kHeads, kDim, 0.2f, 33, nullptr}, batch, y.data());
      add(y);
      n_past += n;
    }
  }

  Registers registers(DType dtype, int row_elems, int n_rows, size_t& slot_bytes) {
    RowLayout layout{dtype, row_elems, n_rows, 0, bytes_of(dtype, static_cast<size_t>(row_elems)), 0};
    layout.layer_stride_bytes = (layout.row_stride_bytes * static_cast<size_t>(n_rows) + 63) / 64 * 64;
    auto& pages = pages_.emplace_back();
    for (int b = 0; b < 3; ++b) pages.push_back(state_.emplace_back(layout.layer_stride_bytes, std::byte{0xFF}).data());
    tables_.push_back(pages.data());
    slot_bytes += layout.layer_stride_bytes;
    return {static_cast<int>(tables_.size()) - 1, 0, layout, slot_bytes - layout.layer_stride_bytes};
  }

  /// Layers over registers: chunks and single tokens, then on from the page of the second block in another slot.
  void recurrent(DType columns) {
    constexpr int kChannels = 37, kTaps = 4, kKeys = 2, kValues = 4, kKeyDim = 9, kValueDim = 21, kHeads = 3, kHeadDim = 18, kState = 7;
    pages_.clear();
    pages_.reserve(3);
    tables_.clear();
    size_t slot_bytes = 0;
    const Registers conv = registers(columns, kChannels, kTaps - 1, slot_bytes),
                    delta = registers(DType::kF32, kValueDim, kValues * kKeyDim, slot_bytes),
                    ssm = registers(DType::kF32, kHeadDim, kHeads * kState, slot_bytes);
    const std::vector<float> taps = noise_.floats(kTaps * kChannels), bias = noise_.floats(kChannels), d = noise_.floats(kHeads);
    std::vector<float> a = noise_.floats(kValues, 0.5f);
    for (float& v : a) v -= 0.6f;
    const auto run = [&](std::vector<std::byte>& slot, int n_past, int n, bool restored) {
      const SeqStep seq{0, n, n_past, tables_, slot.data(), restored};
      const std::vector<int32_t> zeros(static_cast<size_t>(n), 0);
      const Batch batch{n, kBlock, zeros, zeros, zeros, std::span(&seq, 1), {}};
      std::vector<float> y(static_cast<size_t>(n * kValues * kValueDim));
      const bool silu = n_past % 2 == 0;
      ops_.short_conv(noise_.floats(n * kChannels).data(), {kChannels, kTaps, taps.data(), silu ? bias.data() : nullptr, silu}, conv, batch,
                      y.data());
      add(y);
      ops_.delta_scan(noise_.floats(n * (2 * kKeys * kKeyDim + kValues * kValueDim)).data(), noise_.floats(n * kValues, 3.0f).data(),
                      noise_.floats(n * kValues, 3.0f).data(),
                      {kKeys, kValues, kKeyDim, kValueDim, a.data(), bias.data(), n_past > 0, 1e-6f, 1.0f / 3}, delta, batch, y.data());
      add(y);
      ops_.ssm_scan(noise_.floats(n * (kHeads * kHeadDim + 2 * kState)).data(), noise_.floats(n * kHeads, 3.0f).data(),
                    {kHeads, kHeadDim, 1, kState, a.data(), d.data(), bias.data(), 0.01f, 1.5f}, ssm, batch, y.data());
      add(y);
      add(slot);
    };
    std::vector<std::byte> slot(slot_bytes, std::byte{0xFF}), other = slot;
    int n_past = 0;
    for (const int n : kSteps) {
      run(slot, n_past, n, false);
      n_past += n;
    }
    run(other, 2 * kBlock, 1, true);
    run(other, 2 * kBlock + 1, 5, false);
    for (const Registers* r : {&conv, &delta, &ssm}) {
      for (size_t b = 0; b < 2; ++b) sha_.update(std::span(pages_[static_cast<size_t>(r->group)][b], r->layer_bytes()));
    }
  }

  Ops& ops_;
  Noise noise_;
  Sha256 sha_;
  std::vector<std::vector<std::byte>> matrices_, state_;
  std::vector<std::vector<std::byte*>> pages_;
  std::vector<std::byte* const*> tables_;
};

}  // namespace

std::string numerics_canary(Ops& ops) {
  return Canary(ops).run();
}

}  // namespace carrel
