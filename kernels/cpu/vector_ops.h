// The vector op sets: `exact` (float32 matrices, f32 states) and `fast` (packed matrices, bf16 states). One code base; they differ in the
// form of the matrices and in the states' dtype, which comes with every RowLayout.
//
// This class walks batches, pages and threads; the loops are in vector_kernels.h. Which thread computes an element never changes it: tasks
// are drawn from a counter, and each computes its elements in the canonical order (kernels/README.md). Threads: one caller at a time.
// Memory: scratch grows to the largest step and stays.
#pragma once
#include <atomic>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/recurrent_kernels.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/ops.h"

namespace carrel::cpu {

/// Floats on a 64-byte boundary that grow and never shrink; contents are lost when they grow.
class Floats {
 public:
  float* get(size_t n) {
    if (n > size_) {
      const size_t n_bytes = (n * sizeof(float) + 63) / 64 * 64;
      data_.reset(static_cast<float*>(std::aligned_alloc(64, n_bytes)));
      if (!data_) std::abort();  // as operator new would end here: no step can go on
      size_ = n;
      for (size_t i = 0; i < n; ++i) data_.get()[i] = 0.0f;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> data_;
  size_t size_ = 0;
};

/// Tokens [first, first + n) of one sequence, consecutive rows of the step.
struct TokenTile {
  const SeqStep* seq = nullptr;
  int32_t row = 0;       // first token row of the step
  int32_t position = 0;  // of that token
  int32_t n = 0;
};

/// Scratch of one thread.
struct ThreadScratch {
  Floats queries, scores, keys, values, partial, total;  // attention
  Floats rows;                                           // other ops
  Floats unpacked;                                       // a block of packed rows
  std::vector<int32_t> codes;                            // attention on integers
  std::vector<uint64_t> ranks;
  std::vector<const float*> pointers;
};

class VectorOps final : public Ops {
 public:
  VectorOps(bool fast, ThreadTeam* team, Path path);

  std::string name() const override { return fast_ ? "fast" : "exact"; }
  Form wanted_form(Form stored) const override { return fast_ ? stored : Form::kF32; }
  DType kv_dtype() const override { return fast_ ? DType::kBF16 : DType::kF32; }

  void embed(const Matrix& table, std::span<const int32_t> ids, float scale, float* y) override;
  void linear(const Matrix& w, const float* bias, const float* x, int64_t x_stride, int n_tokens, float* y, int64_t y_stride) override;
  void linears(std::span<const LinearOut> outs, const float* x, int64_t x_stride, int n_tokens) override;
  void gated_linears(const LinearOut& gate, const LinearOut& up, Act act, float limit, const float* x, int64_t x_stride, int n_tokens,
                     float* y) override;
  void feed_forward(const LinearOut& gate, const LinearOut& up, Act act, float limit, const LinearOut& down, const float* x,
                    int64_t x_stride, int n_tokens, float* mid) override;
  void rms_norm(const float* x, const float* weight, float eps, int64_t n_rows, int dim, float* y, int n_weights) override;
  void rope(float* x, const RopeArgs& args, const RopeTable& table, int n_tokens) override;
  void gated(Act act, const float* gate, const float* up, float limit, int64_t n, float* y) override;
  void add(const float* a, const float* b, float scale, int64_t n, float* y) override;
  void scale(float s, int64_t n, float* x) override;
  void gate_rows(const float* g, const float* x, int64_t n_rows, int width, float* y) override;
  void softcap(float cap, int64_t n, float* x) override;
  void route(const RouteArgs& args, const float* scores, std::span<const int32_t> token_ids, int32_t* expert_ids, float* weights) override;
  void experts(std::span<const Expert> experts, Act act, float limit, const float* x, const int32_t* expert_ids, const float* weights,
               int top_k, int n_tokens, float* y) override;
  void store_rows(const float* x, int width, int col, const StateRows& rows, const Batch& batch) override;
  void attention(const float* q, const StateRows& kv, const AttentionArgs& args, const Batch& batch, float* y) override;
  void compress(const float* c, const float* z, const CompressArgs& args, const Ring& ring, const StateRows& rows, const StateRows& tail,
                const Batch& batch) override;
  void index_topk(const float* q, const float* w, int n_heads, int dim, int top_k, const StateRows& keys, const Batch& batch,
                  int32_t* selected) override;
  void sparse_attention(const float* q, const StateRows& window, const StateRows* compressed, const int32_t* selected, int top_k,
                        const SparseArgs& args, const Batch& batch, float* y) override;
  void short_conv(const float* x, const ShortConvArgs& args, const Registers& columns, const Batch& batch, float* y) override;
  void delta_scan(const float* qkv, const float* a, const float* b, const DeltaArgs& args, const Registers& state, const Batch& batch,
                  float* y) override;
  void ssm_scan(const float* xbc, const float* dt, const SsmArgs& args, const Registers& state, const Batch& batch, float* y) override;
  void hc_pre(const float* x, const HcArgs& args, int n_tokens, float* y, float* post, float* comb) override;
  void hc_post(const float* f, const float* x, const float* post, const float* comb, int n_streams, int width, int n_tokens,
               float* out) override;
  void hc_head(const float* x, const HcArgs& args, int n_tokens, float* y) override;

 private:
  int n_threads() const { return team_ ? team_->size() : 1; }
  /// fn(task, thread scratch) for every task of [0, n), drawn by the threads one by one.
  template <class F>
  void tasks(int64_t n, const F& fn);
  /// fn(begin, end) over [0, n) in contiguous pieces; alone when there is less than two grains of work.
  template <class F>
  void spread(int64_t n, int64_t grain, const F& fn);
  /// tasks(), or all on the caller when there is little `work`.
  template <class F>
  void small_or_tasks(int64_t work, int64_t n, const F& fn);
  /// run(state, first row of the step, tokens, head, lane) over the lanes of a state of n_heads [n_rows][width].
  template <class F>
  void scan_tasks(const Registers& state, int n_heads, int n_rows, int width, const Batch& batch, const F& run);
  /// Tokens of the step in tiles of at most `n_tokens`.
  void make_tiles(const Batch& batch, int n_tokens);

  void store_row(const float* x, int n, int col, DType dtype, std::byte* row) const;
  void hc_mix(const float* x, const HcArgs& args, int n_mix, float* mix) const;

  bool fast_;
  ThreadTeam* team_;
  Path path_;
  const VectorKernels& k_;
  const RecurrentKernels& r_;
  Scratch linear_scratch_;
  std::vector<ThreadScratch> scratch_;
  std::vector<TokenTile> tiles_;
  Floats step_buffer_, step_buffer2_, step_buffer3_;  // shared by the tasks of one op
  std::vector<int32_t> order_, begins_;               // experts: slots grouped by expert
  struct Closing {
    const SeqStep* seq;
    int group;
  };
  std::vector<Closing> closings_;
};

template <class F>
void VectorOps::tasks(int64_t n, const F& fn) {
  if (n_threads() == 1 || n <= 1) {
    for (int64_t i = 0; i < n; ++i) fn(i, scratch_[0]);
    return;
  }
  struct Work {
    const F& fn;
    std::vector<ThreadScratch>& scratch;
    int64_t n;
    std::atomic<int64_t> next{0};
  } work{fn, scratch_, n};
  team_->run(n_threads(), 1, [&work](int64_t begin, int64_t) {  // one reference: std::function needs no memory
    for (int64_t i = work.next++; i < work.n; i = work.next++) work.fn(i, work.scratch[static_cast<size_t>(begin)]);
  });
}

template <class F>
void VectorOps::spread(int64_t n, int64_t grain, const F& fn) {
  if (n_threads() == 1 || n < 2 * grain) {
    if (n > 0) fn(int64_t{0}, n);
    return;
  }
  team_->run(n, grain, [&fn](int64_t begin, int64_t end) { fn(begin, end); });
}

/// Rows [lo, hi) of a block in the type that kernels read: packed ones are unpacked first, and their pointers changed.
DType readable_rows(DType type, int n_elements, int lo, int hi, const std::byte** rows, ThreadScratch& scratch);

/// Ascending order of these keys is: larger score first, then lower index; -0 equals 0, NaN comes last.
inline uint64_t rank_key(float score, uint32_t index) {
  uint32_t u = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes 0
  u = u >> 31 ? u : ~u & 0x7FFFFFFFu;                  // positive: larger is smaller; negative: as it is, above all positive
  if (score != score) u = 0xFFFFFFFFu;
  return static_cast<uint64_t>(u) << 32 | index;
}

}  // namespace carrel::cpu
