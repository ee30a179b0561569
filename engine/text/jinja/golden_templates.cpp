// See golden_templates.h.
#include "engine/text/jinja/golden_templates.h"

#include <algorithm>
#include <map>
#include <optional>

#include "engine/text/chat_template.h"
#include "engine/text/jinja/template.h"

namespace carrel {
namespace {

using jinja::Kind;
using jinja::Value;

constexpr size_t kShownFailures = 60;
constexpr int64_t kNowMs = 1'751'284'800'000;  // 2025-06-30 12:00:00, the time of the reference

Result<std::vector<Value>> read_lines(Env* env, const std::string& path) {
  CARREL_ASSIGN(const std::string text, read_file(env, path));
  std::vector<Value> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) {
      auto v = jinja::value_from_json(std::string_view(text).substr(at, end - at));
      if (!v) return fail(Code::kCorrupt, v.error().message, path);
      if (!v->is(Kind::kDict)) return fail(Code::kCorrupt, "a line is not an object", path);
      out.push_back(*std::move(v));
    }
    at = end + 1;
  }
  return out;
}

const Value* member(const Value& v, std::string_view key) { return v.is(Kind::kDict) ? v.dict().find(key) : nullptr; }

std::string text_of(const Value& v, std::string_view key) {
  const Value* m = member(v, key);
  return m != nullptr && m->is_string() ? m->bytes() : "";
}

/// What a case expects.
struct Expected {
  std::string kind;  // "", "raise", "runtime", "syntax"
  std::string text;  // output or message
};

Expected expected_of(const Value& c) {
  const Value* error = member(c, "error");
  if (error == nullptr) return {"", text_of(c, "output")};
  return {text_of(*error, "kind"), text_of(*error, "message")};
}

/// Empty when `got` is as expected, else what differs.
std::string difference(const Expected& want, const Result<std::string>& got) {
  if (want.kind == "runtime" || (want.kind == "syntax" && !got)) return "";
  if (want.kind == "syntax") return "accepted a template that is not well-formed";
  if (want.kind == "raise") {
    if (got) return "rendered, where the template refuses: " + want.text;
    return got.error().code == Code::kInvalidArgument && got.error().message == want.text ? "" : "wrong message: " + got.error().text();
  }
  if (!got) return "failed: " + got.error().text();
  if (*got == want.text) return "";
  size_t at = 0;
  while (at < got->size() && at < want.text.size() && (*got)[at] == want.text[at]) ++at;
  const size_t from = at > 40 ? at - 40 : 0;
  return "differs at byte " + std::to_string(at) + ": want «" + want.text.substr(from, 100) + "» got «" + got->substr(from, 100) + "»";
}

class Checker {
 public:
  explicit Checker(Env* env) : env_(env) {}

  Status micro(const std::string& file) {
    CARREL_ASSIGN(const std::vector<Value> lines, read_lines(env_, file));
    if (lines.empty()) return fail(Code::kCorrupt, "has no line of variables", file);
    const Value* vars = member(lines[0], "vars");
    if (vars == nullptr) return fail(Code::kCorrupt, "the first line has no variables", file);
    for (size_t i = 1; i < lines.size(); ++i) {
      const std::string source = text_of(lines[i], "template");
      const auto t = jinja::Template::parse(source);
      const Expected want = expected_of(lines[i]);
      const Result<std::string> got = t ? t->render(*vars, {}, {kNowMs, 0}) : Result<std::string>(std::unexpected(t.error()));
      ++report_.n_micro;
      note(report_.n_micro_failed, source, !t && want.kind != "syntax" && want.kind != "runtime" ? "not parsed: " + t.error().text() : difference(want, got));
      report_.n_lenient += want.kind == "runtime" && got.has_value();
    }
    return {};
  }

  Status cases(const std::string& dir) {
    CARREL_ASSIGN(const std::vector<Value> inputs, read_lines(env_, dir + "/inputs.jsonl"));
    CARREL_ASSIGN(const std::string index_text, read_file(env_, dir + "/index.json"));
    CARREL_ASSIGN(const Value index, jinja::value_from_json(index_text));
    CARREL_ASSIGN(const std::vector<Value> all, read_lines(env_, dir + "/cases.jsonl"));
    for (const Value& v : inputs) inputs_[text_of(v, "id")] = v;
    std::string loaded;
    std::optional<jinja::Template> plain;
    std::optional<ChatTemplate> chat;
    Value tokens;
    for (const Value& c : all) {
      const std::string name = text_of(c, "template"), label = name + " / " + text_of(c, "input");
      if (name != loaded) {
        loaded = name;
        const Value* entry = member(index, name);
        tokens = entry != nullptr && member(*entry, "tokens") != nullptr ? *member(*entry, "tokens") : jinja::make_dict({});
        CARREL_ASSIGN(const std::string source, read_file(env_, dir + "/" + name + ".jinja"));
        auto parsed = jinja::Template::parse(source);
        plain = parsed ? std::optional(*parsed) : std::nullopt;
        auto chat_parsed = ChatTemplate::parse(source, text_of(tokens, "bos_token"), text_of(tokens, "eos_token"));
        chat = chat_parsed ? std::optional(*std::move(chat_parsed)) : std::nullopt;
        if (!parsed) note(report_.n_cases_failed, name, parsed.error().text());
      }
      const auto input = inputs_.find(text_of(c, "input"));
      if (input == inputs_.end()) return fail(Code::kCorrupt, "names an input that is not there: " + label, dir + "/cases.jsonl");
      ++report_.n_cases;
      if (!plain || !chat) {
        ++report_.n_cases_failed;
        continue;
      }
      one(*plain, *chat, tokens, *member(input->second, "vars"), c, label);
    }
    return {};
  }

  GoldenTemplateReport take() { return std::move(report_); }

 private:
  void note(int64_t& failed, const std::string& label, const std::string& what) {
    if (what.empty()) return;
    ++failed;
    if (report_.failures.size() < kShownFailures) report_.failures.push_back(label + ": " + what);
  }

  void one(const jinja::Template& plain, const ChatTemplate& chat, const Value& tokens, const Value& vars, const Value& c, const std::string& label) {
    auto pairs = vars.dict().items;
    pairs.insert(pairs.end(), tokens.dict().items.begin(), tokens.dict().items.end());
    const Result<std::string> got = plain.render(jinja::make_dict(std::move(pairs)), {}, {kNowMs, 0});
    const Expected want = expected_of(c);
    note(report_.n_cases_failed, label, difference(want, got));
    report_.n_lenient += want.kind == "runtime" && got.has_value();
    through_chat(chat, vars, c, label);
  }

  /// Through the server's entry. A conversation that its preparation would change is checked only where the reference prepared it too.
  void through_chat(const ChatTemplate& chat, const Value& vars, const Value& c, const std::string& label) {
    Expected want = expected_of(c);
    const std::string prepared = prepared_answer(c);
    if (!prepared.empty()) want = {"", prepared};
    const Value& messages = *member(vars, "messages");
    if (want.kind == "runtime" || messages.seq().items.empty() || (prepared.empty() && is_changed(messages)) || has_null(messages)) return;
    ChatRequest request;
    request.messages_json = json(messages);
    request.now_ms = kNowMs;
    if (const Value* tools = member(vars, "tools"); tools != nullptr && !tools->is_none()) request.tools_json = json(*tools);
    const Value* prompt = member(vars, "add_generation_prompt");
    request.add_generation_prompt = prompt != nullptr && prompt->truthy();
    std::vector<std::pair<Value, Value>> extra;
    for (const auto& [k, v] : vars.dict().items) {
      if (k.bytes() != "messages" && k.bytes() != "tools" && k.bytes() != "add_generation_prompt") extra.emplace_back(k, v);
    }
    request.extra_json = json(jinja::make_dict(std::move(extra)));
    const auto rendered = chat.render(request);
    std::string text;
    if (rendered) {
      for (const RenderedPart& p : rendered->parts) text += p.text;
    }
    ++report_.n_chat;
    note(report_.n_chat_failed, label + " (prepared)", difference(want, rendered ? Result<std::string>(text) : std::unexpected(rendered.error())));
  }

  /// What the reference gives after its own preparation of the messages, where that differs.
  static std::string prepared_answer(const Value& c) {
    const Value* alt = member(c, "alt");
    if (alt == nullptr) return "";
    for (const Value& a : alt->seq().items) {
      if (text_of(a, "ref") == "apply_chat_template") return text_of(a, "output");
    }
    return "";
  }

  /// A null content becomes "" here, while the reference drops the key.
  static bool has_null(const Value& messages) {
    const auto& all = messages.seq().items;
    return std::any_of(all.begin(), all.end(), [](const Value& m) {
      const Value* content = member(m, "content");
      return content == nullptr || content->is_none();
    });
  }

  /// True when a content is not a text, or a tool call's arguments are one.
  static bool is_changed(const Value& messages) {
    for (const Value& m : messages.seq().items) {
      const Value *content = member(m, "content"), *calls = member(m, "tool_calls");
      if (content == nullptr || !content->is_string()) return true;
      if (calls == nullptr || !calls->is(Kind::kList)) continue;
      for (const Value& call : calls->seq().items) {
        const Value* f = member(call, "function");
        const Value* arguments = f != nullptr ? member(*f, "arguments") : nullptr;
        if (arguments == nullptr || arguments->is_string()) return true;
      }
    }
    return false;
  }

  std::string json(const Value& v) const {
    const auto text = to_json_->render(jinja::make_dict({{Value::string("v", jinja::Origin::kInput), v}}), {}, {});
    return text ? *text : "";
  }

  Env* env_;
  Result<jinja::Template> to_json_ = jinja::Template::parse("{{ v|tojson }}");
  GoldenTemplateReport report_;
  std::map<std::string, Value> inputs_;
};

}  // namespace

Result<GoldenTemplateReport> check_micro_templates(Env* env, const std::string& file) {
  Checker checker(env);
  CARREL_TRY(checker.micro(file));
  return checker.take();
}

Result<GoldenTemplateReport> check_templates(Env* env, const std::string& dir) {
  Checker checker(env);
  CARREL_TRY(checker.micro(dir + "/micro.jsonl"));
  CARREL_TRY(checker.cases(dir));
  return checker.take();
}

}  // namespace carrel
