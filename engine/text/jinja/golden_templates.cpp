#include "engine/text/jinja/golden_templates.h"

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/text/jinja/template.h"

namespace carrel::jinja {
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kMaxFailures = 20;
constexpr int64_t kNow = 1751284800000;  // 2025-06-30 12:00:00, the time of the reference

Result<std::vector<Json>> lines_of(Env* env, const std::string& path) {
  CARREL_ASSIGN(const std::string text, read_file(env, path));
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

/// True when `got` is what the reference says: its text, or an error where it has one.
bool agrees(const Json& want, const Result<std::string>& got) {
  if (want.contains("output")) return got && *got == want["output"].get<std::string>();
  const Json& error = want["error"];
  const std::string kind = error.is_object() ? error.value("kind", "") : "";
  if (kind == "raise") return !got && got.error().code == Code::kInvalidArgument && got.error().message == error.value("message", "");
  return kind == "runtime" || !got;  // of a failure inside the reference an engine may make something
}

void note(GoldenTemplateReport& report, const std::string& name, const Json& want, const Result<std::string>& got) {
  if (report.failures.size() >= kMaxFailures) return;
  const std::string expected = want.contains("output") ? want["output"].get<std::string>() : want["error"].dump();
  const std::string made = got ? *got : "error: " + got.error().text();
  size_t at = 0;
  while (at < expected.size() && at < made.size() && expected[at] == made[at]) at++;
  const auto around = [&](const std::string& s) { return Json(s.substr(at > 30 ? at - 30 : 0, 110)).dump(-1, ' ', false, Json::error_handler_t::replace); };
  report.failures.push_back(name + " at byte " + std::to_string(at) + ": " + around(made) + " instead of " + around(expected));
}

}  // namespace

Result<GoldenTemplateReport> check_templates(Env* env, const std::string& dir) {
  GoldenTemplateReport report;
  CARREL_ASSIGN(const std::string index_text, read_file(env, dir + "/index.json"));
  const Json index = Json::parse(index_text, nullptr, false);
  CARREL_ASSIGN(const auto inputs, lines_of(env, dir + "/inputs.jsonl"));
  std::map<std::string, Json> vars;
  for (const Json& i : inputs) vars[i["id"].get<std::string>()] = i["vars"];
  std::map<std::string, Template> templates;
  CARREL_ASSIGN(const auto cases, lines_of(env, dir + "/cases.jsonl"));
  for (const Json& c : cases) {
    const std::string name = c["template"], input = c["input"];
    if (!templates.contains(name)) {
      CARREL_ASSIGN(const std::string source, read_file(env, dir + "/" + name + (name.ends_with(".jinja") ? "" : ".jinja")));
      auto parsed = Template::parse(source);
      if (!parsed) return fail(parsed.error().code, parsed.error().text(), name);
      templates.emplace(name, std::move(*parsed));
    }
    Json v = vars[input];
    const Json& templates_index = index.contains("templates") ? index["templates"] : index;
    for (const Json& t : templates_index) {
      if (!t.is_object() || (t.value("name", "") != name && t.value("template", "") != name)) continue;
      const Json& tokens = t.contains("tokens") ? t["tokens"] : t;
      for (const char* token : {"bos_token", "eos_token", "pad_token"})
        if (tokens.contains(token)) v[token] = tokens[token];
    }
    if (templates_index.is_object() && templates_index.contains(name)) {
      const Json& t = templates_index[name];
      const Json& tokens = t.contains("tokens") ? t["tokens"] : t;
      for (const char* token : {"bos_token", "eos_token", "pad_token"})
        if (tokens.contains(token)) v[token] = tokens[token];
    }
    CARREL_ASSIGN(const Value variables, value_from_json(v.dump()));
    const auto got = templates.at(name).render(variables, {}, {.unix_ms = kNow});
    report.n_cases++;
    if (agrees(c, got)) continue;
    report.n_cases_failed++;
    note(report, name + " / " + input, c, got);
  }
  CARREL_ASSIGN(const auto micro, lines_of(env, dir + "/micro.jsonl"));
  if (micro.empty()) return report;
  CARREL_ASSIGN(const Value variables, value_from_json(micro.front()["vars"].dump()));
  for (size_t i = 1; i < micro.size(); i++) {
    const std::string source = micro[i]["template"];
    const auto parsed = Template::parse(source);
    const Result<std::string> got = parsed ? parsed->render(variables, {}, {.unix_ms = kNow}) : Result<std::string>(std::unexpected(parsed.error()));
    report.n_micro++;
    const bool ok = micro[i].contains("output") ? agrees(micro[i], got) : !got;
    if (ok) continue;
    report.n_micro_failed++;
    note(report, micro[i]["group"].get<std::string>() + " " + source, micro[i], got);
  }
  return report;
}

}  // namespace carrel::jinja
