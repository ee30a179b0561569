// See regex.h.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <map>

#include "engine/text/regex_parse.h"

namespace carrel::tok {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000;  // steps of one match
constexpr uint32_t kHeapLimitKib = 128 * 1024;

struct FreeCode {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
struct FreeContext {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};

std::string pcre_message(int code) {
  std::array<PCRE2_UCHAR, 200> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

std::string hex_escape(size_t kind) {
  constexpr char kHex[] = "0123456789abcdef";
  return {'\\', 'x', kHex[kind >> 4], kHex[kind & 15]};
}

}  // namespace

/// The partition of all code points into kinds, and the pattern over kinds.
struct Regex::Impl {
  std::unique_ptr<pcre2_code, FreeCode> code;
  std::unique_ptr<pcre2_match_context, FreeContext> context;
  // Two levels: pages of 256 code points, equal pages stored once.
  std::vector<uint16_t> page_of;
  std::vector<std::array<uint8_t, 256>> pages;
  std::vector<std::vector<uint8_t>> kinds_of_set;

  uint8_t kind(char32_t c) const { return pages[page_of[c >> 8]][c & 255]; }

  Status partition(const std::vector<CodeSet>& sets);
  Status compile(const ParsedRegex& parsed);
  std::string set_text(int set) const;
};

Status Regex::Impl::partition(const std::vector<CodeSet>& sets) {
  std::vector<char32_t> borders = {0};
  for (const CodeSet& s : sets) {
    for (const CodeRange& r : s.ranges()) {
      borders.push_back(r.first);
      borders.push_back(r.last + 1);
    }
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  while (borders.back() > kMaxCodePoint) borders.pop_back();
  std::map<std::vector<bool>, uint8_t> kind_of;
  kinds_of_set.resize(sets.size());
  std::vector<uint8_t> flat(kMaxCodePoint + 1);
  std::vector<size_t> cursor(sets.size(), 0);  // the first range of each set that is not wholly before the border
  for (size_t i = 0; i < borders.size(); ++i) {
    std::vector<bool> member(sets.size());
    for (size_t s = 0; s < sets.size(); ++s) {
      const auto& ranges = sets[s].ranges();
      while (cursor[s] < ranges.size() && ranges[cursor[s]].last < borders[i]) ++cursor[s];
      member[s] = cursor[s] < ranges.size() && ranges[cursor[s]].first <= borders[i];
    }
    if (kind_of.size() == 255 && !kind_of.contains(member)) {
      return fail(Code::kUnsupported, "regular expression: it tells more than 255 kinds of characters apart");
    }
    auto [it, fresh] = kind_of.try_emplace(member, static_cast<uint8_t>(kind_of.size() + 1));
    for (size_t s = 0; fresh && s < sets.size(); ++s) {
      if (member[s]) kinds_of_set[s].push_back(it->second);
    }
    const char32_t end = i + 1 < borders.size() ? borders[i + 1] : kMaxCodePoint + 1;
    std::fill(flat.begin() + borders[i], flat.begin() + end, it->second);
  }
  std::map<std::array<uint8_t, 256>, uint16_t> known;
  for (size_t p = 0; p < flat.size() / 256; ++p) {
    std::array<uint8_t, 256> page;
    std::copy_n(flat.begin() + static_cast<std::ptrdiff_t>(p * 256), 256, page.begin());
    auto [it, fresh] = known.try_emplace(page, static_cast<uint16_t>(pages.size()));
    if (fresh) pages.push_back(page);
    page_of.push_back(it->second);
  }
  return {};
}

std::string Regex::Impl::set_text(int set) const {
  const auto& kinds = kinds_of_set[static_cast<size_t>(set)];
  if (kinds.empty()) return "[^\\x00-\\xff]";  // matches nothing
  if (kinds.size() == 1) return hex_escape(kinds[0]);
  std::string out = "[";
  for (uint8_t k : kinds) out += hex_escape(k);
  return out + "]";
}

Status Regex::Impl::compile(const ParsedRegex& parsed) {
  std::string pattern;
  for (const RegexPiece& piece : parsed.pieces) {
    pattern += piece.set < 0 ? piece.raw : set_text(piece.set);
    if (pattern.size() > (size_t{1} << 20)) return fail(Code::kUnsupported, "regular expression: too large");
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_NEVER_UTF | PCRE2_NEVER_UCP, &error, &offset,
                           nullptr));
  if (!code) return fail(Code::kInvalidArgument, "regular expression: " + pcre_message(error));
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without JIT (no executable memory) the interpreter runs
  context.reset(pcre2_match_context_create(nullptr));
  if (!context) return fail(Code::kExhausted, "regular expression: out of memory");
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  return {};
}

Result<Regex> Regex::compile(std::string_view pattern) {
  CARREL_ASSIGN(std::u32string text, from_utf8(pattern));
  CARREL_ASSIGN(ParsedRegex parsed, parse_regex(text));
  auto impl = std::make_shared<Impl>();
  CARREL_TRY(impl->partition(parsed.sets));
  CARREL_TRY(impl->compile(parsed));
  Regex out;
  out.impl_ = std::move(impl);
  return out;
}

Result<Regex> Regex::literal(std::string_view text) {
  std::string pattern;
  for (char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-&").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return compile(pattern);
}

std::vector<uint8_t> Regex::kinds(std::u32string_view text) const {
  std::vector<uint8_t> out(text.size());
  for (size_t i = 0; i < text.size(); ++i) out[i] = impl_->kind(text[i]);
  return out;
}

Result<std::vector<Span>> Regex::find_all(const uint8_t* subject, size_t n) const {
  std::vector<Span> out;
  if (n == 0) return out;
  std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create(1, nullptr));
  if (!match) return fail(Code::kExhausted, "regular expression: out of memory");
  size_t at = 0;
  bool after_match = false;  // an empty match right behind a match does not count
  while (at <= n) {
    int rc = pcre2_match(impl_->code.get(), subject, n, at, 0, match.get(), impl_->context.get());
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(impl_->code.get(), subject, n, at, PCRE2_NO_JIT, match.get(), impl_->context.get());
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) return fail(Code::kExhausted, "regular expression: matching stopped: " + pcre_message(rc));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
    const Span span{ends[0], ends[1]};
    if (span.begin == span.end) {
      if (!(after_match && span.begin == at)) out.push_back(span);
      at = span.end + 1;
      after_match = false;
    } else {
      out.push_back(span);
      at = span.end;
      after_match = true;
    }
  }
  return out;
}

}  // namespace carrel::tok
