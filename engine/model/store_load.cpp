// Loading from the store: the requests of import answered from weights.bin. One loading thread.
#include <set>
#include <unordered_map>

#include "engine/model/gguf.h"
#include "engine/model/packing.h"
#include "engine/model/store.h"
#include "engine/model/store_files.h"

namespace carrel {
namespace {

constexpr size_t kSampleOneIn = 16;

class StoredTexts final : public ModelSource {
 public:
  SourceFormat format() const override { return format_; }
  const std::string& config_json() const override { return text("config.json"); }
  const std::string& path() const override { return path_; }
  const std::vector<std::string>& tensor_names() const override { return no_names_; }
  const TensorInfo* find(const std::string&) const override { return nullptr; }
  const std::string& tokenizer_json() const override { return text("tokenizer.json"); }
  const std::string& tokenizer_config_json() const override { return text("tokenizer_config.json"); }
  const std::string& chat_template() const override { return text("chat_template.jinja"); }
  const std::string& generation_config_json() const override { return text("generation_config.json"); }
  const std::string& special_tokens_map_json() const override { return text("special_tokens_map.json"); }
  const GgufTokenizer* gguf_tokenizer() const override { return gguf_ ? &*gguf_ : nullptr; }

  Status load(Env* env, const std::string& dir, const Manifest& m) {
    format_ = m.format;
    path_ = dir;
    for (const StoredText& t : m.texts) {
      CARREL_ASSIGN(std::string content, read_text(env, dir, t));
      if (t.file == kGgufTokenizerFile) {
        auto gguf = decode_gguf_tokenizer(std::as_bytes(std::span(content)));
        if (!gguf) return fail(Code::kCorrupt, gguf.error().message + "; import the model again", dir + "/" + t.file);
        gguf_ = *std::move(gguf);
      } else {
        texts_[t.file] = std::move(content);
      }
    }
    return {};
  }

 private:
  const std::string& text(const std::string& file) const {
    const auto it = texts_.find(file);
    return it == texts_.end() ? empty_ : it->second;
  }
  SourceFormat format_ = SourceFormat::kHuggingFace;
  std::string path_, empty_;
  std::vector<std::string> no_names_;
  std::map<std::string, std::string> texts_;
  std::optional<GgufTokenizer> gguf_;
};

/// An opened entry without its texts.
struct Opened {
  StoreEntry entry;
  Manifest manifest;
  std::unique_ptr<File> file;
  std::unordered_map<std::string, size_t> pieces;  // by request id
  std::unordered_map<std::string, std::vector<int64_t>> shapes;
};

class StoreWeights final : public LoadedWeights {
 public:
  StoreWeights(Opened model, FormChooser choose, StoreVerify verify, LoadMatrices what, size_t sample)
      : model_(std::move(model)), choose_(std::move(choose)), verify_(verify), what_(what), sample_(sample) {}

  bool has(const std::string& tensor) const override;
  std::vector<int64_t> shape(const std::string& tensor) const override;
  Result<Matrix> matrix(const MatrixRequest& request) override;
  Result<const float*> vector(const std::string& tensor, int64_t n, float add) override {
    CARREL_ASSIGN(const std::byte* p, plain(vector_id(tensor, n, add)));
    return reinterpret_cast<const float*>(p);
  }
  Result<const int32_t*> table(const std::string& tensor, int64_t n) override {
    CARREL_ASSIGN(const std::byte* p, plain(table_id(tensor, n)));
    return reinterpret_cast<const int32_t*>(p);
  }
  std::vector<TensorUse> tensors() const override {
    std::vector<TensorUse> out;
    for (const SourceTensor& t : model_.manifest.source_tensors) out.push_back({t.name, asked_.contains(t.name)});
    return out;
  }
  int64_t memory_bytes() const override { return arena_.used_bytes(); }
  int64_t file_bytes() const override;
  Result<Digest> model_digest() const override;

 private:
  Result<size_t> find(const std::string& id) const;
  Result<const std::byte*> plain(const std::string& id);
  Status read(size_t piece, std::span<std::byte> out) const;

  const Opened model_;
  const FormChooser choose_;
  const StoreVerify verify_;
  const LoadMatrices what_;
  const size_t sample_;  // which of the sixteenths is checked
  WeightArena arena_;
  std::unordered_map<std::string, Matrix> served_;  // vectors and tables too, by request id
  std::set<std::string> asked_;                     // tensors of the source
};

bool StoreWeights::has(const std::string& tensor) const {
  return model_.shapes.contains(tensor);
}

std::vector<int64_t> StoreWeights::shape(const std::string& tensor) const {
  const auto it = model_.shapes.find(tensor);
  return it == model_.shapes.end() ? std::vector<int64_t>() : it->second;
}

Result<size_t> StoreWeights::find(const std::string& id) const {
  const auto it = model_.pieces.find(id);
  if (it != model_.pieces.end()) return it->second;
  return fail(Code::kUnsupported, "was imported by a version of Carrel that did not ask for " + id + "; import the model again",
              model_.entry.path);
}

Status StoreWeights::read(size_t i, std::span<std::byte> out) const {
  const StoredPiece& p = model_.manifest.pieces[i];
  CARREL_TRY(read_piece_bytes(model_.file.get(), p, 0, out, model_.entry.path));
  if (verify_ == StoreVerify::kSampled && i % kSampleOneIn != sample_) return {};
  return check_piece(p, sha256(out), model_.entry.path);
}

Result<Matrix> StoreWeights::matrix(const MatrixRequest& r) {
  const std::string id = r.id();
  if (const auto it = served_.find(id); it != served_.end()) return it->second;
  CARREL_ASSIGN(const size_t i, find(id));
  const StoredPiece& p = model_.manifest.pieces[i];
  if (!p.is_matrix || p.rows != r.n_rows || p.cols != r.n_cols)
    return fail(Code::kCorrupt, "manifest contradicts itself about " + id, model_.entry.path);
  asked_.insert(p.tensor);
  if (!r.scales.empty()) asked_.insert(r.scales);
  const Form form = choose_(p.form);
  const size_t n_bytes = packed_bytes(form, p.rows, p.cols);
  if (what_ == LoadMatrices::kSizes) {
    arena_.count(n_bytes);
    return served_.emplace(id, Matrix{form, p.rows, p.cols, nullptr}).first->second;
  }
  CARREL_ASSIGN(const auto out, arena_.take(n_bytes));
  if (form == p.form) {
    CARREL_TRY(read(i, out));
  } else {
    CARREL_ASSIGN(const HugeBuffer stored, HugeBuffer::allocate(p.bytes, false));
    CARREL_TRY(read(i, stored.span()));
    CARREL_TRY(repack_matrix({p.form, p.rows, p.cols, stored.data()}, form, out));
  }
  const Matrix m{form, p.rows, p.cols, out.data()};
  served_.emplace(id, m);
  return m;
}

Result<const std::byte*> StoreWeights::plain(const std::string& id) {
  if (const auto it = served_.find(id); it != served_.end()) return it->second.data;
  CARREL_ASSIGN(const size_t i, find(id));
  const StoredPiece& p = model_.manifest.pieces[i];
  if (p.is_matrix) return fail(Code::kCorrupt, "manifest contradicts itself about " + id, model_.entry.path);
  asked_.insert(p.tensor);
  CARREL_ASSIGN(const auto out, arena_.take(p.bytes));
  CARREL_TRY(read(i, out));
  served_.emplace(id, Matrix{Form::kRows, p.rows, 1, out.data()});
  return out.data();
}

int64_t StoreWeights::file_bytes() const {
  return model_.manifest.file_bytes;
}

Result<Digest> StoreWeights::model_digest() const {
  if (model_.manifest.identity) return *model_.manifest.identity;
  Digest d;
  const auto bytes = from_hex(model_.entry.digest);
  if (!bytes || bytes->size() != d.size()) return fail(Code::kInternal, "entry without a digest", model_.entry.path);
  std::ranges::copy(std::as_bytes(std::span(*bytes)), d.begin());
  return d;
}

}  // namespace

Result<StoredModel> open_stored_model(Env* env, const std::string& entry_dir, FormChooser choose, StoreVerify verify, LoadMatrices what) {
  Opened o;
  CARREL_ASSIGN(o.manifest, read_entry_manifest(env, entry_dir));
  o.entry = describe_entry(env, entry_dir, o.manifest);
  CARREL_ASSIGN(o.file, open_weights_file(env, entry_dir, o.manifest));
  for (size_t i = 0; i < o.manifest.pieces.size(); i++) o.pieces.emplace(o.manifest.pieces[i].id, i);
  for (const SourceTensor& t : o.manifest.source_tensors) o.shapes.emplace(t.name, t.shape);
  auto texts = std::make_unique<StoredTexts>();
  CARREL_TRY(texts->load(env, entry_dir, o.manifest));
  std::byte r{};
  env->random({&r, 1});
  StoredModel m;
  m.entry = o.entry;
  m.source = std::move(texts);
  m.weights = std::make_unique<StoreWeights>(std::move(o), std::move(choose), verify, what, static_cast<size_t>(r) % kSampleOneIn);
  return m;
}

}  // namespace carrel
