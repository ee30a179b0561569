// DeepSeek-V4 attention and its indexer (exact and fast sets; architectures reference 2.6, 2.8, 2.9).
//
// Order of a query: the window's rows in blocks at absolute positions (one partial sum), then the compressed rows by rank — ascending
// index, whether all or a selection — in blocks of 64 ranks and partial sums of 1024 ranks, merged in that order; the sink last.
#include <numeric>

#include "kernels/cpu/tile_softmax.h"
#include "kernels/packed_rows.h"

namespace carrel::cpu {

DType readable_rows(DType type, int n_elements, int lo, int hi, const std::byte** rows, ThreadScratch& scratch) {
  if (!is_packed(type)) return type;
  float* memory = scratch.unpacked.get(static_cast<size_t>(hi - lo) * static_cast<size_t>(n_elements));
  for (int i = lo; i < hi; ++i, memory += n_elements) {
    unpack_row(type, rows[i], n_elements, memory);
    rows[i] = reinterpret_cast<const std::byte*>(memory);
  }
  return DType::kF32;
}

namespace {

constexpr int64_t kSplit = 1024;  // ranks per partial sum
constexpr int kTileQueries = 64;

struct Sparse {
  const VectorKernels& k;
  const float* q;
  const StateRows& window;
  const StateRows* compressed;
  const int32_t* selected;
  int top_k;
  const SparseArgs& args;
  float* y;

  int padded() const { return padded_dim(args.head_dim); }
  ptrdiff_t at(int row, int head) const { return (static_cast<ptrdiff_t>(row) * args.n_heads + head) * args.head_dim; }
  int64_t stride() const { return int64_t{args.n_heads} * args.head_dim; }  // floats from token to token
  Seen seen(int64_t p) const { return {std::max<int64_t>(0, p - args.window + 1), p + 1}; }

  /// Heads [head, head + n_heads) of a tile.
  void tile(const TokenTile& t, int head, int n_heads, ThreadScratch& scratch) const {
    const int n_rows = t.n * n_heads;
    const float* queries = q + at(t.row, head);
    const Partial total = Partial::at(scratch.total.get(Partial::floats(n_rows, padded())), n_rows);
    total.clear(n_rows, padded());
    TileSoftmax softmax(k, scratch, queries, stride(), t.n, n_heads, args.head_dim, args.scale, false);
    const KeySource source{window.layout.dtype, 0, 0, args.head_dim};
    const int64_t end = t.position + t.n;
    for (int64_t base = seen(t.position).lo / kKeyBlock * kKeyBlock; base < end; base += kKeyBlock) {
      softmax.add_block(
          total, base, end, source, [&](int64_t r) { return window.row(*t.seq, r); }, [&](int i) { return seen(t.position + i); });
    }
    if (compressed && !selected) {
      add_compressed(t, n_heads, queries, nullptr, total, 0, scratch);
    } else if (compressed) {
      for (int i = 0; i < t.n; ++i) {
        const TokenTile one{t.seq, t.row + i, t.position + i, 1};
        const int32_t* chosen = selected + static_cast<ptrdiff_t>(t.row + i) * top_k;
        add_compressed(one, n_heads, queries + i * stride(), chosen, total, i * n_heads, scratch);
      }
    }
    for (int i = 0; i < t.n; ++i) {
      for (int h = 0; h < n_heads; ++h) {
        const float* sink = args.sinks ? args.sinks + head + h : nullptr;
        finish_row(k, total, i * n_heads + h, args.head_dim, sink, y + at(t.row + i, head + h));
      }
    }
  }

  /// Compressed rows by rank, added to rows [into, …) of total.
  void add_compressed(const TokenTile& t, int n_heads, const float* queries, const int32_t* chosen, const Partial& total, int into,
                      ThreadScratch& scratch) const {
    const auto n_ranks = [&](int i) -> int64_t {
      if (chosen) return std::find(chosen, chosen + top_k, -1) - chosen;
      return (t.position + i + 1) / compressed->layout.ratio;
    };
    const int64_t most = n_ranks(t.n - 1);
    const int n_rows = t.n * n_heads;
    const Partial part = Partial::at(scratch.partial.get(Partial::floats(n_rows, padded())), n_rows);
    const KeySource source{compressed->layout.dtype, 0, 0, args.head_dim};
    for (int64_t begin = 0; begin < most; begin += kSplit) {
      part.clear(n_rows, padded());
      TileSoftmax softmax(k, scratch, queries, stride(), t.n, n_heads, args.head_dim, args.scale, false);
      const int64_t end = std::min(most, begin + kSplit);
      for (int64_t base = begin; base < end; base += kKeyBlock) {
        softmax.add_block(
            part, base, end, source, [&](int64_t r) { return compressed->row(*t.seq, chosen ? chosen[r] : r); },
            [&](int i) { return Seen{0, n_ranks(i)}; });
      }
      for (int r = 0; r < n_rows; ++r) {
        if (n_ranks(r / n_heads) > begin) merge_row(k, total, into + r, part, r, padded(), false);
      }
    }
  }
};

}  // namespace

void VectorOps::sparse_attention(const float* q, const StateRows& window, const StateRows* compressed, const int32_t* selected, int top_k,
                                 const SparseArgs& args, const Batch& batch, float* y) {
  const Sparse sparse{k_, q, window, compressed, selected, top_k, args, y};
  make_tiles(batch, std::max(1, kTileQueries / args.n_heads));
  const auto n_tiles = static_cast<int64_t>(tiles_.size());
  const int n_parts = n_tiles >= 2 * n_threads() ? 1 : std::min(args.n_heads, n_threads());  // few tokens: heads are shared out too
  tasks(n_tiles * n_parts, [&](int64_t i, ThreadScratch& scratch) {
    const int part = static_cast<int>(i % n_parts), head = args.n_heads * part / n_parts;
    sparse.tile(tiles_[static_cast<size_t>(n_tiles - 1 - i / n_parts)], head, args.n_heads * (part + 1) / n_parts - head, scratch);
  });
}

namespace {

struct Indexer {
  const VectorKernels& k;
  const float* q;
  const float* w;
  int n_heads, dim, top_k;
  const StateRows& keys;

  int n_visible(int64_t position) const { return static_cast<int>((position + 1) / keys.layout.ratio); }

  /// Scores of rows [begin, end) (multiples of 64 but for the last end) for every token of a tile: scores[token * stride + row - begin].
  void score(const TokenTile& t, int64_t begin, int64_t end, ThreadScratch& scratch, float* scores, int64_t stride) const {
    float* kt = scratch.keys.get(static_cast<size_t>(dim) * kKeyBlock);
    float* dots = scratch.scores.get(static_cast<size_t>(t.n) * static_cast<size_t>(n_heads) * kKeyBlock);
    float weighed[kKeyBlock];
    for (int64_t base = begin; base < end; base += kKeyBlock) {
      const int n = static_cast<int>(std::min<int64_t>(kKeyBlock, end - base));
      const std::byte* rows[kKeyBlock];
      for (int i = 0; i < n; ++i) rows[i] = keys.row(*t.seq, base + i);
      const DType type = readable_rows(keys.layout.dtype, dim, 0, n, rows, scratch);
      k.load_keys(rows, type, 0, dim, 0, n, kt);
      k.product(t.n * n_heads, kKeyBlock / 16, dim, q + static_cast<ptrdiff_t>(t.row) * n_heads * dim, dim, kt, kKeyBlock, dots, kKeyBlock,
                nullptr);
      for (int i = 0; i < t.n; ++i) {
        k.weigh_heads(dots + static_cast<ptrdiff_t>(i) * n_heads * kKeyBlock, w + static_cast<ptrdiff_t>(t.row + i) * n_heads, n_heads,
                      weighed);
        std::copy(weighed, weighed + n, scores + i * stride + base - begin);
      }
    }
  }

  /// The best top_k of one token, ascending.
  void select(const float* scores, int n, std::vector<uint64_t>& ranks, int32_t* selected) const {
    ranks.clear();
    for (int e = 0; e < n; ++e) ranks.push_back(rank_key(scores[e], static_cast<uint32_t>(e)));
    std::nth_element(ranks.begin(), ranks.begin() + (top_k - 1), ranks.end());
    for (int i = 0; i < top_k; ++i) selected[i] = static_cast<int32_t>(ranks[static_cast<size_t>(i)] & 0xFFFFFFFFu);
    std::sort(selected, selected + top_k);
  }
};

}  // namespace

void VectorOps::index_topk(const float* q, const float* w, int n_heads, int dim, int top_k, const StateRows& keys, const Batch& batch,
                           int32_t* selected) {
  if (is_packed(keys.layout.dtype)) {  // queries are rounded as the keys are
    const int64_t n = int64_t{batch.n_tokens} * n_heads * dim;
    float* rounded = step_buffer2_.get(static_cast<size_t>(n));
    spread(int64_t{batch.n_tokens} * n_heads, 64, [&](int64_t begin, int64_t end) {
      std::copy(q + begin * dim, q + end * dim, rounded + begin * dim);
      for (int64_t i = begin; i < end; ++i) round_index_query(rounded + i * dim, dim);
    });
    q = rounded;
  }
  const Indexer indexer{k_, q, w, n_heads, dim, top_k, keys};
  make_tiles(batch, std::max(1, kTileQueries / n_heads));
  const auto choose = [&](const TokenTile& t, const float* scores, int64_t stride, ThreadScratch& scratch) {
    for (int i = 0; i < t.n; ++i) {
      const int n = indexer.n_visible(t.position + i);
      int32_t* out = selected + static_cast<ptrdiff_t>(t.row + i) * top_k;
      if (n > top_k) {
        indexer.select(scores + i * stride, n, scratch.ranks, out);
      } else {  // all of them: no score is needed
        std::iota(out, out + n, 0);
        std::fill(out + n, out + top_k, -1);
      }
    }
  };
  const auto n_tiles = static_cast<int64_t>(tiles_.size());
  const auto n_scored = [&](const TokenTile& t) {
    const int n = indexer.n_visible(t.position + t.n - 1);
    return n > top_k ? n : 0;
  };
  if (n_threads() == 1 || n_tiles >= n_threads()) {
    return tasks(n_tiles, [&](int64_t i, ThreadScratch& scratch) {
      const TokenTile& t = tiles_[static_cast<size_t>(n_tiles - 1 - i)];
      const int64_t n = n_scored(t);
      float* scores = scratch.rows.get(static_cast<size_t>(n * t.n));
      indexer.score(t, 0, n, scratch, scores, n);
      choose(t, scores, n, scratch);
    });
  }
  for (const TokenTile& t : tiles_) {  // fewer tiles than threads: the rows are shared out
    const int64_t n = n_scored(t);
    float* scores = step_buffer_.get(static_cast<size_t>(n * t.n));
    tasks((n + 511) / 512,
          [&](int64_t i, ThreadScratch& scratch) { indexer.score(t, i * 512, std::min(n, (i + 1) * 512), scratch, scores + i * 512, n); });
    choose(t, scores, n, scratch_[0]);
  }
}

}  // namespace carrel::cpu
