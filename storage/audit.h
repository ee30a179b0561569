// The audit log inside the catalog: append-only rows, each hashed over its content and the hash of the row before it; a head record
// holds a MAC over the last row, so that a cut tail is found too.
//
// Runs on the Db of its caller and inside the caller's transaction: an entry exists exactly when its change does.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/sqlite.h"

namespace carrel {

// The one table of audit actions: code, docs/formats/catalog.md and tests follow it.
#define CARREL_AUDIT_ACTIONS(X)         \
  X(kCatalogCreate, "catalog.create")   \
  X(kCatalogUpgrade, "catalog.upgrade") \
  X(kTenantCreate, "tenant.create")     \
  X(kTenantRemove, "tenant.remove")     \
  X(kNamespaceRenew, "namespace.renew") \
  X(kKeyCreate, "key.create")           \
  X(kKeyRevoke, "key.revoke")           \
  X(kKeyRotate, "key.rotate")           \
  X(kModelAdd, "model.add")             \
  X(kModelStatus, "model.status")       \
  X(kModelRemove, "model.remove")       \
  X(kDrillRun, "drill.run")             \
  X(kCacheVerify, "cache.verify")       \
  X(kCachePurge, "cache.purge")

enum class AuditAction {
#define X(name, text) name,
  CARREL_AUDIT_ACTIONS(X)
#undef X
};
const char* to_string(AuditAction action);

struct AuditEntry {
  int64_t seq = 0;  // from 1, without gaps
  int64_t time_ms = 0;
  std::string actor, action, object;
  std::string detail;  // a JSON object
};

using AuditDetail = std::vector<std::pair<std::string, std::string>>;

/// head_key: secret of the data folder, for the head record only.
Status append_audit(Db& db, const Digest& head_key, int64_t time_ms, std::string_view actor, AuditAction action, std::string_view object,
                    const AuditDetail& detail);
/// Up to limit entries after the given seq, in order.
Result<std::vector<AuditEntry>> list_audit(Db& db, int64_t after_seq, int64_t limit);
/// The number of entries when all are as they were written; kCorrupt names the first seq that is not.
Result<int64_t> verify_audit(Db& db, const Digest& head_key);

}  // namespace carrel
