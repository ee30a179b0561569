// Reference ops over states: stores, attention, compression. Shapes and formulas: ops.h, architectures reference 1.3, 1.4, 2.6, 2.7.
#include <cmath>
#include <limits>

#include "kernels/cpu/math.h"
#include "kernels/cpu/reference_ops.h"

namespace carrel::cpu {

void read_row(const std::byte* row, DType dtype, int begin, int n, float* out) {
  if (dtype == DType::kPackedKv || dtype == DType::kPackedIndex) return read_packed_row(row, dtype, n, out);
  for (int k = 0; k < n; ++k) {
    out[k] = dtype == DType::kF32 ? reinterpret_cast<const float*>(row)[begin + k] : bf16_to_f32(reinterpret_cast<const uint16_t*>(row)[begin + k]);
  }
}

void write_row(std::byte* row, DType dtype, int begin, int n, const float* in) {
  if (dtype == DType::kPackedKv || dtype == DType::kPackedIndex) return write_packed_row(row, dtype, n, in);
  for (int k = 0; k < n; ++k) {
    if (dtype == DType::kF32) {
      reinterpret_cast<float*>(row)[begin + k] = in[k];
    } else {
      reinterpret_cast<uint16_t*>(row)[begin + k] = f32_to_bf16(in[k]);
    }
  }
}

void ReferenceOps::store_rows(const float* x, int width, int col, const StateRows& rows, const Batch& batch) {
  for (int t = 0; t < batch.n_tokens; ++t) {
    const SeqStep& seq = batch.seqs[static_cast<size_t>(batch.seq_of[static_cast<size_t>(t)])];
    write_row(rows.row(seq, batch.positions[static_cast<size_t>(t)]), rows.layout.dtype, col, width, x + static_cast<ptrdiff_t>(t) * width);
  }
}

namespace {

/// A softmax over rows that come one after another, and the weighted sum of their values.
class Softmax {
 public:
  explicit Softmax(int dim) : sum_(static_cast<size_t>(dim), 0.0) {}

  void add(double score, const float* value) {
    const double f = add_weight(score);
    for (size_t k = 0; k < sum_.size(); ++k) sum_[k] += f * value[k];
  }
  /// A column without value: the sink.
  double add_weight(double score) {
    if (score > max_) {
      const double shrink = exp_of(static_cast<float>(max_ - score));
      total_ *= shrink;
      for (double& s : sum_) s *= shrink;
      max_ = score;
    }
    const double f = exp_of(static_cast<float>(score - max_));
    total_ += f;
    return f;
  }
  void write(float* y) const {
    for (size_t k = 0; k < sum_.size(); ++k) y[k] = static_cast<float>(sum_[k] / total_);
  }

 private:
  double max_ = -std::numeric_limits<double>::infinity(), total_ = 0;
  std::vector<double> sum_;
};

double dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int k = 0; k < n; ++k) sum += static_cast<double>(a[k]) * b[k];
  return sum;
}

}  // namespace

void ReferenceOps::attention(const float* q, const StateRows& kv, const AttentionArgs& args, const Batch& batch, float* y) {
  const int dim = args.head_dim;
  std::vector<float> key(static_cast<size_t>(dim)), value(key);
  for (int t = 0; t < batch.n_tokens; ++t) {
    const SeqStep& seq = batch.seqs[static_cast<size_t>(batch.seq_of[static_cast<size_t>(t)])];
    const int p = batch.positions[static_cast<size_t>(t)];
    const int first = args.window > 0 ? std::max(0, p - args.window + 1) : 0;
    for (int h = 0; h < args.n_heads; ++h, q += dim, y += dim) {
      const int g = h / (args.n_heads / args.n_kv_heads);
      Softmax softmax(dim);
      for (int k = first; k <= p; ++k) {
        read_row(kv.row(seq, k), kv.layout.dtype, g * dim, dim, key.data());
        read_row(kv.row(seq, k), kv.layout.dtype, (args.n_kv_heads + g) * dim, dim, value.data());
        softmax.add(dot(q, key.data(), dim) * args.scale, value.data());
      }
      if (args.sinks) softmax.add_weight(args.sinks[h]);
      softmax.write(y);
    }
  }
}

void ReferenceOps::sparse_attention(const float* q, const StateRows& window, const StateRows* compressed, const int32_t* selected, int top_k,
                                    const SparseArgs& args, const Batch& batch, float* y) {
  const int dim = args.head_dim;
  std::vector<float> row(static_cast<size_t>(dim));
  for (int t = 0; t < batch.n_tokens; ++t) {
    const SeqStep& seq = batch.seqs[static_cast<size_t>(batch.seq_of[static_cast<size_t>(t)])];
    const int p = batch.positions[static_cast<size_t>(t)];
    for (int h = 0; h < args.n_heads; ++h, q += dim, y += dim) {
      Softmax softmax(dim);
      const auto visit = [&](const StateRows& rows, int r) {
        read_row(rows.row(seq, r), rows.layout.dtype, 0, dim, row.data());
        softmax.add(dot(q, row.data(), dim) * args.scale, row.data());
      };
      for (int k = std::max(0, p - args.window + 1); k <= p; ++k) visit(window, k);
      const int n_visible = compressed ? (p + 1) / compressed->layout.ratio : 0;
      for (int i = 0; compressed && i < (selected ? top_k : n_visible); ++i) {
        const int e = selected ? selected[t * top_k + i] : i;
        if (e >= 0) visit(*compressed, e);
      }
      if (args.sinks) softmax.add_weight(args.sinks[h]);
      softmax.write(y);
    }
  }
}

namespace {

/// One compressor over one sequence of the step: where (c, z + ape) of a position lies, and what a group pools.
struct Compressor {
  const float* c;  // [n_tokens of the sequence][coff * dim]
  const float* z;
  const CompressArgs& args;
  const Ring& ring;
  const StateRows& rows;
  const StateRows& tail;
  const SeqStep& seq;
  int block_size;

  int coff() const { return args.overlap ? 2 : 1; }
  float* ring_row(int p) const {
    return reinterpret_cast<float*>(seq.slot + ring.offset_bytes) + static_cast<ptrdiff_t>(p % ring.n_rows) * ring.row_elems;
  }
  /// Element k of c and of z + ape at a position of this step, or of the open block.
  float c_at(int p, int k) const { return p >= seq.n_past ? c[(p - seq.n_past) * coff() * args.dim + k] : ring_row(p)[k]; }
  float z_at(int p, int k) const {
    if (p < seq.n_past) return ring_row(p)[coff() * args.dim + k];
    return z[(p - seq.n_past) * coff() * args.dim + k] + args.ape[p % args.ratio * coff() * args.dim + k];
  }

  void write_seed(int end) const {
    std::vector<float> seed(static_cast<size_t>(2 * args.dim));
    for (int i = 0; i < args.ratio; ++i) {
      const int p = end - args.ratio + i;
      for (int k = 0; k < args.dim; ++k) {
        seed[static_cast<size_t>(k)] = c_at(p, k);
        seed[static_cast<size_t>(args.dim + k)] = z_at(p, k);
      }
      write_row(seed_row(end / block_size - 1, i), tail.layout.dtype, 0, 2 * args.dim, seed.data());
    }
  }
  std::byte* seed_row(int block, int i) const { return tail.row(seq, static_cast<int64_t>(block) * tail.layout.rows_per_page + i); }

  void close_group(int e) const {
    const int first = e * args.ratio, dim = args.dim;
    std::vector<std::vector<float>> cs, zs;  // the pool, one entry per row
    for (int i = 0; args.overlap && e > 0 && i < args.ratio; ++i) {  // what the group before left for this one: its low half
      std::vector<float> half(static_cast<size_t>(2 * dim));
      if (first % block_size == 0) {
        read_row(seed_row(first / block_size - 1, i), tail.layout.dtype, 0, 2 * dim, half.data());
      } else {
        for (int k = 0; k < dim; ++k) {
          half[static_cast<size_t>(k)] = c_at(first - args.ratio + i, k);
          half[static_cast<size_t>(dim + k)] = z_at(first - args.ratio + i, k);
        }
      }
      cs.emplace_back(half.begin(), half.begin() + dim);
      zs.emplace_back(half.begin() + dim, half.end());
    }
    const int high = args.overlap ? dim : 0;
    for (int p = first; p < first + args.ratio; ++p) {
      cs.emplace_back();
      zs.emplace_back();
      for (int k = 0; k < dim; ++k) {
        cs.back().push_back(c_at(p, high + k));
        zs.back().push_back(z_at(p, high + k));
      }
    }
    std::vector<float> pooled(static_cast<size_t>(dim));
    for (size_t k = 0; k < pooled.size(); ++k) {
      float top = -std::numeric_limits<float>::infinity();
      for (const auto& row : zs) top = std::max(top, row[k]);
      double sum = 0, total = 0;
      for (size_t i = 0; i < zs.size(); ++i) {
        const double f = exp_of(zs[i][k] - top);
        total += f;
        sum += f * cs[i][k];
      }
      pooled[k] = static_cast<float>(sum / total);
    }
    finish(e, pooled);
  }

  /// Norm, rotation at the group's first position, store.
  void finish(int e, std::vector<float>& row) const {
    ReferenceOps().rms_norm(row.data(), args.norm, args.eps, 1, args.dim, row.data(), 1);
    for (int i = 0; i < args.rope_dims / 2; ++i) {
      const SinCos turn = sincos_of(static_cast<double>(e) * args.ratio * (*args.inv_freq)[static_cast<size_t>(i)]);
      float& a = row[static_cast<size_t>(args.rope_begin + 2 * i)];
      float& b = row[static_cast<size_t>(args.rope_begin + 2 * i + 1)];
      const double a0 = a, b0 = b;
      a = static_cast<float>(a0 * turn.cos - b0 * turn.sin);
      b = static_cast<float>(b0 * turn.cos + a0 * turn.sin);
    }
    write_row(rows.row(seq, e), rows.layout.dtype, 0, args.dim, row.data());
  }

  void update_ring() const {
    const int end = seq.n_past + seq.n_tokens;
    for (int p = std::max({seq.n_past, end - ring.n_rows, end / block_size * block_size}); p < end; ++p) {
      float* row = ring_row(p);
      for (int k = 0; k < coff() * args.dim; ++k) {
        row[k] = c_at(p, k);
        row[coff() * args.dim + k] = z_at(p, k);
      }
    }
  }
};

}  // namespace

void ReferenceOps::compress(const float* c, const float* z, const CompressArgs& args, const Ring& ring, const StateRows& rows, const StateRows& tail,
                            const Batch& batch) {
  for (const SeqStep& seq : batch.seqs) {
    const ptrdiff_t offset = static_cast<ptrdiff_t>(seq.first_token) * (args.overlap ? 2 : 1) * args.dim;
    const Compressor work{c + offset, z + offset, args, ring, rows, tail, seq, batch.block_size};
    const int end = seq.n_past + seq.n_tokens;
    for (int p = seq.n_past; p < end; ++p) {
      if (args.overlap && (p + 1) % batch.block_size == 0) work.write_seed(p + 1);
      if ((p + 1) % args.ratio == 0) work.close_group(p / args.ratio);
    }
    work.update_ring();
  }
}

}  // namespace carrel::cpu
