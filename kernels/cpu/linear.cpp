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

constexpr int kChunkTokens = 192;        // tokens that share one widening of a row block
constexpr int kChunkGroups = 16;         // groups widened at a time: 11 KiB, in L1 beside a tile of activations
constexpr int kMostDirect = 8;           // largest int_direct of any path
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

/// Everything one call knows.
struct Call {
  const Matrix& w;
  const float* bias;
  const float* x;
  int64_t x_stride;
  int n_tokens;
  float* y;
  int64_t y_stride;
  ThreadTeam* team;
  const LinearKernels& k;

  int64_t n_row_blocks() const { return (w.n_rows + kRowBlock - 1) / kRowBlock; }
  int64_t work() const { return w.n_rows * w.n_cols * n_tokens; }

  /// acc: [n][acc_stride], rows from first_row on, of which those beyond n_rows are dropped.
  void emit(const float* acc, int acc_stride, int first_token, int n, int64_t first_row) const {
    const int64_t valid = std::min<int64_t>(acc_stride, w.n_rows - first_row);
    for (int t = 0; t < n; t++) {
      float* out = y + (first_token + t) * y_stride + first_row;
      const float* a = acc + t * acc_stride;
      if (bias == nullptr && valid == kRowBlock) {
        std::memcpy(out, a, kRowBlock * sizeof(float));  // a constant size: no call
      } else if (bias == nullptr) {
        std::memcpy(out, a, static_cast<size_t>(valid) * sizeof(float));
      } else {
        for (int64_t r = 0; r < valid; r++) out[r] = a[r] + bias[first_row + r];
      }
    }
  }
};

/// Tokens in tiles of nearly equal size, none larger than `most`.
struct Tiles {
  Tiles(int tokens, int most) : n_tokens(tokens), n((tokens + most - 1) / most) {}
  int begin(int64_t i) const { return static_cast<int>(int64_t{n_tokens} * i / n); }
  int n_tokens, n;
};

class IntegerProduct {
 public:
  IntegerProduct(const Call& call, Scratch& scratch)
      : c_(call), layout_(layout_of(call.w.form)), n_groups_(call.w.n_cols / 32), tiles_(call.n_tokens, call.k.int_tile) {
    const auto need = static_cast<size_t>(n_groups_ * kXWords * c_.n_tokens);
    if (scratch.words.size() < need) scratch.words.resize(need);
    words_ = scratch.words.data();
  }

  void run() {
    split(c_.team, c_.w.n_cols * c_.n_tokens * 4, tiles_.n, 1, [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; i++) quantize_tile(i);
    });
    if (c_.k.widen == nullptr || c_.n_tokens <= c_.k.int_direct) {
      split(c_.team, c_.work(), c_.n_row_blocks(), 1, [&](int64_t b, int64_t e) {
        for (int64_t rb = b; rb < e; rb++) direct(rb);
      });
      return;
    }
    // All row blocks for one chunk of tokens, then the next chunk: its activations and output pages stay near.
    const int64_t chunk = kChunkTokens / c_.k.int_tile, n_rb = c_.n_row_blocks();
    split(c_.team, c_.work(), n_rb * ((tiles_.n + chunk - 1) / chunk), 1, [&](int64_t b, int64_t e) {
      for (int64_t u = b; u < e; u++) tiles(u % n_rb, u / n_rb * chunk, std::min<int64_t>(tiles_.n, (u / n_rb + 1) * chunk));
    });
  }

 private:
  int32_t* tile_words(int64_t i) const { return words_ + tiles_.begin(i) * n_groups_ * kXWords; }
  const std::byte* row_block(int64_t rb) const { return c_.w.data + rb * n_blocks() * layout_.block_bytes(); }
  int64_t n_blocks() const { return n_groups_ / layout_.n_groups(); }

  void quantize_tile(int64_t i) const {
    const int first = tiles_.begin(i), t = tiles_.begin(i + 1) - first;
    const int offset = c_.w.form == Form::kI8 ? c_.k.int_offset_i8 : layout_.offset;
    for (int slot = 0; slot < t; slot++)
      c_.k.quantize(c_.x + (first + slot) * c_.x_stride, n_groups_, offset, layout_.n_sub_scales == 2, t, tile_words(i), slot);
  }

  void direct(int64_t rb) const {
    float acc[kMostDirect * kRowBlock];
    for (int i = 0; i < tiles_.n; i++) {
      const int first = tiles_.begin(i), t = tiles_.begin(i + 1) - first;
      c_.k.row_block(c_.w.form, row_block(rb), n_blocks(), tile_words(i), t, acc);
      c_.emit(acc, kRowBlock, first, t, rb * kRowBlock);
    }
  }

  void tiles(int64_t rb, int64_t tile_begin, int64_t tile_end) const {
    WideGroup wide[kChunkGroups];
    float acc[(kChunkTokens + 1) * kRowBlock];
    const int first = tiles_.begin(tile_begin);
    const int64_t step = kChunkGroups / layout_.n_groups();
    for (int64_t b = 0; b < n_blocks(); b += step) {
      const int64_t blocks = std::min(step, n_blocks() - b), g0 = b * layout_.n_groups();
      c_.k.widen(c_.w.form, row_block(rb) + b * layout_.block_bytes(), blocks, wide);
      for (int64_t i = tile_begin; i < tile_end; i++) {
        const int at = tiles_.begin(i), t = tiles_.begin(i + 1) - at;
        float* tile_acc = acc + (at - first) * kRowBlock;
        if (b == 0) std::memset(tile_acc, 0, static_cast<size_t>(t * kRowBlock) * sizeof(float));
        c_.k.tile(c_.w.form, wide, static_cast<int>(blocks) * layout_.n_groups(), tile_words(i) + g0 * kXWords * t, t, tile_acc);
        if (b + blocks == n_blocks())
          c_.emit(tile_acc, kRowBlock, at, t, rb * kRowBlock);  // here, so that stores drain under the next tile
      }
    }
  }

  const Call& c_;
  FormLayout layout_;
  int64_t n_groups_;
  Tiles tiles_;
  int32_t* words_;
};

void plain_product(const Call& c) {
  constexpr int kMostAccs = 16 * kRowBlock * 4;
  const Tiles tiles(c.n_tokens, c.k.plain_tile);
  const int group = c.k.plain_row_blocks(tiles.begin(1));
  const int64_t n_groups = (c.n_row_blocks() + group - 1) / group;
  const int64_t chunk = kChunkTokens / c.k.plain_tile, n_chunks = (tiles.n + chunk - 1) / chunk;
  const int64_t block_bytes = c.w.n_cols * kRowBlock * (c.w.form == Form::kF32 ? 4 : 2);
  split(c.team, c.work(), n_groups * n_chunks, 1, [&](int64_t b, int64_t e) {
    float acc[kMostAccs];
    for (int64_t u = b; u < e; u++) {
      const int64_t rb = u % n_groups * group, chunk_begin = u / n_groups * chunk;
      const int n = static_cast<int>(std::min<int64_t>(group, c.n_row_blocks() - rb));
      for (int64_t i = chunk_begin; i < std::min<int64_t>(tiles.n, chunk_begin + chunk); i++) {
        const int first = tiles.begin(i), t = tiles.begin(i + 1) - first;
        c.k.plain(c.w.form, c.w.data + rb * block_bytes, c.w.n_cols, n, c.x + first * c.x_stride, c.x_stride, t, acc);
        c.emit(acc, n * kRowBlock, first, t, rb * kRowBlock);
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

void linear_packed(const Matrix& w, const float* bias, const float* x, int64_t x_stride, int n_tokens, float* y, int64_t y_stride,
                   ThreadTeam* team, Path path, Scratch& scratch) {
  if (n_tokens <= 0) return;
  const Call call{w, bias, x, x_stride, n_tokens, y, y_stride, team, kernels_of(path)};
  if (is_plain(w.form)) {
    plain_product(call);
  } else {
    IntegerProduct(call, scratch).run();
  }
}

void linear_f32(const Matrix& w, const float* bias, const float* x, int64_t x_stride, int n_tokens, float* y, int64_t y_stride,
                ThreadTeam* team, Path path) {
  if (n_tokens > 0) plain_product({w, bias, x, x_stride, n_tokens, y, y_stride, team, kernels_of(path)});
}

}  // namespace carrel::cpu
