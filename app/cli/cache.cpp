// The cache of a running server: why a prompt is reused or not, verification, purge.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/admin/match_text.h"
#include "app/cli/cli.h"
#include "app/cli/remote.h"
#include "engine/model/json_text.h"

namespace carrel {

namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMostPromptBytes = 8u << 20;

/// "line 3, column 7" of a byte of the text.
std::string place_of(const std::string& text, size_t byte) {
  const std::string_view before = std::string_view(text).substr(0, std::min(byte, text.size()));
  const size_t line = before.rfind('\n');
  return "line " + std::to_string(1 + std::count(before.begin(), before.end(), '\n')) + ", column " +
         std::to_string(before.size() - (line == std::string_view::npos ? 0 : line + 1) + 1);
}

Result<Json> parse_file(const std::string& text, const std::string& file) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& e) {
    return fail(Code::kInvalidArgument, "is not JSON: it breaks at " + place_of(text, e.byte > 0 ? e.byte - 1 : 0), file);
  }
}

/// What the matching route would be sent, with the tenant.
Result<std::string> explain_body(const CacheArgs& args) {
  const int n_given = !args.prompt_file.empty() + !args.messages_file.empty() + !args.input_file.empty();
  if (n_given != 1) return fail(Code::kInvalidArgument, "give one of --messages, --prompt and --input");
  const std::string& file = !args.messages_file.empty() ? args.messages_file
                            : !args.prompt_file.empty() ? args.prompt_file
                                                        : args.input_file;
  CARREL_ASSIGN(const std::string text, read_file(Env::real(), file, kMostPromptBytes));
  if (!is_utf8(text)) return fail(Code::kInvalidArgument, "is not UTF-8 text", file);  // replaced bytes would be another prompt
  Json body = Json::object();
  if (!args.messages_file.empty()) {
    CARREL_ASSIGN(Json given, parse_file(text, file));
    if (given.is_array())
      body["messages"] = std::move(given);
    else if (given.is_object() && given.contains("messages"))
      body = std::move(given);
    else
      return fail(Code::kInvalidArgument, "must hold a JSON array of messages, or the body of a chat request", file);
  } else {
    body[args.prompt_file.empty() ? "input" : "prompt"] = text;
  }
  body["tenant"] = args.tenant;
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<int> explain(const CacheArgs& args) {
  CARREL_ASSIGN(const std::string body, explain_body(args));
  CARREL_ASSIGN(const std::string document, ask_server(args.server, "POST", "/admin/v1/cache/explain", body));
  if (args.server.common.json) {
    std::printf("%s", document.c_str());
    return 0;
  }
  CARREL_ASSIGN(const std::string text, explain_text(document));
  std::printf("%s", text.c_str());
  return 0;
}

/// Asks, and prints the document or the sentence made of it; what it returns is the exit status.
Result<int> act(const CacheArgs& args, const char* path, const Json& body, int (*say)(const Json&, bool json)) {
  CARREL_ASSIGN(const std::string document, ask_server(args.server, "POST", path, body.dump()));
  const Json j = Json::parse(document, nullptr, false);
  if (!j.is_object()) return fail(Code::kCorrupt, "the server's answer is no JSON object", args.server.url);
  if (args.server.common.json) std::printf("%s", document.c_str());
  return say(j, args.server.common.json);
}

int say_verified(const Json& j, bool json) {
  const bool ok = j.value("ok", false);
  const auto records = static_cast<long long>(j.value("records", int64_t{0})),
             bad = static_cast<long long>(j.value("quarantined", int64_t{0}));
  if (!json && bad == 0) std::printf("%lld records are what was published\n", records);
  if (!json && bad > 0)
    std::printf("%lld of %lld records are not what was published and were taken out of use: test the machine's memory\n", bad, records);
  if (!json && j.contains("disk")) {
    const Json& disk = j["disk"];
    const auto count = [&](const char* name) { return static_cast<long long>(disk.value(name, int64_t{0})); };
    std::printf("disk: %lld extents read, %lld damaged and taken out of use, %lld not read\n", count("extents"), count("quarantined"), count("not_read"));
    for (const Json& line : disk.value("findings", Json::array())) std::printf("  %s\n", line.get<std::string>().c_str());
  }
  return ok ? 0 : 1;
}

int say_purged(const Json& j, bool json) {
  if (!json)
    std::printf("tenant %s: %lld records dropped, from every tier; running requests finish and leave nothing behind\n",
                j.value("tenant", "").c_str(), static_cast<long long>(j.value("dropped_records", int64_t{0})));
  return 0;
}

int finish(const Result<int>& done, const CacheArgs& args) {
  return done ? *done : report(done.error(), args.server.common);
}

}  // namespace

int cmd_cache_explain(const CacheArgs& args) {
  return finish(explain(args), args);
}
int cmd_cache_verify(const CacheArgs& args) {
  return finish(act(args, "/admin/v1/cache/verify", Json::object(), say_verified), args);
}
int cmd_cache_purge(const CacheArgs& args) {
  return finish(act(args, "/admin/v1/cache/purge", Json{{"tenant", args.tenant}}, say_purged), args);
}

}  // namespace carrel
