// Source of the loops of recurrent_kernels.h, compiled once per instruction path. Include after defining CARREL_SIMD_NS.
// Everything is internal to the including file: nothing may be merged by the linker with code of another path.
#pragma once
#include "kernels/cpu/recurrent_kernels.h"
#include "kernels/cpu/simd.h"

namespace carrel::cpu {
inline namespace CARREL_SIMD_NS {
namespace {

/// How a block of lanes is read and written: whole vectors, or the first n of one.
struct Whole {
  CARREL_INLINE F16 load(const float* p) const { return F16::load(p); }
  CARREL_INLINE void store(F16 x, float* p) const { x.store(p); }
};
struct Part {
  int n;
  CARREL_INLINE F16 load(const float* p) const { return F16::load_n(p, n); }
  CARREL_INLINE void store(F16 x, float* p) const { x.store_n(p, n); }
};

/// Calls f<R>(lanes, first lane) for blocks of R vectors: as many as the registers of the path have room for.
template <class F>
CARREL_INLINE void for_blocks(int n_lanes, F f) {
  int lane = 0;
#ifdef __AVX512F__
  for (; lane + 4 * kLanes <= n_lanes; lane += 4 * kLanes) f.template operator()<4>(Whole{}, lane);
#endif
  for (; lane + 2 * kLanes <= n_lanes; lane += 2 * kLanes) f.template operator()<2>(Whole{}, lane);
  for (; lane + kLanes <= n_lanes; lane += kLanes) f.template operator()<1>(Whole{}, lane);
  if (lane < n_lanes) f.template operator()<1>(Part{n_lanes - lane}, lane);
}

/// Rows of a block of lanes.
template <class T>
struct Rows {
  T* at;
  ptrdiff_t stride;
};

/// Asks for the row of a token some tokens later: rows lie far apart, where no hardware prefetch follows. Rows that will be written are
/// asked for too, because a store that waits for its line holds up all later ones.
CARREL_INLINE void prefetch_ahead(const float* row, ptrdiff_t stride, int t, int n_tokens) {
  constexpr int kAhead = 3;
  if (t + kAhead < n_tokens) __builtin_prefetch(row + kAhead * stride);
}

/// What a run starts from: its state, or zeros in `work`.
template <int R>
CARREL_INLINE Rows<const float> first_rows(const ScanState& s, int lane) {
  if (s.from != nullptr) return {s.from + lane, s.stride};
  for (int i = 0; i < s.n_rows * R; ++i) F16::set(0.0f).store(s.work + i * kLanes);
  return {s.work, R * kLanes};
}

// ---- gated delta rule. The sum of the next token's memory runs along while a row is in registers, so that a token is one pass.

template <int R, bool kNext, class L>
CARREL_INLINE void delta_rows(int n_rows, const float* q, const float* k, const float* next_k, F16 decay, const F16 (&d)[R],
                              Rows<const float> from, Rows<float> to, L lanes, F16 (&out)[R], F16 (&memory)[R]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) out[r] = memory[r] = F16::set(0.0f);
  for (int i = 0; i < n_rows; ++i) {
    const F16 ki = F16::set(k[i]), qi = F16::set(q[i]), next = kNext ? F16::set(next_k[i]) : ki;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F16 s = fma(ki, d[r], decay * lanes.load(from.at + i * from.stride + r * kLanes));
      lanes.store(s, to.at + i * to.stride + r * kLanes);
      out[r] = fma(qi, s, out[r]);
      if (kNext) memory[r] = fma(next, s, memory[r]);
    }
  }
}

template <int R, class L>
CARREL_INLINE void delta_block(const DeltaRun& run, L lanes, int lane) {
  const ScanState& s = run.state;
  Rows<const float> from = first_rows<R>(s, lane);
  F16 memory[R], d[R], out[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) memory[r] = F16::set(0.0f);
  for (int i = 0; i < s.n_rows; ++i) {
    const F16 ki = F16::set(run.qk[s.n_rows + i]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) memory[r] = fma(ki, lanes.load(from.at + i * from.stride + r * kLanes), memory[r]);
  }
  for (int t = 0; t < run.n_tokens; ++t) {
    const bool last = t + 1 == run.n_tokens;
    const float *q = run.qk + ptrdiff_t{2} * t * s.n_rows, *k = q + s.n_rows, *v = run.v + t * run.v_stride + lane;
    const float* gates = run.gates + t * run.gate_stride;
    const F16 decay = F16::set(gates[0]), minus_decay = F16::set(-gates[0]), beta = F16::set(gates[run.beta_at]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      d[r] = beta * fma(minus_decay, memory[r], lanes.load(v + r * kLanes));
      prefetch_ahead(v + r * kLanes, run.v_stride, t, run.n_tokens);
      __builtin_prefetch(run.y + t * run.y_stride + lane + r * kLanes, 1);
    }
    if (last) {
      delta_rows<R, false>(s.n_rows, q, k, nullptr, decay, d, from, {s.to + lane, s.stride}, lanes, out, memory);
    } else {
      delta_rows<R, true>(s.n_rows, q, k, k + 2 * s.n_rows, decay, d, from, {s.work, R * kLanes}, lanes, out, memory);
      from = {s.work, R * kLanes};
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) lanes.store(out[r], run.y + t * run.y_stride + lane + r * kLanes);
  }
}

void delta(const DeltaRun& run) {
  for_blocks(run.state.n_lanes, [&]<int R>(auto lanes, int lane) CARREL_LAMBDA_INLINE { delta_block<R>(run, lanes, lane); });
}

// ---- Mamba2. A row takes T tokens while it is in registers.

template <int T, int R, class L>
CARREL_INLINE void ssm_tokens(const SsmRun& run, int t, Rows<const float> from, Rows<float> to, L lanes, int lane) {
  const float *x = run.x + t * run.stride + lane, *b = run.b + t * run.stride, *c = run.c + t * run.stride;
  F16 in[T][R], out[T][R], decay[T];
#pragma GCC unroll 8
  for (int u = 0; u < T; ++u) {
    const float* gates = run.gates + (t + u) * run.gate_stride;
    decay[u] = F16::set(gates[0]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F16 v = lanes.load(x + u * run.stride + r * kLanes);
      in[u][r] = F16::set(gates[run.step_at]) * v;
      out[u][r] = F16::set(run.d) * v;
      prefetch_ahead(x + u * run.stride + r * kLanes, run.stride, t + u, run.n_tokens);
      __builtin_prefetch(run.y + (t + u) * run.y_stride + lane + r * kLanes, 1);
    }
  }
  for (int i = 0; i < run.state.n_rows; ++i) {
    F16 s[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) s[r] = lanes.load(from.at + i * from.stride + r * kLanes);
#pragma GCC unroll 8
    for (int u = 0; u < T; ++u) {
      const F16 bi = F16::set(b[u * run.stride + i]), ci = F16::set(c[u * run.stride + i]);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        s[r] = fma(bi, in[u][r], decay[u] * s[r]);
        out[u][r] = fma(ci, s[r], out[u][r]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) lanes.store(s[r], to.at + i * to.stride + r * kLanes);
  }
#pragma GCC unroll 8
  for (int u = 0; u < T; ++u) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) lanes.store(out[u][r], run.y + (t + u) * run.y_stride + lane + r * kLanes);
  }
}

template <int R, class L>
CARREL_INLINE void ssm_block(const SsmRun& run, L lanes, int lane) {
  const ScanState& s = run.state;
  const Rows<float> work{s.work, R * kLanes}, end{s.to + lane, s.stride};
  Rows<const float> from = first_rows<R>(s, lane);
  int t = 0;
  for (; t + 2 < run.n_tokens; t += 2) {
    ssm_tokens<2, R>(run, t, from, work, lanes, lane);
    from = {s.work, R * kLanes};
  }
  if (t + 2 == run.n_tokens) {
    ssm_tokens<2, R>(run, t, from, end, lanes, lane);
  } else {
    ssm_tokens<1, R>(run, t, from, end, lanes, lane);
  }
}

void ssm(const SsmRun& run) {
  for_blocks(run.state.n_lanes, [&]<int R>(auto lanes, int lane) CARREL_LAMBDA_INLINE { ssm_block<R>(run, lanes, lane); });
}

// ---- convolution

/// kTaps 0: as many as the tile says.
template <DType kType, int kTaps>
CARREL_INLINE void conv_of(const ConvTile& c) {
  const int n_taps = kTaps > 0 ? kTaps : c.kernel;
  for (int t = 0; t < c.n_tokens; ++t) {
    const std::byte* rows = c.rows + static_cast<size_t>(t) * c.row_bytes;
    for_lanes(c.n, [&](int64_t i, int m) CARREL_LAMBDA_INLINE {
      F16 sum = c.bias != nullptr ? load(c.bias + i, m) : F16::set(0.0f);
#pragma GCC unroll 4
      for (int j = 0; j < n_taps; ++j) {
        const std::byte* row = rows + static_cast<size_t>(j) * c.row_bytes;
        const F16 tap = kType == DType::kF32 ? F16::load(reinterpret_cast<const float*>(row) + i)
                                             : F16::load_bf16(reinterpret_cast<const uint16_t*>(row) + i);
        sum = fma(load(c.weight + j * c.w_stride + i, m), tap, sum);
      }
      store(c.silu ? silu_of(sum) : sum, c.y + t * c.y_stride + i, m);
      if (t + 2 < c.n_tokens) __builtin_prefetch(c.y + (t + 2) * c.y_stride + i, 1);
    });
  }
}

template <DType kType>
CARREL_INLINE void conv_typed(const ConvTile& c) {
  switch (c.kernel) {
    case 3:
      return conv_of<kType, 3>(c);
    case 4:
      return conv_of<kType, 4>(c);
    default:
      return conv_of<kType, 0>(c);
  }
}

void conv(const ConvTile& c) {
  if (c.dtype == DType::kF32) {
    conv_typed<DType::kF32>(c);
  } else {
    conv_typed<DType::kBF16>(c);
  }
}

// ---- per token: gates and unit vectors

void delta_gates(const DeltaArgs& args, const float* a, const float* b, float* decay, float* beta) {
  for_lanes(args.n_v_heads, [&](int64_t h, int m) CARREL_LAMBDA_INLINE {
    store(exp_of(load(args.a + h, m) * softplus_of(load(a + h, m) + load(args.dt_bias + h, m))), decay + h, m);
    store(sigmoid_of(load(b + h, m)), beta + h, m);
  });
}

void ssm_gates(const SsmArgs& args, const float* dt, float* decay, float* step) {
  for_lanes(args.n_heads, [&](int64_t h, int m) CARREL_LAMBDA_INLINE {
    // min and max give their second operand for a NaN, which therefore stays one
    const F16 s = min(F16::set(args.dt_max), max(F16::set(args.dt_min), softplus_of(load(dt + h, m) + load(args.dt_bias + h, m))));
    store(s, step + h, m);
    store(exp_of(s * load(args.a + h, m)), decay + h, m);
  });
}

void unit(const float* x, int n, float eps, float scale, float* y) {
  const F16 factor = F16::set(rsqrt_of(dot_of(x, x, n) + eps) * scale);
  for_lanes(n, [&](int64_t i, int m) CARREL_LAMBDA_INLINE { store(load(x + i, m) * factor, y + i, m); });
}

constexpr RecurrentKernels kRecurrent = {delta, ssm, conv, delta_gates, ssm_gates, unit};

}  // namespace
}  // namespace CARREL_SIMD_NS
}  // namespace carrel::cpu
