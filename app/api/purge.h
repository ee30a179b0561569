// Forgetting all that is known of a tenant's prompts, in every tier. Threads: any.
#pragma once
#include <cstdint>
#include <string>

#include "app/lifecycle/data_keys.h"
#include "engine/engine.h"
#include "storage/catalog.h"

namespace carrel {

struct TenantPurge {
  std::string old_namespace;
  int64_t dropped_records = 0;  // in whatever tier they were
};

/// Audited before it is done. The tenant gets a new namespace with new secrets; the old one's keys are destroyed, so that nothing sealed under them
/// can ever be read, and then its records are dropped. keys: null where nothing is encrypted.
Result<TenantPurge> purge_tenant(Catalog& catalog, Engine& engine, DataKeys* keys, const std::string& tenant, const std::string& actor);

}  // namespace carrel
