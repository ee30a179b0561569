// Online softmax of a tile of queries over keys that come in blocks of 64: the one place where attention adds up.
//
// Canonical order of a query: for each block that holds a key it sees, scores by dots over d in index order, times scale, one softmax step,
// then o = fma(weight, value, o) for its keys in index order. Blocks lie at absolute indices (positions, or ranks of a selection), so
// neither the other queries of the tile nor the chunk enter. Keys that a query does not see never touch its sums, whatever their memory
// holds. Threads: one object per task, on the scratch of its thread.
#pragma once
#include <algorithm>
#include <limits>

#include "kernels/cpu/math.h"
#include "kernels/cpu/vector_ops.h"

namespace carrel::cpu {

/// Sums of a tile: greatest score, total weight, weighted values [rows][padded], row = token * n_heads + head.
struct Partial {
  float* m = nullptr;
  float* l = nullptr;
  float* o = nullptr;

  static size_t floats(int n_rows, int padded) { return static_cast<size_t>(n_rows) * static_cast<size_t>(padded + 2); }
  static Partial at(float* memory, int n_rows) { return {memory, memory + n_rows, memory + 2 * n_rows}; }
  void clear(int n_rows, int padded) const {
    std::fill(m, m + n_rows, -std::numeric_limits<float>::infinity());
    std::fill(l, l + n_rows, 0.0f);
    std::fill(o, o + static_cast<ptrdiff_t>(n_rows) * padded, 0.0f);
  }
};

inline int padded_dim(int dim) {
  return (dim + 15) / 16 * 16;
}

/// What part of a state row is key and what is value.
struct KeySource {
  DType dtype = DType::kF32;
  int key_begin = 0;
  int value_begin = 0;
  int n_ahead = 0;  // elements from either begin on that are asked for a block ahead: those of the heads that come next, too
};

/// Keys [lo, hi) that a query sees.
struct Seen {
  int64_t lo = 0, hi = 0;
};

class TileSoftmax {
  static constexpr int kStrip = 16;  // tokens that share a product of scores

 public:
  /// q: heads [n_heads][dim] of tokens that lie `stride` floats apart. codes: scores and weighted sums on integers, of bfloat16 rows; else
  /// in float32.
  TileSoftmax(const VectorKernels& kernels, ThreadScratch& scratch, const float* q, int64_t stride, int n_tokens, int n_heads, int dim,
              float scale, bool codes)
      : k_(kernels),
        scratch_(scratch),
        n_tokens_(n_tokens),
        n_heads_(n_heads),
        dim_(dim),
        padded_(padded_dim(dim)),
        n_words_((dim + 1) / 2),
        scale_(scale) {
    const auto n_rows = static_cast<size_t>(n_tokens) * static_cast<size_t>(n_heads);
    scores_ = scratch.scores.get(n_rows * kKeyBlock);
    const int width = n_heads * dim;
    if (!codes) {
      keys_ = scratch.keys.get(static_cast<size_t>(dim) * kKeyBlock);
      values_ = scratch.values.get(static_cast<size_t>(padded_) * kKeyBlock);
      q_ = q;
      if (n_tokens == 1 || stride == width) return;
      float* together = scratch.queries.get(n_rows * static_cast<size_t>(dim));
      q_ = together;
      for (int t = 0; t < n_tokens; ++t) together = std::copy(q + t * stride, q + t * stride + width, together);
      return;
    }
    bits_ = code_bits(dim);
    const auto n_words = static_cast<size_t>(n_words_), n_values = static_cast<size_t>(padded_) * kKeyBlock / 2;
    const size_t n_codes = (n_rows + kKeyBlock) * n_words + n_values + size_t{kMostQueries} * kKeyBlock / 2;
    if (scratch.codes.size() < n_codes) scratch.codes.resize(n_codes);
    key_codes_ = scratch.codes.data();
    query_codes_ = key_codes_ + kKeyBlock * n_words;
    value_codes_ = query_codes_ + n_rows * n_words;
    weight_codes_ = value_codes_ + n_values;
    key_scales_ = scratch.keys.get(2 * kKeyBlock + n_rows);
    value_scales_ = key_scales_ + kKeyBlock;
    query_scales_ = value_scales_ + kKeyBlock;
    for (int i = 0; i < n_tokens * n_heads; ++i) {
      const float* row = q + i / n_heads * stride + static_cast<ptrdiff_t>(i % n_heads) * dim;
      query_scales_[i] = k_.encode_row(row, dim, bits_, query_codes_ + static_cast<ptrdiff_t>(i) * n_words_);
    }
  }

  /// Adds the keys of the block that begins at index `base`. limit: where the caller's walk ends. row_at(index): the state row;
  /// seen(token): what its queries see.
  template <class RowAt, class SeenOf>
  void add_block(const Partial& part, int64_t base, int64_t limit, const KeySource& source, RowAt row_at, SeenOf seen) {
    int lo = kKeyBlock, hi = 0;
    bool all_whole = true;
    for (int t = 0; t < n_tokens_; ++t) {
      const auto [a, b] = inside(seen(t), base);
      all_whole = all_whole && a == 0 && b == kKeyBlock;
      if (a >= b) continue;
      lo = std::min(lo, a);
      hi = std::max(hi, b);
    }
    if (lo >= hi) return;
    const std::byte* rows[kKeyBlock];
    for (int i = lo; i < hi; ++i) rows[i] = row_at(base + i);
    const int64_t next = base + kKeyBlock, end = std::min({seen(n_tokens_ - 1).hi, limit, next + kKeyBlock});
    for (int64_t i = next; source.n_ahead > 0 && i < end; ++i) prefetch(row_at(i), source);
    if (key_codes_ != nullptr) {
      k_.encode_keys(rows, source.key_begin, dim_, lo, hi, bits_, key_codes_, key_scales_);
      k_.encode_values(rows, source.value_begin, dim_, lo, hi, value_codes_, value_scales_);
    } else {
      const DType type = readable_rows(source.dtype, dim_, lo, hi, rows, scratch_);
      k_.load_keys(rows, type, source.key_begin, dim_, lo, hi, keys_);
      k_.load_values(rows, type, source.value_begin, dim_, lo, hi, values_);
    }
    for (int t = 0; t < n_tokens_; t += kStrip) score_strip(t, std::min(kStrip, n_tokens_ - t), base, seen);
    if (all_whole) return add_scores(part, 0, n_tokens_, 0, kKeyBlock);
    for (int t = 0; t < n_tokens_; ++t) {
      const auto [a, b] = inside(seen(t), base);
      if (a < b) add_scores(part, t, 1, a, b);
    }
  }

 private:
  struct Lanes {
    int lo, hi;
  };
  static Lanes inside(const Seen& seen, int64_t base) {
    return {static_cast<int>(std::clamp<int64_t>(seen.lo - base, 0, kKeyBlock)),
            static_cast<int>(std::clamp<int64_t>(seen.hi - base, 0, kKeyBlock))};
  }
  /// Scores of n tokens, up to the last key that one of them sees: most of the block beyond the diagonal is left out.
  template <class SeenOf>
  void score_strip(int token, int n, int64_t base, SeenOf seen) {
    int end = 0;
    for (int t = token; t < token + n; ++t) end = std::max(end, inside(seen(t), base).hi);
    const ptrdiff_t row = static_cast<ptrdiff_t>(token) * n_heads_;
    float* scores = scores_ + row * kKeyBlock;
    if (key_codes_ != nullptr) {
      k_.product_codes(n * n_heads_, (end + 15) / 16, n_words_, query_codes_ + row * n_words_, query_scales_ + row, key_codes_, key_scales_,
                       scores);
    } else {
      k_.product(n * n_heads_, (end + 15) / 16, dim_, q_ + row * dim_, dim_, keys_, kKeyBlock, scores, kKeyBlock, nullptr);
    }
  }
  /// Keys [lo, hi) of the block for the queries of some tokens, which all see them.
  void add_scores(const Partial& part, int token, int n_tokens, int lo, int hi) {
    for (int row = token * n_heads_, end = (token + n_tokens) * n_heads_; row < end; row += kMostQueries) {
      const int n = std::min(kMostQueries, end - row);
      float* scores = scores_ + static_cast<ptrdiff_t>(row) * kKeyBlock;
      float* o = part.o + static_cast<ptrdiff_t>(row) * padded_;
      float factor[kMostQueries];
      k_.softmax_step(n, scores, scale_, lo, hi, part.m + row, part.l + row, factor);
      if (key_codes_ != nullptr) {
        float scales[kMostQueries];
        k_.encode_weights(n, scores, value_scales_, lo, hi, weight_codes_, scales);
        k_.product_weights(n, padded_ / 16, lo / 2, (hi + 1) / 2, weight_codes_, scales, value_codes_, o, factor);
      } else {
        k_.product(n, padded_ / 16, hi - lo, scores + lo, kKeyBlock, values_ + static_cast<ptrdiff_t>(lo) * padded_, padded_, o, padded_,
                   factor);
      }
    }
  }
  /// Asks for what the next block reads: its rows lie apart, where no hardware prefetch follows. Inlined by force: GCC drops calls of a
  /// function that only prefetches.
  CARREL_INLINE static void prefetch(const std::byte* row, const KeySource& source) {
    const size_t size = source.dtype == DType::kF32 ? 4 : 2, n_bytes = size * static_cast<size_t>(source.n_ahead);
    const size_t key = size * static_cast<size_t>(source.key_begin), value = size * static_cast<size_t>(source.value_begin);
    for (size_t i = 0; i < n_bytes; i += 64) {
      __builtin_prefetch(row + key + i);
      if (key != value) __builtin_prefetch(row + value + i);
    }
  }

  const VectorKernels& k_;
  ThreadScratch& scratch_;
  const float* q_ = nullptr;  // without codes: [n_tokens * n_heads][dim]
  int n_tokens_, n_heads_, dim_, padded_, n_words_;
  float scale_;
  int bits_ = 0;
  float* scores_;
  float *keys_ = nullptr, *values_ = nullptr;  // without codes
  int32_t *key_codes_ = nullptr, *query_codes_ = nullptr, *value_codes_ = nullptr, *weight_codes_ = nullptr;
  float *key_scales_ = nullptr, *query_scales_ = nullptr, *value_scales_ = nullptr;
};

/// Adds row `row` of `part` to row `into` of `total`; the first part is copied.
inline void merge_row(const VectorKernels& k, const Partial& total, int into, const Partial& part, int row, int padded, bool first) {
  float* o = total.o + static_cast<ptrdiff_t>(into) * padded;
  const float* other = part.o + static_cast<ptrdiff_t>(row) * padded;
  if (first) {
    total.m[into] = part.m[row];
    total.l[into] = part.l[row];
    std::copy(other, other + padded, o);
    return;
  }
  const float top = total.m[into] > part.m[row] ? total.m[into] : part.m[row];
  const float old_factor = exp_of(total.m[into] - top), new_factor = exp_of(part.m[row] - top);
  total.l[into] = __builtin_fmaf(total.l[into], old_factor, part.l[row] * new_factor);
  total.m[into] = top;
  k.scale(old_factor, o, padded, o);
  k.add_scaled(o, new_factor, other, padded, o);
}

/// Folds the sink in (once, last) and divides: y[dim].
inline void finish_row(const VectorKernels& k, const Partial& total, int row, int dim, const float* sink, float* y) {
  const int padded = padded_dim(dim);
  float factor = 1.0f, weight = total.l[row];
  if (sink) {
    const float top = total.m[row] > *sink ? total.m[row] : *sink;
    factor = exp_of(total.m[row] - top);
    weight = __builtin_fmaf(weight, factor, exp_of(*sink - top));
  }
  k.scale(factor / weight, total.o + static_cast<ptrdiff_t>(row) * padded, dim, y);
}

}  // namespace carrel::cpu
