// See added_tokens.h.
#include "engine/text/added_tokens.h"

#include <algorithm>

#include "engine/text/unicode.h"

namespace carrel::tok {
namespace {

/// The last character of a text that is well-formed.
char32_t last_char(std::string_view text) {
  size_t i = text.size() - 1;
  while (i > 0 && (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80) --i;
  return utf8_step(text, i).code_point;
}

bool touches_words(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word_char(last_char(text.substr(0, begin)))) return true;
  return end < text.size() && is_word_char(utf8_step(text, end).code_point);
}

size_t space_before(std::string_view text, size_t begin, size_t floor) {
  while (begin > floor) {
    size_t i = begin - 1;
    while (i > floor && (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80) --i;
    if (!is_white_space(utf8_step(text, i).code_point)) break;
    begin = i;
  }
  return begin;
}

size_t space_after(std::string_view text, size_t end) {
  while (end < text.size()) {
    const Utf8Step s = utf8_step(text, end);
    if (!is_white_space(s.code_point)) break;
    end += s.n_bytes;
  }
  return end;
}

}  // namespace

void AddedTokenMatcher::build() {
  std::erase_if(tokens_, [](const AddedToken& t) { return t.content.empty(); });
  // Of equal spellings (a normalizer may make them equal) the first one counts.
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  const auto equal = std::unique(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; });
  tokens_.erase(equal, tokens_.end());
  by_first_byte_ = {};
  for (size_t i = 0; i < tokens_.size(); ++i) {
    Span& s = by_first_byte_[static_cast<uint8_t>(tokens_[i].content[0])];
    if (s.end == 0) s.begin = i;
    s.end = i + 1;
  }
}

/// Narrows the sorted tokens byte by byte. A control token must end at or before special_end.
const AddedToken* AddedTokenMatcher::longest_at(std::string_view text, size_t at, size_t special_end) const {
  Span range = by_first_byte_[static_cast<uint8_t>(text[at])];
  const AddedToken* best = nullptr;
  for (size_t depth = 1; range.begin < range.end; ++depth) {
    const AddedToken& shortest = tokens_[range.begin];
    if (range.end - range.begin == 1) {
      const bool allowed = !shortest.special || at + shortest.content.size() <= special_end;
      return allowed && text.substr(at).starts_with(shortest.content) ? &shortest : best;
    }
    if (shortest.content.size() == depth) {
      if (!shortest.special || at + depth <= special_end) best = &shortest;
      ++range.begin;
    }
    if (at + depth >= text.size()) break;
    const uint8_t c = static_cast<uint8_t>(text[at + depth]);
    auto first = tokens_.begin() + static_cast<std::ptrdiff_t>(range.begin),
         last = tokens_.begin() + static_cast<std::ptrdiff_t>(range.end);
    first = std::partition_point(first, last, [&](const AddedToken& t) { return static_cast<uint8_t>(t.content[depth]) < c; });
    last = std::partition_point(first, last, [&](const AddedToken& t) { return static_cast<uint8_t>(t.content[depth]) <= c; });
    range = {static_cast<size_t>(first - tokens_.begin()), static_cast<size_t>(last - tokens_.begin())};
  }
  return best;
}

std::vector<Segment> AddedTokenMatcher::split(std::string_view text, std::span<const Run> runs) const {
  std::vector<Segment> out;
  size_t done = 0, run = 0;
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    while (run + 1 < runs.size() && at >= runs[run].end) ++run;
    const AddedToken* token = longest_at(text, at, runs.empty() ? 0 : runs[run].end);
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->special && !runs[run].allow_special) continue;
    if (token->single_word && touches_words(text, begin, end)) continue;
    if (token->lstrip) begin = space_before(text, begin, std::min(done, begin));
    if (token->rstrip) end = space_after(text, std::max(end, done));  // what an earlier one took is space all the way
    if (begin > done) out.push_back({kNoToken, {done, begin}});
    out.push_back({token->id, {begin, end}});
    done = std::max(done, end);
  }
  if (done < text.size()) out.push_back({kNoToken, {done, text.size()}});
  return out;
}

}  // namespace carrel::tok
