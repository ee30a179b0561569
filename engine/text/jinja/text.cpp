// Origin marks, UTF-8 steps, and the Unicode properties behind Python's string methods (utf8proc). No state.
#include "engine/text/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <array>
#include <utility>

namespace carrel::jinja {

void TextBuilder::mark(size_t n_bytes, Origin origin) {
  if (n_bytes == 0) return;
  const size_t end = (runs_.empty() ? 0 : runs_.back().end) + n_bytes;
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = end;
  } else {
    runs_.push_back({end, origin});
  }
}

void TextBuilder::append(std::string_view bytes, Origin origin) {
  bytes_.append(bytes);
  mark(bytes.size(), origin);
}

void TextBuilder::append(const TextBody& text, size_t begin, size_t end) {
  if (begin >= end) return;
  bytes_.append(text.bytes, begin, end - begin);
  auto run = std::upper_bound(text.runs.begin(), text.runs.end(), begin, [](size_t at, const Run& r) { return at < r.end; });
  for (size_t at = begin; at < end && run != text.runs.end(); ++run) {
    const size_t stop = std::min(end, run->end);
    mark(stop - at, run->origin);
    at = stop;
  }
}

TextBody TextBuilder::take() {
  TextBody out{std::move(bytes_), std::move(runs_), 0};
  out.n_chars = count_chars(out.bytes);
  bytes_.clear();
  runs_.clear();
  return out;
}

Origin origin_at(const TextBody& text, size_t offset) {
  auto run = std::upper_bound(text.runs.begin(), text.runs.end(), offset, [](size_t at, const Run& r) { return at < r.end; });
  return run == text.runs.end() ? Origin::kInput : run->origin;
}

size_t count_chars(std::string_view s) {
  size_t n = 0;
  for (const char c : s) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

size_t char_bytes(std::string_view s, size_t i) {
  size_t n = 1;
  while (i + n < s.size() && (static_cast<unsigned char>(s[i + n]) & 0xC0) == 0x80) ++n;
  return n;
}

size_t find_bytes(std::string_view text, std::string_view what, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (what.size() == 1) return text.find(what[0], from);
  const void* hit = memmem(text.data() + from, text.size() - from, what.data(), what.size());  // two-way search
  return hit == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(hit) - text.data());
}

size_t byte_of_char(const TextBody& text, size_t n) {
  if (n >= text.n_chars) return text.bytes.size();
  if (text.ascii()) return n;
  size_t at = 0;
  while (n-- > 0) at += char_bytes(text.bytes, at);
  return at;
}

char32_t decode_char(std::string_view s, size_t i) {
  const auto b = [&](size_t k) { return static_cast<char32_t>(static_cast<unsigned char>(s[i + k])); };
  const size_t n = char_bytes(s, i);
  if (n == 2) return (b(0) & 0x1F) << 6 | (b(1) & 0x3F);
  if (n == 3) return (b(0) & 0x0F) << 12 | (b(1) & 0x3F) << 6 | (b(2) & 0x3F);
  if (n == 4) return (b(0) & 0x07) << 18 | (b(1) & 0x3F) << 12 | (b(2) & 0x3F) << 6 | (b(3) & 0x3F);
  return b(0);
}

void append_char(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool valid_utf8(std::string_view s) {
  const auto* p = reinterpret_cast<const utf8proc_uint8_t*>(s.data());
  auto left = static_cast<utf8proc_ssize_t>(s.size());
  while (left > 0) {
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t n = utf8proc_iterate(p, left, &c);
    if (n <= 0) return false;
    p += n;
    left -= n;
  }
  return true;
}

namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

struct Special {
  char32_t from;
  std::array<char32_t, 3> to;
};
// Characters whose upper case is longer than one character (SpecialCasing.txt, unconditional entries of common scripts).
constexpr Special kUpper[] = {
    {0x00DF, {'S', 'S', 0}},          {0x0149, {0x02BC, 'N', 0}},       {0x01F0, {'J', 0x030C, 0}},       {0x0390, {0x0399, 0x0308, 0x0301}},
    {0x03B0, {0x03A5, 0x0308, 0x0301}}, {0x0587, {0x0535, 0x0552, 0}},  {0x1E96, {'H', 0x0331, 0}},       {0x1E97, {'T', 0x0308, 0}},
    {0x1E98, {'W', 0x030A, 0}},       {0x1E99, {'Y', 0x030A, 0}},       {0x1E9A, {'A', 0x02BE, 0}},       {0xFB00, {'F', 'F', 0}},
    {0xFB01, {'F', 'I', 0}},          {0xFB02, {'F', 'L', 0}},          {0xFB03, {'F', 'F', 'I'}},        {0xFB04, {'F', 'F', 'L'}},
    {0xFB05, {'S', 'T', 0}},          {0xFB06, {'S', 'T', 0}},
};

}  // namespace

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_alpha(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

bool is_digit(char32_t c) {
  const bool superscript = c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089);
  return is_decimal(c) || superscript || (c >= 0x2460 && c <= 0x2468) || (c >= 0x2776 && c <= 0x277E);
}

bool is_numeric(char32_t c) {
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool is_lower(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL; }
bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }

bool is_printable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

std::string upper_char(char32_t c) {
  std::string out;
  if (c >= 0x80) {
    for (const Special& s : kUpper) {
      if (s.from != c) continue;
      for (const char32_t t : s.to) {
        if (t != 0) append_char(out, t);
      }
      return out;
    }
  }
  append_char(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  return out;
}

std::string lower_char(char32_t c) {
  std::string out;
  append_char(out, c == 0x130 ? U'i' : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  if (c == 0x130) append_char(out, 0x307);
  return out;
}

}  // namespace carrel::jinja
