// The pieces of a decoder layer as graph nodes: attention, MLP, experts. For decoder.cpp, and for families' hooks.
//
// One object per model being built, used by the loading thread; errors stick in its GraphBuilder.
#pragma once
#include <string>
#include <vector>

#include "engine/model/families/decoder.h"
#include "engine/model/graph_builder.h"

namespace carrel {

class DecoderParts {
 public:
  DecoderParts(const DecoderSpec& spec, Weights* weights, DType kv_dtype) : b(weights), s(spec), kv_dtype_(kv_dtype) {}

  /// Layers of one window share a group, full layers another; the family's mixer declares the registers of its own.
  void declare_state();
  /// Full name of a tensor of layer i.
  std::string at(int i, const NamePair& name, const char* suffix = "") const;
  const float* norm(const std::string& tensor, int n) { return b.vector(tensor, n, s.norm_offset); }
  /// rows x cols of "<tensor>.weight", with the bias "<tensor>.bias" where `biases` says so. head_rows: rows per head, when rotary pairs
  /// may have to be put back to halves.
  ValueId project(int i, const std::string& name, const NamePair& tensor, int rows, int cols, ValueId x, Biases biases, int head_rows = 0);

  /// head_rows as above.
  const float* bias_of(const std::string& tensor, int rows, Biases biases, int head_rows = 0);

  /// The mixer of layer i, whichever it has: normed x to what is added to the residual stream.
  ValueId mixer(int i, const std::string& p, ValueId x);
  ValueId attention(int i, const std::string& p, ValueId x);
  /// Values p + "gate", "up", "mid"; the result is named p + out.
  ValueId mlp(int i, const std::string& p, const std::string& out, const MlpNames& names, int width, ValueId x);
  /// Experts, plus the shared one.
  ValueId moe(int i, const std::string& p, ValueId x);

  GraphBuilder b;
  const DecoderSpec& s;

 private:
  const float* unpaired(const float* bias, int rows, int head_rows);
  /// q and, where the family has one, the gate of the heads.
  struct Query {
    ValueId q = kNoValue, gate = kNoValue;
  };
  Query query(int i, const std::string& p, ValueId x);
  std::vector<Expert> experts(int i);

  DType kv_dtype_;
  int full_group_ = 0, window_group_ = 0;
  std::vector<int> nth_of_kind_;  // by layer
};

}  // namespace carrel
