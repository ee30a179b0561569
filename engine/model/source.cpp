// The two sources behind ModelSource: a Hugging Face folder (on disk or in memory) and a GGUF file. Formats are read in safetensors.cpp and
// gguf.cpp.
#include "engine/model/source.h"

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "base/mapped_file.h"
#include "engine/model/gguf.h"
#include "engine/model/json_text.h"
#include "engine/model/safetensors.h"

namespace carrel {
namespace {

constexpr size_t kMaxTextBytes = 256 << 20;  // tokenizer.json of the largest vocabularies is about 30 MB

/// What both sources keep.
class SourceBase : public ModelSource {
 public:
  const std::string& config_json() const override { return config_; }
  const std::string& path() const override { return path_; }
  const std::vector<std::string>& tensor_names() const override { return names_; }
  const TensorInfo* find(const std::string& name) const override {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? nullptr : &it->second;
  }
  const std::string& tokenizer_json() const override { return tokenizer_; }
  const std::string& tokenizer_config_json() const override { return tokenizer_config_; }
  const std::string& chat_template() const override { return chat_template_; }
  const std::string& generation_config_json() const override { return generation_config_; }
  const std::string& special_tokens_map_json() const override { return special_tokens_map_; }

 protected:
  void add(TensorInfo t) {
    names_.push_back(t.name);
    tensors_.emplace(names_.back(), std::move(t));
  }

  std::string path_, config_, tokenizer_, tokenizer_config_, chat_template_, generation_config_, special_tokens_map_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, TensorInfo> tensors_;
};

/// Gives a file of the folder, an empty optional when it is not there. The bytes live as long as the source.
using Lookup = std::function<Result<std::optional<std::span<const std::byte>>>(const std::string& name)>;

/// An empty file is half a download: taken for an absent one, it would lose the template or the stop tokens in silence.
Status check_text_size(std::span<const std::byte> bytes, const std::string& path) {
  if (bytes.empty()) return fail(Code::kCorrupt, "is an empty file; fetch it again, or remove it if the model has none", path);
  if (bytes.size() <= kMaxTextBytes) return {};
  return fail(Code::kCorrupt, "is larger than " + std::to_string(kMaxTextBytes >> 20) + " MiB", path);
}

class FolderSource final : public SourceBase {
 public:
  explicit FolderSource(std::string path) { path_ = std::move(path); }
  SourceFormat format() const override { return SourceFormat::kHuggingFace; }
  const GgufTokenizer* gguf_tokenizer() const override { return nullptr; }

  Status load(const Lookup& lookup) {
    CARREL_TRY(load_texts(lookup));
    CARREL_ASSIGN(const auto index, lookup("model.safetensors.index.json"));
    if (index) return load_shards(lookup, {reinterpret_cast<const char*>(index->data()), index->size()});
    CARREL_ASSIGN(const auto single, lookup("model.safetensors"));
    if (!single)
      return fail(Code::kNotFound, "has neither model.safetensors nor model.safetensors.index.json; other weight formats are not read",
                  path_);
    CARREL_ASSIGN(SafetensorsFile file, read_safetensors(*single, in_folder("model.safetensors")));
    for (TensorInfo& t : file.tensors) add(std::move(t));
    return {};
  }
  void keep(std::unique_ptr<MappedFile> file) { files_.push_back(std::move(file)); }

 private:
  std::string in_folder(const std::string& name) const { return path_.empty() ? name : path_ + "/" + name; }
  Status load_texts(const Lookup& lookup);
  Status load_template(const Lookup& lookup);
  Status load_shards(const Lookup& lookup, std::string_view index);

  std::vector<std::unique_ptr<MappedFile>> files_;
};

Status FolderSource::load_texts(const Lookup& lookup) {
  const std::pair<const char*, std::string*> texts[] = {{"config.json", &config_},
                                                        {"tokenizer.json", &tokenizer_},
                                                        {"tokenizer_config.json", &tokenizer_config_},
                                                        {"generation_config.json", &generation_config_},
                                                        {"special_tokens_map.json", &special_tokens_map_}};
  for (const auto& [name, to] : texts) {
    CARREL_ASSIGN(const auto bytes, lookup(name));
    if (!bytes) continue;
    CARREL_TRY(check_text_size(*bytes, in_folder(name)));
    to->assign(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  }
  if (config_.empty()) return fail(Code::kNotFound, "has no config.json; this is no Hugging Face model folder", path_);
  CARREL_ASSIGN(config_, clean_json(config_, in_folder("config.json")));
  if (!generation_config_.empty()) {
    CARREL_ASSIGN(generation_config_, clean_json(generation_config_, in_folder("generation_config.json")));
  }
  return load_template(lookup);
}

/// A file of its own wins over the key in tokenizer_config.json.
Status FolderSource::load_template(const Lookup& lookup) {
  CARREL_ASSIGN(const auto jinja, lookup("chat_template.jinja"));
  if (jinja) {
    CARREL_TRY(check_text_size(*jinja, in_folder("chat_template.jinja")));
    chat_template_.assign(reinterpret_cast<const char*>(jinja->data()), jinja->size());
    if (!is_utf8(chat_template_)) return fail(Code::kCorrupt, "is not UTF-8 text", in_folder("chat_template.jinja"));
    return {};
  }
  CARREL_ASSIGN(const auto json, lookup("chat_template.json"));
  if (json) {
    CARREL_TRY(check_text_size(*json, in_folder("chat_template.json")));
    const std::string_view text(reinterpret_cast<const char*>(json->data()), json->size());
    CARREL_ASSIGN(chat_template_, chat_template_of(text, in_folder("chat_template.json")));
  } else if (!tokenizer_config_.empty()) {
    CARREL_ASSIGN(chat_template_, chat_template_of(tokenizer_config_, in_folder("tokenizer_config.json")));
  }
  return {};
}

Status FolderSource::load_shards(const Lookup& lookup, std::string_view index) {
  const std::string index_path = in_folder("model.safetensors.index.json");
  CARREL_ASSIGN(const auto entries, read_shard_index(index, index_path));
  std::map<std::string, std::unordered_map<std::string, TensorInfo>> shards;
  for (const ShardEntry& e : entries) {
    auto it = shards.find(e.file);
    if (it == shards.end()) {
      CARREL_ASSIGN(const auto bytes, lookup(e.file));
      if (!bytes) return fail(Code::kNotFound, "the index names this shard, but it is not there; fetch it again", in_folder(e.file));
      CARREL_ASSIGN(SafetensorsFile file, read_safetensors(*bytes, in_folder(e.file)));
      it = shards.emplace(e.file, std::unordered_map<std::string, TensorInfo>()).first;
      for (TensorInfo& t : file.tensors) it->second.emplace(t.name, std::move(t));
    }
    const auto tensor = it->second.find(e.tensor);
    if (tensor == it->second.end())
      return fail(Code::kCorrupt, "the index says that tensor '" + e.tensor + "' is in " + e.file + ", but it is not; fetch both again",
                  index_path);
    add(std::move(tensor->second));
  }
  return {};
}

class GgufSource final : public SourceBase {
 public:
  GgufSource(std::string path, std::unique_ptr<MappedFile> file) : file_(std::move(file)) { path_ = std::move(path); }
  SourceFormat format() const override { return SourceFormat::kGguf; }
  const GgufTokenizer* gguf_tokenizer() const override { return gguf_tokenizer_ ? &*gguf_tokenizer_ : nullptr; }

  Status load() {
    CARREL_ASSIGN(GgufFile gguf, read_gguf(file_->bytes(), path_));
    config_ = std::move(gguf.metadata_json);
    chat_template_ = std::move(gguf.chat_template);
    gguf_tokenizer_ = std::move(gguf.tokenizer);
    for (TensorInfo& t : gguf.tensors) add(std::move(t));
    return {};
  }

 private:
  std::unique_ptr<MappedFile> file_;
  std::optional<GgufTokenizer> gguf_tokenizer_;
};

}  // namespace

int64_t TensorInfo::n_elements() const {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

Status check_type(const TensorInfo& tensor, const std::string& where) {
  if (tensor.unsupported_type.empty()) return {};
  return fail(
      Code::kUnsupported,
      "tensor '" + tensor.name + "' has the type " + tensor.unsupported_type +
          ", which this version does not read; use a file with F32, F16, BF16, F8_E4M3, MXFP4, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or "
          "Q6_K weights",
      where);
}

int64_t tensor_bytes(const ModelSource& source) {
  int64_t n = 0;
  for (const std::string& name : source.tensor_names()) n += static_cast<int64_t>(source.find(name)->bytes.size());
  return n;
}

Result<std::unique_ptr<ModelSource>> open_source(Env* env, const std::string& path) {
  if (!env->exists(path)) return fail(Code::kNotFound, "there is no such file or folder; give a model folder or a .gguf file", path);
  if (!env->is_dir(path)) {
    CARREL_ASSIGN(auto file, MappedFile::open(env, path));
    auto source = std::make_unique<GgufSource>(path, std::move(file));
    CARREL_TRY(source->load());
    return source;
  }
  auto source = std::make_unique<FolderSource>(path);
  const auto lookup = [&](const std::string& name) -> Result<std::optional<std::span<const std::byte>>> {
    const std::string file_path = path + "/" + name;
    if (!env->exists(file_path)) return std::nullopt;
    CARREL_ASSIGN(auto file, MappedFile::open(env, file_path));
    const auto bytes = file->bytes();
    source->keep(std::move(file));
    return bytes;
  };
  CARREL_TRY(source->load(lookup));
  return source;
}

Result<std::unique_ptr<ModelSource>> open_folder_in_memory(std::map<std::string, std::span<const std::byte>> files) {
  auto source = std::make_unique<FolderSource>("");
  const auto lookup = [&](const std::string& name) -> Result<std::optional<std::span<const std::byte>>> {
    const auto it = files.find(name);
    if (it == files.end()) return std::nullopt;
    return it->second;
  };
  CARREL_TRY(source->load(lookup));
  return source;
}

}  // namespace carrel
