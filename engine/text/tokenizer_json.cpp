// Loads a Tokenizer from Hugging Face files. See tokenizer.h.
#include <nlohmann/json.hpp>

#include "engine/text/tokenizer_file.h"
#include "engine/text/tokenizer_impl.h"
#include "engine/text/tokenizer_steps.h"

namespace carrel {
namespace {

using nlohmann::json;
using tok::AddedToken;

constexpr const char* kWhere = "tokenizer.json";

const json& at(const json& j, const char* name) {
  static const json none;
  if (!j.is_object()) return none;
  auto it = j.find(name);
  return it == j.end() ? none : *it;
}

/// The text of a token in tokenizer_config.json: a string or an object with "content".
std::optional<std::string> token_name(const json& j) {
  if (j.is_string()) return j.get<std::string>();
  const json& content = at(j, "content");
  if (content.is_string()) return content.get<std::string>();
  return std::nullopt;
}

class Loader {
 public:
  explicit Loader(const TokenizerFiles& files) : files_(files) {}

  Result<std::unique_ptr<const Tokenizer::Impl>> load(std::span<const int32_t> end_ids) {
    CARREL_ASSIGN(file_, tok::read_tokenizer_file(files_.tokenizer_json));
    const json& root = *file_.rest;
    CARREL_ASSIGN(json config, small_file(files_.tokenizer_config_json, "tokenizer_config.json"));
    CARREL_ASSIGN(json map, small_file(files_.special_tokens_map_json, "special_tokens_map.json"));
    for (auto& [k, v] : map.items()) {
      if (!config.contains(k)) config[k] = v;
    }
    CARREL_TRY(tok::read_normalizer(at(root, "normalizer"), impl_->normalizer));
    CARREL_TRY(tok::read_pre_tokenizer(at(root, "pre_tokenizer"), impl_->pre_tokenizer));
    CARREL_TRY(tok::read_decoder(at(root, "decoder"), decoder_));
    impl_->strip_leading_space = decoder_.strip_leading_space;
    CARREL_TRY(read_model(at(root, "model")));
    CARREL_TRY(read_added(at(root, "added_tokens")));
    CARREL_TRY(read_config_tokens(config));
    CARREL_TRY(read_ends(root, config));
    for (auto& t : impl_->tokens) {
      CARREL_ASSIGN(t.bytes, decoder_.bytes_of(t.text));
    }
    // An added token of a byte-level vocabulary is written as it is read: its spelling never went through the byte alphabet.
    for (const AddedToken& t : added_) {
      if (decoder_.byte_level) impl_->tokens[static_cast<size_t>(t.id)].bytes = t.content;
    }
    Sha256 definition;
    definition.update("carrel tokenizer.json\n");
    definition.update(files_.tokenizer_json);
    CARREL_TRY(impl_->finish(added_, end_ids, std::move(definition)));
    return std::move(impl_);
  }

 private:
  static Result<json> small_file(std::string_view text, const char* name) {
    if (text.empty()) return json::object();
    auto file = tok::read_tokenizer_file(text);
    if (!file) return fail(file.error().code, file.error().message, name);
    return std::move(*file->rest);
  }

  Status read_model(const json& model) {
    if (!model.is_object()) return fail(Code::kCorrupt, "it has no model", kWhere);
    CARREL_ASSIGN(std::string type, tok::text_field(model, "type", "BPE"));
    if (type != "BPE") return fail(Code::kUnsupported, "the model '" + type.substr(0, 60) + "' is not supported; only BPE is", kWhere);
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      CARREL_ASSIGN(std::string affix, tok::text_field(model, name, ""));
      if (!affix.empty()) return fail(Code::kUnsupported, std::string(name) + " is not supported", kWhere);
    }
    if (file_.vocab.empty()) return fail(Code::kCorrupt, "the vocabulary is empty or missing", kWhere);
    auto& bpe = impl_->bpe;
    CARREL_ASSIGN(bpe.byte_fallback, tok::bool_field(model, "byte_fallback", false));
    CARREL_ASSIGN(bpe.fuse_unk, tok::bool_field(model, "fuse_unk", false));
    CARREL_ASSIGN(bpe.ignore_merges, tok::bool_field(model, "ignore_merges", false));
    bpe.byte_level = impl_->pre_tokenizer.byte_level();
    CARREL_TRY(read_vocab());
    CARREL_TRY(read_merges());
    CARREL_ASSIGN(std::string unk, tok::text_field(model, "unk_token", ""));
    if (!unk.empty()) {
      auto id = impl_->find(unk);
      if (!id) return fail(Code::kCorrupt, "unk_token '" + unk.substr(0, 60) + "' is not in the vocabulary", kWhere);
      bpe.unk_id = *id;
    }
    return {};
  }

  /// The bytes a spelling stands for in a byte-level vocabulary; nothing when it cannot come from bytes.
  std::optional<std::string> unit(const std::string& spelling) const {
    if (!impl_->bpe.byte_level) return spelling;
    return tok::bytes_of_chars(spelling);
  }

  Status read_vocab() {
    // Gaps are rare and small; a lone huge id must not make the table huge.
    max_id_ = std::min<int64_t>(tok::kMaxTokenId, static_cast<int64_t>(8 * file_.vocab.size()) + 65536);
    impl_->bpe.vocab.reserve(file_.vocab.size());
    impl_->by_text.reserve(file_.vocab.size());
    for (const auto& [text, id64] : file_.vocab) {
      if (id64 < 0 || id64 > max_id_) {
        return fail(Code::kCorrupt, "token '" + text.substr(0, 60) + "' has the id " + std::to_string(id64) + ", out of range", kWhere);
      }
      const auto id = static_cast<int32_t>(id64);
      CARREL_TRY(impl_->place(id, text));
      if (auto raw = unit(text)) impl_->bpe.vocab.add(*raw, id);
      if (text.size() == 6 && text.starts_with("<0x") && text.back() == '>') {
        const std::string digits = text.substr(3, 2);
        if (digits.find_first_not_of("0123456789ABCDEF") == std::string::npos) {
          impl_->bpe.byte_ids[static_cast<size_t>(std::stoi(digits, nullptr, 16))] = id;
        }
      }
    }
    return {};
  }

  Status read_merges() {
    auto& bpe = impl_->bpe;
    bpe.merges.reserve(file_.merges.size());
    uint32_t rank = 0;
    for (const auto& [left, right] : file_.merges) {
      auto l = unit(left), r = unit(right);
      if (l && r) {
        const int32_t a = bpe.vocab.find(*l), b = bpe.vocab.find(*r), joined = bpe.vocab.find(*l + *r);
        if (a == tok::kNoToken || b == tok::kNoToken || joined == tok::kNoToken) {
          return fail(Code::kCorrupt, "the merge '" + left.substr(0, 60) + " " + right.substr(0, 60) + "' names a token that is not there",
                      kWhere);
        }
        bpe.merges.add(a, b, {rank, joined});
      }
      ++rank;
    }
    file_.merges.clear();
    file_.merges.shrink_to_fit();
    return {};
  }

  Result<AddedToken> one_added(const json& j) const {
    AddedToken t;
    if (!j.is_object() || !at(j, "content").is_string()) return fail(Code::kCorrupt, "an added token without content", kWhere);
    t.content = at(j, "content").get<std::string>();
    CARREL_ASSIGN(t.special, tok::bool_field(j, "special", false));
    CARREL_ASSIGN(t.single_word, tok::bool_field(j, "single_word", false));
    CARREL_ASSIGN(t.lstrip, tok::bool_field(j, "lstrip", false));
    CARREL_ASSIGN(t.rstrip, tok::bool_field(j, "rstrip", false));
    CARREL_ASSIGN(t.normalized, tok::bool_field(j, "normalized", !t.special));
    return t;
  }

  Status add(AddedToken t, int64_t id) {
    // The vocabulary wins over the id in the list, as in the reference.
    if (auto known = impl_->find(t.content)) {
      id = *known;
    } else if (id < 0 || id > max_id_) {
      return fail(Code::kCorrupt, "the added token '" + t.content.substr(0, 60) + "' has an id out of range", kWhere);
    }
    t.id = static_cast<int32_t>(id);
    CARREL_TRY(impl_->place(t.id, t.content));
    if (added_ids_.add(t.content, t.id)) {
      added_.push_back(std::move(t));
    } else {
      auto it = std::find_if(added_.begin(), added_.end(), [&](const AddedToken& o) { return o.id == t.id; });
      if (it != added_.end()) *it = std::move(t);
    }
    return {};
  }

  Status read_added(const json& list) {
    if (list.is_null()) return {};
    if (!list.is_array()) return fail(Code::kCorrupt, "added_tokens is not a list", kWhere);
    for (const json& j : list) {
      CARREL_ASSIGN(AddedToken t, one_added(j));
      if (!at(j, "id").is_number_integer()) return fail(Code::kCorrupt, "an added token without id", kWhere);
      CARREL_TRY(add(std::move(t), at(j, "id").get<int64_t>()));
    }
    return {};
  }

  /// Tokens that only tokenizer_config.json has: added_tokens_decoder, and the named ones, which are control tokens.
  Status read_config_tokens(const json& config) {
    const json& decoder = at(config, "added_tokens_decoder");
    if (decoder.is_object()) {
      for (const auto& [key, j] : decoder.items()) {
        CARREL_ASSIGN(AddedToken t, one_added(j));
        if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != key.npos) {
          return fail(Code::kCorrupt, "added_tokens_decoder has a key that is no id", "tokenizer_config.json");
        }
        if (added_ids_.find(t.content) == tok::kNoToken) CARREL_TRY(add(std::move(t), std::stol(key)));
      }
    }
    std::vector<std::string> names;
    for (const char* field : {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}) {
      if (auto n = token_name(at(config, field))) names.push_back(*n);
    }
    const json& more = at(config, "additional_special_tokens");
    for (size_t i = 0; more.is_array() && i < more.size(); ++i) {
      if (auto n = token_name(more[i])) names.push_back(*n);
    }
    for (std::string& n : names) {
      auto id = impl_->find(n);
      if (!id || added_ids_.find(n) != tok::kNoToken) continue;
      AddedToken t;
      t.content = std::move(n);
      t.special = true;
      CARREL_TRY(add(std::move(t), *id));
    }
    return {};
  }

  std::optional<int32_t> named(const json& config, const char* field) const {
    auto name = token_name(at(config, field));
    return name ? impl_->find(*name) : std::nullopt;
  }

  /// Prefix, suffix, BOS and EOS.
  Status read_ends(const json& root, const json& config) {
    tok::PostProcessor post;
    CARREL_TRY(tok::read_post_processor(at(root, "post_processor"), post));
    for (const auto* list : {&post.prefix, &post.suffix}) {
      for (int32_t id : *list) {
        if (static_cast<size_t>(id) >= impl_->tokens.size()) return fail(Code::kCorrupt, "the post-processor names an unknown id", kWhere);
      }
    }
    impl_->bos = named(config, "bos_token");
    impl_->eos = named(config, "eos_token");
    if (!impl_->bos && !post.prefix.empty()) impl_->bos = post.prefix.front();
    // The tokenizer classes of Llama and Gemma rebuild the post-processor from these two settings; with other classes only "true" counts.
    CARREL_ASSIGN(std::string klass, tok::text_field(config, "tokenizer_class", ""));
    const bool rebuilds = klass.starts_with("Llama") || klass.starts_with("CodeLlama") || klass.starts_with("Gemma");
    CARREL_TRY(apply(at(config, "add_bos_token"), rebuilds, impl_->bos, post.prefix));
    CARREL_TRY(apply(at(config, "add_eos_token"), rebuilds, impl_->eos, post.suffix));
    impl_->prefix = std::move(post.prefix);
    impl_->suffix = std::move(post.suffix);
    return {};
  }

  static Status apply(const json& setting, bool rebuilds, std::optional<int32_t> id, std::vector<int32_t>& list) {
    if (setting.is_null() || !id) return {};
    if (!setting.is_boolean()) return fail(Code::kCorrupt, "add_bos_token or add_eos_token is not true or false", "tokenizer_config.json");
    const bool there = std::find(list.begin(), list.end(), *id) != list.end();
    if (setting.get<bool>() && !there) list.insert(list.begin(), *id);
    if (!setting.get<bool>() && rebuilds) std::erase(list, *id);
    return {};
  }

  TokenizerFiles files_;
  tok::TokenizerFile file_;
  tok::TokenDecoder decoder_;
  tok::StringIndex added_ids_;
  int64_t max_id_ = 0;
  std::vector<AddedToken> added_;
  std::unique_ptr<Tokenizer::Impl> impl_ = std::make_unique<Tokenizer::Impl>();
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(const TokenizerFiles& files, std::span<const int32_t> end_ids) {
  try {
    CARREL_ASSIGN(auto impl, Loader(files).load(end_ids));
    return std::make_shared<const Tokenizer>(std::move(impl));
  } catch (const std::exception& e) {
    return fail(Code::kCorrupt, std::string("cannot be read: ") + e.what(), kWhere);
  }
}

}  // namespace carrel
