// `carrel plan`: how much memory a model takes for so many sequences, without reading its weights.
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/cli/cli.h"
#include "app/lifecycle/engine_room.h"
#include "base/log.h"
#include "engine/model/memory_plan.h"

namespace carrel {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kGb = 1'000'000'000;

struct Planned {
  std::unique_ptr<Model> model;
  MemoryPlan plan;
};

Result<Planned> plan(const PlanArgs& args) {
  std::map<std::string, std::string> flags;
  if (!args.model.empty()) flags["model.path"] = args.model;
  if (!args.ops.empty()) flags["devices.ops"] = args.ops;
  if (!args.kv_dtype.empty()) flags["model.kv_dtype"] = args.kv_dtype;
  if (args.prefill_chunk > 0) flags["scheduler.prefill_chunk"] = std::to_string(args.prefill_chunk);
  CARREL_ASSIGN(const Config config, Config::load("", "", environment(), flags));
  std::unique_ptr<Catalog> catalog;
  if (has_catalog(Env::real(), args.common.data_dir)) {
    CARREL_ASSIGN(catalog, open_catalog(Env::real(), args.common.data_dir));
  }
  CARREL_ASSIGN(ModelChoice choice, choose_model(Env::real(), config, args.common.data_dir, catalog.get()));
  choice.options.sizes_only = true;
  Planned out;
  CARREL_ASSIGN(out.model, Model::load(Env::real(), choice.location, choice.options));
  PlanQuestion q = plan_question(config, *out.model);
  q.context = args.context;
  q.n_sequences = args.concurrency;
  if (!args.memory.empty()) {
    const auto bytes = parse_size(args.memory);
    if (!bytes || *bytes > INT64_MAX) return fail(Code::kInvalidArgument, "must be a size such as 12GB, 16GiB or 512MB, is " + args.memory, "--memory");
    q.memory_bytes = static_cast<int64_t>(*bytes);
  }
  CARREL_ASSIGN(out.plan, plan_memory(out.model->graph(), out.model->weight_bytes(), q));
  return out;
}

/// cache.max_size_gb that holds the planned sequences and what is left for prefixes.
double cache_gb(const MemoryPlan& p) { return static_cast<double>(p.states_bytes + p.spare_bytes * 9 / 10) / kGb; }

Json to_json(const Model& model, const MemoryPlan& p) {
  Json groups = Json::array();
  for (const GroupPlan& g : p.groups)
    groups.push_back({{"name", g.name}, {"kind", to_string(g.kind)}, {"dtype", to_string(g.dtype)}, {"layers", g.n_layers}, {"ratio", g.ratio}, {"window", g.window}, {"bytes_per_token", g.bytes_per_token},
                      {"page_bytes", g.page_bytes}, {"page_padding_bytes", g.padding_bytes}, {"pages_per_sequence", g.pages_per_sequence}, {"bytes_per_sequence", g.bytes_per_sequence}, {"bytes_per_point", g.bytes_per_point}});
  return {{"model", model.name()},
          {"family", model.family()},
          {"ops", model.op_set()},
          {"context", p.context},
          {"model_context", p.max_context},
          {"concurrency", p.n_sequences},
          {"block_tokens", p.block_size},
          {"weights_bytes", p.weight_bytes},
          {"file_bytes", model.file_bytes()},
          {"activations_bytes", p.activation_bytes},
          {"inputs_bytes", p.input_bytes},
          {"scratch_bytes", p.scratch_bytes},
          {"process_bytes", p.process_bytes},
          {"groups", std::move(groups)},
          {"slot_bytes", p.slot_bytes},
          {"capture_bytes", p.capture_bytes},
          {"ladder_tokens", p.ladder_tokens},
          {"sequence_bytes", p.sequence_bytes},
          {"states_bytes", p.states_bytes},
          {"total_bytes", p.total_bytes},
          {"memory_bytes", p.memory_bytes},
          {"fits", p.fits},
          {"largest_context", p.largest_context},
          {"largest_concurrency", p.largest_n_sequences},
          {"cache_max_size_gb", p.fits ? Json(cache_gb(p)) : Json()},
          {"prefix_tokens_per_gb_memory", p.prefix_tokens(kGb)},
          {"prefix_tokens_per_gb_host", p.copied_tokens(kGb)},
          {"prefix_tokens_per_gb_disk", p.copied_tokens(kGb)},
          {"mapped_while_loading_bytes", model.mapped_bytes()}};
}

void line(const char* what, int64_t bytes, const std::string& note) {
  std::printf("  %-26s %12s   %s\n", what, bytes_for_people(bytes).c_str(), note.c_str());
}

void print_groups(const MemoryPlan& p) {
  std::printf("\nstate (blocks of %d tokens)\n", p.block_size);
  for (const GroupPlan& g : p.groups) {
    char per_token[64] = "";
    if (g.bytes_per_token > 0) std::snprintf(per_token, sizeof per_token, "%.1f bytes a token, ", g.bytes_per_token);
    std::string note = std::string(to_string(g.kind)) + " " + std::string(to_string(g.dtype)) + ", " + std::to_string(g.n_layers) + " layers: " + per_token;
    if (g.kind == StateKind::kRecurrent) note += "registers and two captures of " + std::to_string(g.page_bytes) + " bytes each";
    else note += std::to_string(g.pages_per_sequence) + " pages of " + std::to_string(g.page_bytes);
    note += g.padding_bytes > 0 ? ", " + std::to_string(g.padding_bytes) + " of them padding" : ", no padding";
    if (g.bytes_per_point > 0) note += ", " + bytes_for_people(g.bytes_per_point) + " a state point";
    line(g.name.c_str(), g.bytes_per_sequence, note);
  }
  if (p.slot_bytes > 0) line("slot", p.slot_bytes, p.ladder_tokens > 0 ? "registers and open tails of a sequence" : "open tails of a sequence");
  if (p.ladder_tokens > 0) std::printf("  registers are kept every %lld tokens and at ends of messages\n", static_cast<long long>(p.ladder_tokens));
  line("one sequence", p.sequence_bytes, "of " + std::to_string(p.context) + " tokens");
}

void print(const Model& model, const MemoryPlan& p) {
  std::printf("%s (%.*s, ops %s): %lld %s of %lld tokens\n\n", model.name().c_str(), static_cast<int>(model.family().size()), model.family().data(), model.op_set().c_str(), static_cast<long long>(p.n_sequences),
              p.n_sequences == 1 ? "sequence" : "sequences", static_cast<long long>(p.context));
  line("weights", p.weight_bytes, "packed, in memory; " + bytes_for_people(model.file_bytes()) + " in the file");
  line("activations", p.activation_bytes, "arena of the largest step");
  line("step inputs", p.input_bytes, "ids, page tables, rotary tables");
  line("kernel scratch", p.scratch_bytes, "at most");
  line("process", p.process_bytes, "measured: program, tokenizer, template, threads");
  line("state", p.states_bytes, std::to_string(p.n_sequences) + " x " + bytes_for_people(p.sequence_bytes));
  line("total", p.total_bytes, "");
  line("memory", p.memory_bytes, "");
  if (model.mapped_bytes() > 0) std::printf("  while loading, %s of the file are mapped, too; the system takes them back when memory is short\n", bytes_for_people(model.mapped_bytes()).c_str());
  print_groups(p);
  std::printf("\nprefixes kept for reuse: %lld tokens per GB of memory, %lld per GB of host memory or disk\n", static_cast<long long>(p.prefix_tokens(kGb)), static_cast<long long>(p.copied_tokens(kGb)));
  if (!p.fits) {
    std::printf("does not fit: %s\n", why_not(p).c_str());
    const std::string context = p.largest_context > 0 ? std::to_string(p.largest_context) : "none, not one token fits",
                      number = p.largest_n_sequences > 0 ? std::to_string(p.largest_n_sequences) : "none, not one fits";
    std::printf("largest context for %lld at a time: %s; largest number of this context: %s\n", static_cast<long long>(p.n_sequences), context.c_str(), number.c_str());
    return;
  }
  std::printf("cache.max_size_gb: %.2f holds the sequences and about %lld tokens of prefixes\n", cache_gb(p), static_cast<long long>(p.prefix_tokens(p.spare_bytes * 9 / 10)));
  std::printf("fits, %s to spare; up to %lld tokens for each, or %lld at a time\n", bytes_for_people(p.spare_bytes).c_str(), static_cast<long long>(p.largest_context), static_cast<long long>(p.largest_n_sequences));
}

}  // namespace

int cmd_plan(const PlanArgs& args) {
  log_setup("warn", LogFormat::kText);
  const auto planned = plan(args);
  if (!planned) return report(planned.error(), args.common);
  if (args.common.json) std::printf("%s\n", to_json(*planned->model, planned->plan).dump(2).c_str());
  else print(*planned->model, planned->plan);
  return planned->plan.fits ? 0 : 1;
}

}  // namespace carrel
