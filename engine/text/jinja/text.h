// Strings that remember where their bytes came from.
//
// Every byte of a string inside the interpreter is either the template's own text (kTemplate) or came from the values of a
// request (kInput). The marks survive every operation, so that the caller can encode input bytes with the recognition of
// special tokens off. Threads: a Str never changes once built; a TextBuilder belongs to one thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace carrel::jinja {

enum class Origin : uint8_t { kInput, kTemplate };

/// A stretch of bytes of one origin; it begins where the run before it ends.
struct Run {
  size_t end = 0;
  Origin origin = Origin::kInput;
};

/// The body of a string value. UTF-8; `runs` covers `bytes` exactly, neighbours differ in origin; empty for an empty string.
struct TextBody {
  std::string bytes;
  std::vector<Run> runs;
  size_t n_chars = 0;  // code points

  bool ascii() const { return n_chars == bytes.size(); }
};

class TextBuilder {
 public:
  void append(std::string_view bytes, Origin origin);
  void append(const TextBody& text) { append(text, 0, text.bytes.size()); }
  /// The bytes [begin, end) of a text with their marks.
  void append(const TextBody& text, size_t begin, size_t end);
  size_t size() const { return bytes_.size(); }
  TextBody take();

 private:
  void mark(size_t n_bytes, Origin origin);

  std::string bytes_;
  std::vector<Run> runs_;
};

/// The origin of the byte at `offset`.
Origin origin_at(const TextBody& text, size_t offset);

// UTF-8. Input is well-formed (JSON and template source are checked on the way in); a stray byte counts as one character.
size_t count_chars(std::string_view s);
/// Byte length of the character at s[i].
size_t char_bytes(std::string_view s, size_t i);
/// Byte offset of the n-th character (clamped to the end).
size_t byte_of_char(const TextBody& text, size_t n);
char32_t decode_char(std::string_view s, size_t i);
/// As std::string::find, but in linear time whatever the texts are: both may be a user's.
size_t find_bytes(std::string_view text, std::string_view what, size_t from = 0);
void append_char(std::string& out, char32_t c);
bool valid_utf8(std::string_view s);

// Character classes and case of Python's str, by code point.
bool is_space(char32_t c);
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_lower(char32_t c);
bool is_upper(char32_t c);
bool is_printable(char32_t c);
/// Full upper case mapping: one character may become up to three.
std::string upper_char(char32_t c);
std::string lower_char(char32_t c);

}  // namespace carrel::jinja
