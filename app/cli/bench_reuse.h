// The part of `carrel bench` that measures what is reused, not how fast. Threads: the caller's.
#pragma once
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace carrel {

class Model;

/// One row per prompt of engine/drill/reuse.h; "met": the promise is kept in all of them.
Result<nlohmann::ordered_json> bench_reuse(const Model& model);
/// As a table for people.
void print_reuse(const nlohmann::ordered_json& reuse);

}  // namespace carrel
