// Ops of the vector sets that know one token at a time, stores and hyper-connections.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/math.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/packed_rows.h"

namespace carrel::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // floats of light work that are worth waking a thread

/// Rows of `width` floats per grain.
int64_t rows_per_grain(int64_t width) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width));
}

}  // namespace

VectorOps::VectorOps(bool fast, ThreadTeam* team, Path path)
    : fast_(fast),
      team_(team),
      path_(path),
      k_(path == Path::kAvx512 ? vector_avx512() : vector_avx2()),
      r_(path == Path::kAvx512 ? recurrent_avx512() : recurrent_avx2()),
      scratch_(static_cast<size_t>(n_threads())) {}

void VectorOps::embed(const Matrix& table, std::span<const int32_t> ids, float scale, float* y) {
  spread(static_cast<int64_t>(ids.size()), rows_per_grain(table.n_cols), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* row = y + t * table.n_cols;
      dequantize_row(table, ids[static_cast<size_t>(t)], std::span(row, static_cast<size_t>(table.n_cols)));
      if (scale != 1.0f) k_.scale(scale, row, table.n_cols, row);
    }
  });
}

void VectorOps::linear(const Matrix& w, const float* bias, const float* x, int64_t x_stride, int n_tokens, float* y, int64_t y_stride) {
  if (w.form == Form::kF32) {
    linear_f32(w, bias, x, x_stride, n_tokens, y, y_stride, team_, path_);
  } else {
    linear_packed(w, bias, x, x_stride, n_tokens, y, y_stride, team_, path_, linear_scratch_);
  }
}

void VectorOps::linears(std::span<const LinearOut> outs, const float* x, int64_t x_stride, int n_tokens) {
  linear_packed(outs, x, x_stride, n_tokens, team_, path_, linear_scratch_);
}

void VectorOps::gated_linears(const LinearOut& gate, const LinearOut& up, Act act, float limit, const float* x, int64_t x_stride,
                              int n_tokens, float* y) {
  gated_packed(gate, up, {act, limit, y, k_.gated}, x, x_stride, n_tokens, team_, path_, linear_scratch_);
}

void VectorOps::feed_forward(const LinearOut& gate, const LinearOut& up, Act act, float limit, const LinearOut& down, const float* x,
                             int64_t x_stride, int n_tokens, float* mid) {
  feed_forward_packed(gate, up, {act, limit, mid, k_.gated}, down, x, x_stride, n_tokens, team_, path_, linear_scratch_);
}

void VectorOps::rms_norm(const float* x, const float* weight, float eps, int64_t n_rows, int dim, float* y, int n_weights) {
  spread(n_rows, rows_per_grain(dim), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) k_.rms_norm(x + r * dim, weight ? weight + r % n_weights * dim : nullptr, eps, dim, y + r * dim);
  });
}

void VectorOps::rope(float* x, const RopeArgs& args, const RopeTable& table, int n_tokens) {
  const int64_t width = static_cast<int64_t>(args.n_heads) * args.head_dim;
  spread(n_tokens, rows_per_grain(static_cast<int64_t>(args.n_heads) * args.dims), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int h = 0; h < args.n_heads; ++h) {
        k_.rope(x + t * width + static_cast<int64_t>(h) * args.head_dim + args.begin, table.cos.data() + t * table.half,
                table.sin.data() + t * table.half, args.dims / 2, args.interleaved, args.inverse);
      }
    }
  });
}

void VectorOps::gated(Act act, const float* gate, const float* up, float limit, int64_t n, float* y) {
  spread(n, kGrain / 2, [&](int64_t begin, int64_t end) { k_.gated(act, gate + begin, up + begin, limit, end - begin, y + begin); });
}

void VectorOps::add(const float* a, const float* b, float scale, int64_t n, float* y) {
  spread(n, 2 * kGrain, [&](int64_t begin, int64_t end) {
    if (scale == 1.0f) return k_.add(a + begin, b + begin, end - begin, y + begin);
    k_.add_scaled(a + begin, scale, b + begin, end - begin, y + begin);
  });
}

void VectorOps::scale(float s, int64_t n, float* x) {
  spread(n, 2 * kGrain, [&](int64_t begin, int64_t end) { k_.scale(s, x + begin, end - begin, x + begin); });
}

void VectorOps::gate_rows(const float* g, const float* x, int64_t n_rows, int width, float* y) {
  spread(n_rows, rows_per_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) k_.scale(sigmoid_of(g[r]), x + r * width, width, y + r * width);
  });
}

void VectorOps::softcap(float cap, int64_t n, float* x) {
  spread(n, kGrain / 2, [&](int64_t begin, int64_t end) { k_.softcap(cap, end - begin, x + begin); });
}

void VectorOps::store_row(const float* x, int n, int col, DType dtype, std::byte* row) const {
  if (is_packed(dtype)) {
    pack_row(dtype, x, n, row);  // whole rows only
  } else if (dtype == DType::kF32) {
    std::memcpy(row + static_cast<size_t>(col) * sizeof(float), x, static_cast<size_t>(n) * sizeof(float));
  } else {
    k_.to_bf16(x, n, reinterpret_cast<uint16_t*>(row) + col);
  }
}

void VectorOps::store_rows(const float* x, int width, int col, const StateRows& rows, const Batch& batch) {
  spread(batch.n_tokens, rows_per_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const SeqStep& seq = batch.seqs[static_cast<size_t>(batch.seq_of[static_cast<size_t>(t)])];
      store_row(x + t * width, width, col, rows.layout.dtype, rows.row(seq, batch.positions[static_cast<size_t>(t)]));
    }
  });
}

// ---- hyper-connections: dots and mean square in 16 lanes, the n × n matrix in float32, streams ascending

void VectorOps::hc_mix(const float* x, const HcArgs& args, int n_mix, float* mix) const {
  const int64_t n = static_cast<int64_t>(args.n_streams) * args.width;
  const float inv = rsqrt_of(k_.dot(x, x, n) / static_cast<float>(n) + args.norm_eps);
  for (int m = 0; m < n_mix; ++m) mix[m] = k_.dot(args.fn + m * n, x, n) * inv;
}

namespace {

void pre_weights(const HcArgs& args, const float* mix, float* pre) {
  for (int j = 0; j < args.n_streams; ++j) pre[j] = sigmoid_of(__builtin_fmaf(mix[j], args.scale[0], args.base[j])) + args.hc_eps;
}

/// Divides every row (step 1 inside a row) or column of m [n][n] by its sum + eps.
void normalize(float* m, int n, bool by_row, float eps) {
  const int inner = by_row ? 1 : n, outer = by_row ? n : 1;
  for (int a = 0; a < n; ++a) {
    float sum = 0;
    for (int b = 0; b < n; ++b) sum += m[a * outer + b * inner];
    sum += eps;
    for (int b = 0; b < n; ++b) m[a * outer + b * inner] /= sum;
  }
}

/// mix [n][n] → the doubly normalized matrix.
void sinkhorn(const HcArgs& args, const float* mix, float* m) {
  const int n = args.n_streams;
  for (int j = 0; j < n; ++j) {
    float* row = m + j * n;
    float sum = 0, top = -__builtin_inff();
    for (int k = 0; k < n; ++k) {
      row[k] = __builtin_fmaf(mix[j * n + k], args.scale[2], args.base[2 * n + j * n + k]);
      top = row[k] > top ? row[k] : top;
    }
    for (int k = 0; k < n; ++k) sum += row[k] = exp_of(row[k] - top);
    for (int k = 0; k < n; ++k) row[k] = row[k] / sum + args.hc_eps;
  }
  normalize(m, n, false, args.hc_eps);
  for (int i = 1; i < args.n_iters; ++i) {
    normalize(m, n, true, args.hc_eps);
    normalize(m, n, false, args.hc_eps);
  }
}

}  // namespace

void VectorOps::hc_pre(const float* x, const HcArgs& args, int n_tokens, float* y, float* post, float* comb) {
  const int n = args.n_streams;
  const int64_t width = static_cast<int64_t>(n) * args.width;
  spread(n_tokens, rows_per_grain(width), [&](int64_t begin, int64_t end) {
    float mix[(2 + kMaxStreams) * kMaxStreams], pre[kMaxStreams];
    for (int64_t t = begin; t < end; ++t) {
      hc_mix(x + t * width, args, (2 + n) * n, mix);
      pre_weights(args, mix, pre);
      k_.mix_streams(0.0f, nullptr, x + t * width, pre, 1, n, args.width, y + t * args.width);
      for (int j = 0; j < n; ++j) post[t * n + j] = 2.0f * sigmoid_of(__builtin_fmaf(mix[n + j], args.scale[1], args.base[n + j]));
      sinkhorn(args, mix + 2 * n, comb + t * n * n);
    }
  });
}

void VectorOps::hc_post(const float* f, const float* x, const float* post, const float* comb, int n_streams, int width, int n_tokens,
                        float* out) {
  const int64_t n = n_streams;
  spread(n_tokens, rows_per_grain(n * width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t k = 0; k < n; ++k) {
        k_.mix_streams(post[t * n + k], f + t * width, x + t * n * width, comb + t * n * n + k, n_streams, n_streams, width,
                       out + (t * n + k) * width);
      }
    }
  });
}

void VectorOps::hc_head(const float* x, const HcArgs& args, int n_tokens, float* y) {
  const int64_t width = static_cast<int64_t>(args.n_streams) * args.width;
  spread(n_tokens, rows_per_grain(width), [&](int64_t begin, int64_t end) {
    float mix[kMaxStreams], pre[kMaxStreams];
    for (int64_t t = begin; t < end; ++t) {
      hc_mix(x + t * width, args, args.n_streams, mix);
      pre_weights(args, mix, pre);
      k_.mix_streams(0.0f, nullptr, x + t * width, pre, 1, args.n_streams, args.width, y + t * args.width);
    }
  });
}

}  // namespace carrel::cpu
