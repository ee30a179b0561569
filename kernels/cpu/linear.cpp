// Drives the kernels of one instruction path over a matrix: quantizes activations, splits row blocks and token chunks over the team, writes
// outputs. The split decides who computes an output, never how. Buffers: Scratch for activations, the stack for widened weights and
// accumulators.
#include "kernels/cpu/linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/linear_kernels.h"

namespace carrel::cpu {
namespace {

constexpr int kChunkTokens = 264;        // tokens that share one widening of a row block
constexpr int kChunkGroups = 18;         // groups widened at a time: 25 KiB of two row blocks, in L1 beside a tile of activations
constexpr int kMostBlocks = 2;           // largest tile_blocks of any path
constexpr int kMostDirect = 8;           // largest int_direct and int_tile of any path
constexpr int kPlainTokens = 192;        // tokens of a chunk of plain forms
constexpr int64_t kGatedGrain = 8192;    // elements of a gating that are worth waking a thread
constexpr int64_t kSmallWork = 1 << 16;  // multiply-adds below which waking the team costs more than it saves

const LinearKernels& kernels_of(Path path) {
  if (path == Path::kAvx512) return avx512_kernels();
  return path == Path::kAvx2 ? avx2_kernels() : scalar_kernels();
}

template <class Fn>
void split(ThreadTeam* team, int64_t work, int64_t n, int64_t grain, const Fn& fn) {
  if (team == nullptr || work < kSmallWork) {
    fn(int64_t{0}, n);
  } else {
    team->run(n, grain, fn);
  }
}

/// What all products of a call share.
struct Call {
  const float* x;
  int64_t x_stride;
  int n_tokens;
  ThreadTeam* team;
  const LinearKernels& k;
};

int64_t n_row_blocks(const Matrix& w) {
  return (w.n_rows + kRowBlock - 1) / kRowBlock;
}

/// A vector type of the compiler: GCC makes scalar code, or a trip over the stack, of the plain loops.
using Lanes [[gnu::vector_size(kRowBlock * sizeof(float) / 2)]] = float;
Lanes load_lanes(const float* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

/// One token's 16 outputs, from row `row` on.
void emit_block(const LinearOut& out, const float* acc, int64_t token, int64_t row) {
  const int64_t valid = std::min<int64_t>(kRowBlock, out.w.n_rows - row), at = token * out.y_stride + row;
  float* to = (out.sum != nullptr ? out.sum : out.y) + at;
  if (valid < kRowBlock) {
    for (int64_t r = 0; r < valid; r++) {
      const float v = out.bias != nullptr ? acc[r] + out.bias[row + r] : acc[r];
      to[r] = out.sum != nullptr ? v + out.add[at + r] : v;
    }
    return;
  }
  for (int64_t r = 0; r < kRowBlock; r += kRowBlock / 2) {
    Lanes v = load_lanes(acc + r);
    if (out.bias != nullptr) v += load_lanes(out.bias + row + r);
    if (out.sum != nullptr) v += load_lanes(out.add + at + r);
    std::memcpy(to + r, &v, sizeof v);
  }
}

/// acc: block b of token t at `t * token_stride + b * block_stride`; rows from first_row on, of which those beyond n_rows are dropped.
void emit(const LinearOut& out, const float* acc, int token_stride, int block_stride, int n_blocks, int first_token, int n,
          int64_t first_row) {
  for (int t = 0; t < n; t++) {
    for (int b = 0; b < n_blocks; b++)
      emit_block(out, acc + t * token_stride + b * block_stride, first_token + t, first_row + b * kRowBlock);
  }
}

/// Tokens in tiles of nearly equal size, none larger than `most`.
struct Tiles {
  Tiles(int tokens, int most) : n_tokens(tokens), n((tokens + most - 1) / most) {}
  int begin(int64_t i) const { return static_cast<int>(int64_t{n_tokens} * i / n); }
  int n_tokens, n;
};

/// What a matrix wants of quantized activations.
struct Activations {
  int offset;
  bool halves;
  bool operator==(const Activations&) const = default;
};
Activations activations_of(Form form, const LinearKernels& k) {
  const FormLayout l = layout_of(form);
  return {form == Form::kI8 ? k.int_offset_i8 : l.offset, l.n_sub_scales == 2};
}

int32_t* grown(std::vector<int32_t>& words, int64_t n) {
  if (words.size() < static_cast<size_t>(n)) words.resize(static_cast<size_t>(n));
  return words.data();
}

/// Quantized activations that gated rows become: [tile][group][token] words, as quantize_tile writes them.
struct Coded {
  int32_t* words;
  Activations form;
};

/// Products of integer forms over the same activations. With a gating, outs are gate and up, and their rows meet before they leave the
/// stack; with `coded` they leave it as activations of the next product, two row blocks at a time.
class IntegerProducts {
 public:
  IntegerProducts(const Call& call, std::span<const LinearOut> outs, const Gating* gating, int32_t* words, const Coded* coded = nullptr)
      : c_(call),
        outs_(outs),
        gating_(gating),
        coded_(coded),
        n_groups_(outs[0].w.n_cols / 32),
        direct_(is_direct(call)),
        tiles_(call.n_tokens, direct_ ? call.k.int_direct : call.k.int_tile),
        words_(words) {
    for (const LinearOut& o : outs.first(gating == nullptr ? outs.size() : 1)) n_panels_ += n_panels(o);
  }

  static bool is_direct(const Call& call) { return call.k.widen == nullptr || call.n_tokens <= call.k.int_direct; }
  static int64_t n_words(const Call& call, int64_t n_cols) { return n_cols / 32 * kXWords * call.n_tokens; }

  void quantize() const {
    split(c_.team, outs_[0].w.n_cols * c_.n_tokens * 4, tiles_.n, 1, [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; i++) quantize_tile(i);
    });
  }

  void multiply() const {
    // All row blocks for one chunk of tokens, then the next chunk: its activations and output pages stay near.
    const int64_t n_chunks = direct_ ? 1 : (c_.n_tokens + kChunkTokens - 1) / kChunkTokens;
    int64_t work = 0;
    for (const LinearOut& o : outs_) work += o.w.n_rows * o.w.n_cols * c_.n_tokens;
    split(c_.team, work, n_panels_ * n_chunks, 1, [&](int64_t b, int64_t e) {
      for (int64_t u = b; u < e; u++) {
        const int64_t i = u % n_panels_, tile_begin = tiles_.n * (u / n_panels_) / n_chunks,
                      tile_end = tiles_.n * (u / n_panels_ + 1) / n_chunks;
        if (direct_) {
          direct(panel(i));
        } else if (coded_ != nullptr) {
          coded_tiles(i, tile_begin, tile_end);
        } else {
          tiles(panel(i), tile_begin, tile_end, nullptr);
        }
      }
    });
  }

 private:
  /// Row blocks that go together: neighbours of one matrix, or the same of gate and up.
  struct Panel {
    const LinearOut* out;
    int64_t first;  // row block
    int n;
  };

  int step() const { return coded_ != nullptr ? 2 : gating_ != nullptr || direct_ ? 1 : c_.k.tile_blocks; }
  int64_t n_panels(const LinearOut& o) const { return (n_row_blocks(o.w) + step() - 1) / step(); }
  Panel panel(int64_t i) const {
    if (gating_ != nullptr) return {&outs_[0], i, 2};
    const LinearOut* out = outs_.data();
    for (; i >= n_panels(*out); out++) i -= n_panels(*out);
    return {out, i * step(), static_cast<int>(std::min<int64_t>(step(), n_row_blocks(out->w) - i * step()))};
  }
  const std::byte* row_block(const Panel& p, int i) const {
    const Matrix& w = gating_ != nullptr ? outs_[static_cast<size_t>(i)].w : p.out->w;
    const FormLayout l = layout_of(w.form);
    return w.data + (gating_ != nullptr ? p.first : p.first + i) * (n_groups_ / l.n_groups()) * l.block_bytes();
  }
  int32_t* tile_words(int64_t i) const { return words_ + tiles_.begin(i) * n_groups_ * kXWords; }

  void quantize_tile(int64_t i) const {
    const int first = tiles_.begin(i), t = tiles_.begin(i + 1) - first;
    const Activations a = activations_of(outs_[0].w.form, c_.k);
    for (int slot = 0; slot < t; slot++)
      c_.k.quantize(c_.x + (first + slot) * c_.x_stride, n_groups_, a.offset, a.halves, int64_t{kXWords} * t,
                    tile_words(i) + kXWords * slot);
  }

  /// To `valid` values of n tokens, `stride` apart.
  static void add_bias(const float* bias, int64_t row, int64_t valid, float* values, int n, int stride) {
    for (int t = 0; bias != nullptr && t < n; t++) {
      for (int64_t r = 0; r < valid; r++) values[t * stride + r] += bias[row + r];
    }
  }

  /// acc: [p.n][n][16]
  void finish(const Panel& p, float* acc, int first_token, int n) const {
    if (gating_ == nullptr) return emit(*p.out, acc, kRowBlock, n * kRowBlock, p.n, first_token, n, p.first * kRowBlock);
    const int64_t n_rows = p.out->w.n_rows, row = p.first * kRowBlock, valid = std::min<int64_t>(kRowBlock, n_rows - row);
    for (int i = 0; i < 2; i++) add_bias(outs_[static_cast<size_t>(i)].bias, row, valid, acc + i * n * kRowBlock, n, kRowBlock);
    float y[kMostDirect * kRowBlock];  // all tokens in one call of the gating
    gating_->apply(gating_->act, acc, acc + n * kRowBlock, gating_->limit, n * kRowBlock, y);
    for (int t = 0; t < n; t++) {
      float* to = gating_->y + (first_token + t) * n_rows + row;
      if (valid == kRowBlock) {
        std::memcpy(to, y + t * kRowBlock, kRowBlock * sizeof(float));
      } else {
        std::memcpy(to, y + t * kRowBlock, static_cast<size_t>(valid) * sizeof(float));
      }
    }
  }

  /// Asks for the lines that the results will touch: they lie a row apart, where no hardware prefetch follows.
  void prefetch(const Panel& p, int first_token, int n) const {
    const LinearOut& o = *p.out;
    for (int t = first_token; t < first_token + n; t++) {
      const int64_t row = p.first * kRowBlock;
      if (gating_ != nullptr) {
        __builtin_prefetch(gating_->y + t * o.w.n_rows + row, 1);
        continue;
      }
      for (int64_t at = t * o.y_stride + row, end = at + p.n * kRowBlock; at < end; at += kRowBlock) {
        __builtin_prefetch((o.sum != nullptr ? o.sum : o.y) + at, 1);
        if (o.sum != nullptr) __builtin_prefetch(o.add + at);
      }
    }
  }

  void direct(const Panel& p) const {
    float acc[kMostBlocks * kMostDirect * kRowBlock];
    const Form form = p.out->w.form;
    for (int i = 0; i < tiles_.n; i++) {
      const int first = tiles_.begin(i), t = tiles_.begin(i + 1) - first;
      for (int b = 0; b < p.n; b++)
        c_.k.row_block(form, row_block(p, b), n_groups_ / layout_of(form).n_groups(), tile_words(i), t, acc + b * t * kRowBlock);
      finish(p, acc, first, t);
    }
  }

  /// Whether a tile can write its results itself: whole row blocks, and nothing happens to them but sums.
  bool writes_itself(const Panel& p) const { return gating_ == nullptr && (p.first + p.n) * kRowBlock <= p.out->w.n_rows; }
  TileOut results(const Panel& p, int first_token) const {
    const LinearOut& o = *p.out;
    const int64_t row = p.first * kRowBlock, at = first_token * o.y_stride + row;
    return {(o.sum != nullptr ? o.sum : o.y) + at, o.y_stride, kRowBlock, o.bias != nullptr ? o.bias + row : nullptr,
            o.sum != nullptr ? o.add + at : nullptr};
  }

  static constexpr int kMostTokens = kChunkTokens + kMostDirect;  // of a chunk
  static constexpr int kPair = 2 * kRowBlock, kSide = kMostTokens * kPair;

  /// Rows [32 i, 32 i + 32) of gate and up, for every token one group of the next product.
  void coded_tiles(int64_t i, int64_t tile_begin, int64_t tile_end) const {
    float sides[2 * kSide], y[kMostDirect * kPair];  // gate, up: [token][32]
    const int first = tiles_.begin(tile_begin);
    for (int64_t half = 0; half < 2; half++) tiles({&outs_[0], 2 * i + half, 2}, tile_begin, tile_end, sides + half * kRowBlock);
    const int64_t n_groups = outs_[0].w.n_rows / kPair;
    for (int64_t tile = tile_begin; tile < tile_end; tile++) {
      const int at = tiles_.begin(tile), t = tiles_.begin(tile + 1) - at;
      float *gate = sides + (at - first) * kPair, *up = gate + kSide;
      add_bias(outs_[0].bias, i * kPair, kPair, gate, t, kPair);
      add_bias(outs_[1].bias, i * kPair, kPair, up, t, kPair);
      gating_->apply(gating_->act, gate, up, gating_->limit, t * kPair, y);
      int32_t* words = coded_->words + (at * n_groups + i * t) * kXWords;
      c_.k.quantize(y, t, coded_->form.offset, coded_->form.halves, kXWords, words);
    }
  }

  /// sides: where half a pair's results go, in place of finish().
  void tiles(const Panel& p, int64_t tile_begin, int64_t tile_end, float* sides) const {
    WideGroup wide[kMostBlocks * kChunkGroups];
    float acc[kMostTokens * kMostBlocks * kRowBlock];  // [tile][p.n][t][16]
    const Form form = p.out->w.form;
    const FormLayout l = layout_of(form);
    const int first = tiles_.begin(tile_begin), width = p.n * kRowBlock;
    const int64_t n_blocks = n_groups_ / l.n_groups(), most = kChunkGroups / l.n_groups(), n_steps = (n_blocks + most - 1) / most;
    for (int64_t s = 0; s < n_steps; s++) {
      const bool last = s + 1 == n_steps, whole = last && writes_itself(p);
      const int64_t from = n_blocks * s / n_steps, n = n_blocks * (s + 1) / n_steps - from;
      for (int b = 0; b < p.n; b++) c_.k.widen(form, row_block(p, b) + from * l.block_bytes(), n, wide + b * kChunkGroups);
      for (int64_t i = tile_begin; i < tile_end; i++) {
        const int at = tiles_.begin(i), t = tiles_.begin(i + 1) - at;
        float* tile_acc = acc + (at - first) * width;
        if (last && sides == nullptr) prefetch(p, at, t);
        TileOut out{tile_acc, kRowBlock, int64_t{t} * kRowBlock};
        if (whole) out = results(p, at);
        if (last && sides != nullptr) out = {sides + (at - first) * kPair, kPair, kSide};
        c_.k.tile(form, p.n, t)(wide, kChunkGroups, static_cast<int>(n) * l.n_groups(), tile_words(i) + from * l.n_groups() * kXWords * t,
                                s == 0 ? nullptr : tile_acc, out);
        if (last && !whole && sides == nullptr) finish(p, tile_acc, at, t);  // here, so that stores drain under the next tile
      }
    }
  }

  const Call& c_;
  std::span<const LinearOut> outs_;
  const Gating* gating_;
  const Coded* coded_;
  int64_t n_groups_, n_panels_ = 0;
  bool direct_;  // few tokens: straight from the packed blob
  Tiles tiles_;
  int32_t* words_;
};

void plain_product(const Call& c, const LinearOut& out) {
  const Matrix& w = out.w;
  const Tiles tiles(c.n_tokens, c.k.plain_tile);
  const int group = c.k.plain_row_blocks(tiles.begin(1));
  const int64_t n_groups = (n_row_blocks(w) + group - 1) / group;
  const int64_t chunk = kPlainTokens / c.k.plain_tile, n_chunks = (tiles.n + chunk - 1) / chunk;
  const int64_t block_bytes = plain_block_bytes(w.form, w.n_cols);
  split(c.team, w.n_rows * w.n_cols * c.n_tokens, n_groups * n_chunks, 1, [&](int64_t b, int64_t e) {
    float acc[16 * 4 * kRowBlock];
    for (int64_t u = b; u < e; u++) {
      const int64_t rb = u % n_groups * group, chunk_begin = u / n_groups * chunk;
      const int n = static_cast<int>(std::min<int64_t>(group, n_row_blocks(w) - rb));
      for (int64_t i = chunk_begin; i < std::min<int64_t>(tiles.n, chunk_begin + chunk); i++) {
        const int first = tiles.begin(i), t = tiles.begin(i + 1) - first;
        c.k.plain(w.form, w.data + rb * block_bytes, w.n_cols, n, c.x + first * c.x_stride, c.x_stride, t, acc);
        emit(out, acc, n * kRowBlock, kRowBlock, n, first, t, rb * kRowBlock);
      }
    }
  });
}

}  // namespace

bool path_available(Path path) {
  if (path != Path::kAvx512) return true;  // AVX2 and FMA are the baseline of the binary
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}

Path best_path() {
  return path_available(Path::kAvx512) ? Path::kAvx512 : Path::kAvx2;
}

std::string_view to_string(Path path) {
  return path == Path::kScalar ? "scalar" : path == Path::kAvx2 ? "avx2" : "avx512";
}

void linear_packed(std::span<const LinearOut> outs, const float* x, int64_t x_stride, int n_tokens, ThreadTeam* team, Path path,
                   Scratch& scratch) {
  if (n_tokens <= 0) return;
  const Call call{x, x_stride, n_tokens, team, kernels_of(path)};
  for (size_t i = 0, end = 0; i < outs.size(); i = end) {
    end = i + 1;
    if (is_plain(outs[i].w.form)) {
      plain_product(call, outs[i]);
      continue;
    }
    const Activations a = activations_of(outs[i].w.form, call.k);
    while (end < outs.size() && !is_plain(outs[end].w.form) && activations_of(outs[end].w.form, call.k) == a) end++;
    const IntegerProducts products(call, outs.subspan(i, end - i), nullptr,
                                   grown(scratch.words, IntegerProducts::n_words(call, outs[i].w.n_cols)));
    products.quantize();
    products.multiply();
  }
}

namespace {

/// Whether gate and up can go together.
bool joint(const Call& c, const LinearOut& gate, const LinearOut& up) {
  return c.n_tokens > 0 && !is_plain(gate.w.form) && gate.w.form == up.w.form && (c.k.tile_blocks >= 2 || c.n_tokens <= c.k.int_direct);
}

}  // namespace

void gated_packed(const LinearOut& gate, const LinearOut& up, const Gating& gating, const float* x, int64_t x_stride, int n_tokens,
                  ThreadTeam* team, Path path, Scratch& scratch) {
  const LinearOut outs[2] = {gate, up};
  const Call call{x, x_stride, n_tokens, team, kernels_of(path)};
  if (joint(call, gate, up)) {
    const IntegerProducts products(call, outs, &gating, grown(scratch.words, IntegerProducts::n_words(call, gate.w.n_cols)));
    products.quantize();
    return products.multiply();
  }
  linear_packed(outs, x, x_stride, n_tokens, team, path, scratch);
  const int64_t n = n_tokens * gate.w.n_rows;
  split(team, n * 16, n, kGatedGrain,
        [&](int64_t b, int64_t e) { gating.apply(gating.act, gate.y + b, up.y + b, gating.limit, e - b, gating.y + b); });
}

void feed_forward_packed(const LinearOut& gate, const LinearOut& up, const Gating& gating, const LinearOut& down, const float* x,
                         int64_t x_stride, int n_tokens, ThreadTeam* team, Path path, Scratch& scratch) {
  const LinearOut outs[2] = {gate, up};
  const Call call{x, x_stride, n_tokens, team, kernels_of(path)};
  if (!joint(call, gate, up) || is_plain(down.w.form) || IntegerProducts::is_direct(call)) {
    gated_packed(gate, up, gating, x, x_stride, n_tokens, team, path, scratch);
    return linear_packed(std::span(&down, 1), gating.y, gate.w.n_rows, n_tokens, team, path, scratch);
  }
  const Coded coded{grown(scratch.inner, IntegerProducts::n_words(call, down.w.n_cols)), activations_of(down.w.form, call.k)};
  const IntegerProducts products(call, outs, &gating, grown(scratch.words, IntegerProducts::n_words(call, gate.w.n_cols)), &coded);
  products.quantize();
  products.multiply();
  IntegerProducts(call, std::span(&down, 1), nullptr, coded.words).multiply();
}

void linear_packed(const Matrix& w, const float* bias, const float* x, int64_t x_stride, int n_tokens, float* y, int64_t y_stride,
                   ThreadTeam* team, Path path, Scratch& scratch) {
  const LinearOut out{w, bias, y, y_stride};
  linear_packed(std::span(&out, 1), x, x_stride, n_tokens, team, path, scratch);
}

void linear_f32(const Matrix& w, const float* bias, const float* x, int64_t x_stride, int n_tokens, float* y, int64_t y_stride,
                ThreadTeam* team, Path path) {
  if (n_tokens > 0) plain_product({x, x_stride, n_tokens, team, kernels_of(path)}, {w, bias, y, y_stride});
}

}  // namespace carrel::cpu
