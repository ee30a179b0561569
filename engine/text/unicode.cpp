// See unicode.h.
#include "engine/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "engine/text/unicode_tables.h"

namespace carrel::tok {
namespace {

size_t category_of(char32_t c) {
  const CategoryRun* end = kCategoryRuns + kCategoryRunCount;
  const CategoryRun* it = std::upper_bound(kCategoryRuns, end, c, [](char32_t v, const CategoryRun& r) { return v < r.first; });
  return (it - 1)->category;
}

bool in_ranges(const CodeRange* ranges, size_t n, char32_t c) {
  const CodeRange* it = std::upper_bound(ranges, ranges + n, c, [](char32_t v, const CodeRange& r) { return v < r.first; });
  return it != ranges && c <= (it - 1)->last;
}

/// The union of the categories whose name begins with the prefix ("L", "Lu").
CodeSet categories(std::string_view prefix) {
  std::vector<CodeRange> out;
  for (size_t i = 0; i < kCategoryRunCount; ++i) {
    std::string_view name = kCategoryNames[kCategoryRuns[i].category];
    if (!name.starts_with(prefix)) continue;
    char32_t last = i + 1 < kCategoryRunCount ? kCategoryRuns[i + 1].first - 1 : kMaxCodePoint;
    out.push_back({kCategoryRuns[i].first, last});
  }
  return CodeSet(std::move(out));
}

/// Letters that are neither category L nor numbers: circled and squared Latin letters (Other_Alphabetic outside of marks).
const std::vector<CodeRange>& circled_letters() {
  static const std::vector<CodeRange> ranges = {{0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
  return ranges;
}

/// Names compare without case, spaces, '_' and '-'.
std::string squeeze(std::string_view name) {
  std::string out;
  for (unsigned char c : name) {
    if (c != ' ' && c != '_' && c != '-') out += static_cast<char>(std::tolower(c));
  }
  return out;
}

struct LongName {
  const char* name;
  const char* category;
};
constexpr LongName kLongNames[] = {
    {"letter", "L"},          {"mark", "M"},             {"number", "N"},          {"punctuation", "P"},     {"symbol", "S"},
    {"separator", "Z"},       {"other", "C"},            {"uppercaseletter", "Lu"}, {"lowercaseletter", "Ll"}, {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"}, {"otherletter", "Lo"},     {"nonspacingmark", "Mn"}, {"spacingmark", "Mc"},    {"enclosingmark", "Me"},
    {"decimalnumber", "Nd"},  {"letternumber", "Nl"},    {"othernumber", "No"},    {"mathsymbol", "Sm"},     {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"}, {"othersymbol", "So"},     {"control", "Cc"},        {"format", "Cf"},         {"unassigned", "Cn"},
    {"punct", "P"},           {"digit", "Nd"},           {"cntrl", "Cc"},          {"spaceseparator", "Zs"}, {"lineseparator", "Zl"},
};

}  // namespace

CodeSet::CodeSet(std::vector<CodeRange> ranges) {
  std::sort(ranges.begin(), ranges.end());
  for (const CodeRange& r : ranges) {
    if (!ranges_.empty() && r.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, r.last);
    } else {
      ranges_.push_back(r);
    }
  }
}

bool CodeSet::contains(char32_t c) const { return in_ranges(ranges_.data(), ranges_.size(), c); }

CodeSet CodeSet::united(const CodeSet& other) const {
  std::vector<CodeRange> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  return CodeSet(std::move(all));
}

CodeSet CodeSet::complement() const {
  CodeSet out;
  char32_t next = 0;
  for (const CodeRange& r : ranges_) {
    if (r.first > next) out.ranges_.push_back({next, r.first - 1});
    next = r.last + 1;
  }
  if (next <= kMaxCodePoint) out.ranges_.push_back({next, kMaxCodePoint});
  return out;
}

CodeSet CodeSet::closed_under_case() const {
  std::vector<char32_t> targets;
  for (size_t i = 0; i < kFoldCount; ++i) {
    if (contains(kFolds[i].from) || contains(kFolds[i].to)) targets.push_back(kFolds[i].to);
  }
  std::sort(targets.begin(), targets.end());
  std::vector<CodeRange> all = ranges_;
  for (char32_t t : targets) all.push_back({t, t});
  for (size_t i = 0; i < kFoldCount; ++i) {
    if (std::binary_search(targets.begin(), targets.end(), kFolds[i].to)) all.push_back({kFolds[i].from, kFolds[i].from});
  }
  return CodeSet(std::move(all));
}

std::optional<CodeSet> unicode_property(std::string_view full) {
  std::string name = squeeze(full);
  for (std::string_view prefix : {"script=", "sc=", "scx=", "generalcategory=", "gc=", "is"}) {
    if (name.starts_with(prefix) && name.size() > prefix.size()) {
      name = name.substr(prefix.size());
      break;
    }
  }
  if (name == "any") return CodeSet({{0, kMaxCodePoint}});
  if (name == "whitespace" || name == "space") return space_set();
  if (name == "word") return word_set();
  if (name == "alphabetic" || name == "alpha") {
    return categories("L").united(categories("M")).united(categories("Nl")).united(CodeSet(circled_letters()));
  }
  for (size_t i = 0; i < kScriptCount; ++i) {
    if (squeeze(kScripts[i].name) == name) return CodeSet({kScripts[i].ranges, kScripts[i].ranges + kScripts[i].count});
  }
  for (const LongName& l : kLongNames) {
    if (name == l.name) return categories(l.category);
  }
  if (name.empty() || name.size() > 2) return std::nullopt;
  name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  CodeSet set = categories(name);
  if (set.empty()) return std::nullopt;
  return set;
}

CodeSet space_set() {
  return CodeSet({{9, 13}, {32, 32}, {0x85, 0x85}, {0xa0, 0xa0}, {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                  {0x205f, 0x205f}, {0x3000, 0x3000}});
}

CodeSet word_set() {
  CodeSet set = categories("L").united(categories("M")).united(categories("Nd")).united(categories("Nl")).united(categories("Pc"));
  // The superscripts and fractions of Latin-1 are word characters for the reference, those beyond are not.
  return set.united(CodeSet(circled_letters())).united(CodeSet({{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}}));
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == 32 || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

bool is_word_char(char32_t c) {
  std::string_view name = kCategoryNames[category_of(c)];
  if (name[0] == 'L' || name[0] == 'M' || name == "Nd" || name == "Nl" || name == "Pc" || c == 0x200c || c == 0x200d) return true;
  return in_ranges(circled_letters().data(), circled_letters().size(), c);
}

bool is_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return kCategoryNames[category_of(c)][0] == 'N' || in_ranges(kNumberExtra, kNumberExtraCount, c);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return std::ispunct(static_cast<int>(c)) != 0;
  return kCategoryNames[category_of(c)][0] == 'P';
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
  }
  out += static_cast<char>(0x80 | (c & 0x3F));
}

std::string to_utf8(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (char32_t c : text) append_utf8(out, c);
  return out;
}

Utf8Step utf8_step(std::string_view bytes, size_t at) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(at);
  if (lead < 0x80) return {Utf8Step::kCharacter, 1, lead};
  if (lead < 0xC2 || lead > 0xF4) return {};
  const size_t n = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte is narrower after E0 (overlong), ED (surrogates), F0 (overlong) and F4 (beyond U+10FFFF).
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t c = lead & (0xFF >> (n + 1));
  for (size_t i = 1; i < n; ++i, low = 0x80, high = 0xBF) {
    if (at + i >= bytes.size()) return {Utf8Step::kIncomplete, i, 0xFFFD};
    const uint8_t b = byte(at + i);
    if (b < low || b > high) return {Utf8Step::kIllFormed, i, 0xFFFD};
    c = c << 6 | (b & 0x3F);
  }
  return {Utf8Step::kCharacter, n, c};
}

size_t find_ill_formed(std::string_view utf8) {
  for (size_t i = 0; i < utf8.size();) {
    Utf8Step s = utf8_step(utf8, i);
    if (s.kind != Utf8Step::kCharacter) return i;
    i += s.n_bytes;
  }
  return std::string_view::npos;
}

Result<std::u32string> from_utf8(std::string_view utf8) {
  std::u32string out;
  out.reserve(utf8.size());
  for (size_t i = 0; i < utf8.size();) {
    Utf8Step s = utf8_step(utf8, i);
    if (s.kind != Utf8Step::kCharacter) {
      return fail(Code::kInvalidArgument, "the text is not well-formed UTF-8 at byte " + std::to_string(i) + "; send UTF-8");
    }
    out += s.code_point;
    i += s.n_bytes;
  }
  return out;
}

namespace {

Status append_normalized(std::string& out, std::string_view part, int options) {
  if (part.empty()) return {};
  utf8proc_uint8_t* made = nullptr;
  utf8proc_ssize_t n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(part.data()), static_cast<utf8proc_ssize_t>(part.size()),
                                    &made, static_cast<utf8proc_option_t>(options));
  if (n < 0) {
    return fail(Code::kInvalidArgument, std::string("Unicode normalization of the text failed: ") + utf8proc_errmsg(n));
  }
  out.append(reinterpret_cast<const char*>(made), static_cast<size_t>(n));
  std::free(made);
  return {};
}

}  // namespace

Result<std::string> normalize(std::string_view utf8, NormalForm form) {
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  if (std::all_of(utf8.begin(), utf8.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; })) return std::string(utf8);
  std::string out;
  size_t begin = 0;
  for (size_t i = 0; i < utf8.size();) {
    Utf8Step s = utf8_step(utf8, i);
    if (s.kind != Utf8Step::kCharacter) return fail(Code::kInvalidArgument, "the text is not well-formed UTF-8");
    if (s.code_point >= kNfcUnknown[0].first && in_ranges(kNfcUnknown, kNfcUnknownCount, s.code_point)) {
      CARREL_TRY(append_normalized(out, utf8.substr(begin, i - begin), options));
      out.append(utf8.substr(i, s.n_bytes));
      begin = i + s.n_bytes;
    }
    i += s.n_bytes;
  }
  CARREL_TRY(append_normalized(out, utf8.substr(begin), options));
  return out;
}

}  // namespace carrel::tok
