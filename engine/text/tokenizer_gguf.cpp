// Loads a Tokenizer from the metadata of a GGUF file. See tokenizer.h.
#include <algorithm>
#include <cmath>

#include "engine/text/tokenizer_impl.h"

namespace carrel {
namespace {

using tok::AddedToken;

// Published splits (the stages of tokenizer.json), by the names that GGUF files use.
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                                     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                                     R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseekCjk = "[一-龥぀-ゟ゠-ヿ]+";
constexpr std::string_view kDeepseekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kNumber3 = R"(\p{N}{1,3})";
constexpr std::string_view kKimi =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Split {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;
  bool each_digit = false;   // before the patterns: every number character alone
  bool whole_words = false;  // ignore_merges of the published file
  bool add_bos = false;      // when the file does not say
};

const std::vector<Split>& splits() {
  static const std::vector<Split> table = {
      {{"gpt-2", "gpt2", "phi-2", "olmo", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "mpt", "gigachat", "modern-bert", "mellum"},
       {tok::kGpt2Split}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}, {tok::kGpt2Split}, true},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}, {kLlama3}, false, true, true},
      {{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, {kLlama3}},
      {{"qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"}, {kQwen2}},
      {{"qwen35"}, {kQwen35}},
      {{"gpt-4o", "llama4"}, {kGpt4o}, false, true},
      {{"tekken"}, {kTekken}, false, true, true},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm"}, {kNumber3, kDeepseekCjk, kDeepseekWords}},
      {{"deepseek-coder"}, {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", R"(\p{N})"}},
      {{"falcon"}, {R"([\p{P}\$\+<=>\^~\|`]+)", tok::kGpt2Split, "[0-9][0-9][0-9]"}},
      {{"kimi-k2"}, {kKimi}},
      {{"default", ""}, {R"([\p{P}\$\+<=>\^~\|]+)", tok::kGpt2Split, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
  };
  return table;
}

Result<const Split*> find_split(const std::string& name) {
  std::string known;
  for (const Split& s : splits()) {
    if (std::find(s.names.begin(), s.names.end(), name) != s.names.end()) return &s;
    known += (known.empty() ? "" : ", ") + std::string(s.names.front());
  }
  return fail(Code::kUnsupported, "the split '" + name.substr(0, 60) + "' is not known (known are " + known + " and their relatives)",
              "tokenizer.ggml.pre");
}

std::string with_space_marks(std::string text) {
  for (size_t at = 0; (at = text.find(' ', at)) != text.npos; at += 3) text.replace(at, 1, "\xE2\x96\x81");
  return text;
}

class Loader {
 public:
  explicit Loader(const GgufVocab& v) : v_(v) {}

  Result<std::unique_ptr<const Tokenizer::Impl>> load(std::span<const int32_t> end_ids) {
    CARREL_TRY(check());
    byte_level_ = v_.model == "gpt2";
    CARREL_TRY(byte_level_ ? prepare_gpt2() : prepare_llama());
    CARREL_TRY(place_tokens());
    if (byte_level_) CARREL_TRY(read_merges());
    CARREL_TRY(read_ends());
    std::vector<int32_t> ends(end_ids.begin(), end_ids.end());
    for (auto id : {v_.eot_id, v_.eom_id}) {
      if (id) ends.push_back(*id);
    }
    CARREL_TRY(impl_->finish(added_, ends, definition()));
    return std::move(impl_);
  }

 private:
  Status check() const {
    if (v_.model != "gpt2" && v_.model != "llama") {
      return fail(Code::kUnsupported, "the tokenizer model '" + v_.model.substr(0, 60) + "' is not supported; gpt2 and llama are",
                  "tokenizer.ggml.model");
    }
    if (v_.tokens.empty() || v_.tokens.size() > static_cast<size_t>(tok::kMaxTokenId)) {
      return fail(Code::kCorrupt, "the vocabulary is missing or too large", "tokenizer.ggml.tokens");
    }
    if (!v_.token_types.empty() && v_.token_types.size() != v_.tokens.size()) {
      return fail(Code::kCorrupt, "its length differs from that of tokens", "tokenizer.ggml.token_type");
    }
    if (v_.model == "llama" && v_.scores.size() != v_.tokens.size()) {
      return fail(Code::kCorrupt, "its length differs from that of tokens", "tokenizer.ggml.scores");
    }
    if (!std::all_of(v_.scores.begin(), v_.scores.end(), [](float f) { return std::isfinite(f); })) {
      return fail(Code::kCorrupt, "a score is not a number", "tokenizer.ggml.scores");
    }
    if (v_.merges.size() >= (size_t{1} << 24)) return fail(Code::kCorrupt, "too many merges", "tokenizer.ggml.merges");
    return {};
  }

  Status prepare_gpt2() {
    CARREL_ASSIGN(split_, find_split(v_.pre));
    if (split_->each_digit) impl_->pre_tokenizer.add(tok::DigitsStep{true});
    for (std::string_view pattern : split_->patterns) {
      CARREL_ASSIGN(tok::Regex regex, tok::Regex::compile(pattern));
      impl_->pre_tokenizer.add(tok::SplitStep{std::move(regex), tok::SplitBehavior::kIsolated, false});
    }
    impl_->pre_tokenizer.add(tok::ByteLevelStep{});
    impl_->bpe.byte_level = true;
    impl_->bpe.ignore_merges = split_->whole_words;
    return {};
  }

  Status prepare_llama() {
    const bool prefix = v_.add_space_prefix.value_or(true);
    if (prefix) impl_->normalizer.add(tok::PrependText{"\xE2\x96\x81"});
    impl_->normalizer.add(tok::ReplaceText{" ", "\xE2\x96\x81"});
    impl_->strip_leading_space = prefix;
    impl_->bpe.by_score = true;
    impl_->bpe.byte_fallback = true;
    impl_->bpe.scores = v_.scores;
    impl_->bpe.unk_id = known(v_.unk_id).value_or(tok::kNoToken);
    return {};
  }

  /// An id that the vocabulary has; some published files name one that it lacks.
  std::optional<int32_t> known(std::optional<int32_t> id) const {
    return id && *id >= 0 && static_cast<size_t>(*id) < v_.tokens.size() ? id : std::nullopt;
  }

  int32_t type_of(size_t i) const { return v_.token_types.empty() ? GgufVocab::kNormal : v_.token_types[i]; }

  Status place_tokens() {
    impl_->tokens.resize(v_.tokens.size());
    impl_->bpe.vocab.reserve(v_.tokens.size());
    impl_->by_text.reserve(v_.tokens.size());
    for (size_t i = 0; i < v_.tokens.size(); ++i) {
      const auto id = static_cast<int32_t>(i);
      const std::string& text = v_.tokens[i];
      auto& token = impl_->tokens[i];
      token.text = text;
      token.exists = true;
      impl_->by_text.add(text, id);
      const int32_t type = type_of(i);
      if (type == GgufVocab::kControl || type == GgufVocab::kUserDefined || type == GgufVocab::kUnknown) {
        AddedToken t;
        t.id = id;
        t.content = text;
        t.special = type != GgufVocab::kUserDefined;
        added_.push_back(std::move(t));
      }
      token.bytes = bytes_of(text, type, id);
      if (byte_level_) {
        if (type == GgufVocab::kUnused) continue;
        if (auto raw = tok::bytes_of_chars(text)) impl_->bpe.vocab.add(*raw, id);
      } else if (type == GgufVocab::kNormal) {
        impl_->bpe.vocab.add(text, id);
      } else if (type == GgufVocab::kUserDefined) {
        impl_->bpe.vocab.add(with_space_marks(text), id);  // runs of spaces are stored plain; a typed U+2581 is a space here
      }
    }
    return {};
  }

  std::string bytes_of(const std::string& text, int32_t type, int32_t id) {
    if (byte_level_) {
      if (type == GgufVocab::kControl || type == GgufVocab::kUserDefined) return text;
      return tok::bytes_of_chars(text).value_or(text);
    }
    if (type == GgufVocab::kByte && text.size() == 6 && text.starts_with("<0x")) {
      const std::string digits = text.substr(3, 2);
      if (digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos) {
        const int b = std::stoi(digits, nullptr, 16);
        impl_->bpe.byte_ids[static_cast<size_t>(b)] = id;
        return std::string(1, static_cast<char>(b));
      }
    }
    std::string out = text;
    for (size_t at = 0; (at = out.find("\xE2\x96\x81", at)) != out.npos; ++at) out.replace(at, 3, " ");
    return out;
  }

  Status read_merges() {
    auto& bpe = impl_->bpe;
    bpe.merges.reserve(v_.merges.size());
    for (size_t rank = 0; rank < v_.merges.size(); ++rank) {
      const std::string& line = v_.merges[rank];
      // A piece may itself begin with a space-like mark, never with a space: the first space after the first character parts them.
      const size_t space = line.find(' ', 1);
      if (line.empty() || space == line.npos) return fail(Code::kCorrupt, "a merge is not two pieces", "tokenizer.ggml.merges");
      auto left = tok::bytes_of_chars(std::string_view(line).substr(0, space)),
           right = tok::bytes_of_chars(std::string_view(line).substr(space + 1));
      if (!left || !right) continue;
      const int32_t a = bpe.vocab.find(*left), b = bpe.vocab.find(*right), joined = bpe.vocab.find(*left + *right);
      if (a == tok::kNoToken || b == tok::kNoToken || joined == tok::kNoToken) {
        return fail(Code::kCorrupt, "the merge '" + line.substr(0, 60) + "' names a token that is not there", "tokenizer.ggml.merges");
      }
      bpe.merges.add(a, b, {static_cast<uint32_t>(rank), joined});
    }
    return {};
  }

  Status read_ends() {
    impl_->bos = known(v_.bos_id);
    impl_->eos = known(v_.eos_id);
    const bool add_bos = v_.add_bos.value_or(byte_level_ ? split_->add_bos : true);
    if (add_bos && impl_->bos) impl_->prefix.push_back(*impl_->bos);
    if (v_.add_eos.value_or(false) && impl_->eos) impl_->suffix.push_back(*impl_->eos);
    return {};
  }

  Sha256 definition() const {
    Sha256 h;
    auto put = [&h](std::string_view s) {
      h.update(std::to_string(s.size()) + ":");
      h.update(s);
    };
    put("carrel gguf tokenizer");
    put(v_.model);
    put(v_.pre);
    for (const auto& t : v_.tokens) put(t);
    for (const auto& m : v_.merges) put(m);
    h.update(std::as_bytes(std::span(v_.scores)));
    h.update(std::as_bytes(std::span(v_.token_types)));
    put(impl_->strip_leading_space ? "prefix" : "no prefix");
    return h;
  }

  const GgufVocab& v_;
  bool byte_level_ = false;
  const Split* split_ = nullptr;
  std::vector<AddedToken> added_;
  std::unique_ptr<Tokenizer::Impl> impl_ = std::make_unique<Tokenizer::Impl>();
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_gguf(const GgufVocab& vocab, std::span<const int32_t> end_ids) {
  CARREL_ASSIGN(auto impl, Loader(vocab).load(end_ids));
  return std::make_shared<const Tokenizer>(std::move(impl));
}

}  // namespace carrel
