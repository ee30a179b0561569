// Builds a Tokenizer from the tokenizer keys of a GGUF file. The file names a split by word; here the words become the same steps as in tokenizer.json.
#include <algorithm>
#include <charconv>

#include "engine/text/tokenizer_impl.h"

namespace carrel {
namespace {

using Impl = Tokenizer::Impl;

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581 stands for a space
constexpr std::string_view kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4oSplit =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseekNumbers = R"(\p{N}{1,3})";
constexpr std::string_view kDeepseekCjk = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr std::string_view kDeepseekSplit =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// The stages that a `pre` name stands for. Names that share a split share a row.
struct NamedSplit {
  std::string_view name;
  bool single_digits = false;  // every number by itself, before the split
  bool nfc = false;            // the published tokenizer normalizes
  bool whole_words = false;    // a word that is a token is taken whole
  std::vector<std::string_view> patterns;
};

const std::vector<NamedSplit>& named_splits() {
  static const std::vector<NamedSplit> kTable{
      {"default", false, false, false, {tok::kGpt2Split}},
      {"gpt-2", false, false, false, {tok::kGpt2Split}},
      {"smollm", true, false, false, {tok::kGpt2Split}},
      {"starcoder", true, false, false, {tok::kGpt2Split}},
      {"llama-bpe", false, false, true, {kLlama3Split}},
      {"llama3", false, false, true, {kLlama3Split}},
      {"lfm2", false, false, true, {kLlama3Split}},
      {"falcon-h1", false, false, true, {kLlama3Split}},
      {"qwen2", false, true, false, {kQwen2Split}},
      {"qwen35", false, true, false, {kQwen35Split}},
      {"gpt-4o", false, false, true, {kGpt4oSplit}},
      {"deepseek-v3", false, false, false, {kDeepseekNumbers, kDeepseekCjk, kDeepseekSplit}},
      {"deepseek-llm", false, false, false, {kDeepseekNumbers, kDeepseekCjk, kDeepseekSplit}},
  };
  return kTable;
}

Status add_split(const std::string& pre, Impl& t) {
  const std::string name = pre.empty() ? "default" : pre;
  const auto& table = named_splits();
  const auto row = std::find_if(table.begin(), table.end(), [&](const NamedSplit& s) { return s.name == name; });
  if (row == table.end()) return fail(Code::kUnsupported, "the split \"" + name + "\" is not known here; use the model's Hugging Face folder", "tokenizer.ggml.pre");
  if (row->nfc) t.normalizer.add(tok::NormalForm::kNfc);
  if (row->single_digits) t.pre_tokenizer.add(tok::DigitsStep{true});
  for (const std::string_view pattern : row->patterns) {
    CARREL_ASSIGN(tok::Regex regex, tok::Regex::compile(pattern));
    t.pre_tokenizer.add(tok::SplitStep{std::move(regex), tok::SplitBehavior::kIsolated, false});
  }
  t.pre_tokenizer.add(tok::ByteLevelStep{false});
  t.bpe.byte_level = true;
  t.bpe.ignore_merges = row->whole_words;
  return {};
}

std::string bytes_of_alphabet(const std::string& spelling) {
  const auto cps = tok::from_utf8(spelling);
  if (!cps) return spelling;
  std::string out;
  for (const char32_t c : *cps) {
    const int b = tok::byte_of_char(c);
    if (b < 0) return spelling;
    out += static_cast<char>(b);
  }
  return out;
}

std::string bytes_of_metaspace(std::string text) {
  for (size_t i = 0; (i = text.find(kMetaspace, i)) != std::string::npos; i++) text.replace(i, 3, " ");
  return text;
}

/// A byte token's value from its spelling <0xNN>; -1: it is none.
int byte_value(const std::string& s) {
  int value = 0;
  const bool form = s.size() == 6 && s.starts_with("<0x") && s.back() == '>';
  return form && std::from_chars(s.data() + 3, s.data() + 5, value, 16).ptr == s.data() + 5 ? value : -1;
}

class GgufLoader {
 public:
  GgufLoader(const GgufVocab& v, Impl& t) : v_(v), t_(t) {}

  Status load() {
    if (v_.tokens.empty() || v_.tokens.size() > static_cast<size_t>(tok::kMaxTokenId)) return fail(Code::kCorrupt, "holds no tokens, or too many", "tokenizer.ggml.tokens");
    if (!v_.token_types.empty() && v_.token_types.size() != v_.tokens.size()) return fail(Code::kCorrupt, "has another length than the tokens", "tokenizer.ggml.token_type");
    if (v_.model == "gpt2") {
      CARREL_TRY(add_split(v_.pre, t_));
    } else if (v_.model == "llama") {
      CARREL_TRY(scored());
    } else {
      return fail(Code::kUnsupported, "is \"" + v_.model + "\"; gpt2 and llama are known here", "tokenizer.ggml.model");
    }
    for (size_t i = 0; i < v_.tokens.size(); i++) CARREL_TRY(take(static_cast<int32_t>(i)));
    if (!t_.bpe.by_score) CARREL_TRY(merges());
    return specials();
  }

  const std::vector<tok::AddedToken>& added() const { return added_; }

 private:
  Status scored() {
    if (v_.scores.size() != v_.tokens.size()) return fail(Code::kCorrupt, "has another length than the tokens", "tokenizer.ggml.scores");
    t_.bpe.by_score = true;
    t_.bpe.byte_fallback = true;
    t_.bpe.scores = v_.scores;
    if (v_.add_space_prefix.value_or(true)) {
      const tok::NormalizerStep prefix = tok::PrependText{std::string(kMetaspace)};
      t_.normalizer.add(prefix);
      t_.strip_leading_space = true;
    }
    const tok::NormalizerStep spaces = tok::ReplaceText{" ", std::string(kMetaspace)};
    t_.normalizer.add(spaces);
    return {};
  }

  Status take(int32_t id) {
    const size_t i = static_cast<size_t>(id);
    const std::string& spelling = v_.tokens[i];
    const int32_t type = v_.token_types.empty() ? GgufVocab::kNormal : v_.token_types[i];
    if (t_.find(spelling)) {  // a doubled spelling keeps its id but is never found by text
      if (i >= t_.tokens.size()) t_.tokens.resize(i + 1);
      t_.tokens[i].text = spelling;
      t_.tokens[i].exists = true;
    } else {
      CARREL_TRY(t_.place(id, spelling));
    }
    Impl::Token& token = t_.tokens[i];
    const bool control = type == GgufVocab::kControl || (type == GgufVocab::kUnknown && t_.bpe.by_score);
    const int byte = type == GgufVocab::kByte ? byte_value(spelling) : -1;
    if (byte >= 0) {
      token.bytes = std::string(1, static_cast<char>(byte));
      t_.bpe.byte_ids[static_cast<size_t>(byte)] = id;
      return {};
    }
    if (control || type == GgufVocab::kUserDefined) {
      tok::AddedToken a;
      a.id = id;
      a.special = control;
      // Runs of spaces are stored with plain spaces, other user-defined pieces as they are written.
      a.content = t_.bpe.by_score ? bytes_of_metaspace(spelling) : spelling;
      token.bytes = a.content;
      if (!a.content.empty()) added_.push_back(std::move(a));
      return {};
    }
    token.bytes = t_.bpe.by_score ? bytes_of_metaspace(spelling) : bytes_of_alphabet(spelling);
    if (type == GgufVocab::kUnused) return {};
    t_.bpe.vocab.add(t_.bpe.by_score ? spelling : token.bytes, id);
    return {};
  }

  Status merges() {
    if (v_.merges.empty()) return fail(Code::kCorrupt, "holds no merges", "tokenizer.ggml.merges");
    uint32_t rank = 0;
    for (const std::string& both : v_.merges) {
      const size_t space = both.find(' ', 1);
      if (space == std::string::npos) return fail(Code::kCorrupt, "merge " + std::to_string(rank) + " is not two pieces", "tokenizer.ggml.merges");
      const int32_t l = t_.by_text.find(both.substr(0, space)), r = t_.by_text.find(both.substr(space + 1));
      const int32_t joined = t_.by_text.find(both.substr(0, space) + both.substr(space + 1));
      if (l == tok::kNoToken || r == tok::kNoToken || joined == tok::kNoToken)
        return fail(Code::kCorrupt, "merge " + std::to_string(rank) + " names a piece that the vocabulary lacks", "tokenizer.ggml.merges");
      t_.bpe.merges.add(l, r, {rank++, joined});
    }
    return {};
  }

  Status specials() {
    const auto known = [&](std::optional<int32_t> id) { return id && *id >= 0 && static_cast<size_t>(*id) < t_.tokens.size() ? id : std::nullopt; };
    t_.bos = known(v_.bos_id);
    t_.eos = known(v_.eos_id);
    if (const auto unk = known(v_.unk_id)) t_.bpe.unk_id = *unk;
    if (t_.bos && v_.add_bos.value_or(t_.bpe.by_score)) t_.prefix.push_back(*t_.bos);
    if (t_.eos && v_.add_eos.value_or(false)) t_.suffix.push_back(*t_.eos);
    return {};
  }

  const GgufVocab& v_;
  Impl& t_;
  std::vector<tok::AddedToken> added_;
};

void add_field(Sha256& h, std::string_view text) {
  h.update(std::to_string(text.size()) + ":");
  h.update(text);
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_gguf(const GgufVocab& vocab, std::span<const int32_t> end_ids) {
  auto impl = std::make_unique<Impl>();
  GgufLoader loader(vocab, *impl);
  CARREL_TRY(loader.load());
  Sha256 definition;
  definition.update("carrel tokenizer gguf 1\n");
  for (const std::string* s : {&vocab.model, &vocab.pre}) add_field(definition, *s);
  for (const auto* list : {&vocab.tokens, &vocab.merges})
    for (const std::string& s : *list) add_field(definition, s);
  definition.update(std::as_bytes(std::span(vocab.scores)));
  definition.update(std::as_bytes(std::span(vocab.token_types)));
  std::vector<int32_t> ends(end_ids.begin(), end_ids.end());
  for (const auto& id : {vocab.eot_id, vocab.eom_id})
    if (id) ends.push_back(*id);
  CARREL_TRY(impl->finish(loader.added(), ends, std::move(definition)));
  return std::make_shared<const Tokenizer>(std::move(impl));
}

}  // namespace carrel
