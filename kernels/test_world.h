// A small paged world for tests of the ops over states: sequences with seeded inputs, pages and rings filled with NaN until written, and any schedule
// of steps over them. Outputs are kept per token, so that two schedules can be compared with memcmp.
#pragma once
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "kernels/ops.h"
#include "kernels/packed_rows.h"

namespace carrel::test {

inline std::vector<float> noise(uint64_t seed, size_t n, float scale = 1.0f) {
  std::mt19937_64 random(seed);
  std::vector<float> v(n);
  for (float& x : v) x = scale * (static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f);
  return v;
}

/// Pages of one group of one sequence.
struct GroupPages {
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> pages;
};

struct GroupShape {
  RowLayout layout;
  size_t page_bytes = 0;
};

/// A group with `n_layers` layers; rows_per_page as the state manager would choose it.
inline GroupShape shape_of(DType dtype, int row_elems, int ratio, int block_size, int n_layers = 2, int tail_rows = 0) {
  GroupShape g;
  g.layout.dtype = dtype;
  g.layout.row_elems = row_elems;
  g.layout.ratio = ratio;
  g.layout.rows_per_page = ratio == 0 ? tail_rows : block_size / ratio;
  g.layout.row_stride_bytes = row_bytes(dtype, row_elems);
  g.layout.layer_stride_bytes = (g.layout.row_stride_bytes * static_cast<size_t>(g.layout.rows_per_page) + 63) / 64 * 64;
  g.page_bytes = g.layout.layer_stride_bytes * static_cast<size_t>(n_layers);
  return g;
}

/// State of one sequence. Everything is NaN until written.
struct SeqState {
  int n_past = 0;
  std::vector<GroupPages> groups;
  std::vector<std::byte* const*> tables;
  std::vector<float> slot;

  void grow(const std::vector<GroupShape>& shapes, int n_tokens, int block_size) {
    groups.resize(shapes.size());
    tables.clear();
    for (size_t g = 0; g < shapes.size(); ++g) {
      while (static_cast<int>(groups[g].memory.size()) * block_size < n_tokens) {
        groups[g].memory.emplace_back(shapes[g].page_bytes, std::byte{0xFF});
        groups[g].pages.push_back(groups[g].memory.back().data());
      }
      for (size_t b = 0; b < groups[g].memory.size(); ++b) {
        if (groups[g].pages[b]) groups[g].pages[b] = groups[g].memory[b].data();
      }
      tables.push_back(groups[g].pages.data());
    }
  }
  /// Window pages that no query from n_past on can see.
  void drop_window(size_t group, int window, int block_size) {
    for (size_t b = 0; b < groups[group].pages.size(); ++b) {
      if ((static_cast<int>(b) + 1) * block_size <= n_past - window + 1) groups[group].pages[b] = nullptr;
    }
  }
};

/// One step: (sequence, number of tokens) pairs.
using Step = std::vector<std::pair<int, int>>;

/// A batch over some sequences, with what it points to.
struct BuiltBatch {
  Batch batch;
  std::vector<int32_t> ids, positions, seq_of;
  std::vector<SeqStep> seqs;
};

inline std::unique_ptr<BuiltBatch> build_batch(std::vector<SeqState>& states, const Step& step, int block_size) {
  auto b = std::make_unique<BuiltBatch>();
  for (const auto& [s, n] : step) {
    SeqState& state = states[static_cast<size_t>(s)];
    SeqStep seq;
    seq.first_token = static_cast<int32_t>(b->ids.size());
    seq.n_tokens = n;
    seq.n_past = state.n_past;
    seq.pages = state.tables;
    seq.slot = reinterpret_cast<std::byte*>(state.slot.data());
    for (int i = 0; i < n; ++i) {
      b->ids.push_back(i);
      b->positions.push_back(state.n_past + i);
      b->seq_of.push_back(static_cast<int32_t>(b->seqs.size()));
    }
    b->seqs.push_back(seq);
  }
  b->batch.n_tokens = static_cast<int32_t>(b->ids.size());
  b->batch.block_size = block_size;
  b->batch.ids = b->ids;
  b->batch.positions = b->positions;
  b->batch.seq_of = b->seq_of;
  b->batch.seqs = b->seqs;
  return b;
}

/// Named per-token inputs of every sequence, made on demand from seeds: rows of `width` for the tokens of a batch.
class Inputs {
 public:
  explicit Inputs(std::vector<int> lengths, uint64_t seed = 1) : lengths_(std::move(lengths)), seed_(seed) {}
  std::vector<float>& of(int sequence, int name, int width, float scale = 1.0f) {
    auto& v = values_[{sequence, name}];
    if (v.empty()) {
      v = noise(seed_ * 7919 + static_cast<uint64_t>(sequence * 101 + name), static_cast<size_t>(lengths_[static_cast<size_t>(sequence)]) * static_cast<size_t>(width),
                scale);
    }
    return v;
  }
  std::vector<float> gather(const Step& step, const BuiltBatch& b, int name, int width, float scale = 1.0f) {
    std::vector<float> out;
    for (size_t i = 0; i < step.size(); ++i) {
      const auto& v = of(step[i].first, name, width, scale);
      const auto begin = v.begin() + static_cast<ptrdiff_t>(b.seqs[i].n_past) * width;
      out.insert(out.end(), begin, begin + static_cast<ptrdiff_t>(b.seqs[i].n_tokens) * width);
    }
    return out;
  }
  const std::map<std::pair<int, int>, std::vector<float>>& all() const { return values_; }
  int n_sequences() const { return static_cast<int>(lengths_.size()); }

 private:
  std::vector<int> lengths_;
  uint64_t seed_;
  std::map<std::pair<int, int>, std::vector<float>> values_;
};

/// Outputs per (sequence, name): rows by position.
class Outputs {
 public:
  template <class T>
  void scatter(const Step& step, const BuiltBatch& b, int name, int width, const std::vector<T>& rows) {
    static_assert(sizeof(T) == 4);
    for (size_t i = 0; i < step.size(); ++i) {
      auto& v = values_[{step[i].first, name}];
      const size_t begin = static_cast<size_t>(b.seqs[i].n_past) * static_cast<size_t>(width);
      const size_t n = static_cast<size_t>(b.seqs[i].n_tokens) * static_cast<size_t>(width);
      v.resize(std::max(v.size(), begin + n));
      std::memcpy(v.data() + begin, rows.data() + static_cast<size_t>(b.seqs[i].first_token) * static_cast<size_t>(width), n * 4);
    }
  }
  const std::map<std::pair<int, int>, std::vector<float>>& all() const { return values_; }

 private:
  std::map<std::pair<int, int>, std::vector<float>> values_;
};

/// Random steps that bring every sequence to its length: batch mix and chunks by seed.
inline std::vector<Step> random_schedule(const std::vector<int>& lengths, uint64_t seed, int longest_chunk) {
  std::mt19937_64 random(seed);
  std::vector<int> left = lengths;
  std::vector<Step> steps;
  for (;;) {
    Step step;
    for (size_t s = 0; s < left.size(); ++s) {
      if (left[s] == 0 || random() % 3 == 0) continue;
      const int n = std::min<int>(left[s], random() % 3 == 0 ? 1 : 1 + static_cast<int>(random() % static_cast<uint64_t>(longest_chunk)));
      left[s] -= n;
      step.emplace_back(static_cast<int>(s), n);
    }
    if (!step.empty()) steps.push_back(step);
    bool done = true;
    for (const int n : left) done = done && n == 0;
    if (done) return steps;
  }
}

inline std::vector<Step> whole_schedule(const std::vector<int>& lengths) {
  std::vector<Step> steps;
  for (size_t s = 0; s < lengths.size(); ++s) steps.push_back({{static_cast<int>(s), lengths[s]}});
  return steps;
}

}  // namespace carrel::test
