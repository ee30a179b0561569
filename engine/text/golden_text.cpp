// See golden_text.h.
#include "engine/text/golden_text.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_steps.h"

namespace carrel {
namespace {

using nlohmann::json;

constexpr size_t kMaxBytes = size_t{256} << 20;
constexpr size_t kMaxFailures = 20;

void note(GoldenTextReport& report, bool ok, const std::string& what) {
  ++report.n_checks;
  if (ok) return;
  ++report.n_failed;
  if (report.failures.size() < kMaxFailures) report.failures.push_back(what);
}

std::string shell_quoted(const std::string& s) {
  std::string out = "'";
  for (char c : s) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

Result<std::string> unpack(const std::string& path) {
  struct Close {
    void operator()(std::FILE* f) const { pclose(f); }
  };
  std::unique_ptr<std::FILE, Close> pipe(popen(("xz -dc " + shell_quoted(path)).c_str(), "r"));
  if (!pipe) return fail(Code::kIo, "cannot run xz; install xz-utils", path);
  std::string out, buffer(1 << 16, '\0');
  while (size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe.get())) {
    out.append(buffer, 0, n);
    if (out.size() > kMaxBytes) return fail(Code::kExhausted, "it unpacks to more than 256 MiB", path);
  }
  if (pclose(pipe.release()) != 0) return fail(Code::kIo, "xz cannot unpack it; is xz-utils installed?", path);
  return out;
}

Result<json> parse(const std::string& text, const std::string& where) {
  json j = json::parse(text, nullptr, false);
  if (j.is_discarded()) return fail(Code::kCorrupt, "it is not JSON", where);
  return j;
}

/// Calls f with each line's object.
template <class F>
Status for_each_line(const std::string& text, const std::string& where, F&& f) {
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) {
      CARREL_ASSIGN(json j, parse(text.substr(at, end - at), where));
      CARREL_TRY(f(j));
    }
    at = end + 1;
  }
  return {};
}

struct Vectors {
  const Tokenizer& tokenizer;
  GoldenTextReport& report;

  Status check(const json& j) const {
    const std::string text = j.at("text").get<std::string>();
    const std::string name = j.at("cat").get<std::string>() + " #" + std::to_string(j.at("i").get<int>()) + " ";
    CARREL_TRY(ids(j, name, "ids", text, {false, true}));
    CARREL_TRY(ids(j, name, "ids_special", text, {true, true}));
    CARREL_TRY(ids(j, name, "ids_plain", text, {false, false}));
    decoded(j, name, "dec", "ids", false);
    decoded(j, name, "dec_skip", "ids", true);
    decoded(j, name, "dec_special", "ids_special", false);
    decoded(j, name, "dec_special_skip", "ids_special", true);
    decoded(j, name, "dec_plain", "ids_plain", false);
    return {};
  }

  Status ids(const json& j, const std::string& name, const char* field, const std::string& text, EncodeOptions options) const {
    if (!j.contains(field)) return {};
    CARREL_ASSIGN(auto got, tokenizer.encode(text, options));
    const auto want = j.at(field).get<std::vector<int32_t>>();
    note(report, got == want,
         got == want ? ""
                     : name + field + " of " + json(text).dump().substr(0, 120) + ": " + json(got).dump().substr(0, 200) + " instead of " +
                           json(want).dump().substr(0, 200));
    return {};
  }

  void decoded(const json& j, const std::string& name, const char* field, const char* from, bool skip) const {
    if (!j.contains(field)) return;
    const std::string got = tokenizer.decode(j.at(from).get<std::vector<int32_t>>(), skip), want = j.at(field).get<std::string>();
    note(report, got == want,
         got == want ? "" : name + field + ": " + json(got).dump().substr(0, 200) + " instead of " + json(want).dump().substr(0, 200));
  }
};

void check_stream(const Tokenizer& tokenizer, const json& j, GoldenTextReport& report) {
  Detokenizer detokenizer(tokenizer, j.at("skip_special").get<bool>());
  const auto ids = j.at("ids").get<std::vector<int32_t>>();
  std::vector<std::string> pieces;
  std::string full;
  for (int32_t id : ids) full += pieces.emplace_back(detokenizer.push(id));
  const std::string flush = detokenizer.flush();
  const bool ok = pieces == j.at("pieces").get<std::vector<std::string>>() && flush == j.at("flush").get<std::string>() &&
                  full + flush == j.at("full").get<std::string>();
  note(report, ok,
       ok ? ""
          : "stream " + j.at("kind").get<std::string>() + " " + j.at("ids").dump().substr(0, 200) + ": " +
                json(pieces).dump().substr(0, 300));
}

Status check_all(Env* env, const Tokenizer& tokenizer, const std::string& dir, GoldenTextReport& report) {
  CARREL_ASSIGN(std::string vectors, read_packed(env, dir + "/vectors.jsonl"));
  CARREL_ASSIGN(std::string streams, read_packed(env, dir + "/stream.jsonl"));
  const Vectors check{tokenizer, report};
  CARREL_TRY(for_each_line(vectors, dir + "/vectors.jsonl", [&](const json& j) { return check.check(j); }));
  return for_each_line(streams, dir + "/stream.jsonl", [&](const json& j) -> Status {
    check_stream(tokenizer, j, report);
    return {};
  });
}

Status check_cases(const Tokenizer& tokenizer, const json& root, std::span<const std::string> skip, GoldenTextReport& report) {
  const Vectors check{tokenizer, report};
  for (const json& j : root.at("cases")) {
    const std::string text = j.at("text").get<std::string>();
    if (std::find(skip.begin(), skip.end(), text) != skip.end()) continue;
    CARREL_TRY(check.ids(j, "", "ids", text, {false, true}));
    CARREL_TRY(check.ids(j, "", "ids_plain", text, {false, false}));
    check.decoded(j, "", "dec", "ids", false);
  }
  return {};
}

Status check_splits(Env* env, const std::string& dir, GoldenTextReport& report) {
  CARREL_ASSIGN(std::string text, read_packed(env, dir + "/split_patterns.json"));
  CARREL_ASSIGN(std::string lines, read_packed(env, dir + "/split_patterns.jsonl"));
  CARREL_ASSIGN(json patterns, parse(text, dir + "/split_patterns.json"));
  std::vector<std::pair<std::string, tok::PreTokenizer>> splitters;
  for (const auto& [name, j] : patterns.items()) {
    tok::PreTokenizer p;
    CARREL_TRY(tok::read_pre_tokenizer({{"type", "Sequence"}, {"pretokenizers", j.at("stages")}}, p));
    splitters.emplace_back(name, std::move(p));
  }
  return for_each_line(lines, dir + "/split_patterns.jsonl", [&](const json& j) -> Status {
    for (const auto& [name, splitter] : splitters) {
      if (name != j.at("pattern").get<std::string>()) continue;
      CARREL_ASSIGN(tok::Words words, splitter.run(j.at("text").get<std::string>(), true));
      std::vector<std::string> got;
      for (const tok::Span& s : words.spans) got.push_back(tok::to_utf8(std::u32string_view(words.text).substr(s.begin, s.end - s.begin)));
      const bool ok = got == j.at("pieces").get<std::vector<std::string>>();
      note(report, ok, ok ? "" : name + " on " + j.at("text").dump().substr(0, 200) + ": " + json(got).dump().substr(0, 300));
    }
    return {};
  });
}

/// Runs the check; a field that is missing or of another type is the vectors' fault and an Error.
template <class F>
Result<GoldenTextReport> guarded(const std::string& dir, F&& check) {
  GoldenTextReport report;
  try {
    CARREL_TRY(check(report));
  } catch (const std::exception& e) {
    return fail(Code::kCorrupt, std::string("the vectors do not have the expected form: ") + e.what(), dir);
  }
  return report;
}

}  // namespace

Result<std::string> read_packed(Env* env, const std::string& path) {
  if (env->exists(path)) return read_file(env, path, kMaxBytes);
  if (env->exists(path + ".xz")) return unpack(path + ".xz");
  return fail(Code::kNotFound, "there is no such file, nor one with .xz", path);
}

Result<GoldenTextReport> check_tokenizer_family(Env* env, const std::string& dir) {
  CARREL_ASSIGN(std::string tokenizer_json, read_packed(env, dir + "/tokenizer.json"));
  CARREL_ASSIGN(std::string config, read_packed(env, dir + "/tokenizer_config.json"));
  CARREL_ASSIGN(auto tokenizer, Tokenizer::from_json({tokenizer_json, config, {}}));
  return check_tokenizer(env, *tokenizer, dir);
}

Result<GoldenTextReport> check_tokenizer(Env* env, const Tokenizer& tokenizer, const std::string& dir) {
  return guarded(dir, [&](GoldenTextReport& report) { return check_all(env, tokenizer, dir, report); });
}

Result<GoldenTextReport> check_token_cases(Env* env, const Tokenizer& tokenizer, const std::string& path,
                                           std::span<const std::string> skip) {
  CARREL_ASSIGN(std::string text, read_packed(env, path));
  CARREL_ASSIGN(json root, parse(text, path));
  return guarded(path, [&](GoldenTextReport& report) { return check_cases(tokenizer, root, skip, report); });
}

Result<GoldenTextReport> check_split_patterns(Env* env, const std::string& dir) {
  return guarded(dir, [&](GoldenTextReport& report) { return check_splits(env, dir, report); });
}

}  // namespace carrel
