// Ops of the vector sets over registers: convolution and scans. Tasks are (sequence, head, block of lanes), or strips of channels: each
// walks its part of the registers over all tokens of the step, and writes bytes that no other task touches.
//
// Order of an element: recurrent_kernels.h; one token after another, so that chunks, threads and neighbours do not enter.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/vector_ops.h"

namespace carrel::cpu {
namespace {

constexpr int kLeastStrip = 256, kMostStrip = 1024;  // channels of a task of the convolution: few long rows are quicker
constexpr int kConvTokens = 8;                       // tokens whose inputs are rounded at a time
constexpr int64_t kSmallWork = 1 << 16;              // multiply-adds below which waking the team costs more than it saves
constexpr int64_t kPreparedGrain = 1 << 14;          // floats of queries and keys that are worth waking a thread

/// A task's part of the registers of a layer: columns of some rows.
struct Part {
  const Registers& registers;
  int64_t first_row;
  int n_rows;
  size_t first_byte, n_bytes;

  size_t stride() const { return registers.layout.row_stride_bytes; }
  size_t at() const { return static_cast<size_t>(first_row) * stride() + first_byte; }
  void copy(const std::byte* from, std::byte* to) const {
    for (int i = 0; i < n_rows; ++i)
      std::memcpy(to + at() + static_cast<size_t>(i) * stride(), from + at() + static_cast<size_t>(i) * stride(), n_bytes);
  }
};

/// run(begin, end, from, to) for tokens [begin, end) of the sequence between registers that it comes with, keeps or leaves; from is null
/// for zeros.
template <class F>
void walk(const Part& part, const Batch& batch, const SeqStep& seq, const F& run) {
  const Registers& r = part.registers;
  const int64_t size = batch.block_size, n_past = seq.n_past;
  std::byte* const live = r.live(seq);
  const std::byte* from = n_past == 0 ? nullptr : seq.restored ? r.at(seq, n_past / size - 1) : live;
  for (int begin = 0, end = 0; begin < seq.n_tokens; begin = end) {
    std::byte* kept = nullptr;
    while (end < seq.n_tokens && kept == nullptr) {
      end = static_cast<int>(std::min<int64_t>(seq.n_tokens, ((n_past + end) / size + 1) * size - n_past));
      if ((n_past + end) % size == 0) kept = r.at(seq, (n_past + end) / size - 1);
    }
    std::byte* const to = end == seq.n_tokens ? live : kept;
    run(begin, end, from, to);
    if (kept != nullptr && kept != to) part.copy(to, kept);
    from = to;
  }
}

/// Lanes [lane, lane + n) of a head's state [n_rows][n] in float32.
Part lanes_of(const Registers& state, int head, int n_rows, int lane, int n) {
  return {state, int64_t{head} * n_rows, n_rows, static_cast<size_t>(lane) * sizeof(float), static_cast<size_t>(n) * sizeof(float)};
}

ScanState scan_state(const Part& part, int n_lanes, const std::byte* from, std::byte* to, float* work) {
  return {part.n_rows,
          n_lanes,
          from == nullptr ? nullptr : reinterpret_cast<const float*>(from + part.at()),
          reinterpret_cast<float*>(to + part.at()),
          static_cast<ptrdiff_t>(part.stride() / sizeof(float)),
          work};
}

}  // namespace

template <class F>
void VectorOps::small_or_tasks(int64_t work, int64_t n, const F& fn) {
  if (work >= kSmallWork) return tasks(n, fn);
  for (int64_t i = 0; i < n; ++i) fn(i, scratch_[0]);
}

template <class F>
void VectorOps::scan_tasks(const Registers& state, int n_heads, int n_rows, int width, const Batch& batch, const F& run) {
  const int64_t n_blocks = (width + kScanLanes - 1) / kScanLanes, per_seq = n_heads * n_blocks;
  const int64_t work = int64_t{batch.n_tokens} * n_heads * n_rows * width;
  small_or_tasks(work, static_cast<int64_t>(batch.seqs.size()) * per_seq, [&](int64_t task, ThreadScratch& scratch) {
    const SeqStep& seq = batch.seqs[static_cast<size_t>(task / per_seq)];
    const int head = static_cast<int>(task % per_seq / n_blocks), lane = static_cast<int>(task % n_blocks) * kScanLanes;
    const int n_lanes = std::min(kScanLanes, width - lane);
    const Part part = lanes_of(state, head, n_rows, lane, n_lanes);
    float* memory = scratch.rows.get(static_cast<size_t>(n_rows) * kScanLanes);
    walk(part, batch, seq, [&](int begin, int end, const std::byte* from, std::byte* to) {
      run(scan_state(part, n_lanes, from, to, memory), seq.first_token + begin, end - begin, head, lane);
    });
  });
}

void VectorOps::delta_scan(const float* qkv, const float* a, const float* b, const DeltaArgs& args, const Registers& state,
                           const Batch& batch, float* y) {
  const int nk = args.n_k_heads, nv = args.n_v_heads, dk = args.k_dim, dv = args.v_dim;
  const int64_t width = 2 * int64_t{nk} * dk + int64_t{nv} * dv, n = batch.n_tokens;
  float* const qk = step_buffer_.get(static_cast<size_t>(2 * n * nk * dk));  // [nk][n][q | k], normalized
  float* const gates = step_buffer2_.get(static_cast<size_t>(2 * n * nv));   // [n][decay of all value heads | beta]
  spread(n, std::max<int64_t>(1, kPreparedGrain / (2 * int64_t{nk} * dk + 16 * nv)), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < nk; ++h) {
        float* to = qk + (h * n + t) * 2 * dk;
        r_.unit(qkv + t * width + h * dk, dk, args.l2_eps, args.scale, to);
        r_.unit(qkv + t * width + (nk + h) * dk, dk, args.l2_eps, 1.0f, to + dk);
      }
      r_.delta_gates(args, a + t * nv, b + t * nv, gates + 2 * t * nv, gates + (2 * t + 1) * nv);
    }
  });
  scan_tasks(state, nv, dk, dv, batch, [&](const ScanState& s, int64_t t, int n_tokens, int h, int lane) {
    const int64_t kh = args.tiled_heads ? h % nk : h / (nv / nk);
    DeltaRun run{.state = s, .n_tokens = n_tokens};
    run.qk = qk + (kh * n + t) * 2 * dk;
    run.gates = gates + 2 * t * nv + h;
    run.beta_at = nv;
    run.gate_stride = 2 * nv;
    run.v = qkv + t * width + 2 * int64_t{nk} * dk + int64_t{h} * dv + lane;
    run.v_stride = width;
    run.y = y + (t * nv + h) * dv + lane;
    run.y_stride = int64_t{nv} * dv;
    r_.delta(run);
  });
}

void VectorOps::ssm_scan(const float* xbc, const float* dt, const SsmArgs& args, const Registers& state, const Batch& batch, float* y) {
  const int nh = args.n_heads, np = args.head_dim, ns = args.state_dim;
  const int64_t inner = int64_t{nh} * np, width = inner + 2 * int64_t{args.n_groups} * ns, n = batch.n_tokens;
  float* const gates = step_buffer_.get(static_cast<size_t>(2 * n * nh));  // [n][decay of all heads | step]
  spread(n, std::max<int64_t>(1, kPreparedGrain / (16 * nh)), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) r_.ssm_gates(args, dt + t * nh, gates + 2 * t * nh, gates + (2 * t + 1) * nh);
  });
  scan_tasks(state, nh, ns, np, batch, [&](const ScanState& s, int64_t t, int n_tokens, int h, int lane) {
    SsmRun run{.state = s, .n_tokens = n_tokens};
    run.x = xbc + t * width + int64_t{h} * np + lane;
    run.b = xbc + t * width + inner + int64_t{h / (nh / args.n_groups)} * ns;
    run.c = run.b + int64_t{args.n_groups} * ns;
    run.stride = width;
    run.gates = gates + 2 * t * nh + h;
    run.step_at = nh;
    run.gate_stride = 2 * nh;
    run.d = args.d[h];
    run.y = y + (t * nh + h) * np + lane;
    run.y_stride = inner;
    r_.ssm(run);
  });
}

void VectorOps::short_conv(const float* x, const ShortConvArgs& args, const Registers& columns, const Batch& batch, float* y) {
  const int64_t width = args.n_channels, n_seqs = static_cast<int64_t>(batch.seqs.size());
  int64_t strip = kMostStrip;
  while (strip > kLeastStrip && n_seqs * width < 2 * strip * n_threads()) strip /= 2;
  const int64_t n_strips = (width + strip - 1) / strip;
  const int n_kept = args.kernel - 1;
  const DType dtype = columns.layout.dtype;
  const size_t row_bytes = bytes_of(dtype, static_cast<size_t>(strip));
  small_or_tasks(width * batch.n_tokens * args.kernel, n_seqs * n_strips, [&](int64_t task, ThreadScratch& scratch) {
    const SeqStep& seq = batch.seqs[static_cast<size_t>(task / n_strips)];
    const int64_t first = task % n_strips * strip;
    const int n = static_cast<int>(std::min<int64_t>(strip, width - first));
    const Part part{columns, 0, n_kept, bytes_of(dtype, static_cast<size_t>(first)), bytes_of(dtype, static_cast<size_t>(n))};
    // Inputs as the registers hold them: those before the tile, then its own.
    auto* const rows =
        reinterpret_cast<std::byte*>(scratch.rows.get(static_cast<size_t>(n_kept + kConvTokens) * static_cast<size_t>(strip)));
    const auto row = [&](int i) { return rows + static_cast<size_t>(i) * row_bytes; };
    walk(part, batch, seq, [&](int begin, int end, const std::byte* from, std::byte* to) {
      for (int j = 0; j < n_kept; ++j) {
        if (from == nullptr) {
          std::memset(row(j), 0, part.n_bytes);
        } else {
          std::memcpy(row(j), from + part.at() + static_cast<size_t>(j) * part.stride(), part.n_bytes);
        }
      }
      for (int n_tokens = 0; begin < end; begin += n_tokens) {
        n_tokens = std::min(kConvTokens, end - begin);
        const int64_t at = (seq.first_token + begin) * width + first;
        for (int i = 0; i < n_tokens; ++i) store_row(x + at + i * width, n, 0, dtype, row(n_kept + i));
        ConvTile tile{.dtype = dtype, .kernel = args.kernel, .n_tokens = n_tokens, .n = n, .rows = rows, .row_bytes = row_bytes};
        tile.weight = args.weight + first;
        tile.w_stride = width;
        tile.bias = args.bias != nullptr ? args.bias + first : nullptr;
        tile.silu = args.silu;
        tile.y = y + at;
        tile.y_stride = width;
        r_.conv(tile);
        std::memmove(rows, row(n_tokens), static_cast<size_t>(n_kept) * row_bytes);
      }
      for (int j = 0; j < n_kept; ++j) std::memcpy(to + part.at() + static_cast<size_t>(j) * part.stride(), row(j), part.n_bytes);
    });
  });
}

}  // namespace carrel::cpu
