// The command line: one file per subcommand, each a function over plain arguments. run_cli.cpp alone knows the option parser.
//
// Every command returns an exit status: 0 done, 1 refused or failed, 2 wrong usage. With json, standard output holds one JSON document and nothing else;
// what is meant for people goes to standard error.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/error.h"

namespace carrel {

struct CommonArgs {
  std::string data_dir;  // --data, else CARREL_DATA, else a folder of the user's
  std::string config_file;
  bool json = false;
};

struct ServeArgs {
  CommonArgs common;
  std::string listen;  // HOST:PORT
  std::string model, log_level;
};
int cmd_serve(const ServeArgs& args);

struct RunArgs {
  CommonArgs common;
  std::string model, prompt;
  int64_t max_tokens = 256;
  bool raw = false;
};
int cmd_run(const RunArgs& args);

struct ModelArgs {
  CommonArgs common;
  std::string path, name;
};
int cmd_model_import(const ModelArgs& args);
int cmd_model_list(const ModelArgs& args);
int cmd_model_verify(const ModelArgs& args);
int cmd_model_remove(const ModelArgs& args);

struct TenantArgs {
  CommonArgs common;
  std::string name;
};
int cmd_tenant_create(const TenantArgs& args);
int cmd_tenant_list(const TenantArgs& args);
int cmd_tenant_remove(const TenantArgs& args);

struct KeyArgs {
  CommonArgs common;
  std::string id, tenant, name;
  std::vector<std::string> scopes, models, nets;
  int64_t expires_days = 0, overlap_hours = 24;
};
int cmd_key_create(const KeyArgs& args);
int cmd_key_list(const KeyArgs& args);
int cmd_key_revoke(const KeyArgs& args);
int cmd_key_rotate(const KeyArgs& args);

struct ConfigArgs {
  CommonArgs common;
  std::string file;
  bool markdown = false;
};
int cmd_config_check(const ConfigArgs& args);
int cmd_config_schema(const ConfigArgs& args);

struct GoldenArgs {
  CommonArgs common;
  std::vector<std::string> dirs, models;
  std::string ops = "exact", limits;
  int threads = 0;
  bool localise = false;
};
int cmd_golden(const GoldenArgs& args);

struct PlanArgs {
  CommonArgs common;
  std::string model, memory, ops, kv_dtype;
  int64_t context = 0;  // 0: the model's
  int64_t concurrency = 1, prefill_chunk = 0;
};
int cmd_plan(const PlanArgs& args);

struct BenchArgs {
  CommonArgs common;
  std::string what;  // decode, prefill, prefix, memory
  std::string model, ops;
  std::string shape, weights = "bf16";  // a config.json, and what its weights are drawn as
  int threads = 0;
  int64_t tokens = 0;
};
int cmd_bench(const BenchArgs& args);

struct DrillArgs {
  CommonArgs common;
  std::vector<std::string> names;  // empty: all
  std::string model;
  bool all = false, list = false;
  bool show_damage = false, hide_damage = false;  // neither: shown where the prompt is made for it
};
int cmd_drill(const DrillArgs& args);

struct StateArgs {
  CommonArgs common;
  std::string model;
};
int cmd_state(const StateArgs& args);

/// A running server, here or elsewhere.
struct ServerArgs {
  CommonArgs common;  // data_dir: where the server's CA lies, when no other is named
  std::string url = "https://127.0.0.1:8443", key, ca;
};

struct CacheArgs {
  ServerArgs server;
  std::string tenant = "default", prompt_file, messages_file, input_file;
};
int cmd_cache_explain(const CacheArgs& args);
int cmd_cache_verify(const CacheArgs& args);
int cmd_cache_purge(const CacheArgs& args);

int cmd_routes(const CommonArgs& args);
int cmd_version(const CommonArgs& args);

int run_cli(int argc, char** argv);

// ---- shared by the commands

/// "carrel: message" on standard error, with json also {"error": {code, message, object}} on standard output; returns 1 (2 for kInvalidArgument).
int report(const Error& error, const CommonArgs& args);

}  // namespace carrel
