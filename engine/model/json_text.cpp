// See the header. The only file here that needs a JSON library for whole documents; safetensors.cpp streams.
#include "engine/model/json_text.h"

#include <nlohmann/json.hpp>
#include <set>

namespace carrel {
namespace {

using Json = nlohmann::json;

/// Length of the well-formed UTF-8 sequence at the start of `s`, 0 when there is none.
size_t utf8_length(std::string_view s) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char c = at(0);
  if (c < 0x80) return 1;
  const size_t n = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
  if (c < 0xC2 || c > 0xF4 || s.size() < n) return 0;
  for (size_t i = 1; i < n; i++)
    if ((at(i) & 0xC0) != 0x80) return 0;
  const unsigned char d = at(1);
  if ((c == 0xE0 && d < 0xA0) || (c == 0xED && d > 0x9F) || (c == 0xF0 && d < 0x90) || (c == 0xF4 && d > 0x8F)) return 0;
  return n;
}

size_t skip_space(std::string_view s, size_t i) {
  while (i < s.size() && (s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r')) i++;
  return i;
}

/// Length of {"__float__": "…"} at `at`, 0 when something else stands there.
size_t float_object(std::string_view s, size_t at) {
  constexpr std::string_view kKey = "\"__float__\"";
  size_t i = skip_space(s, at + 1);
  if (s.substr(i, kKey.size()) != kKey) return 0;
  i = skip_space(s, i + kKey.size());
  if (i >= s.size() || s[i] != ':') return 0;
  i = skip_space(s, i + 1);
  if (i >= s.size() || s[i] != '"') return 0;
  i = s.find('"', i + 1);
  if (i == std::string_view::npos) return 0;
  i = skip_space(s, i + 1);
  return i < s.size() && s[i] == '}' ? i + 1 - at : 0;
}

/// Length of a bare non-finite number at `i`.
size_t bare_float(std::string_view s, size_t i) {
  const size_t sign = s[i] == '-' ? 1 : 0;
  if (s.substr(i + sign, 8) == "Infinity") return sign + 8;
  return s.substr(i, 3) == "NaN" ? 3 : 0;
}

size_t string_end(std::string_view s, size_t i) {  // index behind the closing quote, npos when open
  for (i++; i < s.size(); i++) {
    if (s[i] == '\\') {
      i++;
    } else if (s[i] == '"') {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

Result<Json> parse_small(std::string_view text, const std::string& where) {
  CARREL_ASSIGN(const std::string clean, clean_json(text, where));
  Json j = Json::parse(clean, nullptr, false);
  if (j.is_discarded() || !j.is_object()) return fail(Code::kCorrupt, "is not a JSON object; fetch the file again", where);
  return j;
}

Status check_file_name(const std::string& file, const std::string& where) {
  if (file.empty() || file.front() == '.' || file.find('/') != std::string::npos || file.find('\0') != std::string::npos)
    return fail(Code::kCorrupt, "names the file '" + file + "', which is not a plain name in the same folder", where);
  return {};
}

/// Reads {"weight_map": {tensor: file}}; a DOM would hide a tensor named twice.
class IndexReader final : public Json::json_sax_t {
 public:
  explicit IndexReader(std::string where) : where_(std::move(where)) {}

  bool start_object(size_t) override {
    depth_++;
    if (depth_ == 2) in_map_ = key_ == "weight_map";
    return depth_ <= 2 || !in_map_ || refuse("weight_map must name one file per tensor");
  }
  bool end_object() override {
    if (depth_-- == 2) in_map_ = false;
    return true;
  }
  bool start_array(size_t) override { return !in_map_ || refuse("weight_map must name one file per tensor"); }
  bool end_array() override { return true; }
  bool key(string_t& k) override {
    key_ = k;
    return !in_map_ || seen_.insert(k).second || refuse("weight_map names the tensor '" + k + "' twice");
  }
  bool string(string_t& v) override {
    if (!in_map_ || depth_ != 2) return true;
    if (auto s = check_file_name(v, where_); !s) return refuse(s.error().message);
    entries.push_back({key_, v});
    return true;
  }
  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t) override { return other(); }
  bool number_unsigned(number_unsigned_t) override { return other(); }
  bool number_float(number_float_t, const string_t&) override { return other(); }
  bool binary(binary_t&) override { return other(); }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    return refuse("is not JSON at byte " + std::to_string(at) + "; fetch the file again");
  }

  std::vector<ShardEntry> entries;
  std::string error;

 private:
  bool other() { return !in_map_ || refuse("weight_map must name one file per tensor"); }
  bool refuse(std::string why) {
    if (error.empty()) error = std::move(why);
    return false;
  }
  std::string where_, key_;
  std::set<std::string> seen_;
  int depth_ = 0;
  bool in_map_ = false;
};

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

Result<std::string> clean_json(std::string_view text, const std::string& where) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (!is_utf8(text)) return fail(Code::kCorrupt, "is not UTF-8 text; fetch the file again", where);
  std::string out;
  out.reserve(text.size());
  int depth = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    size_t n = 1;
    bool null = false;
    if (c == '"') {
      const size_t end = string_end(text, i);
      if (end == std::string_view::npos)
        return fail(Code::kCorrupt, "a string that begins at byte " + std::to_string(i) + " does not end", where);
      n = end - i;
    } else if (const size_t f = c == '{' ? float_object(text, i) : bare_float(text, i); f > 0) {
      n = f;
      null = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxJsonDepth) return fail(Code::kCorrupt, "nests deeper than " + std::to_string(kMaxJsonDepth) + " levels", where);
    } else if (c == '}' || c == ']') {
      depth--;
    }
    out += null ? std::string_view("null") : text.substr(i, n);
    i += n;
  }
  return out;
}

std::string json_quote(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    const auto c = static_cast<unsigned char>(text[0]);
    if (n == 0) {
      out += "\xEF\xBF\xBD";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += text[0];
    } else if (c < 0x20) {
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    } else {
      out += text.substr(0, n);
    }
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out + '"';
}

Result<std::string> chat_template_of(std::string_view text, const std::string& where) {
  CARREL_ASSIGN(const Json j, parse_small(text, where));
  const auto it = j.find("chat_template");
  if (it == j.end() || it->is_null()) return std::string();
  if (it->is_string()) return it->get<std::string>();
  std::string found;
  if (it->is_array()) {
    for (const Json& e : *it) {
      if (!e.is_object() || !e.contains("name") || !e["name"].is_string() || !e.contains("template") || !e["template"].is_string())
        continue;
      if (found.empty() || e["name"] == "default") found = e["template"].get<std::string>();
    }
  }
  if (found.empty()) return fail(Code::kCorrupt, "chat_template is neither a text nor a list of named texts", where);
  return found;
}

Result<std::vector<ShardEntry>> read_shard_index(std::string_view text, const std::string& where) {
  CARREL_ASSIGN(const std::string clean, clean_json(text, where));
  IndexReader reader(where);
  if (!Json::sax_parse(clean, &reader)) return fail(Code::kCorrupt, reader.error.empty() ? "is not JSON" : reader.error, where);
  if (reader.entries.empty()) return fail(Code::kCorrupt, "has no weight_map", where);
  return std::move(reader.entries);
}

}  // namespace carrel
