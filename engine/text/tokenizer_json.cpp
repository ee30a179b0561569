// Reads tokenizer.json and tokenizer_config.json into a Tokenizer. Nothing in the files is trusted.
#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/text/tokenizer_impl.h"

namespace carrel {
namespace {

using Json = nlohmann::json;
constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr int kMaxDepth = 64;

/// A member, or null; never throws.
const Json& at(const Json& j, const char* name) {
  static const Json kNull;
  if (!j.is_object()) return kNull;
  const auto it = j.find(name);
  return it == j.end() ? kNull : *it;
}

std::string text_of(const Json& j, const char* name) {
  const Json& x = at(j, name);
  return x.is_string() ? x.get<std::string>() : std::string();
}

bool flag_of(const Json& j, const char* name, bool fallback) {
  const Json& x = at(j, name);
  return x.is_boolean() ? x.get<bool>() : fallback;
}

Result<Json> parse(std::string_view text, const char* file) {
  if (text.size() > kMaxFileBytes) return fail(Code::kCorrupt, "is larger than 256 MiB", file);
  Json j = Json::parse(text, [](int depth, Json::parse_event_t, Json&) { return depth <= kMaxDepth; }, false);
  if (j.is_discarded() || !j.is_object()) return fail(Code::kCorrupt, "is not a JSON object", file);
  return j;
}

std::unexpected<Error> unsupported(const char* what, const Json& j) { return fail(Code::kUnsupported, std::string(what) + " of type " + at(j, "type").dump() + " is not known here", "tokenizer.json"); }

Result<tok::Regex> pattern_of(const Json& j) {
  const Json& p = at(j, "pattern");
  if (at(p, "Regex").is_string()) return tok::Regex::compile(at(p, "Regex").get<std::string>());
  if (at(p, "String").is_string()) return tok::Regex::literal(at(p, "String").get<std::string>());
  return fail(Code::kCorrupt, "a pattern is neither a Regex nor a String", "tokenizer.json");
}

Result<tok::SplitBehavior> behavior_of(const Json& j) {
  static const std::map<std::string, tok::SplitBehavior> kNames{{"Removed", tok::SplitBehavior::kRemoved},
                                                                {"Isolated", tok::SplitBehavior::kIsolated},
                                                                {"MergedWithPrevious", tok::SplitBehavior::kMergedWithPrevious},
                                                                {"MergedWithNext", tok::SplitBehavior::kMergedWithNext},
                                                                {"Contiguous", tok::SplitBehavior::kContiguous}};
  const auto it = kNames.find(text_of(j, "behavior"));
  if (it == kNames.end()) return fail(Code::kUnsupported, "unknown split behaviour " + at(j, "behavior").dump(), "tokenizer.json");
  return it->second;
}

/// Sequences are flattened: the members run one after another.
Status each(const Json& j, const char* list, const auto& f) {
  if (j.is_null()) return {};
  if (text_of(j, "type") != "Sequence") return f(j);
  const Json& items = at(j, list);
  if (!items.is_array()) return fail(Code::kCorrupt, std::string("a Sequence without ") + list, "tokenizer.json");
  for (const Json& item : items) CARREL_TRY(text_of(item, "type") == "Sequence" ? each(item, list, f) : f(item));
  return {};
}

Status add_normalizer(const Json& j, tok::Normalizer& out) {
  const std::string type = text_of(j, "type");
  if (type == "NFC") out.add(tok::NormalForm::kNfc);
  else if (type == "NFD") out.add(tok::NormalForm::kNfd);
  else if (type == "NFKC") out.add(tok::NormalForm::kNfkc);
  else if (type == "NFKD") out.add(tok::NormalForm::kNfkd);
  else if (type == "Prepend") out.add(tok::PrependText{text_of(j, "prepend")});
  else if (type == "Lowercase") out.add(tok::LowerCase{});
  else if (type == "Strip") out.add(tok::StripSpace{flag_of(j, "strip_left", true), flag_of(j, "strip_right", true)});
  else if (type == "Replace" && at(at(j, "pattern"), "String").is_string()) out.add(tok::ReplaceText{text_of(at(j, "pattern"), "String"), text_of(j, "content")});
  else if (type == "Replace") {
    CARREL_ASSIGN(tok::Regex regex, pattern_of(j));
    out.add(tok::ReplaceRegex{std::move(regex), text_of(j, "content")});
  } else return unsupported("a normalizer", j);
  return {};
}

tok::MetaspaceStep metaspace(const Json& j) {
  tok::MetaspaceStep s;
  const std::string scheme = text_of(j, "prepend_scheme");
  if (scheme == "never" || (scheme.empty() && !flag_of(j, "add_prefix_space", true))) s.prepend = tok::MetaspaceStep::Prepend::kNever;
  if (scheme == "first") s.prepend = tok::MetaspaceStep::Prepend::kFirst;
  s.split = flag_of(j, "split", true);
  return s;
}

Status add_pre_tokenizer(const Json& j, tok::PreTokenizer& out) {
  const std::string type = text_of(j, "type");
  if (type == "Split") {
    CARREL_ASSIGN(tok::Regex regex, pattern_of(j));
    CARREL_ASSIGN(const tok::SplitBehavior behavior, behavior_of(j));
    out.add(tok::SplitStep{std::move(regex), behavior, flag_of(j, "invert", false)});
  } else if (type == "ByteLevel") {
    // The prefix space belongs to the piece, the split to what follows: the order of the reference.
    const bool space = flag_of(j, "add_prefix_space", true);
    if (flag_of(j, "use_regex", true)) {
      if (space) return fail(Code::kUnsupported, "ByteLevel with add_prefix_space and use_regex is not known here", "tokenizer.json");
      CARREL_ASSIGN(tok::Regex regex, tok::Regex::compile(tok::kGpt2Split));
      out.add(tok::SplitStep{std::move(regex), tok::SplitBehavior::kIsolated, false});
    }
    out.add(tok::ByteLevelStep{space});
  } else if (type == "Digits") out.add(tok::DigitsStep{flag_of(j, "individual_digits", false)});
  else if (type == "Punctuation") {
    CARREL_ASSIGN(const tok::SplitBehavior behavior, j.contains("behavior") ? behavior_of(j) : Result<tok::SplitBehavior>(tok::SplitBehavior::kIsolated));
    out.add(tok::PunctuationStep{behavior});
  } else if (type == "WhitespaceSplit") out.add(tok::WhitespaceSplitStep{});
  else if (type == "Metaspace") out.add(metaspace(j));
  else return unsupported("a pre-tokenizer", j);
  return {};
}

/// Spelling → bytes, by the family of decoder.
struct Decoder {
  bool byte_level = false, metaspace = false, byte_fallback = false, strip_first_space = false;

  std::string bytes(const std::string& spelling) const {
    int byte = 0;
    if (byte_fallback && spelling.size() == 6 && spelling.starts_with("<0x") && spelling.back() == '>' &&
        std::from_chars(spelling.data() + 3, spelling.data() + 5, byte, 16).ptr == spelling.data() + 5)
      return std::string(1, static_cast<char>(byte));
    if (byte_level) {
      const auto cps = tok::from_utf8(spelling);
      if (!cps) return spelling;
      std::string out;
      for (const char32_t c : *cps) {
        const int b = tok::byte_of_char(c);
        if (b < 0) return spelling;  // not of the byte alphabet: stands for itself
        out += static_cast<char>(b);
      }
      return out;
    }
    if (!metaspace) return spelling;
    std::string out;
    for (size_t i = 0; i < spelling.size();) {
      const bool space = spelling.compare(i, 3, "\xE2\x96\x81") == 0;
      out += space ? ' ' : spelling[i];
      i += space ? 3 : 1;
    }
    return out;
  }
};

Result<Decoder> read_decoder(const Json& j) {
  Decoder d;
  CARREL_TRY(each(j, "decoders", [&](const Json& one) -> Status {
    const std::string type = text_of(one, "type");
    if (type == "ByteLevel") d.byte_level = true;
    else if (type == "ByteFallback") d.byte_fallback = true;
    else if (type == "Metaspace") {
      d.metaspace = true;
      d.strip_first_space = metaspace(one).prepend != tok::MetaspaceStep::Prepend::kNever;
    } else if (type == "Replace" && text_of(at(one, "pattern"), "String") == "\xE2\x96\x81" && text_of(one, "content") == " ") d.metaspace = true;
    else if (type == "Strip" && text_of(one, "content") == " ") d.strip_first_space = at(one, "start") == 1;
    else if (type != "Fuse") return unsupported("a decoder", one);
    return {};
  }));
  return d;
}

using Impl = Tokenizer::Impl;

/// Raw key of a vocabulary spelling: bytes where the units of a word are bytes.
std::string piece_of(const std::string& spelling, bool byte_level) {
  if (!byte_level) return spelling;
  Decoder d;
  d.byte_level = true;
  return d.bytes(spelling);
}

class JsonLoader {
 public:
  explicit JsonLoader(const Json& root) : root_(root) {}

  Status load(Impl& t) {
    CARREL_TRY(each(at(root_, "normalizer"), "normalizers", [&](const Json& j) { return add_normalizer(j, t.normalizer); }));
    CARREL_TRY(each(at(root_, "pre_tokenizer"), "pretokenizers", [&](const Json& j) { return add_pre_tokenizer(j, t.pre_tokenizer); }));
    CARREL_ASSIGN(decoder_, read_decoder(at(root_, "decoder")));
    t.strip_leading_space = decoder_.strip_first_space;
    CARREL_TRY(load_vocab(t));
    CARREL_TRY(load_merges(t));
    CARREL_TRY(load_added(t));
    CARREL_TRY(load_post_processor(t));
    for (Impl::Token& token : t.tokens)
      if (token.exists && token.bytes.empty()) token.bytes = decoder_.bytes(token.text);
    return {};
  }

  const std::vector<tok::AddedToken>& added() const { return added_; }

 private:
  Status load_vocab(Impl& t) {
    const Json& model = at(root_, "model");
    const std::string type = text_of(model, "type");
    if (!type.empty() && type != "BPE") return fail(Code::kUnsupported, "the model is " + type + "; only BPE is known here", "tokenizer.json");
    if (!text_of(model, "continuing_subword_prefix").empty() || !text_of(model, "end_of_word_suffix").empty())
      return fail(Code::kUnsupported, "subword prefixes and word suffixes are not known here", "tokenizer.json");
    t.bpe.byte_level = t.pre_tokenizer.byte_level();
    t.bpe.byte_fallback = flag_of(model, "byte_fallback", false);
    t.bpe.fuse_unk = flag_of(model, "fuse_unk", false);
    t.bpe.ignore_merges = flag_of(model, "ignore_merges", false);
    const Json& vocab = at(model, "vocab");
    if (!vocab.is_object() || vocab.empty()) return fail(Code::kCorrupt, "has no vocabulary (model.vocab)", "tokenizer.json");
    t.bpe.vocab.reserve(vocab.size());
    for (const auto& [spelling, id] : vocab.items()) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > tok::kMaxTokenId) return fail(Code::kCorrupt, "token id " + id.dump() + " is out of bounds", "tokenizer.json");
      CARREL_TRY(t.place(id.get<int32_t>(), spelling));
      t.bpe.vocab.add(piece_of(spelling, t.bpe.byte_level), id.get<int32_t>());
    }
    for (int b = 0; b < 256 && t.bpe.byte_fallback; b++) {
      char name[8];
      snprintf(name, sizeof name, "<0x%02X>", b);
      t.bpe.byte_ids[static_cast<size_t>(b)] = t.by_text.find(name);
    }
    if (const std::string unk = text_of(model, "unk_token"); !unk.empty()) t.bpe.unk_id = t.by_text.find(unk);
    return {};
  }

  Status load_merges(Impl& t) {
    const Json& merges = at(at(root_, "model"), "merges");
    if (!merges.is_array()) return fail(Code::kCorrupt, "has no merges (model.merges)", "tokenizer.json");
    t.bpe.merges.reserve(merges.size());
    uint32_t rank = 0;
    for (const Json& m : merges) {
      std::string left, right;
      if (m.is_string()) {
        const std::string both = m.get<std::string>();
        const size_t space = both.find(' ');
        if (space == std::string::npos) return fail(Code::kCorrupt, "merge " + std::to_string(rank) + " is not two pieces", "tokenizer.json");
        left = both.substr(0, space), right = both.substr(space + 1);
      } else if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
        left = m[0].get<std::string>(), right = m[1].get<std::string>();
      } else {
        return fail(Code::kCorrupt, "merge " + std::to_string(rank) + " is not two pieces", "tokenizer.json");
      }
      const int32_t l = t.by_text.find(left), r = t.by_text.find(right), joined = t.by_text.find(left + right);
      if (l == tok::kNoToken || r == tok::kNoToken || joined == tok::kNoToken)
        return fail(Code::kCorrupt, "merge " + std::to_string(rank) + " names a piece that the vocabulary lacks", "tokenizer.json");
      t.bpe.merges.add(l, r, {rank++, joined});
    }
    return {};
  }

  Status load_added(Impl& t) {
    const Json& added = at(root_, "added_tokens");
    if (added.is_null()) return {};
    if (!added.is_array()) return fail(Code::kCorrupt, "added_tokens is not a list", "tokenizer.json");
    for (const Json& j : added) {
      tok::AddedToken a;
      if (!at(j, "id").is_number_integer() || at(j, "id").get<int64_t>() < 0 || at(j, "id").get<int64_t>() > tok::kMaxTokenId || text_of(j, "content").empty())
        return fail(Code::kCorrupt, "an added token lacks id or content", "tokenizer.json");
      a.id = at(j, "id").get<int32_t>();
      a.content = text_of(j, "content");
      a.single_word = flag_of(j, "single_word", false);
      a.lstrip = flag_of(j, "lstrip", false);
      a.rstrip = flag_of(j, "rstrip", false);
      a.special = flag_of(j, "special", false);
      a.normalized = flag_of(j, "normalized", !a.special);
      CARREL_TRY(t.place(a.id, a.content));
      // Shown as it is written, not through the byte alphabet; the space sign of SentencePiece is a space in added tokens too.
      t.tokens[static_cast<size_t>(a.id)].bytes = decoder_.byte_level || a.special ? a.content : decoder_.bytes(a.content);
      added_.push_back(std::move(a));
    }
    std::sort(added_.begin(), added_.end(), [](const auto& x, const auto& y) { return x.id < y.id; });
    return {};
  }

  Status load_post_processor(Impl& t) {
    return each(at(root_, "post_processor"), "processors", [&](const Json& j) -> Status {
      if (text_of(j, "type") == "ByteLevel") return {};  // offsets only
      if (text_of(j, "type") != "TemplateProcessing") return unsupported("a post-processor", j);
      bool before = true;
      for (const Json& item : at(j, "single")) {
        if (item.contains("Sequence")) {
          before = false;
          continue;
        }
        for (const Json& id : at(at(at(j, "special_tokens"), text_of(at(item, "SpecialToken"), "id").c_str()), "ids")) {
          if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= static_cast<int64_t>(t.tokens.size()))
            return fail(Code::kCorrupt, "the post-processor names a token that the vocabulary lacks", "tokenizer.json");
          (before ? t.prefix : t.suffix).push_back(id.get<int32_t>());
        }
      }
      return {};
    });
  }

  const Json& root_;
  Decoder decoder_;
  std::vector<tok::AddedToken> added_;
};

/// A token's spelling in a config: text, or an object with `content`.
std::string spelling_in(const Json& config, const char* name) {
  const Json& x = at(config, name);
  return x.is_string() ? x.get<std::string>() : text_of(x, "content");
}

/// BOS, EOS and what tokenizer_config.json asks for beyond the post-processor.
void apply_config(const Json& config, const Json& map, Impl& t) {
  const auto id_of = [&](const char* name) -> std::optional<int32_t> {
    std::string spelling = spelling_in(config, name);
    if (spelling.empty()) spelling = spelling_in(map, name);
    return spelling.empty() ? std::nullopt : t.find(spelling);
  };
  t.bos = id_of("bos_token");
  t.eos = id_of("eos_token");
  const bool has_bos = t.bos && std::find(t.prefix.begin(), t.prefix.end(), *t.bos) != t.prefix.end();
  const bool has_eos = t.eos && std::find(t.suffix.begin(), t.suffix.end(), *t.eos) != t.suffix.end();
  if (flag_of(config, "add_bos_token", false) && t.bos && !has_bos) t.prefix.insert(t.prefix.begin(), *t.bos);
  if (flag_of(config, "add_eos_token", false) && t.eos && !has_eos) t.suffix.push_back(*t.eos);
}

}  // namespace

Result<tok::PreTokenizer> pre_tokenizer_from_json(std::string_view json) {
  CARREL_ASSIGN(const Json root, parse(json, "pre_tokenizer"));
  tok::PreTokenizer out;
  CARREL_TRY(each(root, "pretokenizers", [&](const Json& j) { return add_pre_tokenizer(j, out); }));
  return out;
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(const TokenizerFiles& files, std::span<const int32_t> end_ids) {
  CARREL_ASSIGN(const Json root, parse(files.tokenizer_json, "tokenizer.json"));
  Json config = Json::object(), map = Json::object();
  if (!files.tokenizer_config_json.empty()) {
    CARREL_ASSIGN(config, parse(files.tokenizer_config_json, "tokenizer_config.json"));
  }
  if (!files.special_tokens_map_json.empty()) {
    CARREL_ASSIGN(map, parse(files.special_tokens_map_json, "special_tokens_map.json"));
  }
  auto impl = std::make_unique<Impl>();
  JsonLoader loader(root);
  CARREL_TRY(loader.load(*impl));
  apply_config(config, map, *impl);
  Sha256 definition;
  definition.update("carrel tokenizer json 1\n");
  definition.update(files.tokenizer_json);
  CARREL_TRY(impl->finish(loader.added(), end_ids, std::move(definition)));
  return std::make_shared<const Tokenizer>(std::move(impl));
}

}  // namespace carrel
