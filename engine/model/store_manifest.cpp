// See the header. JSON stays in this file; a manifest is not trusted although its digest is in its folder's name.
#include "engine/model/store_manifest.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/model/json_text.h"

namespace carrel {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxSide = int64_t{1} << 31;
constexpr int64_t kMaxElements = int64_t{1} << 44;
constexpr std::string_view kTextFiles[] = {"config.json",         "tokenizer.json",         "tokenizer_config.json",
                                           "chat_template.jinja", "generation_config.json", "special_tokens_map.json",
                                           kGgufTokenizerFile};

std::string dump(const Json& j) {
  return j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string hex(const Digest& d) {
  return to_hex(d);
}

/// Typed reading of one object; the first mistake sticks.
class Fields {
 public:
  Fields(const Json& j, std::string* error) : j_(j), error_(error) {
    if (!j.is_object()) fail_with("not an object");
  }
  int64_t integer(const char* key, int64_t max) {
    const Json* v = get(key);
    if (v == nullptr || !v->is_number_unsigned() || v->get<uint64_t>() > static_cast<uint64_t>(max)) return fail_with(key), 0;
    return v->get<int64_t>();
  }
  std::string text(const char* key, size_t max_bytes) {
    const Json* v = get(key);
    if (v == nullptr || !v->is_string() || v->get_ref<const std::string&>().size() > max_bytes) return fail_with(key), std::string();
    return v->get<std::string>();
  }
  Digest digest(const char* key) {
    Digest d{};
    const auto bytes = from_hex(text(key, 64));
    if (!bytes || bytes->size() != d.size()) return fail_with(key), d;
    std::memcpy(d.data(), bytes->data(), d.size());
    return d;
  }
  bool has(const char* key) const { return get(key) != nullptr; }
  const Json& list(const char* key) {
    static const Json kEmpty = Json::array();
    const Json* v = get(key);
    if (v == nullptr || !v->is_array()) return fail_with(key), kEmpty;
    return *v;
  }
  void fail_with(const std::string& what) {
    if (error_->empty()) *error_ = what;
  }

 private:
  const Json* get(const char* key) const {
    if (!j_.is_object()) return nullptr;
    const auto it = j_.find(key);
    return it == j_.end() ? nullptr : &*it;
  }
  const Json& j_;
  std::string* error_;
};

/// Of a request, by its id.
std::string_view kind_of(const std::string& id) {
  return id.starts_with('m') ? "matrix" : id.starts_with('v') ? "vector" : id.starts_with('t') ? "table" : "unknown";
}

StoredPiece read_piece(const Json& j, std::string* error) {
  Fields f(j, error);
  StoredPiece p;
  p.id = f.text("id", 4096);  // two names of tensors
  p.tensor = f.text("tensor", 1024);
  const std::string kind = f.text("kind", 16);
  p.is_matrix = kind == "matrix";
  if (kind != kind_of(p.id)) f.fail_with("kind of " + p.tensor);
  p.rows = f.integer("rows", kMaxElements);
  p.cols = f.integer("cols", kMaxSide);
  p.offset = static_cast<uint64_t>(f.integer("offset", INT64_MAX / 2));
  p.bytes = static_cast<uint64_t>(f.integer("bytes", INT64_MAX / 2));
  p.sha256 = f.digest("sha256");
  if (p.is_matrix) p.form = static_cast<Form>(f.integer("form", static_cast<int64_t>(kLastForm)));
  if (!error->empty()) return p;
  if (p.is_matrix && (p.rows < 1 || p.cols < 1 || p.rows > kMaxSide || p.rows > kMaxElements / p.cols)) {
    f.fail_with("shape of " + p.tensor);
  } else if (p.bytes != (p.is_matrix ? packed_bytes(p.form, p.rows, p.cols) : static_cast<size_t>(p.rows) * 4)) {
    f.fail_with("size of " + p.tensor);
  }
  return p;
}

/// Pieces stand in order, aligned, without overlap, inside of the file.
void check_places(const Manifest& m, std::string* error) {
  uint64_t end = kPieceAlign;
  std::set<std::string_view> ids;
  for (const StoredPiece& p : m.pieces) {
    if (p.offset % kPieceAlign != 0 || p.offset < end || p.offset > m.weights_bytes || p.bytes > m.weights_bytes - p.offset ||
        !ids.insert(p.id).second) {
      *error = "place of " + p.tensor;
      return;
    }
    end = p.offset + p.bytes;
  }
}

Manifest read_manifest(const Json& j, std::string* error) {
  Manifest m;
  Fields f(j, error);
  const std::string format = f.text("source_format", 16);
  m.format = format == "gguf" ? SourceFormat::kGguf : SourceFormat::kHuggingFace;
  if (m.format != SourceFormat::kGguf && format != "huggingface") f.fail_with("source_format");
  if (f.has("identity")) m.identity = f.digest("identity");
  m.weights_bytes = static_cast<uint64_t>(f.integer("weights_bytes", INT64_MAX / 2));
  m.file_bytes = f.integer("file_bytes", INT64_MAX / 2);
  for (const Json& e : f.list("texts")) {
    Fields t(e, error);
    m.texts.push_back(
        {.file = t.text("file", 64), .bytes = static_cast<uint64_t>(t.integer("bytes", INT64_MAX / 2)), .sha256 = t.digest("sha256")});
    if (std::ranges::find(kTextFiles, m.texts.back().file) == std::end(kTextFiles)) t.fail_with("name of a text");
  }
  for (const Json& e : f.list("source_tensors")) {
    Fields t(e, error);
    SourceTensor s{.name = t.text("name", 1024), .type = t.text("type", 64), .shape = {}};
    for (const Json& d : t.list("shape")) {
      if (!d.is_number_unsigned() || d.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        t.fail_with("shape of " + s.name);
      } else {
        s.shape.push_back(d.get<int64_t>());
      }
    }
    m.source_tensors.push_back(std::move(s));
  }
  for (const Json& e : f.list("pieces")) m.pieces.push_back(read_piece(e, error));
  if (error->empty()) check_places(m, error);
  return m;
}

}  // namespace

std::string encode_manifest(const Manifest& m) {
  Json j = {{"format", "carrel-model"}, {"version", 1}, {"source_format", m.format == SourceFormat::kGguf ? "gguf" : "huggingface"}};
  if (m.identity) j["identity"] = hex(*m.identity);
  j["weights_bytes"] = m.weights_bytes;
  j["file_bytes"] = m.file_bytes;
  j["texts"] = Json::array();
  j["source_tensors"] = Json::array();
  j["pieces"] = Json::array();
  for (const StoredText& t : m.texts) j["texts"].push_back({{"file", t.file}, {"bytes", t.bytes}, {"sha256", hex(t.sha256)}});
  for (const SourceTensor& t : m.source_tensors) j["source_tensors"].push_back({{"name", t.name}, {"type", t.type}, {"shape", t.shape}});
  for (const StoredPiece& p : m.pieces) {
    Json e = {{"id", p.id},         {"tensor", p.tensor}, {"rows", p.rows},         {"cols", p.cols},
              {"offset", p.offset}, {"bytes", p.bytes},   {"sha256", hex(p.sha256)}};
    e["kind"] = kind_of(p.id);
    if (p.is_matrix) {
      e["form"] = static_cast<int>(p.form);
      e["form_name"] = to_string(p.form);
    }
    j["pieces"].push_back(std::move(e));
  }
  return dump(j);
}

Result<Manifest> decode_manifest(std::string_view text, const std::string& where) {
  CARREL_ASSIGN(const std::string clean, clean_json(text, where));
  const Json j = Json::parse(clean, nullptr, false);
  if (j.is_discarded() || !j.is_object() || j.value("format", Json()) != "carrel-model")
    return fail(Code::kCorrupt, "is no manifest of a stored model; remove the entry and import the model again", where);
  if (j.value("version", Json()) != 1)
    return fail(Code::kUnsupported, "was written by another version of Carrel; import the model again", where);
  std::string error;
  Manifest m = read_manifest(j, &error);
  if (!error.empty())
    return fail(Code::kCorrupt, "holds an impossible value (" + error + "); remove the entry and import the model again", where);
  return m;
}

std::string encode_note(const EntryNote& n) {
  return dump({{"name", n.name}, {"source", n.source}, {"imported_ms", n.imported_ms}});
}

EntryNote decode_note(std::string_view text) {
  std::string ignored;
  const Json j = Json::parse(text, nullptr, false);
  Fields f(j, &ignored);
  return {.name = f.text("name", 1024), .source = f.text("source", 8192), .imported_ms = f.integer("imported_ms", INT64_MAX)};
}

}  // namespace carrel
