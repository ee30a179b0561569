// Options and subcommands of the binary; nothing is decided here.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>

#include "app/cli/cli.h"
#include "app/config/schema.h"
#include "engine/model/memory_plan.h"

namespace carrel {
namespace {

std::string default_data_dir() {
  if (const char* d = std::getenv("CARREL_DATA"); d != nullptr && *d != '\0') return d;
  if (const char* d = std::getenv("XDG_DATA_HOME"); d != nullptr && *d != '\0') return std::string(d) + "/carrel";
  if (const char* d = std::getenv("HOME"); d != nullptr && *d != '\0') return std::string(d) + "/.local/share/carrel";
  return "/var/lib/carrel";
}

constexpr const char* kThreadsHelp = "threads of the CPU back end; never changes a result";

CommonArgs& common_of(CommonArgs& args) {
  return args;
}
CommonArgs& common_of(CacheArgs& args) {
  return args.server.common;
}
template <class Args>
CommonArgs& common_of(Args& args) {
  return args.common;
}

/// Adds a subcommand whose arguments live in `args` and which runs `command`.
template <class Args>
CLI::App* add_plain(CLI::App& parent, const char* name, const char* what, Args& args, int (*command)(const Args&), std::function<int()>& chosen) {
  CLI::App* sub = parent.add_subcommand(name, what);
  CommonArgs* common = &common_of(args);
  sub->add_flag("--json", common->json, "one JSON document on standard output");
  sub->callback([&args, command, &chosen] { chosen = [&args, command] { return command(args); }; });
  return sub;
}

/// The same for a command that works on a data folder.
template <class Args>
CLI::App* add(CLI::App& parent, const char* name, const char* what, Args& args, int (*command)(const Args&), std::function<int()>& chosen) {
  CLI::App* sub = add_plain(parent, name, what, args, command, chosen);
  common_of(args).data_dir = default_data_dir();
  sub->add_option("--data", common_of(args).data_dir, "data folder (default: CARREL_DATA, else a folder of the user's)");
  return sub;
}

/// The same for a command that asks a running server; a key is better given by the environment, where other users do not see it.
CLI::App* add_remote(CLI::App& parent, const char* name, const char* what, CacheArgs& args, int (*command)(const CacheArgs&),
                     std::function<int()>& chosen) {
  CLI::App* sub = add(parent, name, what, args, command, chosen);
  sub->add_option("--url", args.server.url, "the server (default: https://127.0.0.1:8443)");
  sub->add_option("--key", args.server.key, "key with scope admin (default: CARREL_KEY)")->envname("CARREL_KEY");
  sub->add_option("--ca", args.server.ca, "CA file of the server (default: tls/ca.pem of the data folder, else the system's)");
  return sub;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::App* s : app.get_subcommands([](const CLI::App*) { return true; })) out.push_back(s->get_name());
  return out;
}

/// Follows words down the commands; `unknown` is the first that names none where one must stand.
const CLI::App* walk(const CLI::App* at, std::span<const std::string> words, std::string& unknown) {
  for (const std::string& word : words) {
    const std::vector<std::string> known = command_names(*at);
    if (known.empty() || word.starts_with('-')) break;
    if (std::find(known.begin(), known.end(), word) == known.end()) {
      unknown = word;
      break;
    }
    at = at->get_subcommand(word);
  }
  return at;
}

/// "no command frobnicate; did you mean golden?"
std::string unknown_command(const CLI::App& at, const std::string& word) {
  const std::string path = at.get_parent() == nullptr ? "" : at.get_name() + " ";
  const std::string near = nearest_word(word, command_names(at));
  return "there is no command " + path + word + (near.empty() ? "; `carrel help" : "; did you mean " + path + near + "? `carrel help") + (path.empty() ? "" : " " + at.get_name()) + "` lists what there is";
}

int help(const CLI::App& app, const std::vector<std::string>& words) {
  std::string unknown;
  const CLI::App* at = walk(&app, words, unknown);
  if (!unknown.empty()) return report({Code::kInvalidArgument, unknown_command(*at, unknown), ""}, {});
  // The formatter itself: App::help would show the command that was parsed, which is `help`.
  const std::string path = at == &app ? "carrel" : "carrel " + (at->get_parent() == &app ? "" : at->get_parent()->get_name() + " ") + at->get_name();
  std::printf("%s", at->get_formatter()->make_help(at, path, CLI::AppFormatMode::Normal).c_str());
  return 0;
}

/// What the parser stopped at: help and version are answers, anything else is wrong usage and says so in one line, or in JSON when that was asked for.
int stopped(const CLI::App& app, const CLI::ParseError& e, std::span<const std::string> words) {
  CommonArgs common;
  common.json = std::find(words.begin(), words.end(), "--json") != words.end();
  if (dynamic_cast<const CLI::CallForVersion*>(&e) != nullptr) {
    if (common.json) return cmd_version(common);
    std::printf("carrel %s\n", CARREL_VERSION);
    return 0;
  }
  if (words.empty()) return std::printf("%s", app.help().c_str()), 0;  // who types the name alone wants to know what there is
  if (e.get_exit_code() == 0) return app.exit(e);
  std::string unknown;
  const CLI::App* at = walk(&app, words, unknown);
  return report({Code::kInvalidArgument, unknown.empty() ? std::string(e.what()) : unknown_command(*at, unknown), ""}, common);
}

}  // namespace

int report(const Error& error, const CommonArgs& args) {
  if (args.json) {
    const nlohmann::ordered_json j{{"error", {{"code", to_string(error.code)}, {"message", error.text()}, {"object", error.where}}}};
    std::printf("%s\n", j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  }
  std::fprintf(stderr, "carrel: %s\n", error.text().c_str());
  return error.code == Code::kInvalidArgument ? 2 : 1;
}

int run_cli(int argc, char** argv) {
  CLI::App app{"Carrel: a private LLM appliance whose prefix hits give the same bits as computing from scratch.", "carrel"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "carrel " CARREL_VERSION);
  std::function<int()> chosen;

  ServeArgs serve;
  CLI::App* s = add(app, "serve", "serve a model over HTTPS", serve, cmd_serve, chosen);
  s->add_option("--config", serve.common.config_file, "configuration file (YAML)");
  s->add_option("--listen", serve.listen, "HOST:PORT; port 0 lets the system choose");
  s->add_option("--model", serve.model, "imported name, model folder, .gguf file, or demo (default: the embedded demo)");
  s->add_option("--log-level", serve.log_level, "trace, debug, info, warn, error, off");

  RunArgs run;
  CLI::App* r = add(app, "run", "answer one prompt and exit", run, cmd_run, chosen);
  r->add_option("prompt", run.prompt, "the question")->required();
  r->add_option("--config", run.common.config_file, "configuration file (YAML)");
  r->add_option("--model", run.model, "imported name, model folder, .gguf file, or demo (default)");
  r->add_option("--max-tokens", run.max_tokens, "longest answer");
  r->add_flag("--raw", run.raw, "no chat template: continue the text");

  CLI::App* model = app.add_subcommand("model", "import, list, verify and remove models")->require_subcommand(1);
  ModelArgs import, list, verify, remove;
  CLI::App* mi = add(*model, "import", "pack a Hugging Face folder or GGUF file into the store", import, cmd_model_import, chosen);
  mi->add_option("path", import.path, "folder or file")->required();
  mi->add_option("--name", import.name, "name to serve it under (default: the file's)");
  add(*model, "list", "imported models", list, cmd_model_list, chosen);
  add(*model, "verify", "check every tensor's SHA-256", verify, cmd_model_verify, chosen)->add_option("name", verify.name, "imported name, or demo (default: all)");
  add(*model, "remove", "forget a model and its packed file", remove, cmd_model_remove, chosen)->add_option("name", remove.name, "imported model")->required();

  CLI::App* tenant = app.add_subcommand("tenant", "create, list and remove tenants")->require_subcommand(1);
  TenantArgs tenant_create, tenant_list, tenant_remove;
  add(*tenant, "create", "a tenant with a cache namespace of its own", tenant_create, cmd_tenant_create, chosen)->add_option("name", tenant_create.name)->required();
  add(*tenant, "list", "tenants and their keys", tenant_list, cmd_tenant_list, chosen);
  add(*tenant, "remove", "revoke its keys, destroy its namespace secret", tenant_remove, cmd_tenant_remove, chosen)->add_option("name", tenant_remove.name)->required();

  CLI::App* key = app.add_subcommand("key", "create, list, revoke and rotate API keys")->require_subcommand(1);
  KeyArgs key_create, key_list, key_revoke, key_rotate;
  CLI::App* kc = add(*key, "create", "a key, shown once", key_create, cmd_key_create, chosen);
  kc->add_option("--tenant", key_create.tenant, "tenant (default: default)");
  kc->add_option("--name", key_create.name, "for people");
  kc->add_option("--scope", key_create.scopes, "inference, metrics:read, admin (default: inference)");
  kc->add_option("--model", key_create.models, "models it may use (default: all)");
  kc->add_option("--net", key_create.nets, "networks it may come from (default: all)");
  kc->add_option("--expires-days", key_create.expires_days, "days until it ends (default: never)")->check(CLI::Range(1, 36500));
  add(*key, "list", "keys without their secrets", key_list, cmd_key_list, chosen)->add_option("--tenant", key_list.tenant, "of one tenant");
  add(*key, "revoke", "end a key at once, running streams included", key_revoke, cmd_key_revoke, chosen)->add_option("id", key_revoke.id)->required();
  CLI::App* kr = add(*key, "rotate", "a new key with the same rights", key_rotate, cmd_key_rotate, chosen);
  kr->add_option("id", key_rotate.id)->required();
  kr->add_option("--overlap-hours", key_rotate.overlap_hours, "how long the old key stays valid (default 24)")->check(CLI::Range(0, 24 * 365));

  CLI::App* config = app.add_subcommand("config", "check a configuration, show the settings")->require_subcommand(1);
  ConfigArgs check, schema;
  add_plain(*config, "check", "check a file and print its canonical form", check, cmd_config_check, chosen)->add_option("file", check.file)->required();
  add_plain(*config, "schema", "every setting: type, range, default, consequence", schema, cmd_config_schema, chosen)->add_flag("--markdown", schema.markdown, "as docs/configuration.md");

  GoldenArgs golden;
  CLI::App* g = add_plain(app, "golden", "check the engine against reference vectors", golden, cmd_golden, chosen);
  g->add_option("dirs", golden.dirs, "folders of vectors")->required();
  g->add_option("--models", golden.models, "where the .gguf files of real/ lie: files or folders")->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  g->add_option("--ops", golden.ops, "reference, exact, fast")->check(CLI::IsMember({"reference", "exact", "fast"}));
  g->add_option("--threads", golden.threads, kThreadsHelp);
  g->add_option("--limits", golden.limits, "file with the limits of fast (default: limits.json beside the vectors, else those inside)");
  g->add_flag("--localise", golden.localise, "name the first tensor that is off");

  PlanArgs plan;
  CLI::App* p = add(app, "plan", "how much memory a model takes, without reading its weights", plan, cmd_plan, chosen);
  p->add_option("--model", plan.model, "imported name, model folder, .gguf file, or demo (default)");
  p->add_option("--context", plan.context, "tokens of one sequence, prompt and answer (default: the model's longest)")->check(CLI::PositiveNumber);
  p->add_option("--concurrency", plan.concurrency, "sequences at a time (default 1)")->check(CLI::Range(int64_t{1}, kMostSequences));
  p->add_option("--memory", plan.memory, "what there is, such as 12GB (default: this machine's)");
  p->add_option("--ops", plan.ops, "reference, exact, fast")->check(CLI::IsMember({"reference", "exact", "fast"}));
  p->add_option("--kv-dtype", plan.kv_dtype, "stored form of cache rows (model.kv_dtype)");
  p->add_option("--prefill-chunk", plan.prefill_chunk, "tokens of the largest step (scheduler.prefill_chunk)")->check(CLI::Range(1, 65536));

  BenchArgs bench;
  CLI::App* b = add(app, "bench", "measure decode, prefill, prefix reuse or memory beside its bound, or what is reused beside what is promised", bench, cmd_bench, chosen);
  b->add_option("what", bench.what, "decode, prefill, prefix, reuse, memory")->required()->check(CLI::IsMember({"decode", "prefill", "prefix", "reuse", "memory"}));
  b->add_option("--model", bench.model, "imported name, model folder, .gguf file, or demo (default)");
  b->add_option("--shape", bench.shape, "instead of a model: a config.json (decode, prefill); weights of that shape are drawn at random");
  b->add_option("--weights", bench.weights, "what those weights are: bf16 (default), q8_0, q4_1")->check(CLI::IsMember({"bf16", "q8_0", "q4_1"}));
  b->add_option("--ops", bench.ops, "reference, exact, fast")->check(CLI::IsMember({"reference", "exact", "fast"}));
  b->add_option("--threads", bench.threads, kThreadsHelp);
  b->add_option("--tokens", bench.tokens, "prompt tokens (prefill, prefix), answer tokens (decode) or context (memory)");

  DrillArgs drill;
  CLI::App* d = add(app, "drill", "damage private copies of the state on purpose and prove that nobody notices", drill, cmd_drill, chosen);
  d->add_option("names", drill.names, "drills (default: all)");
  d->add_option("--model", drill.model, "imported name, model folder, .gguf file, or demo (default)");
  d->add_option("--config", drill.common.config_file, "configuration file (YAML)");
  d->add_flag("--all", drill.all, "every drill");
  d->add_flag("--list", drill.list, "what there is");
  CLI::App* damage = d->add_option_group("damage")->require_option(0, 1);
  damage->add_flag("--show-damage", drill.show_damage, "show what the damaged state would have answered (default: for the demo model)");
  damage->add_flag("--hide-damage", drill.hide_damage, "do not");

  StateArgs state;
  CLI::App* st =
      add(app, "state", "the states that a model registers: size, life, how they are restored, what a hit needs", state, cmd_state, chosen);
  st->add_option("--model", state.model, "imported name, model folder, .gguf file, or demo (default)");
  st->add_option("--config", state.common.config_file, "configuration file (YAML)");

  CLI::App* cache = app.add_subcommand("cache", "the cache of a running server: explain, verify, purge")->require_subcommand(1);
  CacheArgs cache_explain, cache_verify, cache_purge;
  CLI::App* ce =
      add_remote(*cache, "explain", "what of a prompt would be reused, and why not more", cache_explain, cmd_cache_explain, chosen);
  ce->add_option("--messages", cache_explain.messages_file, "file with a chat: a JSON array of messages, or a request body");
  ce->add_option("--prompt", cache_explain.prompt_file, "file with a text, as /v1/completions takes it");
  ce->add_option("--input", cache_explain.input_file, "file with a text, as /v1/infer takes it");
  ce->add_option("--tenant", cache_explain.tenant, "whose cache (default: default)");
  add_remote(*cache, "verify", "compute the digest of every record again", cache_verify, cmd_cache_verify, chosen);
  add_remote(*cache, "purge", "drop a tenant's cached state from every tier", cache_purge, cmd_cache_purge, chosen)
      ->add_option("--tenant", cache_purge.tenant, "whose cache")
      ->required();

  CommonArgs routes, version;
  add_plain(app, "routes", "the route table of the API", routes, cmd_routes, chosen);
  add_plain(app, "version", "version and what is inside", version, cmd_version, chosen);

  std::vector<std::string> asked;
  CLI::App* h = app.add_subcommand("help", "this list; with a command's name, its options");
  h->add_option("command", asked, "such as: model import");
  h->callback([&] { chosen = [&] { return help(app, asked); }; });

  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return stopped(app, e, words);
  }
  return chosen();
}

}  // namespace carrel
