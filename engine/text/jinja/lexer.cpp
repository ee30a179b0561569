// One pass over the source; between tags it keeps text, inside tags it makes tokens. No recursion, no look back beyond a line.
#include "engine/text/jinja/lexer.h"

#include <algorithm>
#include <utility>

#include "engine/text/jinja/text.h"

namespace carrel::jinja {
namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }
bool name_char(char c) { return digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0; }

/// CRLF and CR become LF; one newline at the end goes.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

/// Length of `s` without the white space at its end.
size_t stripped_end(std::string_view s) {
  size_t end = s.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<unsigned char>(s[begin]) & 0xC0) == 0x80) --begin;
    if (!is_space(decode_char(s, begin))) break;
    end = begin;
  }
  return end;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : s_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < s_.size()) CARREL_TRY(data());
    push(Tok::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::unexpected<Error> bad(const std::string& what) const { return fail(Code::kInvalidArgument, what, at_line(line_)); }
  void push(Tok kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  char ch(size_t i) const { return i < s_.size() ? s_[i] : '\0'; }
  bool starts(size_t i, std::string_view w) const { return s_.compare(i, w.size(), w) == 0; }
  size_t skip_space(size_t i) const {
    while (i < s_.size() && is_space(decode_char(s_, i))) i += char_bytes(s_, i);
    return i;
  }
  /// Moves on to `to`, counting lines and noting whether a line starts there.
  void advance(size_t to) {
    line_ += static_cast<uint32_t>(std::count(s_.begin() + static_cast<ptrdiff_t>(at_), s_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    if (to > at_) line_starting_ = s_[to - 1] == '\n';
    at_ = to;
  }

  /// The text before a tag that begins at `tag`, cut by its '-' or by the rule for blocks that start a line.
  std::string text_before(size_t tag, char sign, bool is_print) const {
    const std::string_view text = std::string_view(s_).substr(at_, tag - at_);
    if (sign == '-') return std::string(text.substr(0, stripped_end(text)));
    if (sign == '+' || is_print) return std::string(text);
    const size_t newline = text.rfind('\n');
    const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_begin == 0 && !line_starting_) return std::string(text);
    return std::string(text.substr(0, stripped_end(text) <= line_begin ? line_begin : text.size()));
  }

  void push_text(std::string text) {
    if (!text.empty()) push(Tok::kText, std::move(text));
  }

  size_t next_tag() const {
    for (size_t i = s_.find('{', at_); i != std::string::npos; i = s_.find('{', i + 1)) {
      if (const char c = ch(i + 1); c == '{' || c == '%' || c == '#') return i;
    }
    return s_.size();
  }

  /// End of a closing tag at i ("%}" or "#}"), with its sign and the white space it takes along; npos if none is there.
  size_t closing(size_t i, std::string_view mark) const {
    if (starts(i, "-" + std::string(mark))) return skip_space(i + 1 + mark.size());
    if (starts(i, "+" + std::string(mark))) return i + 1 + mark.size();
    if (!starts(i, mark)) return std::string::npos;
    i += mark.size();
    return ch(i) == '\n' ? i + 1 : i;
  }

  Status data() {
    const size_t tag = next_tag();
    if (tag == s_.size()) {
      push_text(s_.substr(at_));
      advance(tag);
      return {};
    }
    const char type = ch(tag + 1);
    const char sign = ch(tag + 2) == '-' || ch(tag + 2) == '+' ? ch(tag + 2) : '\0';
    push_text(text_before(tag, sign, type == '{'));
    const size_t inside = tag + 2 + (sign != '\0');
    if (type == '#') return comment(inside);
    if (type == '%') {
      const size_t word = skip_space(inside);
      if (starts(word, "raw")) {
        const size_t end = skip_space(word + 3);
        if (starts(end, "%}")) return raw(end + 2);
        if (starts(end, "-%}")) return raw(skip_space(end + 3));
      }
    }
    advance(inside);
    line_starting_ = false;
    push(type == '{' ? Tok::kPrintBegin : Tok::kBlockBegin, "");
    return tag_body(type == '{');
  }

  Status comment(size_t from) {
    const size_t end = s_.find("#}", from);
    if (end == std::string::npos) return bad("a comment is not closed with '#}'");
    const bool sign = end > from && (s_[end - 1] == '-' || s_[end - 1] == '+');
    advance(closing(end - sign, "#}"));
    return {};
  }

  Status raw(size_t from) {
    advance(from);
    for (size_t i = s_.find("{%", from); i != std::string::npos; i = s_.find("{%", i + 1)) {
      const char sign = ch(i + 2) == '-' || ch(i + 2) == '+' ? ch(i + 2) : '\0';
      const size_t word = skip_space(i + 2 + (sign != '\0'));
      if (!starts(word, "endraw")) continue;
      const size_t end = closing(skip_space(word + 6), "%}");
      if (end == std::string::npos) continue;
      push_text(text_before(i, sign, false));
      advance(end);
      return {};
    }
    return bad("a raw block is not closed with endraw");
  }

  Status tag_body(bool is_print) {
    std::string open;  // brackets not yet closed
    while (true) {
      advance(skip_space(at_));
      if (at_ >= s_.size()) return bad(is_print ? "'{{' is not closed with '}}'" : "'{%' is not closed with '%}'");
      if (open.empty() && is_print && (starts(at_, "}}") || starts(at_, "-}}"))) {
        push(Tok::kPrintEnd, "");
        advance(ch(at_) == '-' ? skip_space(at_ + 3) : at_ + 2);
        return {};
      }
      if (open.empty() && !is_print) {
        if (const size_t end = closing(at_, "%}"); end != std::string::npos) {
          push(Tok::kBlockEnd, "");
          advance(end);
          return {};
        }
      }
      CARREL_TRY(token(open));
    }
  }

  Status token(std::string& open) {
    const char c = s_[at_];
    if (c == '\'' || c == '"') return string(c);
    if (digit(c)) return number();
    if (name_char(c)) {
      size_t end = at_;
      while (end < s_.size() && name_char(s_[end])) ++end;
      push(Tok::kName, s_.substr(at_, end - at_));
      advance(end);
      return {};
    }
    constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    for (const auto op : kTwo) {
      if (!starts(at_, op)) continue;
      push(Tok::kOp, std::string(op));
      advance(at_ + 2);
      return {};
    }
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) return bad(std::string("unexpected character '") + c + "'");
    if (c == '(' || c == '[' || c == '{') open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) return bad(std::string("unexpected '") + c + "'");
      open.pop_back();
    }
    push(Tok::kOp, std::string(1, c));
    advance(at_ + 1);
    return {};
  }

  size_t digits(size_t i) const {
    while (digit(ch(i)) || (ch(i) == '_' && digit(ch(i + 1)))) ++i;
    return i;
  }

  Status number() {
    size_t end = digits(at_);
    const char base = static_cast<char>(ch(at_ + 1) | 0x20);
    if (s_[at_] == '0' && (base == 'x' || base == 'o' || base == 'b')) {
      end = at_ + 2;
      while (name_char(ch(end))) ++end;
    }
    bool real = false;
    if (const bool after_dot = !tokens_.empty() && tokens_.back().text == "." && tokens_.back().kind == Tok::kOp; !after_dot && end == digits(at_)) {
      if (ch(end) == '.' && digit(ch(end + 1))) {
        real = true;
        end = digits(end + 1);
      }
      const size_t exponent = end + 1 + (ch(end + 1) == '+' || ch(end + 1) == '-');
      if ((ch(end) | 0x20) == 'e' && digit(ch(exponent))) {
        real = true;
        end = digits(exponent);
      }
    }
    std::string text = s_.substr(at_, end - at_);
    std::erase(text, '_');
    push(real ? Tok::kFloat : Tok::kInt, std::move(text));
    advance(end);
    return {};
  }

  Status string(char quote) {
    size_t end = at_ + 1;
    while (end < s_.size() && s_[end] != quote) end += s_[end] == '\\' ? 2 : 1;
    if (end >= s_.size()) return bad("a string is not closed");
    CARREL_ASSIGN(std::string text, unescape(std::string_view(s_).substr(at_ + 1, end - at_ - 1)));
    push(Tok::kString, std::move(text));
    advance(end + 1);
    return {};
  }

  /// Python's unicode-escape.
  Result<std::string> unescape(std::string_view raw) const {
    std::string out;
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '\\' || i + 1 >= raw.size()) {
        out.push_back(raw[i]);
        continue;
      }
      const char c = raw[++i];
      constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t k = kFrom.find(c); k != std::string_view::npos) {
        out.push_back(kTo[k]);
      } else if (c == '\n') {
        continue;
      } else if (c >= '0' && c <= '7') {
        char32_t v = 0;
        size_t n = 0;
        while (n < 3 && i + n < raw.size() && raw[i + n] >= '0' && raw[i + n] <= '7') v = v * 8 + static_cast<char32_t>(raw[i + n++] - '0');
        append_char(out, v);
        i += n - 1;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        CARREL_ASSIGN(const char32_t v, hex(raw.substr(i + 1, n), n));
        append_char(out, v);
        i += n;
      } else {
        out.push_back('\\');
        out.push_back(c);
      }
    }
    return out;
  }

  Result<char32_t> hex(std::string_view digits, size_t n) const {
    char32_t v = 0;
    for (const char h : digits) {
      const char low = static_cast<char>(h | 0x20);
      if (!digit(h) && (low < 'a' || low > 'f')) return bad("a hexadecimal escape in a string is cut short");
      v = v * 16 + static_cast<char32_t>(digit(h) ? h - '0' : low - 'a' + 10);
    }
    if (digits.size() < n) return bad("a hexadecimal escape in a string is cut short");
    if (v > 0x10FFFF || (v >= 0xD800 && v < 0xE000)) return bad("an escape in a string names no character");
    return v;
  }

  std::string s_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::string at_line(uint32_t line) { return "template line " + std::to_string(line); }

Result<std::vector<Token>> tokenize(std::string_view source) {
  if (!valid_utf8(source)) return fail(Code::kInvalidArgument, "the template is not UTF-8; save it as UTF-8");
  return Lexer(normalize(source)).run();
}

}  // namespace carrel::jinja
