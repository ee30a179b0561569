// Model, state manager and engine, opened in that order from one configuration: the part that serve, run and bench share.
#pragma once
#include <memory>

#include "app/lifecycle/data_keys.h"
#include "app/lifecycle/model_choice.h"
#include "engine/engine.h"
#include "engine/model/memory_plan.h"
#include "storage/extent_store.h"

namespace carrel {

/// Destroyed in reverse: the engine's thread ends before what it borrows goes.
struct EngineRoom {
  std::string registered, store_entry;  // name and folder of an imported model, else empty
  bool embedded = false;                // the demo model
  int64_t process_bytes = 0;            // resident before the weights were read: program, tokenizer, template
  std::unique_ptr<Model> model;
  std::shared_ptr<DataKeys> keys;     // null: extents are not encrypted, or there is no catalog
  std::unique_ptr<ExtentStore> disk;  // null: there is no disk tier
  std::unique_ptr<StateManager> state;
  std::unique_ptr<Engine> engine;
};

/// catalog: null where there is none yet. Loads the configured model and logs what was registered. A model found damaged is marked so in the catalog.
/// keys: a catalog that outlives the room, from which extents get the keys of their namespaces; null: there is no disk tier, and nothing in
/// host memory is sealed.
Result<EngineRoom> open_engine_room(Env* env, const Config& config, const std::string& data_dir, Catalog* catalog, Catalog* keys);

/// What a configuration asks of the memory planner: one sequence of the model's longest on this machine, in a process as it stands now.
PlanQuestion plan_question(const Config& config, const Model& model);

/// The same for a one-shot command: its own configuration from flags and environment, catalog of the data folder when it has one.
Result<EngineRoom> open_engine_room(Env* env, const std::string& data_dir, const std::string& config_file, const std::map<std::string, std::string>& flags);

}  // namespace carrel
