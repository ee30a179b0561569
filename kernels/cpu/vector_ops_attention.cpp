// Attention over plain and window rows (exact and fast sets). Orders: tile_softmax.h; long contexts are cut into splits at absolute
// positions and the partial sums merged in index order, whether one thread computes them or several.
#include "kernels/cpu/tile_softmax.h"

namespace carrel::cpu {
namespace {

constexpr int64_t kSplit = 1024;   // positions per partial sum
// Matters of speed alone:
constexpr int kTileQueries = 192;  // queries (tokens × heads of one kv head) that share a block of keys
constexpr int kFewQueries = 384;   // of all heads: so few are done before memory answers, and one thread takes the heads of a row in turn

struct Plain {
  const VectorKernels& k;
  const float* q;
  const StateRows& kv;
  const AttentionArgs& args;
  bool codes;  // scores on integers
  float* y;

  int group() const { return args.n_heads / args.n_kv_heads; }
  int padded() const { return padded_dim(args.head_dim); }
  int64_t first_key(int64_t p) const { return args.window > 0 ? std::max<int64_t>(0, p - args.window + 1) : 0; }
  Seen seen(int64_t p) const { return {first_key(p), p + 1}; }
  int64_t first_split(const TokenTile& t) const { return first_key(t.position) / kSplit; }
  int64_t last_split(const TokenTile& t) const { return (t.position + t.n - 1) / kSplit; }
  ptrdiff_t at(const TokenTile& t, int i, int kv_head) const {  // first query of token i
    return (static_cast<ptrdiff_t>(t.row + i) * args.n_heads + static_cast<ptrdiff_t>(kv_head) * group()) * args.head_dim;
  }

  /// The keys of one split. n_ahead: heads from this one on whose elements are fetched on the way.
  void partial(const TokenTile& t, int kv_head, int n_ahead, int64_t split, ThreadScratch& scratch, const Partial& part) const {
    part.clear(t.n * group(), padded());
    TileSoftmax softmax(k, scratch, q + at(t, 0, kv_head), int64_t{args.n_heads} * args.head_dim, t.n, group(), args.head_dim, args.scale,
                        codes);
    const KeySource source{kv.layout.dtype, kv_head * args.head_dim, (args.n_kv_heads + kv_head) * args.head_dim,
                           n_ahead * args.head_dim};
    const int64_t begin = std::max(split * kSplit, first_key(t.position) / kKeyBlock * kKeyBlock);
    const int64_t end = std::min((split + 1) * kSplit, static_cast<int64_t>(t.position) + t.n);
    for (int64_t base = begin; base < end; base += kKeyBlock) {
      softmax.add_block(part, base, end, source, [&](int64_t r) { return kv.row(*t.seq, r); }, [&](int i) { return seen(t.position + i); });
    }
  }

  /// Adds the split's sums to the totals of the tokens that see a key of it.
  void merge(const TokenTile& t, int64_t split, const Partial& part, const Partial& total) const {
    for (int i = 0; i < t.n; ++i) {
      const Seen s = seen(t.position + i);
      if (s.lo >= (split + 1) * kSplit || s.hi <= split * kSplit) continue;
      for (int r = i * group(); r < (i + 1) * group(); ++r) merge_row(k, total, r, part, r, padded(), split == s.lo / kSplit);
    }
  }

  void write(const TokenTile& t, int kv_head, const Partial& total) const {
    for (int i = 0; i < t.n; ++i) {
      for (int g = 0; g < group(); ++g) {
        const float* sink = args.sinks ? args.sinks + kv_head * group() + g : nullptr;
        finish_row(k, total, i * group() + g, args.head_dim, sink, y + at(t, i, kv_head) + static_cast<ptrdiff_t>(g) * args.head_dim);
      }
    }
  }

  /// One tile, split after split.
  void tile(const TokenTile& t, int kv_head, int n_ahead, ThreadScratch& scratch) const {
    const int n_rows = t.n * group();
    const Partial part = Partial::at(scratch.partial.get(Partial::floats(n_rows, padded())), n_rows);
    const int64_t first = first_split(t), last = last_split(t);
    if (first == last) {
      partial(t, kv_head, n_ahead, first, scratch, part);
      return write(t, kv_head, part);
    }
    const Partial total = Partial::at(scratch.total.get(Partial::floats(n_rows, padded())), n_rows);
    for (int64_t split = first; split <= last; ++split) {
      partial(t, kv_head, n_ahead, split, scratch, part);
      merge(t, split, part, total);
    }
    write(t, kv_head, total);
  }
};

}  // namespace

void VectorOps::make_tiles(const Batch& batch, int n_tokens) {
  tiles_.clear();
  for (const SeqStep& seq : batch.seqs) {
    for (int32_t i = 0; i < seq.n_tokens; i += n_tokens) {
      tiles_.push_back({&seq, seq.first_token + i, seq.n_past + i, std::min(n_tokens, seq.n_tokens - i)});
    }
  }
}

void VectorOps::attention(const float* q, const StateRows& kv, const AttentionArgs& args, const Batch& batch, float* y) {
  const bool codes = fast_ && kv.layout.dtype == DType::kBF16;  // float32 rows ask for more than codes keep
  const Plain plain{k_, q, kv, args, codes, y};
  make_tiles(batch, std::max(1, kTileQueries / plain.group()));
  const auto n_tiles = static_cast<int64_t>(tiles_.size()), n_tasks = n_tiles * args.n_kv_heads;
  int64_t n_splits = 1;
  int most = 1;
  for (const TokenTile& t : tiles_) {
    n_splits = std::max(n_splits, plain.last_split(t) - plain.first_split(t) + 1);
    most = std::max(most, t.n * plain.group());
  }
  const bool alone = n_threads() == 1 || n_splits == 1 || n_tasks >= 4 * n_threads();  // no need for splits as tasks
  // Heads go in parts; the first of a part fetches for all of it.
  const int64_t units = n_tiles * (alone ? 1 : n_splits);
  const int64_t n_parts = most * args.n_kv_heads > kFewQueries ? args.n_kv_heads : std::min<int64_t>(args.n_kv_heads, (n_threads() + units - 1) / units);
  const auto heads = [&](int64_t part, auto fn) {
    const int begin = static_cast<int>(args.n_kv_heads * part / n_parts), end = static_cast<int>(args.n_kv_heads * (part + 1) / n_parts);
    for (int h = begin; h < end; ++h) fn(h, h == begin ? end - begin : 0);
  };
  if (alone) {
    return tasks(n_tiles * n_parts, [&](int64_t i, ThreadScratch& scratch) {  // the last tiles see the most keys: first
      const TokenTile& t = tiles_[static_cast<size_t>(n_tiles - 1 - i / n_parts)];
      heads(i % n_parts, [&](int kv_head, int n_ahead) { plain.tile(t, kv_head, n_ahead, scratch); });
    });
  }
  // Few tiles over a long context: the splits are the tasks.
  const size_t size = Partial::floats(most, plain.padded());
  float* memory = step_buffer_.get(size * static_cast<size_t>(n_tasks * n_splits));
  const auto slot = [&](int64_t task, int64_t split, const TokenTile& t) {
    return Partial::at(memory + size * static_cast<size_t>(task * n_splits + split), t.n * plain.group());
  };
  tasks(n_tiles * n_splits * n_parts, [&](int64_t i, ThreadScratch& scratch) {
    const int64_t tile = i / n_parts / n_splits, at = i / n_parts % n_splits;
    const TokenTile& t = tiles_[static_cast<size_t>(tile)];
    const int64_t split = plain.first_split(t) + at;
    if (split > plain.last_split(t)) return;
    heads(i % n_parts, [&](int kv_head, int n_ahead) {
      plain.partial(t, kv_head, n_ahead, split, scratch, slot(tile * args.n_kv_heads + kv_head, at, t));
    });
  });
  tasks(n_tasks, [&](int64_t task, ThreadScratch& scratch) {
    const TokenTile& t = tiles_[static_cast<size_t>(task / args.n_kv_heads)];
    const Partial total = Partial::at(scratch.total.get(Partial::floats(t.n * plain.group(), plain.padded())), t.n * plain.group());
    for (int64_t split = plain.first_split(t); split <= plain.last_split(t); ++split) {
      plain.merge(t, split, slot(task, split - plain.first_split(t), t), total);
    }
    plain.write(t, static_cast<int>(task % args.n_kv_heads), total);
  });
}

}  // namespace carrel::cpu
