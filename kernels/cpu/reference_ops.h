// The `reference` set: scalar, written for reading, sums in float64. The oracle inside the project; matrices come as Form::kRows.
//
// Threads: runs on the caller alone. May not share arithmetic with the vector sets (only the elementary functions of math.h), or it could not judge them.
#pragma once
#include <vector>

#include "kernels/ops.h"

namespace carrel::cpu {

/// Reads `n` elements from element `begin` of a state row.
void read_row(const std::byte* row, DType dtype, int begin, int n, float* out);
/// Rounds to the row's dtype and stores.
void write_row(std::byte* row, DType dtype, int begin, int n, const float* in);

/// Of packed rows, which are read and written whole (n: their elements), by the words of docs/formats/kv_packed.md.
void read_packed_row(const std::byte* row, DType dtype, int n, float* out);
void write_packed_row(std::byte* row, DType dtype, int n, const float* in);
/// What an indexer's query goes through before it meets packed keys.
std::vector<float> turned_and_rounded(const float* q, int n);

class ReferenceOps final : public Ops {
 public:
  std::string name() const override { return "reference"; }
  Form wanted_form(Form) const override { return Form::kRows; }
  DType kv_dtype() const override { return DType::kF32; }

  void embed(const Matrix& table, std::span<const int32_t> ids, float scale, float* y) override;
  void linear(const Matrix& w, const float* bias, const float* x, int64_t x_stride, int n_tokens, float* y, int64_t y_stride) override;
  void rms_norm(const float* x, const float* weight, float eps, int64_t n_rows, int dim, float* y, int n_weights) override;
  void rope(float* x, const RopeArgs& args, const RopeTable& table, int n_tokens) override;
  void gated(Act act, const float* gate, const float* up, float limit, int64_t n, float* y) override;
  void add(const float* a, const float* b, float scale, int64_t n, float* y) override;
  void scale(float s, int64_t n, float* x) override;
  void gate_rows(const float* g, const float* x, int64_t n_rows, int width, float* y) override;
  void softcap(float cap, int64_t n, float* x) override;
  void route(const RouteArgs& args, const float* scores, std::span<const int32_t> token_ids, int32_t* expert_ids, float* weights) override;
  void experts(std::span<const Expert> experts, Act act, float limit, const float* x, const int32_t* expert_ids, const float* weights, int top_k,
               int n_tokens, float* y) override;
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
  void hc_post(const float* f, const float* x, const float* post, const float* comb, int n_streams, int width, int n_tokens, float* out) override;
  void hc_head(const float* x, const HcArgs& args, int n_tokens, float* y) override;
};

}  // namespace carrel::cpu
