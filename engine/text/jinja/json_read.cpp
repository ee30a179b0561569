// JSON text to values: integers stay integers (any size), key order stays, the last of equal keys wins.
#include <charconv>
#include <cstdlib>

#include "engine/text/jinja/value.h"

namespace carrel::jinja {
namespace {

class Reader {
 public:
  Reader(std::string_view s, int max_depth) : s_(s), max_depth_(max_depth) {}

  Result<Value> read() {
    CARREL_ASSIGN(Value v, value(0));
    blanks();
    if (at_ != s_.size()) return bad("something follows the value");
    return v;
  }

 private:
  std::unexpected<Error> bad(std::string_view what) const {
    return fail(Code::kInvalidArgument, "not valid JSON: " + std::string(what) + " at byte " + std::to_string(at_));
  }
  void blanks() {
    while (at_ < s_.size() && (s_[at_] == ' ' || s_[at_] == '\t' || s_[at_] == '\n' || s_[at_] == '\r')) ++at_;
  }
  char peek() const { return at_ < s_.size() ? s_[at_] : '\0'; }
  bool accept(char c) {
    blanks();
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  Result<Value> value(int depth) {
    if (depth > max_depth_) return bad("nested more than " + std::to_string(max_depth_) + " levels deep");
    blanks();
    switch (peek()) {
      case '{': return object(depth);
      case '[': return array(depth);
      case '"': return string();
      case 't': return word("true", Value::boolean(true));
      case 'f': return word("false", Value::boolean(false));
      case 'n': return word("null", Value::none());
      default: return number();
    }
  }

  Result<Value> word(std::string_view w, Value v) {
    if (s_.substr(at_, w.size()) != w) return bad("unexpected character");
    at_ += w.size();
    return v;
  }

  Result<Value> object(int depth) {
    ++at_;
    std::vector<std::pair<Value, Value>> items;
    if (accept('}')) return make_dict({});
    do {
      blanks();
      if (peek() != '"') return bad("a key in double quotes is missing");
      CARREL_ASSIGN(Value key, string());
      if (!accept(':')) return bad("':' is missing");
      CARREL_ASSIGN(Value v, value(depth + 1));
      items.emplace_back(std::move(key), std::move(v));
    } while (accept(','));
    if (!accept('}')) return bad("',' or '}' is missing");
    return make_dict(std::move(items));
  }

  Result<Value> array(int depth) {
    ++at_;
    std::vector<Value> items;
    if (!accept(']')) {
      do {
        CARREL_ASSIGN(Value v, value(depth + 1));
        items.push_back(std::move(v));
      } while (accept(','));
      if (!accept(']')) return bad("',' or ']' is missing");
    }
    Value list = Value::list(std::move(items));
    static_cast<Seq&>(*list.body()).frozen = true;
    return list;
  }

  Result<char32_t> hex4() {
    char32_t c = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char h = peek();
      const bool digit = h >= '0' && h <= '9';
      const char low = static_cast<char>(h | 0x20);
      if (!digit && (low < 'a' || low > 'f')) return bad("\\u needs four hex digits");
      c = c * 16 + static_cast<char32_t>(digit ? h - '0' : low - 'a' + 10);
    }
    return c;
  }

  Status escape(std::string& out) {
    const char c = peek();
    ++at_;
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    if (const size_t k = kFrom.find(c); k != std::string_view::npos && c != '\0') {
      out.push_back(kTo[k]);
      return {};
    }
    if (c != 'u') return bad("unknown escape");
    CARREL_ASSIGN(char32_t u, hex4());
    if (u >= 0xD800 && u < 0xDC00 && s_.substr(at_, 2) == "\\u") {
      at_ += 2;
      CARREL_ASSIGN(const char32_t low, hex4());
      if (low < 0xDC00 || low > 0xDFFF) return bad("half of a surrogate pair");
      u = 0x10000 + ((u - 0xD800) << 10) + (low - 0xDC00);
    }
    if (u >= 0xD800 && u < 0xE000) return bad("half of a surrogate pair");
    append_char(out, u);
    return {};
  }

  Result<Value> string() {
    ++at_;
    std::string out;
    while (true) {
      const size_t stop = s_.find_first_of("\"\\", at_);
      if (stop == std::string_view::npos) return bad("a string does not end");
      for (size_t i = at_; i < stop; ++i) {
        if (static_cast<unsigned char>(s_[i]) < 0x20) return bad("a control character in a string");
      }
      out.append(s_, at_, stop - at_);
      at_ = stop + 1;
      if (s_[stop] == '"') return Value::string(out, Origin::kInput);
      CARREL_TRY(escape(out));
    }
  }

  size_t digits() {
    const size_t from = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ - from;
  }

  Result<Value> number() {
    const size_t from = at_;
    if (peek() == '-') ++at_;
    const bool zero = peek() == '0';
    const size_t n = digits();
    if (n == 0 || (zero && n > 1)) return bad("unexpected character");
    bool integer = true;
    if (peek() == '.') {
      integer = false;
      ++at_;
      if (digits() == 0) return bad("a digit is missing after '.'");
    }
    if (peek() == 'e' || peek() == 'E') {
      integer = false;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (digits() == 0) return bad("a digit is missing in the exponent");
    }
    const std::string_view text = s_.substr(from, at_ - from);
    if (!integer) return Value::real(std::strtod(std::string(text).c_str(), nullptr));
    int64_t i = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), i).ec == std::errc()) return Value::integer(i);
    return Value::big_int(std::string(text));
  }

  std::string_view s_;
  size_t at_ = 0;
  int max_depth_;
};

}  // namespace

Result<Value> value_from_json(std::string_view json, int max_depth) {
  if (!valid_utf8(json)) return fail(Code::kInvalidArgument, "not valid JSON: the text is not UTF-8");
  return Reader(json, max_depth).read();
}

}  // namespace carrel::jinja
