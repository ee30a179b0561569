#include "app/lifecycle/engine_room.h"

#include <unistd.h>

#include <algorithm>

#include "app/admin/state_report.h"
#include "base/log.h"

namespace carrel {
namespace {

uint64_t machine_memory_bytes() { return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGE_SIZE)); }

constexpr uint64_t kDiskReserve = uint64_t{1} << 30;  // of the file system, left to others
constexpr int64_t kRestoreDeadlineMs = 5000;

bool has_tier(const Config& config, const char* tier) {
  if (!config.flag("cache.offload.enable")) return false;
  const std::vector<std::string> tiers = config.list("cache.offload.tiers");
  return std::find(tiers.begin(), tiers.end(), tier) != tiers.end();
}

/// What was asked for, as far as the machine has it: copies beyond its memory would take the machine down.
size_t host_budget(const Config& config) {
  if (!has_tier(config, "host_memory")) return 0;
  const uint64_t asked = config.size_bytes("cache.offload.host_memory_size"), most = machine_memory_bytes() / 2;
  if (asked > most)
    spdlog::warn("cache.offload.host_memory_size is {} MB, half of this machine's memory is {} MB: the host tier is limited to that",
                 asked / 1'000'000, most / 1'000'000);
  return static_cast<size_t>(std::min(asked, most));
}

/// Null: it is not configured, or cannot be had, which is told and keeps nothing from starting: the tier is disposable.
std::unique_ptr<ExtentStore> open_disk(Env* env, const Config& config, const std::string& data_dir, const std::shared_ptr<DataKeys>& keys) {
  if (!has_tier(config, "disk")) return nullptr;
  ExtentStoreConfig c;
  c.dir = config.text("cache.offload.path").empty() ? data_dir + "/extents" : config.text("cache.offload.path");
  c.max_bytes = config.size_bytes("cache.offload.disk_size");
  c.reserve_bytes = kDiskReserve;
  c.ttl_ms = config.integer("cache.offload.ttl_hours") * 3'600'000;
  c.check = [keys](const ExtentRow& row, std::span<const std::byte> bytes) -> Status {
    const auto key = keys ? keys->of(row.namespace_id) : nullptr;
    if (keys && key == nullptr) return fail(Code::kNotFound, "its namespace has no key any more", row.namespace_id);
    return check_extent(bytes, key.get(), {row.id.key, row.parent, row.id.model, row.id.layout, row.namespace_id, row.position});
  };
  auto store = ExtentStore::open(env, std::move(c));
  if (store) return std::move(*store);
  spdlog::error("the disk tier cannot be used and this server goes on without it: {}", store.error().text());
  return nullptr;
}

Status check_policy(const Config& config, const Graph& graph) {
  if (config.text("model.attention_policy") == "hybrid" && graph.state.groups.size() < 2)
    return fail(Code::kInvalidArgument, "is hybrid, but this model has one kind of attention only; use auto", "model.attention_policy");
  if (!config.is_auto("cache.block_size") && config.integer("cache.block_size") != graph.state.block_size)
    return fail(Code::kUnsupported, "is " + std::to_string(config.integer("cache.block_size")) + ", this model's states need " + std::to_string(graph.state.block_size) + "; use auto",
                "cache.block_size");
  return {};
}

/// What was asked for and cannot be given whole is said, with both numbers.
void warn_of_less(const Config& config, const Graph& graph) {
  if (!config.is_auto("model.max_sequence_length") && config.integer("model.max_sequence_length") > graph.max_positions)
    spdlog::warn("model.max_sequence_length is {}, but this model holds {} tokens: requests are limited to {}", config.integer("model.max_sequence_length"), graph.max_positions,
                 graph.max_positions);
  if (config.is_set("scheduler.max_num_seqs") && config.integer("scheduler.max_num_seqs") > config.integer("server.max_concurrent_requests"))
    spdlog::warn("scheduler.max_num_seqs is {}, but server.max_concurrent_requests is {}: no more than {} sequences are in work at once", config.integer("scheduler.max_num_seqs"),
                 config.integer("server.max_concurrent_requests"), config.integer("server.max_concurrent_requests"));
}

/// A lower tier that is switched on and can hold nothing.
void warn_of_small_tier(const Config& config, const ModelState& state) {
  const std::vector<std::string> tiers = config.list("cache.offload.tiers");
  if (!config.flag("cache.offload.enable") || std::find(tiers.begin(), tiers.end(), "host_memory") == tiers.end()) return;
  int64_t block_bytes = 0;
  for (const StateSpec& g : state.groups) block_bytes += static_cast<int64_t>(page_bytes(g, state.block_size));
  const auto asked = static_cast<int64_t>(config.size_bytes("cache.offload.host_memory_size"));
  if (asked == 0)
    spdlog::warn("cache.offload.enable is true and cache.offload.host_memory_size is 0: nothing is kept in host memory; give it a size, or leave enable out");
  else if (asked < block_bytes)
    spdlog::warn("cache.offload.host_memory_size is {}, a block of this model's state takes up to {}: hardly anything can be kept in host memory; raise it",
                 bytes_beside(asked, block_bytes), bytes_beside(block_bytes, asked));
}

EngineConfig engine_config(const Config& config) {
  EngineConfig e;
  e.max_batch_size = static_cast<int>(config.integer("scheduler.max_batch_size"));
  e.max_num_seqs = static_cast<int>(std::min(config.integer("scheduler.max_num_seqs"), config.integer("server.max_concurrent_requests")));
  if (!config.is_auto("scheduler.prefill_chunk")) e.prefill_chunk = static_cast<int>(config.integer("scheduler.prefill_chunk"));
  e.shadow_verify_rate = config.number("cache.prefix_reuse.shadow_verify_rate");
  e.max_queue_depth = static_cast<size_t>(config.integer("admission.max_queue_depth"));
  return e;
}

size_t cache_budget(const Config& config) {
  return config.is_auto("cache.max_size_gb") ? machine_memory_bytes() / 4 : static_cast<size_t>(config.number("cache.max_size_gb") * 1e9);
}

StateConfig state_config(const Config& config, const Model& model, const EngineConfig& engine) {
  StateConfig c;
  c.model = model.graph().state;
  c.model_digest = model.digest();
  c.numerics_id = model.numerics_id();
  c.budget_bytes = cache_budget(config);
  c.host_budget_bytes = host_budget(config);
  c.transfer_threads = config.flag("cache.offload.enable") ? 1 : 0;
  c.offload_threshold = config.number("cache.offload.threshold");
  c.restore_deadline_ms = config.is_auto("cache.offload.restore_deadline_ms") ? kRestoreDeadlineMs : config.integer("cache.offload.restore_deadline_ms");
  c.max_sequences = static_cast<int>(config.integer("scheduler.max_num_seqs"));
  c.kernel_layout_id = page_layout_id(model.graph().state);
  c.max_step_tokens = std::max(engine.prefill_chunk, engine.max_batch_size);
  c.max_sequence_tokens = model.graph().max_positions;
  c.reuse = config.flag("cache.prefix_reuse.enabled");
  return c;
}

/// Refuses what cannot fit before its weights are read: one sequence as long as configured, beside the weights and inside the cache budget.
Status check_memory(const Config& config, const Model& sizes) {
  CARREL_ASSIGN(const MemoryPlan plan, plan_memory(sizes.graph(), sizes.weight_bytes(), plan_question(config, sizes)));
  if (!plan.fits)
    return fail(Code::kExhausted, why_not(plan) + "; lower model.max_sequence_length, or see `carrel plan`", sizes.name());
  const size_t budget = cache_budget(config);
  if (static_cast<size_t>(plan.sequence_bytes) <= budget) return {};
  return fail(Code::kExhausted,
              "one sequence of " + std::to_string(plan.context) + " tokens needs " + bytes_beside(plan.sequence_bytes, static_cast<int64_t>(budget)) + " of state, cache.max_size_gb gives " +
                  bytes_beside(static_cast<int64_t>(budget), plan.sequence_bytes) + "; raise it, or lower model.max_sequence_length; see `carrel plan`",
              sizes.name());
}

}  // namespace

PlanQuestion plan_question(const Config& config, const Model& model) {
  const EngineConfig engine = engine_config(config);
  PlanQuestion q;
  q.context = model.graph().max_positions;
  q.prefill_chunk = engine.prefill_chunk;
  q.max_batch_size = engine.max_batch_size;
  q.max_outputs = max_output_rows(engine);
  q.n_threads = model.team_size();
  q.memory_bytes = static_cast<int64_t>(machine_memory_bytes());
  q.process_bytes = resident_bytes();
  return q;
}

Result<EngineRoom> open_engine_room(Env* env, const Config& config, const std::string& data_dir, Catalog* catalog, Catalog* keys) {
  EngineRoom room;
  CARREL_ASSIGN(ModelChoice choice, choose_model(env, config, data_dir, catalog));
  choice.options.admit = [&](const Model& sizes) {
    room.process_bytes = resident_bytes();
    return check_memory(config, sizes);
  };
  const int64_t start = env->mono_ns();
  auto loaded = Model::load(env, choice.location, choice.options);
  if (!loaded) {
    if (!choice.registered.empty() && loaded.error().code == Code::kCorrupt) (void)catalog->set_model_status(choice.registered, ModelStatus::kDamaged, "system");
    return std::unexpected(std::move(loaded).error());
  }
  room.model = std::move(*loaded);
  room.registered = choice.registered;
  room.store_entry = choice.location.store_entry;
  room.embedded = choice.location.embedded;
  CARREL_TRY(check_policy(config, room.model->graph()));
  spdlog::info("model {} family={} ops={} weights={} MB context={} numerics={} in {} ms", room.model->name(), room.model->family(), room.model->op_set(),
               room.model->weight_bytes() / 1'000'000, room.model->graph().max_positions, room.model->numerics_id().substr(0, 16), (env->mono_ns() - start) / 1'000'000);
  warn_of_less(config, room.model->graph());
  warn_of_small_tier(config, room.model->graph().state);
  const EngineConfig engine = engine_config(config);
  StateConfig state = state_config(config, *room.model, engine);
  state.env = env;
  if (keys != nullptr && config.flag("cache.offload.enable")) {
    if (config.flag("cache.offload.encrypt")) room.keys = std::make_shared<DataKeys>(keys);
    room.disk = open_disk(env, config, data_dir, room.keys);
    state.disk = room.disk.get();
    if (room.keys) state.seal_key = [keys = room.keys](const std::string& id) { return keys->of(id); };
  }
  CARREL_ASSIGN(room.state, StateManager::create(std::move(state)));
  for (const std::string& line : state_lines(room.model->graph().state, room.state->stats())) spdlog::info("{}", line);
  room.engine = std::make_unique<Engine>(engine, room.model.get(), room.state.get(), env);
  return room;
}

Result<EngineRoom> open_engine_room(Env* env, const std::string& data_dir, const std::string& config_file, const std::map<std::string, std::string>& flags) {
  std::string text;
  if (!config_file.empty()) {
    CARREL_ASSIGN(text, read_file(env, config_file, 1 << 20));
  }
  CARREL_ASSIGN(const Config config, Config::load(text, config_file, environment(), flags));
  std::unique_ptr<Catalog> catalog;
  if (has_catalog(env, data_dir)) {
    CARREL_ASSIGN(catalog, open_catalog(env, data_dir));
  }
  return open_engine_room(env, config, data_dir, catalog.get(), nullptr);
}

}  // namespace carrel
