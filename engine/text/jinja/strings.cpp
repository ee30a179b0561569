// String operations that filters and methods share; every one keeps the origin of each byte.
#include <algorithm>

#include "engine/text/jinja/interp.h"

namespace carrel::jinja {

int64_t int_arg(Interp& in, const Value* v, int64_t preset) {
  if (v == nullptr || v->is_none()) return preset;
  if (!v->is_intlike()) in.bad(std::string("an integer is needed, not '") + type_name(*v) + "'");
  return v->as_int();
}

const Value& string_arg(Interp& in, const Value* v, std::string_view what) {
  if (v == nullptr) in.bad(std::string(what) + " needs a text argument");
  if (!v->is_string()) in.bad(std::string(what) + " needs a text argument, not '" + type_name(*v) + "'");
  return *v;
}

Value strip(Interp& in, const Value& s, const Value* chars, Side side) {
  const std::string& t = s.bytes();
  const bool blank = chars == nullptr || chars->is_none();
  const std::string set = blank ? "" : string_arg(in, chars, "strip").bytes();
  in.step(t.size() / 16);
  const auto goes = [&](size_t i) {
    in.step(1 + set.size() / 16);
    return blank ? is_space(decode_char(t, i)) : find_bytes(set, std::string_view(t).substr(i, char_bytes(t, i))) != std::string::npos;
  };
  size_t begin = 0, end = t.size();
  while (side != Side::kRight && begin < end && goes(begin)) begin += char_bytes(t, begin);
  while (side != Side::kLeft && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(t[last]) & 0xC0) == 0x80) --last;
    if (!goes(last)) break;
    end = last;
  }
  if (begin == 0 && end == t.size()) return s;
  return in.slice_text(s, begin, end);
}

Value replace(Interp& in, const Value& s, const Value& from, const Value& to, int64_t max) {
  const TextBody& t = s.str().text;
  const std::string& f = from.bytes();
  TextBuilder b;
  const auto put = [&] {
    b.append(to.str().text);
    in.step(1 + to.bytes().size() / 16);
    if (b.size() > in.limits().max_output_bytes) in.raise(Code::kExhausted, "a text made by replace is too long");
  };
  size_t at = 0;
  in.step(t.bytes.size() / 8);
  for (int64_t n = 0; max < 0 || n < max; ++n) {
    if (f.empty()) {
      if (at > t.bytes.size()) break;
      put();
      const size_t next = at < t.bytes.size() ? at + char_bytes(t.bytes, at) : at + 1;
      b.append(t, at, std::min(next, t.bytes.size()));
      at = next;
      continue;
    }
    const size_t hit = find_bytes(t.bytes, f, at);
    if (hit == std::string::npos) break;
    b.append(t, at, hit);
    put();
    at = hit + f.size();
  }
  b.append(t, std::min(at, t.bytes.size()), t.bytes.size());
  return in.make(b, s.str().safe);
}

namespace {

/// Maps every character through `f` (code point to UTF-8), keeping origins.
template <class F>
Value map_chars(Interp& in, const Value& s, F f) {
  const TextBody& t = s.str().text;
  in.step(t.bytes.size() / 4);
  TextBuilder b;
  size_t i = 0;
  for (const Run& run : t.runs) {
    std::string part;
    while (i < run.end) {
      part += f(decode_char(t.bytes, i));
      i += char_bytes(t.bytes, i);
    }
    b.append(part, run.origin);
  }
  return in.make(b, s.str().safe);
}

bool is_letter_at(const std::string& s, size_t i) { return i < s.size() && is_alpha(decode_char(s, i)); }

}  // namespace

Value map_case(Interp& in, const Value& s, bool upper) {
  const std::string& t = s.bytes();
  size_t next = 0;
  bool after_letter = false;
  return map_chars(in, s, [&](char32_t c) {
    next += char_bytes(t, next);
    const bool final_sigma = c == 0x3A3 && after_letter && !is_letter_at(t, next);
    after_letter = is_alpha(c);
    return upper ? upper_char(c) : final_sigma ? std::string("\u03C2") : lower_char(c);
  });
}

Value capitalize(Interp& in, const Value& s) {
  bool first = true;
  return map_chars(in, s, [&](char32_t c) { return std::exchange(first, false) ? upper_char(c) : lower_char(c); });
}

Value title(Interp& in, const Value& s, bool filter_rule) {
  bool start = true;
  return map_chars(in, s, [&](char32_t c) {
    const bool starts = start;
    start = filter_rule ? is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<' : !is_alpha(c);
    return starts ? upper_char(c) : lower_char(c);
  });
}

Value join(Interp& in, const Value& separator, const std::vector<Value>& items) {
  TextBuilder b;
  for (size_t i = 0; i < items.size(); ++i) {
    in.step(1 + separator.bytes().size() / 16);
    if (i > 0) b.append(separator.str().text);
    in.append_str(b, items[i]);
    if (b.size() > in.limits().max_output_bytes) in.raise(Code::kExhausted, "a joined text is too long");
  }
  return in.make(b);
}

}  // namespace carrel::jinja
