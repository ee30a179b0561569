#include "storage/migrations.h"

namespace carrel {
namespace {

constexpr int64_t kApplicationId = 0x4341524C;  // "CARL"

// Lists (scopes, models, nets) are words separated by single spaces; times are milliseconds since 1970, UTC.
constexpr Migration kMigrations[] = {
    {"tenants, keys, models, usage, audit", R"sql(
CREATE TABLE meta(name TEXT NOT NULL PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE tenants(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  namespace_id TEXT NOT NULL UNIQUE,
  created_ms INTEGER NOT NULL,
  removed_ms INTEGER) STRICT;
CREATE UNIQUE INDEX tenants_present ON tenants(name) WHERE removed_ms IS NULL;

CREATE TABLE keys(
  id TEXT NOT NULL PRIMARY KEY,
  tenant_id INTEGER NOT NULL REFERENCES tenants(id),
  name TEXT NOT NULL,
  digest BLOB NOT NULL CHECK(length(digest) = 32),
  scopes TEXT NOT NULL,
  models TEXT NOT NULL,
  nets TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  not_before_ms INTEGER,
  expires_ms INTEGER,
  revoked_ms INTEGER,
  rotated_from TEXT REFERENCES keys(id)) STRICT, WITHOUT ROWID;
CREATE INDEX keys_of_tenant ON keys(tenant_id);
CREATE TRIGGER keys_stay_revoked BEFORE UPDATE ON keys WHEN OLD.revoked_ms IS NOT NULL AND NEW.revoked_ms IS NOT OLD.revoked_ms
BEGIN SELECT RAISE(ABORT, 'a revoked key stays revoked'); END;
CREATE TRIGGER keys_stay BEFORE DELETE ON keys BEGIN SELECT RAISE(ABORT, 'keys are revoked, never deleted'); END;

CREATE TABLE models(
  name TEXT NOT NULL PRIMARY KEY,
  source TEXT NOT NULL,
  store_digest TEXT NOT NULL,
  family TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  n_tensors INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  status TEXT NOT NULL,
  settings TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE usage(
  tenant_id INTEGER NOT NULL REFERENCES tenants(id),
  key_id TEXT NOT NULL REFERENCES keys(id),
  model TEXT NOT NULL,
  day INTEGER NOT NULL,
  requests INTEGER NOT NULL,
  prompt_tokens INTEGER NOT NULL,
  cached_tokens INTEGER NOT NULL,
  completion_tokens INTEGER NOT NULL,
  PRIMARY KEY(tenant_id, day, key_id, model)) STRICT, WITHOUT ROWID;

CREATE TABLE audit(
  seq INTEGER PRIMARY KEY,
  time_ms INTEGER NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL,
  object TEXT NOT NULL,
  detail TEXT NOT NULL,
  prev BLOB NOT NULL CHECK(length(prev) = 32),
  hash BLOB NOT NULL CHECK(length(hash) = 32)) STRICT;
CREATE TRIGGER audit_is_not_edited BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'audit rows are never changed'); END;
CREATE TRIGGER audit_is_not_cut BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'audit rows are never removed'); END;
)sql"},
};

// The version of the file; 0 for an empty one. Refuses what no catalog of this Carrel can be.
Result<int64_t> known_version(Db& db, size_t n_steps) {
  CARREL_ASSIGN(const int64_t application, db.integer("PRAGMA application_id"));
  CARREL_ASSIGN(const int64_t version, db.integer("PRAGMA user_version"));
  CARREL_ASSIGN(const int64_t n_objects, db.integer("SELECT count(*) FROM sqlite_schema"));
  const bool empty = application == 0 && version == 0 && n_objects == 0;
  if (!empty && application != kApplicationId) {
    return fail(Code::kUnsupported, "is a database of another program, not a catalog; choose another data folder", "catalog.db");
  }
  if (version < 0 || version > static_cast<int64_t>(n_steps)) {
    return fail(Code::kUnsupported,
                "has schema version " + std::to_string(version) + ", this Carrel knows up to " + std::to_string(n_steps) +
                    "; it was written by a newer Carrel: run that one, or restore the backup made before the upgrade",
                "catalog.db");
  }
  return version;
}

}  // namespace

std::span<const Migration> catalog_migrations() {
  return kMigrations;
}

Result<int> migrate(Db& db, std::span<const Migration> steps) {
  CARREL_ASSIGN(const int64_t version, known_version(db, steps.size()));
  const auto missing = steps.subspan(static_cast<size_t>(version));
  if (missing.empty()) return 0;
  for (const Migration& step : missing) {
    if (Status s = db.script(step.sql); !s) {
      s.error().message = std::string("the upgrade step \"") + step.what + "\" failed and nothing was changed: " + s.error().message;
      return std::unexpected(s.error());
    }
  }
  CARREL_TRY(
      db.script("PRAGMA application_id=" + std::to_string(kApplicationId) + "; PRAGMA user_version=" + std::to_string(steps.size()) + ";"));
  return static_cast<int>(missing.size());
}

Status require_current(Db& db, std::span<const Migration> steps) {
  CARREL_ASSIGN(const int64_t version, known_version(db, steps.size()));
  if (version == static_cast<int64_t>(steps.size())) return {};
  return fail(Code::kUnsupported,
              "is of an older version (" + std::to_string(version) + "); start `carrel serve` on this data folder once to upgrade it",
              "catalog.db");
}

}  // namespace carrel
