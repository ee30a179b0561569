#include "app/admin/drill_run.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "app/admin/look_up_prompt.h"
#include "app/admin/table.h"
#include "app/config/schema.h"
#include "base/env.h"

namespace carrel {

namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& j) {
  return j.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string_view what_of(const std::string& name) {
  for (const DrillInfo& d : drill_table())
    if (d.name == name) return d.what;
  return {};
}

std::vector<std::string> all_names() {
  std::vector<std::string> out;
  for (const DrillInfo& d : drill_table()) out.emplace_back(d.name);
  return out;
}

Json to_json(const DrillCase& c, bool show_damage) {
  Json j{{"damage", c.damage},
         {"nominal", c.nominal},
         {"effective", c.effective},
         {"counter", {{"name", c.counter}, {"before", c.before}, {"after", c.after}}},
         {"tokens_equal", c.tokens_equal},
         {"logits_equal", c.logits_equal},
         {"answer", c.answer}};
  if (show_damage && !c.would_have_answered.empty()) j["would_have_answered"] = c.would_have_answered;
  if (!c.failure.empty()) j["failure"] = c.failure;
  return j;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

void add_rows(Table& table, const DrillReport& r) {
  const std::string verdict(to_string(r.verdict)), ms = std::to_string(r.ms);
  if (r.cases.empty()) return table.row({r.name, verdict, r.reason, "", "", ms});
  for (size_t i = 0; i < r.cases.size(); i++) {
    const DrillCase& c = r.cases[i];
    table.row({i == 0 ? r.name : "", i == 0 ? verdict : "", c.damage,
               c.counter + " " + std::to_string(c.before) + " → " + std::to_string(c.after),
               std::to_string(c.effective) + " of " + std::to_string(c.nominal), i == 0 ? ms : ""});
  }
}

/// Answer and what would have been answered, side by side.
std::string damage_text(const DrillRun& run) {
  Table table;
  table.row({"drill", "lost", "answered", "the damaged state would have answered"});
  size_t n = 0;
  for (const DrillReport& r : run.reports) {
    for (const DrillCase& c : r.cases) {
      if (c.would_have_answered.empty()) continue;
      const bool same = c.would_have_answered == c.answer;
      const bool all = r.name == "offloaded-not-restored";  // whose point is a prefix that never came back
      table.row({r.name, all ? "the whole prefix" : c.damage.substr(0, c.damage.find(':')), one_line(c.answer),
                 same ? "the same words from other logits" : one_line(c.would_have_answered)});
      n++;
    }
  }
  return n == 0 ? "" : "\n" + table.text();
}

std::string summary(const DrillRun& run) {
  const size_t n_failed = run.count(DrillVerdict::kFailed), n_not = run.count(DrillVerdict::kNotApplicable);
  std::string out = std::to_string(run.count(DrillVerdict::kPassed)) + " passed, " + std::to_string(n_failed) + " failed, " +
                    std::to_string(n_not) + " not applicable to " + run.model + "; each on a private copy, over a prompt of " +
                    std::to_string(run.n_prompt_tokens) + " tokens in blocks of " + std::to_string(run.block_tokens) + "\n";
  if (n_failed == 0) return out + "passed means: tokens and logits equal those of a run without any reuse, and the counter moved\n";
  for (const DrillReport& r : run.reports)
    if (r.verdict == DrillVerdict::kFailed) out += "FAILED " + r.name + ": " + r.reason + "\n";
  return out +
         "do not serve from this machine before the cause is known: set cache.prefix_reuse.enabled: false, keep the log, test the memory\n";
}

}  // namespace

size_t DrillRun::count(DrillVerdict verdict) const {
  return static_cast<size_t>(std::count_if(reports.begin(), reports.end(), [&](const DrillReport& r) { return r.verdict == verdict; }));
}

std::vector<std::string> distinct_names(std::vector<std::string> names) {
  std::set<std::string> seen;
  std::erase_if(names, [&](const std::string& name) { return !seen.insert(name).second; });
  return names;
}

Status check_drill_names(const std::vector<std::string>& names) {
  const std::vector<std::string> known = all_names();
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string near = nearest_word(name, known);
    return fail(Code::kInvalidArgument,
                "there is no such drill; " + (near.empty() ? "" : "did you mean " + near + "? ") + "`carrel drill --list` shows all", name);
  }
  return {};
}

Result<DrillRun> run_drill_set(Env* env, const Model& model, bool demo, const DrillSet& set, const DrillBegin& begin) {
  CARREL_TRY(check_drill_names(set.names));
  std::vector<int32_t> prompt;
  if (demo) {
    CARREL_ASSIGN(prompt, look_up_prompt(model));
  } else {
    CARREL_ASSIGN(prompt, drill_prompt(model));
  }
  DrillRun run;
  run.model = model.name();
  run.n_prompt_tokens = static_cast<int64_t>(prompt.size());
  run.block_tokens = model.graph().state.block_size;
  run.show_damage = set.show_damage.value_or(demo);
  const std::vector<std::string> names = set.names.empty() ? all_names() : distinct_names(set.names);
  const int64_t start = env->mono_ns();
  for (size_t i = 0; i < names.size(); i++) {  // one at a time, so that it can be stopped between two
    if (begin && !begin(names[i], i, names.size())) {
      run.complete = false;
      break;
    }
    DrillOptions options;
    options.names = {names[i]};
    options.show_damage = run.show_damage;
    CARREL_ASSIGN(auto reports, run_drills(env, model, prompt, options));
    std::move(reports.begin(), reports.end(), std::back_inserter(run.reports));
  }
  run.ms = (env->mono_ns() - start) / 1'000'000;
  return run;
}

std::string drills_json(const DrillRun& run) {
  Json list = Json::array();
  for (const DrillReport& r : run.reports) {
    Json cases = Json::array();
    for (const DrillCase& c : r.cases) cases.push_back(to_json(c, run.show_damage));
    list.push_back({{"name", r.name},
                    {"what", what_of(r.name)},
                    {"verdict", to_string(r.verdict)},
                    {"reason", r.reason},
                    {"ms", r.ms},
                    {"cases", std::move(cases)}});
  }
  return dump(Json{{"model", run.model},
                   {"passed", run.passed()},
                   {"complete", run.complete},
                   {"prompt_tokens", run.n_prompt_tokens},
                   {"block_tokens", run.block_tokens},
                   {"show_damage", run.show_damage},
                   {"n_passed", run.count(DrillVerdict::kPassed)},
                   {"n_failed", run.count(DrillVerdict::kFailed)},
                   {"n_not_applicable", run.count(DrillVerdict::kNotApplicable)},
                   {"ms", run.ms},
                   {"drills", std::move(list)}});
}

std::string drills_text(const DrillRun& run) {
  Table table;
  table.row({"drill", "verdict", "damage", "counter", "reused tokens", "ms"});
  for (const DrillReport& r : run.reports) add_rows(table, r);
  return table.text() + (run.show_damage ? damage_text(run) : "") + "\n" + summary(run);
}

std::string drill_list_json() {
  Json list = Json::array();
  for (const DrillInfo& d : drill_table()) list.push_back({{"name", d.name}, {"what", d.what}});
  return dump(list);
}

std::string drill_list_text() {
  Table table;
  for (const DrillInfo& d : drill_table()) table.row({std::string(d.name), std::string(d.what)});
  return table.text();
}

}  // namespace carrel
