#include "engine/text/golden_text.h"

#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer_impl.h"

namespace carrel {
namespace {

using Json = nlohmann::json;
constexpr size_t kMaxFailures = 12;

Result<std::string> output_of(const std::string& command, const std::string& where) {
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return fail(Code::kIo, "cannot run xz", where);
  std::string out;
  char buffer[1 << 16];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
  if (::pclose(pipe) != 0) return fail(Code::kCorrupt, "xz cannot unpack it", where);
  return out;
}

void note(GoldenTextReport& report, bool ok, const std::function<std::string()>& what) {
  report.n_checks++;
  if (ok) return;
  report.n_failed++;
  if (report.failures.size() < kMaxFailures) report.failures.push_back(what());
}

std::string show(const std::vector<int32_t>& ids) { return Json(ids).dump(); }

Result<std::vector<Json>> lines_of(Env* env, const std::string& path) {
  CARREL_ASSIGN(const std::string text, read_packed(env, path));
  std::vector<Json> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    Json j = Json::parse(line, nullptr, false);
    if (j.is_discarded()) return fail(Code::kCorrupt, "holds a line that is not JSON", path);
    out.push_back(std::move(j));
  }
  return out;
}

void check_vector(const Tokenizer& t, const Json& v, GoldenTextReport& report) {
  const std::string text = v["text"];
  const auto ids = [&](const char* field, EncodeOptions options) {
    if (!v.contains(field)) return;
    const std::vector<int32_t> want = v[field];
    const auto got = t.encode(text, options);
    note(report, got && *got == want, [&] {
      return std::string(field) + " of " + v["cat"].get<std::string>() + " " + v["i"].dump() + " " + Json(text).dump().substr(0, 100) + ": " + (got ? show(*got).substr(0, 160) : got.error().text()) +
             " instead of " + show(want).substr(0, 160);
    });
  };
  ids("ids", {.add_special = false, .parse_special = true});
  ids("ids_special", {.add_special = true, .parse_special = true});
  ids("ids_plain", {.add_special = false, .parse_special = false});
  const auto decoded = [&](const char* field, const char* source, bool skip) {
    if (!v.contains(field) || !v.contains(source)) return;
    const std::string want = v[field], got = t.decode(v[source].get<std::vector<int32_t>>(), skip);
    note(report, got == want, [&] { return std::string(field) + " of " + v["cat"].get<std::string>() + " " + v["i"].dump() + ": " + Json(got).dump().substr(0, 120) + " instead of " + Json(want).dump().substr(0, 120); });
  };
  decoded("dec", "ids", false);
  decoded("dec_skip", "ids", true);
  decoded("dec_special", "ids_special", false);
  decoded("dec_special_skip", "ids_special", true);
  decoded("dec_plain", "ids_plain", false);
}

void check_stream(const Tokenizer& t, const Json& s, GoldenTextReport& report) {
  // Sending less at a time is allowed: what was sent must always be the beginning of what may be sent, and the whole must be equal.
  Detokenizer d(t, s.value("skip_special", s.value("skip", true)));
  std::string got, may;
  bool early = false;
  const auto& ids = s["ids"];
  for (size_t k = 0; k < ids.size(); k++) {
    got += d.push(ids[k].get<int32_t>());
    may += s["pieces"][k].get<std::string>();
    early = early || got.size() > may.size() || may.compare(0, got.size(), got) != 0;
  }
  got += d.flush();
  const std::string full = s["full"];
  note(report, !early && got == full, [&] { return "stream " + s.value("kind", std::string()) + ": " + Json(got).dump().substr(0, 120) + " instead of " + Json(full).dump().substr(0, 120); });
}

}  // namespace

Result<std::string> read_packed(Env* env, const std::string& path) {
  if (env->exists(path)) return read_file(env, path);
  if (!env->exists(path + ".xz")) return fail(Code::kNotFound, "is not there, packed or plain", path);
  if (path.find('\'') != std::string::npos) return fail(Code::kInvalidArgument, "has a quote in its name", path);
  return output_of("xz -dc '" + path + ".xz'", path);
}

Result<GoldenTextReport> check_tokenizer_family(Env* env, const std::string& dir) {
  CARREL_ASSIGN(const std::string tokenizer_json, read_packed(env, dir + "/tokenizer.json"));
  CARREL_ASSIGN(const std::string config_json, read_packed(env, dir + "/tokenizer_config.json"));
  CARREL_ASSIGN(const auto tokenizer, Tokenizer::from_json({tokenizer_json, config_json, {}}));
  GoldenTextReport report;
  CARREL_ASSIGN(const auto vectors, lines_of(env, dir + "/vectors.jsonl"));
  for (const Json& v : vectors) check_vector(*tokenizer, v, report);
  CARREL_ASSIGN(const auto streams, lines_of(env, dir + "/stream.jsonl"));
  for (const Json& s : streams) check_stream(*tokenizer, s, report);
  return report;
}

Result<GoldenTextReport> check_split_patterns(Env* env, const std::string& dir) {
  CARREL_ASSIGN(const std::string text, read_packed(env, dir + "/split_patterns.json"));
  const Json patterns = Json::parse(text, nullptr, false);
  if (!patterns.is_object()) return fail(Code::kCorrupt, "is not a JSON object", dir + "/split_patterns.json");
  CARREL_ASSIGN(const auto cases, lines_of(env, dir + "/split_patterns.jsonl"));
  std::map<std::string, tok::PreTokenizer> built;
  for (const auto& [name, pattern] : patterns.items()) {
    CARREL_ASSIGN(built[name], pre_tokenizer_from_json(Json{{"type", "Sequence"}, {"pretokenizers", pattern["stages"]}}.dump()));
  }
  GoldenTextReport report;
  for (const Json& c : cases) {
    const std::string name = c["pattern"];
    if (!built.contains(name)) continue;
    const auto words = built.at(name).run(c["text"].get<std::string>(), true);
    std::vector<std::string> pieces;
    if (words)
      for (const tok::Span& s : words->spans) pieces.push_back(tok::to_utf8(std::u32string_view(words->text).substr(s.begin, s.end - s.begin)));
    note(report, words && pieces == c["pieces"].get<std::vector<std::string>>(),
         [&] { return name + " " + c["text"].dump().substr(0, 80) + ": " + (words ? Json(pieces).dump().substr(0, 160) : words.error().text()) + " instead of " + c["pieces"].dump().substr(0, 160); });
  }
  return report;
}

}  // namespace carrel
