// See pipeline.h.
#include "engine/text/pipeline.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace carrel::tok {
namespace {

struct Part {
  Span span;
  bool match = false;
};

struct ByteChars {
  std::array<char32_t, 256> to{};
  std::array<int16_t, 512> from{};
};

constexpr ByteChars make_byte_chars() {
  ByteChars t;
  t.from.fill(-1);
  char32_t next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    const char32_t c = printable ? static_cast<char32_t>(b) : next++;
    t.to[static_cast<size_t>(b)] = c;
    t.from[c] = static_cast<int16_t>(b);
  }
  return t;
}
constexpr ByteChars kByteChars = make_byte_chars();

std::unexpected<Error> grown() {
  return fail(Code::kExhausted, "the text grows more than 64-fold while it is normalized; use a model with another tokenizer");
}

Result<std::string> replace_matches(std::string_view text, const ReplaceRegex& step, size_t max_bytes) {
  CARREL_ASSIGN(std::u32string cps, from_utf8(text));
  std::vector<uint8_t> kinds = step.from.kinds(cps);
  CARREL_ASSIGN(std::vector<Span> hits, step.from.find_all(kinds.data(), kinds.size()));
  std::string out;
  size_t at = 0;
  for (const Span& hit : hits) {
    for (; at < hit.begin; ++at) append_utf8(out, cps[at]);
    out += step.to;
    if (out.size() > max_bytes) return grown();
    at = hit.end;
  }
  for (; at < cps.size(); ++at) append_utf8(out, cps[at]);
  return out;
}

Result<std::string> strip(std::string_view text, const StripSpace& step) {
  CARREL_ASSIGN(std::u32string cps, from_utf8(text));
  size_t begin = 0, end = cps.size();
  while (step.left && begin < end && is_white_space(cps[begin])) ++begin;
  while (step.right && end > begin && is_white_space(cps[end - 1])) --end;
  return to_utf8(std::u32string_view(cps).substr(begin, end - begin));
}

struct RunNormalizer {
  const std::string& text;
  size_t max_bytes;
  Result<std::string> operator()(NormalForm form) const { return normalize(text, form); }
  Result<std::string> operator()(const ReplaceText& s) const { return replace_all(text, s, max_bytes); }
  Result<std::string> operator()(const ReplaceRegex& s) const { return replace_matches(text, s, max_bytes); }
  Result<std::string> operator()(const PrependText& s) const { return text.empty() ? text : s.text + text; }
  Result<std::string> operator()(const StripSpace& s) const { return strip(text, s); }
  Result<std::string> operator()(const LowerCase&) const {
    std::string out = text;
    for (char& c : out) c = static_cast<char>(static_cast<uint8_t>(c) < 0x80 ? std::tolower(c) : c);
    return out;
  }
};

/// Joins parts by the behaviour and appends what is left to `out`.
void join(std::vector<Part>& parts, SplitBehavior behavior, std::vector<Span>& out) {
  auto keep = [&out](Span s) {
    if (s.begin < s.end) out.push_back(s);
  };
  const size_t first = out.size();
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      for (const Part& p : parts) keep(p.span);
      return;
    case SplitBehavior::kRemoved:
      for (const Part& p : parts) {
        if (!p.match) keep(p.span);
      }
      return;
    case SplitBehavior::kContiguous:
      for (size_t i = 0, j = 0; i < parts.size(); i = j) {
        for (j = i + 1; j < parts.size() && parts[j].match == parts[i].match; ++j) {
        }
        keep({parts[i].span.begin, parts[j - 1].span.end});
      }
      return;
    case SplitBehavior::kMergedWithPrevious:
      for (const Part& p : parts) {
        if (p.match && !previous && out.size() > first) {
          out.back().end = p.span.end;
        } else {
          keep(p.span);
        }
        previous = p.match;
      }
      return;
    case SplitBehavior::kMergedWithNext:
      for (auto p = parts.rbegin(); p != parts.rend(); ++p) {
        if (p->match && !previous && out.size() > first) {
          out.back().begin = p->span.begin;
        } else {
          keep(p->span);
        }
        previous = p->match;
      }
      std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
      return;
  }
}

/// The word cut into matches and what is between them.
std::vector<Part> cut(Span word, const std::vector<Span>& hits, bool invert) {
  std::vector<Part> parts;
  size_t at = word.begin;
  for (const Span& h : hits) {
    const Span hit{word.begin + h.begin, word.begin + h.end};
    if (hit.begin > at) parts.push_back({{at, hit.begin}, invert});
    parts.push_back({hit, !invert});
    at = hit.end;
  }
  if (at < word.end) parts.push_back({{at, word.end}, invert});
  return parts;
}

template <class Pred>
void split_chars(Words& words, SplitBehavior behavior, Pred&& is_match) {
  std::vector<Span> out;
  std::vector<Part> parts;
  for (const Span& word : words.spans) {
    parts.clear();
    for (size_t i = word.begin; i < word.end; ++i) {
      const bool m = is_match(words.text[i]);
      if (!m && !parts.empty() && !parts.back().match) {
        parts.back().span.end = i + 1;
      } else {
        parts.push_back({{i, i + 1}, m});
      }
    }
    join(parts, behavior, out);
  }
  words.spans = std::move(out);
}

struct RunSplitter {
  Words& words;
  bool at_start;

  Status operator()(const SplitStep& s) const {
    std::vector<uint8_t> kinds = s.pattern.kinds(words.text);
    std::vector<Span> out;
    for (const Span& word : words.spans) {
      CARREL_ASSIGN(std::vector<Span> hits, s.pattern.find_all(kinds.data() + word.begin, word.end - word.begin));
      std::vector<Part> parts = cut(word, hits, s.invert);
      join(parts, s.behavior, out);
    }
    words.spans = std::move(out);
    return {};
  }
  Status operator()(const DigitsStep& s) const {
    split_chars(words, s.individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, is_number);
    return {};
  }
  Status operator()(const PunctuationStep& s) const {
    split_chars(words, s.behavior, is_punctuation);
    return {};
  }
  Status operator()(const WhitespaceSplitStep&) const {
    split_chars(words, SplitBehavior::kRemoved, is_white_space);
    return {};
  }
  Status operator()(const ByteLevelStep& s) const {
    std::u32string text;
    std::vector<Span> spans;
    std::string bytes;
    for (const Span& word : words.spans) {
      const size_t begin = text.size();
      if (s.add_prefix_space && words.text[word.begin] != ' ') text += char_of_byte(' ');
      bytes.clear();
      for (size_t i = word.begin; i < word.end; ++i) append_utf8(bytes, words.text[i]);
      for (char b : bytes) text += char_of_byte(static_cast<uint8_t>(b));
      spans.push_back({begin, text.size()});
    }
    words = {std::move(text), std::move(spans), true};
    return {};
  }
  Status operator()(const MetaspaceStep& s) const {
    std::u32string text;
    std::vector<Span> spans;
    std::vector<Part> parts;
    for (const Span& word : words.spans) {
      const bool wanted =
          s.prepend == MetaspaceStep::Prepend::kAlways || (s.prepend == MetaspaceStep::Prepend::kFirst && at_start && word.begin == 0);
      const size_t begin = text.size();
      const char32_t first = words.text[word.begin];
      if (wanted && first != s.replacement && first != ' ') text += s.replacement;
      for (size_t i = word.begin; i < word.end; ++i) text += words.text[i] == ' ' ? s.replacement : words.text[i];
      if (!s.split) {
        spans.push_back({begin, text.size()});
        continue;
      }
      parts.clear();
      for (size_t i = begin; i < text.size(); ++i) parts.push_back({{i, i + 1}, text[i] == s.replacement});
      merge_plain(parts);
      join(parts, SplitBehavior::kMergedWithNext, spans);
    }
    words.text = std::move(text);
    words.spans = std::move(spans);
    return {};
  }

  static void merge_plain(std::vector<Part>& parts) {
    size_t n = 0;
    for (const Part& p : parts) {
      if (n > 0 && !p.match && !parts[n - 1].match) {
        parts[n - 1].span.end = p.span.end;
      } else {
        parts[n++] = p;
      }
    }
    parts.resize(n);
  }
};

}  // namespace

Result<std::string> replace_all(std::string_view text, const ReplaceText& step, size_t max_bytes) {
  std::string out;
  size_t at = 0;
  for (size_t hit; !step.from.empty() && (hit = text.find(step.from, at)) != text.npos; at = hit + step.from.size()) {
    out.append(text.substr(at, hit - at)).append(step.to);
    if (out.size() > max_bytes) return grown();
  }
  return out.append(text.substr(at));
}

char32_t char_of_byte(uint8_t byte) {
  return kByteChars.to[byte];
}
int byte_of_char(char32_t c) {
  return c < kByteChars.from.size() ? kByteChars.from[c] : -1;
}

std::optional<std::string> bytes_of_chars(std::string_view spelling) {
  std::string out;
  for (size_t i = 0; i < spelling.size();) {
    const Utf8Step s = utf8_step(spelling, i);
    const int b = s.kind == Utf8Step::kCharacter ? byte_of_char(s.code_point) : -1;
    if (b < 0) return std::nullopt;
    out += static_cast<char>(b);
    i += s.n_bytes;
  }
  return out;
}

Result<std::string> Normalizer::run(std::string_view text) const {
  std::string out(text);
  const size_t max_bytes = max_grown_bytes(text.size());
  for (const NormalizerStep& step : steps_) {
    CARREL_ASSIGN(std::string next, std::visit(RunNormalizer{out, max_bytes}, step));
    out = std::move(next);
    if (out.size() > max_bytes) return grown();
  }
  return out;
}

bool PreTokenizer::byte_level() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const SplitterStep& s) { return std::holds_alternative<ByteLevelStep>(s); });
}

Result<Words> PreTokenizer::run(std::string_view normalized, bool at_start) const {
  Words words;
  CARREL_ASSIGN(words.text, from_utf8(normalized));
  if (!words.text.empty()) words.spans.push_back({0, words.text.size()});
  for (const SplitterStep& step : steps_) CARREL_TRY(std::visit(RunSplitter{words, at_start}, step));
  return words;
}

}  // namespace carrel::tok
