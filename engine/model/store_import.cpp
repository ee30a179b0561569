// Import: runs a family's build against weights that pack and write each request once. One thread per import.
#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_map>

#include "engine/model/gguf.h"
#include "engine/model/packing.h"
#include "engine/model/store.h"
#include "engine/model/store_files.h"

namespace carrel {
namespace {

/// Matrices whose output is a choice or a mixing weight rather than a state: int8 there costs more than it saves.
bool keeps_floats(const std::string& tensor) {
  for (const std::string_view part : {"router", ".gate.weight", "ffn_gate_inp", "hc_"})
    if (tensor.find(part) != std::string::npos) return true;
  return false;
}

class ImportWeights final : public Weights {
 public:
  ImportWeights(const ModelSource& source, const ImportOptions& options, File* file) : source_(source), options_(options), file_(file) {
    at_.total_bytes = tensor_bytes(source);
  }

  bool has(const std::string& tensor) const override { return source_.find(tensor) != nullptr; }
  std::vector<int64_t> shape(const std::string& tensor) const override {
    const TensorInfo* t = source_.find(tensor);
    return t == nullptr ? std::vector<int64_t>() : t->shape;
  }

  Result<Matrix> matrix(const MatrixRequest& r) override {
    CARREL_ASSIGN(const FoundMatrix found, find_for(source_, r));
    const Form form = form_for(found, r);
    const Matrix m{form, r.n_rows, r.n_cols, nullptr};
    if (!ids_.insert(r.id()).second) return m;
    Bytes packed(packed_bytes(form, r.n_rows, r.n_cols));
    CARREL_TRY(pack_request(found, r, form, packed, source_.path()));
    if (form == found.form) CARREL_TRY(check_lossless(found, r, {form, r.n_rows, r.n_cols, packed.data()}, source_.path()));
    if (found.scales != nullptr) used_.insert(r.scales);
    const auto n_tensor = static_cast<double>(std::max<int64_t>(found.tensor->n_elements(), 1));
    const auto source_bytes =
        static_cast<int64_t>(static_cast<double>(found.tensor->bytes.size()) * (static_cast<double>(r.n_rows * r.n_cols) / n_tensor));
    CARREL_TRY(write({.id = r.id(), .tensor = r.tensor, .is_matrix = true, .form = form, .rows = r.n_rows, .cols = r.n_cols}, packed,
                     source_bytes));
    return m;
  }

  Result<const float*> vector(const std::string& tensor, int64_t n, float add) override {
    const std::string id = vector_id(tensor, n, add);
    std::vector<float>& v = vectors_[id];
    if (ids_.contains(id)) return v.data();
    CARREL_ASSIGN(const TensorInfo* t, find_for(source_, tensor, n, false));
    v.resize(static_cast<size_t>(n));
    read_vector(*t, add, v);
    ids_.insert(id);
    CARREL_TRY(
        write({.id = id, .tensor = tensor, .rows = n, .cols = 1}, std::as_bytes(std::span(v)), static_cast<int64_t>(t->bytes.size())));
    return v.data();
  }

  Result<const int32_t*> table(const std::string& tensor, int64_t n) override {
    const std::string id = table_id(tensor, n);
    std::vector<int32_t>& v = tables_[id];
    if (ids_.contains(id)) return v.data();
    CARREL_ASSIGN(const TensorInfo* t, find_for(source_, tensor, n, true));
    v.resize(static_cast<size_t>(n));
    CARREL_TRY(read_table(*t, v, source_.path()));
    ids_.insert(id);
    CARREL_TRY(
        write({.id = id, .tensor = tensor, .rows = n, .cols = 1}, std::as_bytes(std::span(v)), static_cast<int64_t>(t->bytes.size())));
    return v.data();
  }

  std::vector<TensorUse> tensors() const override {
    std::vector<TensorUse> out;
    for (const std::string& name : source_.tensor_names()) out.push_back({name, used_.contains(name)});
    return out;
  }

  /// What was written, and everything the source has.
  Manifest manifest() {
    Manifest m;
    m.format = source_.format();
    m.identity = source_digest(source_, {used_.begin(), used_.end()}, options_.quantize);
    m.weights_bytes = end_;
    for (const std::string& name : used_) m.file_bytes += static_cast<int64_t>(source_.find(name)->bytes.size());
    for (const std::string& name : source_.tensor_names()) {
      const TensorInfo& t = *source_.find(name);
      m.source_tensors.push_back({name, t.unsupported_type.empty() ? std::string(to_string(t.dtype)) : t.unsupported_type, t.shape});
    }
    m.pieces = std::move(pieces_);
    return m;
  }

 private:
  Form form_for(const FoundMatrix& f, const MatrixRequest& r) const {
    const bool plain = f.form == Form::kF32 || f.form == Form::kF16 || f.form == Form::kBF16;
    return options_.quantize && plain && r.n_cols % 32 == 0 && !keeps_floats(r.tensor) ? Form::kI8 : f.form;
  }

  Status write(StoredPiece p, std::span<const std::byte> bytes, int64_t source_bytes) {
    p.offset = (end_ + kPieceAlign - 1) / kPieceAlign * kPieceAlign;
    p.bytes = bytes.size();
    p.sha256 = sha256(bytes);
    CARREL_TRY(file_->write_at(p.offset, bytes));
    end_ = p.offset + p.bytes;
    used_.insert(p.tensor);
    at_.done_bytes = std::min(at_.total_bytes, at_.done_bytes + source_bytes);
    at_.tensor = p.tensor;
    const bool go_on = !options_.progress || options_.progress(at_);
    pieces_.push_back(std::move(p));
    return go_on ? Status() : fail(Code::kCancelled, "import was stopped; nothing was stored", source_.path());
  }

  const ModelSource& source_;
  const ImportOptions& options_;
  File* const file_;
  uint64_t end_ = kPieceAlign;
  StoreProgress at_;
  std::vector<StoredPiece> pieces_;
  std::set<std::string> ids_, used_;
  std::unordered_map<std::string, std::vector<float>> vectors_;  // a family may read them
  std::unordered_map<std::string, std::vector<int32_t>> tables_;
};

Status write_texts(Env* env, const ModelSource& s, const std::string& dir, Manifest* m) {
  const std::pair<std::string_view, const std::string*> texts[] = {{"config.json", &s.config_json()},
                                                                   {"tokenizer.json", &s.tokenizer_json()},
                                                                   {"tokenizer_config.json", &s.tokenizer_config_json()},
                                                                   {"chat_template.jinja", &s.chat_template()},
                                                                   {"generation_config.json", &s.generation_config_json()},
                                                                   {"special_tokens_map.json", &s.special_tokens_map_json()}};
  const auto put = [&](std::string_view file, std::span<const std::byte> bytes) -> Status {
    CARREL_TRY(write_new_file(env, dir + "/" + std::string(file), bytes));
    m->texts.push_back({std::string(file), bytes.size(), sha256(bytes)});
    return {};
  };
  for (const auto& [file, text] : texts)
    if (!text->empty()) CARREL_TRY(put(file, std::as_bytes(std::span(*text))));
  if (s.gguf_tokenizer() != nullptr) CARREL_TRY(put(kGgufTokenizerFile, encode_gguf_tokenizer(*s.gguf_tokenizer())));
  return {};
}

/// Fills the temporary folder; returns the manifest's text.
Result<std::string> write_entry(Env* env, const ModelSource& source, const std::string& dir, const ImportOptions& options,
                                const BuildHook& build) {
  CARREL_ASSIGN(const auto file, env->open(dir + "/" + std::string(kWeightsFile), Open::kCreateNew));
  Bytes first(kPieceAlign);
  std::memcpy(first.data(), kWeightsMagic.data(), kWeightsMagic.size());
  CARREL_TRY(file->write_at(0, first));
  ImportWeights weights(source, options, file.get());
  CARREL_TRY(build(source.format(), source.config_json(), weights));
  CARREL_TRY(file->sync());
  Manifest m = weights.manifest();
  CARREL_TRY(write_texts(env, source, dir, &m));
  std::string text = encode_manifest(m);
  CARREL_TRY(write_new_file(env, dir + "/" + std::string(kManifestFile), std::as_bytes(std::span(text))));
  CARREL_TRY(decode_manifest(text, dir));  // what loading would refuse must not be stored
  return text;
}

std::string name_for(const ModelSource& source, const ImportOptions& options) {
  if (!options.name.empty()) return options.name;
  std::string path = source.path();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  path = path.substr(path.find_last_of('/') + 1);
  return path.ends_with(".gguf") ? path.substr(0, path.size() - 5) : path;
}

bool is_whole(Env* env, const std::string& entry_dir) {
  const auto report = verify_entry(env, entry_dir);
  return report && report->damage.empty();
}

/// Puts the finished folder in its place. True: an entry of the same content was there and is whole.
Result<bool> publish(Env* env, const std::string& tmp, const std::string& store_dir, const std::string& target) {
  if (env->exists(target)) {
    if (is_whole(env, target)) return true;
    CARREL_TRY(discard(env, store_dir, target));
  }
  if (const Status s = env->rename(tmp, target); !s) {
    if (env->exists(target) && is_whole(env, target)) return true;  // another import of the same model was faster
    return std::unexpected(s.error());
  }
  CARREL_TRY(env->sync_dir(store_dir));
  return false;
}

Result<StoreEntry> import_into(Env* env, const ModelSource& source, const std::string& store_dir, const std::string& tmp,
                               const ImportOptions& options, const BuildHook& build) {
  CARREL_TRY(make_dirs_durable(env, store_dir));
  sweep_store(env, store_dir);
  CARREL_TRY(env->make_dirs(tmp));
  CARREL_ASSIGN(const std::string manifest, write_entry(env, source, tmp, options, build));
  const EntryNote note{.name = name_for(source, options), .source = source.path(), .imported_ms = env->wall_ms()};
  const std::string note_text = encode_note(note);
  CARREL_TRY(write_new_file(env, tmp + "/" + std::string(kNoteFile), std::as_bytes(std::span(note_text))));
  CARREL_TRY(env->sync_dir(tmp));
  const std::string target = store_dir + "/" + to_hex(sha256(manifest));
  CARREL_ASSIGN(const bool adopted, publish(env, tmp, store_dir, target));
  if (adopted) {
    CARREL_TRY(env->remove_all(tmp));
    if (!options.name.empty()) CARREL_TRY(write_file_atomic(env, target + "/" + std::string(kNoteFile), note_text));
  }
  CARREL_ASSIGN(const Manifest m, read_entry_manifest(env, target));
  return describe_entry(env, target, m);
}

}  // namespace

Result<StoreEntry> import_source(Env* env, const ModelSource& source, const std::string& store_dir, const ImportOptions& options,
                                 const BuildHook& build) {
  const std::string tmp = hidden_path(env, store_dir, "tmp");
  auto entry = import_into(env, source, store_dir, tmp, options, build);
  if (entry) return entry;
  (void)env->remove_all(tmp);  // no list shows it, and the sweep of a later import gets it
  Error& e = entry.error();
  if (e.code == Code::kExhausted)
    e.message +=
        "; the import needs about " + std::to_string(tensor_bytes(source)) + " bytes, nothing was stored: free space and import again";
  return entry;
}

Result<StoreEntry> import_model(Env* env, const std::string& source_path, const std::string& store_dir, const ImportOptions& options,
                                const BuildHook& build) {
  CARREL_ASSIGN(const auto source, open_source(env, source_path));
  return import_source(env, *source, store_dir, options, build);
}

}  // namespace carrel
