// The closed vocabulary of ops that model families are written in, and the three sets that implement it:
//   reference  readable scalar float32: the oracle inside the project
//   exact      vectorised float32 on dequantised weights
//   fast       packed weights, int8 activations where the weights are quantized: the default
// exact and fast keep the rule of the numerics page: an output element is a function of its own inputs, in one order, whatever the batch,
// chunking, thread count or instruction path.
//
// Activations are float32, row-major [n_tokens][width], contiguous unless a stride is given; outputs never alias inputs except where "in
// place" is said. State rows are rounded to their stored dtype on the way in and read back in that form. Formulas: architectures reference,
// sections named. Threads: one step thread calls; implementations split inside over their ThreadTeam. Nothing here allocates per token
// after the first step of a size.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/batch.h"
#include "kernels/matrix.h"
#include "kernels/threads.h"

namespace carrel {

/// Frequencies of one rotary table (1.2).
struct RopeSpec {
  std::vector<double> inv_freq;  // [rot_dims / 2], scaling applied
  double mscale = 1;             // multiplies cos and sin
};

/// cos and sin of one rope table for the tokens of the step: [n_tokens][rot_dims / 2] each, computed in float64 and rounded once (1.2).
struct RopeTable {
  int half = 0;
  std::vector<float> cos, sin;
};

struct RopeArgs {
  int n_heads = 1;
  int head_dim = 0;
  int begin = 0;             // first rotated dimension of a head
  int dims = 0;              // rotated dimensions
  bool interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + dims/2)
  bool inverse = false;      // angle of the opposite sign
};

struct AttentionArgs {  // plain, window and grouped-query attention (1.3, 5.1, 7)
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  float scale = 1;
  int window = 0;                // keys a query sees, itself included; 0 = all
  const float* sinks = nullptr;  // [n_heads] or null (1.4)
};

struct SparseArgs {  // DeepSeek-V4: one softmax over window rows and compressed rows, value = key (2.6)
  int n_heads = 0;
  int head_dim = 0;
  float scale = 1;
  int window = 0;
  const float* sinks = nullptr;  // [n_heads]
};

struct CompressArgs {  // pooling of groups of `ratio` tokens (2.7)
  int ratio = 4;
  int dim = 0;                  // row width d
  bool overlap = false;         // CSA: a group pools its own high half and the previous group's low half
  const float* ape = nullptr;   // [ratio][coff * dim], coff = overlap ? 2 : 1
  const float* norm = nullptr;  // [dim]
  float eps = 1e-6f;
  int rope_begin = 0, rope_dims = 0;  // rotated at the group's first position, interleaved
  const std::vector<double>* inv_freq = nullptr;
};

/// What is ranked and weighed: softmax over all experts; √softplus; sigmoid (4.3); the score itself, with a softmax over the chosen ones as
/// weights (5.3, 6.2).
enum class RouteScore { kSoftmax, kSqrtSoftplus, kSigmoid, kSoftmaxOfChosen };
struct RouteArgs {  // experts of a token, ascending by expert id (2.10, 3.7, 4.3, 5.3, 6.2, 7)
  int n_experts = 0;
  int top_k = 0;
  RouteScore score = RouteScore::kSoftmax;
  const float* bias = nullptr;     // [n_experts], selects only
  const int32_t* table = nullptr;  // [vocab][top_k] expert ids by token id (hash layers), or null; the family checks their range
  bool normalize = true;           // weights are divided by their sum + normalize_eps
  float scale = 1;
  float normalize_eps = 1e-20f;
};

/// gated() of gate g and up u: act(g) u. kIdentity: g u. kSwigluOai: (u + 1) g sigmoid(1.702 g) (5.3).
enum class Act { kSilu, kGeluTanh, kSigmoid, kIdentity, kSwigluOai };
struct Expert {
  Matrix gate, up, down;
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;  // [n_rows] of each, or null
};

struct ShortConvArgs {  // causal convolution per channel (3.4, 4.3, 6.1)
  int n_channels = 0;
  int kernel = 0;                 // taps K; the registers hold the last K - 1 inputs
  const float* weight = nullptr;  // [K][n_channels]; tap K - 1 belongs to the token itself
  const float* bias = nullptr;    // [n_channels] or null
  bool silu = false;              // applied to the sum
};

struct DeltaArgs {  // gated delta rule (3.4)
  int n_k_heads = 0, n_v_heads = 0, k_dim = 0, v_dim = 0;
  const float* a = nullptr;        // [n_v_heads]: -exp(A_log)
  const float* dt_bias = nullptr;  // [n_v_heads]
  bool tiled_heads = false;        // value head j uses key head j % n_k_heads instead of j / (n_v_heads / n_k_heads)
  float l2_eps = 1e-6f;
  float scale = 1;  // of q, after its normalization
};

struct SsmArgs {  // Mamba2 (6.1)
  int n_heads = 0, head_dim = 0, n_groups = 0, state_dim = 0;
  const float* a = nullptr;        // [n_heads]: -exp(A_log)
  const float* d = nullptr;        // [n_heads]
  const float* dt_bias = nullptr;  // [n_heads]
  float dt_min = 0, dt_max = __builtin_inff();
};

constexpr int kMaxStreams = 64;
struct HcArgs {       // manifold-constrained hyper-connections (2.5)
  int n_streams = 4;  // at most kMaxStreams
  int width = 0;
  int n_iters = 20;
  float hc_eps = 1e-6f, norm_eps = 1e-6f;
  const float* fn = nullptr;     // [(2 + n) n][n width]; head: [n][n width]
  const float* scale = nullptr;  // [3]; head: [1]
  const float* base = nullptr;   // [(2 + n) n]; head: [n]
};

/// One product of a call over the same x: y = w x + bias, rows of y_stride. With `sum`: sum = y + add as well (rows of y_stride), and y may
/// be left unwritten.
struct LinearOut {
  Matrix w;
  const float* bias = nullptr;  // [n_rows] or null
  float* y = nullptr;
  int64_t y_stride = 0;
  const float* add = nullptr;
  float* sum = nullptr;
};

class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string name() const = 0;
  /// The form in which this set wants a matrix that came as `stored`.
  virtual Form wanted_form(Form stored) const = 0;
  virtual DType kv_dtype() const = 0;  // what kv_dtype `auto` means: kF32 (reference, exact) or kBF16 (fast)

  // ---- per token
  virtual void embed(const Matrix& table, std::span<const int32_t> ids, float scale, float* y) = 0;
  /// x: rows of x_stride floats (n_cols used), y: rows of y_stride floats (n_rows written).
  virtual void linear(const Matrix& w, const float* bias, const float* x, int64_t x_stride, int n_tokens, float* y, int64_t y_stride) = 0;
  /// Several products of one x (all w have the same n_cols), the same bits as one after the other: what is made of x is made once.
  virtual void linears(std::span<const LinearOut> outs, const float* x, int64_t x_stride, int n_tokens);
  /// y = gated(act, gate, up, limit), contiguous; the same bits as the ops one by one. gate and up have one shape; their y, contiguous too,
  /// may be left unwritten.
  virtual void gated_linears(const LinearOut& gate, const LinearOut& up, Act act, float limit, const float* x, int64_t x_stride,
                             int n_tokens, float* y);
  /// down of that, with mid in the place of y: it may be left unwritten.
  virtual void feed_forward(const LinearOut& gate, const LinearOut& up, Act act, float limit, const LinearOut& down, const float* x,
                            int64_t x_stride, int n_tokens, float* mid);
  /// y = x / rms(x) * weight over each of n_rows rows of `dim`; weight may be null. weight: [n_weights][dim], row r takes r % n_weights. In
  /// place allowed.
  virtual void rms_norm(const float* x, const float* weight, float eps, int64_t n_rows, int dim, float* y, int n_weights) = 0;
  /// In place on [n_tokens][n_heads * head_dim].
  virtual void rope(float* x, const RopeArgs& args, const RopeTable& table, int n_tokens) = 0;
  /// y = act(gate) * up; limit > 0: gate is cut above at limit, up to [-limit, limit] (2.10).
  virtual void gated(Act act, const float* gate, const float* up, float limit, int64_t n, float* y) = 0;
  /// y = a + scale b (fma); in place allowed.
  virtual void add(const float* a, const float* b, float scale, int64_t n, float* y) = 0;
  virtual void scale(float s, int64_t n, float* x) = 0;  // x = s x, in place
  /// y[r][i] = sigmoid(g[r]) x[r][i] over n_rows rows of `width`; in place allowed (3.7).
  virtual void gate_rows(const float* g, const float* x, int64_t n_rows, int width, float* y) = 0;
  virtual void softcap(float cap, int64_t n, float* x) = 0;  // x = cap tanh(x / cap), in place

  // ---- experts
  /// scores: [n_tokens][n_experts] router outputs. expert_ids, weights: [n_tokens][top_k], ids ascending. Ties to the lower id.
  virtual void route(const RouteArgs& args, const float* scores, std::span<const int32_t> token_ids, int32_t* expert_ids,
                     float* weights) = 0;
  /// y[t] = sum over its experts, ascending, of weight * down(gated(gate x, up x)).
  virtual void experts(std::span<const Expert> experts, Act act, float limit, const float* x, const int32_t* expert_ids,
                       const float* weights, int top_k, int n_tokens, float* y) = 0;

  // ---- state
  /// Stores x [n_tokens][width] as elements [col, col + width) of row `position` of each token (ratio 1).
  virtual void store_rows(const float* x, int width, int col, const StateRows& rows, const Batch& batch) = 0;
  /// q, y: [n_tokens][n_heads * head_dim]. A row holds K of all kv heads, then V of all kv heads.
  virtual void attention(const float* q, const StateRows& kv, const AttentionArgs& args, const Batch& batch, float* y) = 0;
  /// Runs the compressor over the step's tokens: c, z: [n_tokens][coff * dim] (z without ape). Rows of groups that close are written to
  /// `rows`; the ring keeps (c, z + ape) of the open block: row = [c | z], 2 * coff * dim floats. The seed of a group that opens a block
  /// lies in row 0..ratio-1 of the tail page of the block before it: [c low half | z low half], and is written there when its block ends. Cold and hit take the same path. `tail` is ignored without overlap.
  virtual void compress(const float* c, const float* z, const CompressArgs& args, const Ring& ring, const StateRows& rows,
                        const StateRows& tail, const Batch& batch) = 0;
  /// Indexer (2.8): I[e] = sum_h w[h] relu(q[h] . k[e]) over visible rows e < (p+1)/ratio; the top_k largest, ascending, -1 behind them.
  /// q: [n_tokens][n_heads * dim], w: [n_tokens][n_heads] (scaled), selected: [n_tokens][top_k].
  virtual void index_topk(const float* q, const float* w, int n_heads, int dim, int top_k, const StateRows& keys, const Batch& batch,
                          int32_t* selected) = 0;
  /// q, y: [n_tokens][n_heads * head_dim]. compressed may be null (window-only layers); selected null = all visible rows.
  virtual void sparse_attention(const float* q, const StateRows& window, const StateRows* compressed, const int32_t* selected, int top_k,
                                const SparseArgs& args, const Batch& batch, float* y) = 0;

  // ---- recurrent layers: one token after another, so that chunks do not enter
  /// x, y: [n_tokens][n_channels]. Inputs are rounded to the dtype of the registers before any tap reads them, in the same step too.
  /// Registers: row j holds the input of position n - (K - 1) + j.
  virtual void short_conv(const float* x, const ShortConvArgs& args, const Registers& columns, const Batch& batch, float* y) = 0;
  /// qkv: [n_tokens][q of all key heads | k | v of all value heads], a, b: [n_tokens][n_v_heads] as projected, y: [n_tokens][n_v_heads *
  /// v_dim]. Registers: float32, row h * k_dim + i holds S[h][i], v_dim elements.
  virtual void delta_scan(const float* qkv, const float* a, const float* b, const DeltaArgs& args, const Registers& state,
                          const Batch& batch, float* y) = 0;
  /// xbc: [n_tokens][x of all heads | B of all groups | C], dt: [n_tokens][n_heads] as projected, y: [n_tokens][n_heads * head_dim].
  /// Registers: float32, row h * state_dim + s holds S[h][.][s], head_dim elements.
  virtual void ssm_scan(const float* xbc, const float* dt, const SsmArgs& args, const Registers& state, const Batch& batch, float* y) = 0;

  // ---- hyper-connections
  /// x: [n_tokens][n_streams * width] → y: [n_tokens][width], post: [n_tokens][n], comb: [n_tokens][n * n].
  virtual void hc_pre(const float* x, const HcArgs& args, int n_tokens, float* y, float* post, float* comb) = 0;
  /// out[k] = post[k] f + sum_j comb[j][k] x[j]
  virtual void hc_post(const float* f, const float* x, const float* post, const float* comb, int n_streams, int width, int n_tokens,
                       float* out) = 0;
  virtual void hc_head(const float* x, const HcArgs& args, int n_tokens, float* y) = 0;
};

/// Fills a table for the positions of the step; own sin/cos in float64, so that the bits do not depend on a C library.
void make_rope_table(const RopeSpec& spec, std::span<const int32_t> positions, RopeTable& table);

enum class OpSet { kReference, kExact, kFast };
enum class CpuPath { kAuto, kAvx2, kAvx512 };  // kAuto: the best that this machine has; the others exist for tests

/// team is borrowed. Errors: a path that this machine lacks.
Result<std::unique_ptr<Ops>> make_ops(OpSet set, ThreadTeam* team, CpuPath path = CpuPath::kAuto);

/// Runs a fixed canary through every op (odd shapes, one and many tokens) and hashes the bits: the measured part of a numerics id.
std::string numerics_canary(Ops& ops);

}  // namespace carrel
