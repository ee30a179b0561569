// Direct loading: requests are packed from the source into memory when they are first asked for. Used by one loading thread.
#include "engine/model/weights.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "engine/model/packing.h"
#include "engine/model/source.h"

namespace carrel {
namespace {

class SourceWeights final : public LoadedWeights {
 public:
  SourceWeights(const ModelSource& source, FormChooser choose, LoadMatrices what)
      : source_(source), choose_(std::move(choose)), what_(what) {}

  bool has(const std::string& tensor) const override { return source_.find(tensor) != nullptr; }
  std::vector<int64_t> shape(const std::string& tensor) const override {
    const TensorInfo* t = source_.find(tensor);
    return t == nullptr ? std::vector<int64_t>() : t->shape;
  }

  Result<Matrix> matrix(const MatrixRequest& r) override {
    const std::string id = r.id();
    if (const auto it = matrices_.find(id); it != matrices_.end()) return it->second;
    CARREL_ASSIGN(const FoundMatrix found, find_for(source_, r));
    const Form form = choose_(found.form);
    asked_.insert(r.tensor);
    if (found.scales != nullptr) asked_.insert(r.scales);
    Matrix m{form, r.n_rows, r.n_cols, nullptr};
    const size_t n_bytes = packed_bytes(form, r.n_rows, r.n_cols);
    if (what_ == LoadMatrices::kSizes) {
      arena_.count(n_bytes);
    } else {
      CARREL_ASSIGN(const auto out, take(n_bytes));
      CARREL_TRY(pack_request(found, r, form, out, source_.path()));
      m.data = out.data();
    }
    matrices_.emplace(id, m);
    return m;
  }

  Result<const float*> vector(const std::string& tensor, int64_t n, float add) override {
    const std::string id = vector_id(tensor, n, add);
    if (const auto it = vectors_.find(id); it != vectors_.end()) return reinterpret_cast<const float*>(it->second);
    CARREL_ASSIGN(const TensorInfo* t, find_for(source_, tensor, n, false));
    CARREL_ASSIGN(const auto out, take(static_cast<size_t>(n) * sizeof(float)));
    read_vector(*t, add, {reinterpret_cast<float*>(out.data()), static_cast<size_t>(n)});
    asked_.insert(tensor);
    vectors_.emplace(id, out.data());
    return reinterpret_cast<const float*>(out.data());
  }

  Result<const int32_t*> table(const std::string& tensor, int64_t n) override {
    const std::string id = table_id(tensor, n);
    if (const auto it = vectors_.find(id); it != vectors_.end()) return reinterpret_cast<const int32_t*>(it->second);
    CARREL_ASSIGN(const TensorInfo* t, find_for(source_, tensor, n, true));
    CARREL_ASSIGN(const auto out, take(static_cast<size_t>(n) * sizeof(int32_t)));
    CARREL_TRY(read_table(*t, {reinterpret_cast<int32_t*>(out.data()), static_cast<size_t>(n)}, source_.path()));
    asked_.insert(tensor);
    vectors_.emplace(id, out.data());
    return reinterpret_cast<const int32_t*>(out.data());
  }

  std::vector<TensorUse> tensors() const override {
    std::vector<TensorUse> out;
    for (const std::string& name : source_.tensor_names()) out.push_back({name, asked_.contains(name)});
    return out;
  }

  int64_t memory_bytes() const override { return arena_.used_bytes(); }
  int64_t file_bytes() const override {
    int64_t n = 0;
    for (const std::string& name : asked_) n += static_cast<int64_t>(source_.find(name)->bytes.size());
    return n;
  }
  Result<Digest> model_digest() const override { return source_digest(source_, {asked_.begin(), asked_.end()}, false); }

 private:
  Result<std::span<std::byte>> take(size_t n_bytes) {
    auto out = arena_.take(n_bytes);
    if (!out) out.error().where = source_.path();
    return out;
  }

  const ModelSource& source_;
  const FormChooser choose_;
  const LoadMatrices what_;
  WeightArena arena_;
  std::unordered_map<std::string, Matrix> matrices_;           // by request id
  std::unordered_map<std::string, const std::byte*> vectors_;  // vectors and tables, by request id
  std::set<std::string> asked_;                                // tensors
};

}  // namespace

std::unique_ptr<LoadedWeights> weights_from_source(const ModelSource& source, FormChooser choose, LoadMatrices what) {
  return std::make_unique<SourceWeights>(source, std::move(choose), what);
}

}  // namespace carrel
