// From a source's tensor to what a request of weights.h asks for. Shared by direct loading and by import; private to this folder.
//
// Pure functions on the caller's memory; WeightArena belongs to one thread.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "engine/model/source.h"
#include "engine/model/weights.h"
#include "kernels/memory.h"

namespace carrel {

/// Names of requests other than matrices, as MatrixRequest::id().
std::string vector_id(const std::string& tensor, int64_t n, float add);
std::string table_id(const std::string& tensor, int64_t n);

/// The tensor, when it is there and of a readable type.
Result<const TensorInfo*> find_readable(const ModelSource& source, const std::string& tensor);
/// kCorrupt: the tensor, its type and shape, and what the configuration asks for.
std::unexpected<Error> wrong_shape(const TensorInfo& tensor, const std::string& wanted, const std::string& where);
/// Whether a type needs a tensor of scales beside: e4m3, and bytes of two e2m1.
inline bool needs_scales(DType type) {
  return type == DType::kF8E4M3 || type == DType::kU8 || type == DType::kI8;
}
inline bool is_table_type(DType type) {
  return type == DType::kI32 || type == DType::kI64;
}
/// kUnsupported: the tensor is one of needs_scales, and nothing says by what.
std::unexpected<Error> without_scales(const TensorInfo& tensor, const std::string& where);

/// What answers a request: of readable types, with every row that it names.
struct FoundMatrix {
  const TensorInfo* tensor = nullptr;
  const TensorInfo* scales = nullptr;  // of types that have them beside
  Form form = Form::kF32;              // keeps its values
};
/// Rows are of the tensor's own row length, unless it is a vector. Errors name the tensor. With request.scales:
///   F8_E4M3 [.., R, C] + [.., ceil(R / 128), ceil(C / 128)] of F8_E8M0, F32, F16 or BF16: blocks of 128 x 128 from the top left, those at
///   the edges smaller; I8 or U8 [.., R, C / 2] + [.., R, C / 32], or [.., R, C / 32, 16] + [.., R, C / 32], of F8_E8M0 or U8: two e2m1 a
///   byte, the earlier low.
Result<FoundMatrix> find_for(const ModelSource& source, const MatrixRequest& request);
/// The same for a tensor of n elements; `table`: integers wanted, else numbers.
Result<const TensorInfo*> find_for(const ModelSource& source, const std::string& tensor, int64_t n, bool table);

/// out.size() == packed_bytes(form, request.n_rows, request.n_cols). kCorrupt names tensor and place of a value that no weight has: NaN, a
/// scale that products cannot be made with (kLargestX4Scale of kernels/blocks.h).
Status pack_request(const FoundMatrix& found, const MatrixRequest& request, Form form, std::span<std::byte> out, const std::string& where);
/// The same for whatever scales can be packed.
Status pack_any(const FoundMatrix& found, const MatrixRequest& request, Form form, std::span<std::byte> out, const std::string& where);
/// Compares every value of a packed matrix with the source; kInternal names the row when packing changed one.
Status check_lossless(const FoundMatrix& found, const MatrixRequest& request, const Matrix& packed, const std::string& where);
void read_vector(const TensorInfo& tensor, float add, std::span<float> out);
/// kCorrupt when a value does not fit int32.
Status read_table(const TensorInfo& tensor, std::span<int32_t> out, const std::string& where);

/// Memory of weights: 64-byte aligned pieces of huge-page buffers, freed together.
class WeightArena {
 public:
  Result<std::span<std::byte>> take(size_t n_bytes);
  /// Counts what take() would.
  void count(size_t n_bytes);
  int64_t used_bytes() const { return used_; }

 private:
  std::vector<HugeBuffer> buffers_;
  std::span<std::byte> rest_;  // of the last shared buffer
  int64_t used_ = 0;
};

/// Identity of a model, imported or not: its texts and the bytes of `tensors` (sorted, distinct) as they came. `quantized`: import rounded
/// the plain floats, which makes it another model.
Digest source_digest(const ModelSource& source, const std::vector<std::string>& tensors, bool quantized);

}  // namespace carrel
