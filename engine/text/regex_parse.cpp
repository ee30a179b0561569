// See regex_parse.h. A recursive descent over the pattern; depth, sets and pieces are bounded.
#include "engine/text/regex_parse.h"

#include <algorithm>

namespace carrel::tok {
namespace {

constexpr int kMaxDepth = 60;
constexpr size_t kMaxSets = 400;
constexpr size_t kMaxPieces = 20000;
constexpr int kMaxRepeat = 1000;

struct Flags {
  bool ignore_case = false;
  bool dot_all = false;
};

class Parser {
 public:
  explicit Parser(std::u32string_view p) : p_(p) {}

  Result<ParsedRegex> run() {
    CARREL_TRY(alternatives(Flags{}, 0));
    if (at_ < p_.size()) return bad("unmatched ')'");
    return std::move(out_);
  }

 private:
  std::unexpected<Error> bad(const std::string& what) const {
    return fail(Code::kInvalidArgument, "regular expression: " + what + " at position " + std::to_string(at_));
  }
  std::unexpected<Error> unsupported(const std::string& what) const {
    return fail(Code::kUnsupported, "regular expression: " + what + " is not supported (position " + std::to_string(at_) + ")");
  }
  bool more() const { return at_ < p_.size(); }
  char32_t peek(size_t k = 0) const { return at_ + k < p_.size() ? p_[at_ + k] : 0; }
  bool eat(std::u32string_view text) {
    if (p_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }

  void raw(std::string text) { out_.pieces.push_back({std::move(text), -1}); }
  Status put_set(const CodeSet& set) {
    auto it = std::find(out_.sets.begin(), out_.sets.end(), set);
    if (it == out_.sets.end()) {
      if (out_.sets.size() >= kMaxSets) return unsupported("a pattern with more than 400 different character sets");
      out_.sets.push_back(set);
      it = out_.sets.end() - 1;
    }
    if (out_.pieces.size() > kMaxPieces) return unsupported("a pattern of this length");
    out_.pieces.push_back({"", static_cast<int>(it - out_.sets.begin())});
    return {};
  }
  Status put_char(char32_t c, const Flags& flags) {
    CodeSet set = CodeSet::one(c);
    return put_set(flags.ignore_case ? set.closed_under_case() : set);
  }

  Status alternatives(Flags flags, int depth) {
    if (depth > kMaxDepth) return unsupported("nesting this deep");
    while (more() && peek() != ')') {
      if (peek() == '|') {
        ++at_;
        raw("|");
        continue;
      }
      CARREL_TRY(term(flags, depth));
    }
    return {};
  }

  /// One atom with its quantifiers.
  Status term(Flags& flags, int depth) {
    const size_t first = out_.pieces.size();
    quantifiable_ = true;
    CARREL_TRY(atom(flags, depth));
    bool quantified = false;
    while (more()) {
      std::string q;
      CARREL_ASSIGN(bool found, quantifier(q));
      if (!found) break;
      if (!quantifiable_) return bad("nothing to repeat");
      // A quantifier on a quantified atom repeats the whole: a group makes that plain for PCRE2.
      if (quantified) {
        out_.pieces.insert(out_.pieces.begin() + static_cast<std::ptrdiff_t>(first), RegexPiece{"(?:", -1});
        raw(")");
      }
      raw(std::move(q));
      quantified = true;
    }
    return {};
  }

  Result<bool> quantifier(std::string& q) {
    const char32_t c = peek();
    if (c == '*' || c == '+' || c == '?') {
      ++at_;
      q = static_cast<char>(c);
      if (peek() == '?' || peek() == '+') q += static_cast<char>(p_[at_++]);
      return true;
    }
    if (c != '{') return false;
    size_t end = p_.find(U'}', at_);
    if (end == p_.npos) return false;
    std::string body;
    for (char32_t d : p_.substr(at_ + 1, end - at_ - 1)) {
      if ((d < '0' || d > '9') && d != ',') return false;
      body += static_cast<char>(d);
    }
    if (body.empty() || body == "," || std::count(body.begin(), body.end(), ',') > 1) return false;
    if (body.front() == ',') body = "0" + body;
    for (size_t i = 0; i < body.size();) {
      size_t comma = std::min(body.find(',', i), body.size());
      if (comma - i > 4 || (comma > i && std::stoi(body.substr(i, comma - i)) > kMaxRepeat)) return unsupported("a repeat count above 1000");
      i = comma + 1;
    }
    at_ = end + 1;
    q = "{" + body + "}";
    if (peek() == '?') q += static_cast<char>(p_[at_++]);
    return true;
  }

  Status atom(Flags& flags, int depth) {
    const char32_t c = peek();
    switch (c) {
      case '(': return group(flags, depth);
      case '[': {
        CARREL_ASSIGN(CodeSet set, bracket(flags, depth));
        return put_set(set);
      }
      case '\\': return escape(flags);
      case '.':
        ++at_;
        return put_set(flags.dot_all ? CodeSet({{0, kMaxCodePoint}}) : CodeSet::one('\n').complement());
      case '^': return anchor("(?:\\A|(?<=", ")" ")");
      case '$': return anchor("(?:\\z|(?=", ")" ")");
      case '*':
      case '+':
      case '?': return bad("nothing to repeat");
      default: ++at_; return put_char(c, flags);
    }
  }

  Status anchor(const char* before, const char* after) {
    ++at_;
    quantifiable_ = false;
    raw(before);
    CARREL_TRY(put_set(CodeSet::one('\n')));
    raw(after);
    return {};
  }

  Status group(Flags& flags, int depth) {
    ++at_;
    Flags inner = flags;
    if (!eat(U"?")) {
      raw("(?:");
    } else if (eat(U"#")) {
      size_t end = p_.find(U')', at_);
      if (end == p_.npos) return bad("a comment without end");
      at_ = end + 1;
      quantifiable_ = false;
      return {};
    } else if (eat(U"=") || eat(U"!") || eat(U">") || eat(U":")) {
      raw(std::string("(?") + static_cast<char>(p_[at_ - 1]));
    } else if (eat(U"<=") || eat(U"<!")) {
      raw(std::string("(?<") + static_cast<char>(p_[at_ - 1]));
    } else if (eat(U"<") || eat(U"P<")) {
      size_t end = p_.find(U'>', at_);
      if (end == p_.npos) return bad("a group name without end");
      at_ = end + 1;
      raw("(?:");
    } else {
      CARREL_ASSIGN(bool whole, group_flags(inner));
      if (whole) {  // (?i) holds to the end of the enclosing group
        flags = inner;
        quantifiable_ = false;
        return {};
      }
      raw("(?:");
    }
    CARREL_TRY(alternatives(inner, depth + 1));
    if (!eat(U")")) return bad("missing ')'");
    raw(")");
    quantifiable_ = true;
    return {};
  }

  /// After "(?": true for "(?i)", false for "(?i:".
  Result<bool> group_flags(Flags& flags) {
    bool on = true;
    for (; more(); ++at_) {
      switch (peek()) {
        case '-': on = false; break;
        case 'i': flags.ignore_case = on; break;
        case 'm':
        case 's': flags.dot_all = on; break;
        case 'u': break;
        case ')': ++at_; return true;
        case ':': ++at_; return false;
        default: return unsupported("this kind of group");
      }
    }
    return bad("missing ')'");
  }

  Status escape(const Flags& flags) {
    const char32_t c = peek(1);
    if (c == 'b' || c == 'B' || c == 'A' || c == 'z' || c == 'Z' || c == 'R') {
      at_ += 2;
      return special_escape(c);
    }
    CodeSet set;
    CARREL_ASSIGN(char32_t single, escaped(set));
    if (set.empty()) return put_char(single, flags);
    return put_set(flags.ignore_case ? set.closed_under_case() : set);
  }

  Status special_escape(char32_t c) {
    if (c == 'R') {
      raw("(?>");
      CARREL_TRY(put_set(CodeSet::one('\r')));
      CARREL_TRY(put_set(CodeSet::one('\n')));
      raw("|");
      CARREL_TRY(put_set(CodeSet({{10, 13}, {0x85, 0x85}, {0x2028, 0x2029}})));
      raw(")");
      return {};
    }
    quantifiable_ = false;
    if (c == 'A') raw("\\A");
    if (c == 'z') raw("\\z");
    if (c == 'Z') {
      raw("(?=");
      CARREL_TRY(put_set(CodeSet::one('\n')));
      raw("?\\z)");
    }
    if (c == 'b' || c == 'B') {
      const bool b = c == 'b';
      const char* parts[] = {b ? "(?:(?<=" : "(?:(?<=", b ? ")(?!" : ")(?=", b ? ")|(?<!" : ")|(?<!", b ? ")(?=" : ")(?!"};
      for (const char* part : parts) {
        raw(part);
        CARREL_TRY(put_set(word_set()));
      }
      raw("))");
    }
    return {};
  }

  /// At a backslash: a single character, or a set (then `set` is not empty).
  Result<char32_t> escaped(CodeSet& set) {
    ++at_;
    if (!more()) return bad("a backslash at the end");
    const char32_t c = p_[at_++];
    switch (c) {
      case 'n': return U'\n';
      case 'r': return U'\r';
      case 't': return U'\t';
      case 'f': return U'\f';
      case 'v': return U'\v';
      case 'a': return U'\a';
      case 'e': return char32_t{27};
      case '0': return char32_t{0};
      case 's': set = space_set(); return c;
      case 'S': set = space_set().complement(); return c;
      case 'w': set = word_set(); return c;
      case 'W': set = word_set().complement(); return c;
      case 'd': set = *unicode_property("Nd"); return c;
      case 'D': set = unicode_property("Nd")->complement(); return c;
      case 'h': set = CodeSet({{'0', '9'}, {'a', 'f'}, {'A', 'F'}}); return c;
      case 'H': set = CodeSet({{'0', '9'}, {'a', 'f'}, {'A', 'F'}}).complement(); return c;
      case 'p':
      case 'P': return property(c == 'P', set);
      case 'x':
      case 'u': return hexadecimal(c == 'u' ? 4 : 2);
      default: break;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9')) {
      --at_;
      return unsupported(std::string("\\") + static_cast<char>(c));
    }
    return c;
  }

  Result<char32_t> property(bool negated, CodeSet& set) {
    std::u32string_view name;
    if (peek() == '{') {
      size_t end = p_.find(U'}', at_);
      if (end == p_.npos) return bad("a property without '}'");
      name = p_.substr(at_ + 1, end - at_ - 1);
      at_ = end + 1;
    } else {
      name = p_.substr(at_, 1);
      at_ += name.size();
    }
    if (name.starts_with(U'^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    auto found = unicode_property(to_utf8(name));
    if (!found) return unsupported("the property '" + to_utf8(name) + "'");
    set = negated ? found->complement() : *found;
    if (set.empty()) return bad("an empty property");
    return U'p';
  }

  Result<char32_t> hexadecimal(size_t n_digits) {
    const bool braces = peek() == '{';
    if (braces) {
      ++at_;
      n_digits = 8;
    }
    char32_t value = 0;
    size_t n = 0;
    for (; n < n_digits && more(); ++n, ++at_) {
      const char32_t d = peek();
      const int v = d >= '0' && d <= '9' ? d - '0' : d >= 'a' && d <= 'f' ? d - 'a' + 10 : d >= 'A' && d <= 'F' ? d - 'A' + 10 : -1;
      if (v < 0) break;
      value = value * 16 + static_cast<char32_t>(v);
    }
    if (n == 0 || value > kMaxCodePoint || (braces && !eat(U"}"))) return bad("a malformed hexadecimal escape");
    return value;
  }

  /// A bracket expression with ranges, nested sets, POSIX names and intersections; the result is already negated.
  Result<CodeSet> bracket(const Flags& flags, int depth) {
    if (depth > kMaxDepth) return unsupported("nesting this deep");
    ++at_;
    const bool negated = eat(U"^");
    CodeSet set;
    bool first = true;
    for (;; first = false) {
      if (!more()) return bad("a character class without end");
      if (peek() == ']' && !first) break;
      if (eat(U"&&")) {
        CARREL_ASSIGN(CodeSet right, rest_of_bracket(flags, depth));
        set = cased(set, flags).intersected(right);
        break;
      }
      CARREL_TRY(bracket_item(set, flags, depth));
    }
    ++at_;
    set = cased(set, flags);
    if (negated) set = set.complement();
    return set;
  }

  /// The right side of "&&", up to (not with) the closing bracket.
  Result<CodeSet> rest_of_bracket(const Flags& flags, int depth) {
    CodeSet set;
    while (more() && peek() != ']') {
      if (eat(U"&&")) {
        CARREL_ASSIGN(CodeSet right, rest_of_bracket(flags, depth + 1));
        return cased(set, flags).intersected(right);
      }
      CARREL_TRY(bracket_item(set, flags, depth));
    }
    if (!more() || depth > kMaxDepth) return bad("a character class without end");
    return cased(set, flags);
  }

  static CodeSet cased(const CodeSet& set, const Flags& flags) { return flags.ignore_case ? set.closed_under_case() : set; }

  Status bracket_item(CodeSet& set, const Flags& flags, int depth) {
    if (peek() == '[') {
      if (peek(1) == ':') {
        CARREL_ASSIGN(CodeSet posix, posix_class());
        set = set.united(posix);
        return {};
      }
      CARREL_ASSIGN(CodeSet nested, bracket(flags, depth + 1));
      set = set.united(nested);
      return {};
    }
    CodeSet inner;
    CARREL_ASSIGN(char32_t low, bracket_char(inner));
    if (!inner.empty()) {
      set = set.united(inner);
      return {};
    }
    char32_t high = low;
    if (peek() == '-' && peek(1) != ']' && peek(1) != 0 && peek(1) != '[') {
      const size_t dash = at_++;
      CARREL_ASSIGN(high, bracket_char(inner));
      if (!inner.empty()) {  // "a-\d": the dash is an ordinary character
        at_ = dash;
        high = low;
      }
    }
    if (high < low) return bad("a range out of order");
    ranges_seen_ += 1;
    if (ranges_seen_ > 100000) return unsupported("a pattern of this length");
    set = set.united(CodeSet({{low, high}}));
    return {};
  }

  Result<char32_t> bracket_char(CodeSet& set) {
    if (!more()) return bad("a character class without end");
    if (peek() != '\\') return p_[at_++];
    if (peek(1) == 'b') {
      at_ += 2;
      return char32_t{8};
    }
    return escaped(set);
  }

  Result<CodeSet> posix_class() {
    size_t end = p_.find(U":]", at_);
    if (end == p_.npos) return bad("a POSIX class without end");
    std::string name = to_utf8(p_.substr(at_ + 2, end - at_ - 2));
    at_ = end + 2;
    const bool negated = name.starts_with('^');
    if (negated) name.erase(0, 1);
    CodeSet set;
    if (name == "alnum") {
      set = unicode_property("Alphabetic")->united(*unicode_property("Nd"));
    } else if (name == "punct") {
      set = unicode_property("P")->united(*unicode_property("S"));
    } else if (name == "xdigit") {
      set = CodeSet({{'0', '9'}, {'a', 'f'}, {'A', 'F'}});
    } else if (name == "blank") {
      set = unicode_property("Zs")->united(CodeSet::one('\t'));
    } else if (name == "ascii") {
      set = CodeSet({{0, 127}});
    } else if (name == "alpha" || name == "digit" || name == "space" || name == "word" || name == "cntrl") {
      set = *unicode_property(name);
    } else {
      return unsupported("the class [:" + name + ":]");
    }
    return negated ? set.complement() : set;
  }

  std::u32string_view p_;
  size_t at_ = 0;
  size_t ranges_seen_ = 0;
  bool quantifiable_ = true;  // of the atom read last
  ParsedRegex out_;
};

}  // namespace

Result<ParsedRegex> parse_regex(std::u32string_view pattern) {
  if (pattern.size() > 16384) return fail(Code::kUnsupported, "regular expression: longer than 16384 characters");
  return Parser(pattern).run();
}

}  // namespace carrel::tok
