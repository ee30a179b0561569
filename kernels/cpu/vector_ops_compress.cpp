// The compressor of DeepSeek-V4 in the vector sets (architectures reference 2.7, 2.13). Three passes, so that groups are independent tasks: seeds of blocks
// that end in the step, groups that close in it, and only then the rings.
//
// Order of a pooled element: rows ascending by position; maximum, then total and sum by fma. Lanes are channels.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/math.h"
#include "kernels/cpu/vector_ops.h"

namespace carrel::cpu {
namespace {

/// One compressor of the step: where (c, z + ape) of a position lies.
struct Pooling {
  const float* c;
  const float* z;
  const CompressArgs& args;
  const Ring& ring;
  const StateRows& rows;
  const StateRows& tail;
  int block_size;

  int width() const { return (args.overlap ? 2 : 1) * args.dim; }
  float* ring_row(const SeqStep& seq, int p) const {
    return reinterpret_cast<float*>(seq.slot + ring.offset_bytes) + static_cast<ptrdiff_t>(p % ring.n_rows) * ring.row_elems;
  }
  ptrdiff_t at(const SeqStep& seq, int p) const { return (static_cast<ptrdiff_t>(seq.first_token) + p - seq.n_past) * width(); }
  const float* c_row(const SeqStep& seq, int p) const { return p >= seq.n_past ? c + at(seq, p) : ring_row(seq, p); }
  /// Elements [begin, begin + n) of z + ape, written to `out` where the ring does not hold the sum.
  const float* z_row(const VectorKernels& k, const SeqStep& seq, int p, int begin, int n, float* out) const {
    if (p < seq.n_past) return ring_row(seq, p) + width() + begin;
    k.add(z + at(seq, p) + begin, args.ape + static_cast<ptrdiff_t>(p % args.ratio) * width() + begin, n, out);
    return out;
  }
  std::byte* seed_row(const SeqStep& seq, int block, int i) const {
    return tail.row(seq, static_cast<int64_t>(block) * tail.layout.rows_per_page + i);
  }
};

/// Elements [begin, begin + n) of a row as floats: in place, or widened into `out`.
const float* read_row(const std::byte* row, DType dtype, int begin, int n, float* out) {
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(row) + begin;
  for (int k = 0; k < n; ++k) out[k] = bf16_to_f32(reinterpret_cast<const uint16_t*>(row)[begin + k]);
  return out;
}

}  // namespace

void VectorOps::compress(const float* c, const float* z, const CompressArgs& args, const Ring& ring, const StateRows& rows, const StateRows& tail,
                         const Batch& batch) {
  const Pooling work{c, z, args, ring, rows, tail, batch.block_size};
  const int dim = args.dim, high = args.overlap ? dim : 0;

  // Seeds: the low halves that the last group of a block leaves for the first of the next.
  float* spare = step_buffer_.get(static_cast<size_t>(2 * dim));
  closings_.clear();
  for (const SeqStep& seq : batch.seqs) {
    const int end = seq.n_past + seq.n_tokens;
    for (int p = args.overlap ? (seq.n_past / batch.block_size + 1) * batch.block_size : end + 1; p <= end; p += batch.block_size) {
      for (int i = 0; i < args.ratio; ++i) {
        const int from = p - args.ratio + i;
        std::byte* row = work.seed_row(seq, p / batch.block_size - 1, i);
        store_row(work.c_row(seq, from), dim, 0, tail.layout.dtype, row);
        store_row(work.z_row(k_, seq, from, 0, dim, spare), dim, dim, tail.layout.dtype, row);
      }
    }
    for (int e = seq.n_past / args.ratio; (e + 1) * args.ratio <= end; ++e) closings_.push_back({&seq, e});
  }

  tasks(static_cast<int64_t>(closings_.size()), [&](int64_t task, ThreadScratch& scratch) {
    const auto [seq, e] = closings_[static_cast<size_t>(task)];
    const int first = e * args.ratio, before = args.overlap && e > 0 ? args.ratio : 0, n = before + args.ratio;
    float* memory = scratch.rows.get(static_cast<size_t>(n + 1) * static_cast<size_t>(2 * dim));
    scratch.pointers.resize(static_cast<size_t>(2 * n));
    const float** cs = scratch.pointers.data();
    const float** zs = cs + n;
    for (int i = 0; i < n; ++i) {
      const int p = first - before + i;
      float* space = memory + static_cast<ptrdiff_t>(i) * 2 * dim;
      if (p < first && first % work.block_size == 0) {
        const float* seed = read_row(work.seed_row(*seq, first / work.block_size - 1, i), tail.layout.dtype, 0, 2 * dim, space);
        cs[i] = seed;
        zs[i] = seed + dim;
      } else {
        const int half = p < first ? 0 : high;
        cs[i] = work.c_row(*seq, p) + half;
        zs[i] = work.z_row(k_, *seq, p, half, dim, space);
      }
    }
    float* row = memory + static_cast<ptrdiff_t>(n) * 2 * dim;
    k_.pool(cs, zs, n, dim, row);
    k_.rms_norm(row, args.norm, args.eps, dim, row);
    for (int i = 0; i < args.rope_dims / 2; ++i) {
      const SinCos turn = sincos_of(static_cast<double>(first) * (*args.inv_freq)[static_cast<size_t>(i)]);
      const auto cos = static_cast<float>(turn.cos), sin = static_cast<float>(turn.sin);
      k_.rope(row + args.rope_begin + 2 * i, &cos, &sin, 1, true, false);
    }
    store_row(row, dim, 0, rows.layout.dtype, rows.row(*seq, e));
  });

  for (const SeqStep& seq : batch.seqs) {
    const int end = seq.n_past + seq.n_tokens, open = end / batch.block_size * batch.block_size;
    for (int p = std::max({seq.n_past, end - ring.n_rows, open}); p < end; ++p) {
      float* row = work.ring_row(seq, p);
      std::memcpy(row, work.c_row(seq, p), static_cast<size_t>(work.width()) * sizeof(float));
      work.z_row(k_, seq, p, 0, work.width(), row + work.width());
    }
  }
}

}  // namespace carrel::cpu
