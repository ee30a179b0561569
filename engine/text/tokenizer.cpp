// See tokenizer.h and tokenizer_impl.h: everything but loading.
#include "engine/text/tokenizer.h"

#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer_impl.h"

namespace carrel {
namespace {

constexpr size_t kMaxTextBytes = size_t{256} << 20;
constexpr size_t kMaxAddedBytes = 512;  // of an added token, normalized or not: every position of a text is compared with it

/// Control tokens by which published models end an answer, whatever their files name as EOS.
constexpr std::string_view kEndSpellings[] = {"<|eot_id|>",
                                              "<|im_end|>",
                                              "<|end|>",
                                              "<end_of_turn>",
                                              "<|endoftext|>",
                                              "<|end_of_text|>",
                                              "<eos>",
                                              "</s>",
                                              "<|eom_id|>",
                                              "<EOT>",
                                              "<|return|>",
                                              "<|call|>",
                                              "<|EOT|>",
                                              "<|eot|>",
                                              "<turn|>",
                                              "<|user_end|>",
                                              "<|END_OF_TURN_TOKEN|>",
                                              "<|end_of_turn|>",
                                              "<｜end▁of▁sentence｜>",
                                              "<|end▁of▁sentence|>",
                                              "[EOS]",
                                              "<|endofresponse|>"};

}  // namespace

Status Tokenizer::Impl::place(int32_t id, std::string_view text) {
  const std::string where = "token '" + std::string(text.substr(0, 60)) + "'";
  if (id < 0 || id > tok::kMaxTokenId) {
    return fail(Code::kCorrupt, "token id " + std::to_string(id) + " is outside 0.." + std::to_string(tok::kMaxTokenId), where);
  }
  const size_t i = static_cast<size_t>(id);
  if (i >= tokens.size()) tokens.resize(i + 1);
  if (tokens[i].exists && tokens[i].text != text) {
    return fail(Code::kCorrupt, "id " + std::to_string(id) + " is already taken by '" + tokens[i].text.substr(0, 60) + "'", where);
  }
  tokens[i].text = text;
  tokens[i].exists = true;
  by_text.add(text, id);
  return {};
}

std::optional<int32_t> Tokenizer::Impl::find(std::string_view text) const {
  const int32_t id = by_text.find(text);
  return id == tok::kNoToken ? std::nullopt : std::optional(id);
}

void Tokenizer::Impl::find_ends(std::span<const int32_t> more_ends) {
  auto add = [this](std::optional<int32_t> id) {
    if (id && *id >= 0 && static_cast<size_t>(*id) < tokens.size()) tokens[static_cast<size_t>(*id)].end = true;
  };
  add(eos);
  for (int32_t id : more_ends) add(id);
  // In the harmony format <|end|> only ends a message; <|return|> and <|call|> end the answer.
  const bool harmony = find("<|return|>") && find("<|call|>");
  for (std::string_view spelling : kEndSpellings) {
    std::optional<int32_t> id = find(spelling);
    if (id && is_special_id(*id) && !(harmony && spelling == "<|end|>")) add(id);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].end) end_ids.push_back(static_cast<int32_t>(i));
  }
}

Status Tokenizer::Impl::finish(const std::vector<tok::AddedToken>& added, std::span<const int32_t> more_ends, Sha256 definition) {
  const auto too_long = [](const std::string& s) { return fail(Code::kCorrupt, "is an added token of more than 512 bytes", "token '" + s.substr(0, 60) + "'"); };
  for (tok::AddedToken t : added) {
    if (t.content.size() > kMaxAddedBytes) return too_long(t.content);
    tokens[static_cast<size_t>(t.id)].special = t.special;
    const bool late = t.normalized;
    if (!late || t.special) {
      raw_mixed.add(t);
    }
    if (!late) {
      raw.add(std::move(t));
      continue;
    }
    CARREL_ASSIGN(t.content, normalizer.run(t.content));
    if (t.content.size() > kMaxAddedBytes) return too_long(t.content);
    normalized.add(std::move(t));
  }
  raw.build();
  normalized.build();
  raw_mixed.build();
  find_ends(more_ends);
  for (const auto& t : added) {
    definition.update(std::to_string(t.id) + (t.special ? "s" : "") + (t.normalized ? "n" : "") + (t.lstrip ? "l" : "") +
                      (t.rstrip ? "r" : "") + (t.single_word ? "w" : "") + " " + std::to_string(t.content.size()) + ":");
    definition.update(t.content);
  }
  for (const auto* list : {&prefix, &suffix, &end_ids}) {
    for (int32_t id : *list) definition.update(std::to_string(id) + ",");
    definition.update(";");
  }
  fingerprint = definition.finish();
  return {};
}

Status Tokenizer::Impl::encode_words(std::string_view text, bool at_start, std::vector<int32_t>& out) const {
  CARREL_ASSIGN(tok::Words words, pre_tokenizer.run(text, at_start));
  std::string bytes;
  for (const tok::Span& word : words.spans) {
    bytes.clear();
    for (size_t i = word.begin; i < word.end; ++i) {
      if (words.byte_level) {
        bytes += static_cast<char>(tok::byte_of_char(words.text[i]));
      } else {
        tok::append_utf8(bytes, words.text[i]);
      }
    }
    bpe.encode(bytes, out);
  }
  return {};
}

Status Tokenizer::Impl::encode(std::string_view text, std::span<const tok::Run> runs, std::vector<int32_t>& out) const {
  const bool mixed = runs.size() > 1 && !normalizer.empty();
  size_t first = 0;  // the first run that is not wholly before the piece: pieces and runs both rise
  for (const tok::Segment& s : (mixed ? raw_mixed : raw).split(text, runs)) {
    if (s.id != tok::kNoToken) {
      out.push_back(s.id);
      continue;
    }
    const std::string_view piece = text.substr(s.span.begin, s.span.end - s.span.begin);
    CARREL_ASSIGN(std::string clean, normalizer.run(piece));
    std::vector<tok::Run> inner;
    if (mixed || runs.size() <= 1) {
      inner.push_back({clean.size(), !mixed && !runs.empty() && runs[0].allow_special});
    } else {  // no normalizer: the runs move with the piece
      while (first < runs.size() && runs[first].end <= s.span.begin) ++first;
      for (size_t i = first; i < runs.size(); ++i) {
        inner.push_back({std::min(runs[i].end, s.span.end) - s.span.begin, runs[i].allow_special});
        if (runs[i].end >= s.span.end) break;
      }
    }
    for (const tok::Segment& t : normalized.split(clean, inner)) {
      if (t.id != tok::kNoToken) {
        out.push_back(t.id);
      } else {
        const bool at_start = s.span.begin == 0 && t.span.begin == 0;
        CARREL_TRY(encode_words(std::string_view(clean).substr(t.span.begin, t.span.end - t.span.begin), at_start, out));
      }
    }
  }
  return {};
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view utf8, EncodeOptions options) const {
  const TextPart part{utf8, options.parse_special};
  return encode_parts({&part, 1}, options.add_special);
}

Result<std::vector<int32_t>> Tokenizer::encode_parts(std::span<const TextPart> parts, bool add_special) const {
  std::string text;
  std::vector<tok::Run> runs;
  for (const TextPart& part : parts) {
    if (part.text.empty()) continue;
    if (text.size() + part.text.size() > kMaxTextBytes) {
      return fail(Code::kExhausted, "the text is larger than 256 MiB; send less text");
    }
    text += part.text;
    if (runs.empty() || runs.back().allow_special != part.allow_special) runs.push_back({0, part.allow_special});
    runs.back().end = text.size();
  }
  if (size_t bad = tok::find_ill_formed(text); bad != std::string::npos) {
    return fail(Code::kInvalidArgument, "the text is not well-formed UTF-8 at byte " + std::to_string(bad) + "; send UTF-8");
  }
  std::vector<int32_t> out;
  if (add_special) out = impl_->prefix;
  CARREL_TRY(impl_->encode(text, runs, out));
  if (add_special) out.insert(out.end(), impl_->suffix.begin(), impl_->suffix.end());
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  Detokenizer detokenizer(*this, skip_special);
  std::string out;
  for (int32_t id : ids) out += detokenizer.push(id);
  return out + detokenizer.flush();
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(impl_->tokens.size());
}
std::string_view Tokenizer::token_bytes(int32_t id) const {
  return id < 0 || id >= vocab_size() ? std::string_view() : impl_->tokens[static_cast<size_t>(id)].bytes;
}
std::string_view Tokenizer::token_text(int32_t id) const {
  return id < 0 || id >= vocab_size() ? std::string_view() : impl_->tokens[static_cast<size_t>(id)].text;
}
std::optional<int32_t> Tokenizer::find_token(std::string_view spelling) const {
  return impl_->find(spelling);
}
bool Tokenizer::is_special(int32_t id) const {
  return impl_->is_special_id(id);
}
bool Tokenizer::is_end(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->tokens[static_cast<size_t>(id)].end;
}
const std::vector<int32_t>& Tokenizer::end_ids() const {
  return impl_->end_ids;
}
std::optional<int32_t> Tokenizer::bos_id() const {
  return impl_->bos;
}
std::optional<int32_t> Tokenizer::eos_id() const {
  return impl_->eos;
}
bool Tokenizer::adds_bos() const {
  return impl_->bos && !impl_->prefix.empty() && impl_->prefix[0] == *impl_->bos;
}
bool Tokenizer::strips_leading_space() const {
  return impl_->strip_leading_space;
}
const Digest& Tokenizer::fingerprint() const {
  return impl_->fingerprint;
}

}  // namespace carrel
