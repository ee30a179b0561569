// The durable catalog of a data folder: tenants, API keys, model registry, usage, audit. SQLite file catalog.db plus secrets in files.
// Formats: docs/formats/catalog.md.
//
// Threads: every method from any thread. One writer thread inside; readers on connections of their own; other processes may hold
// the same catalog open at the same time. A method that returned Ok is durable (add_usage apart). Errors: kInvalidArgument, kNotFound,
// kAlreadyExists are the caller's; kDenied keys and permissions; kUnavailable (locked, or read-only after a failed write),
// kExhausted (disk full), kIo, kCorrupt and kUnsupported are the disk's. Times are Unix milliseconds. It knows no model and no HTTP.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.h"
#include "base/hash.h"
#include "base/seal.h"
#include "storage/audit.h"
#include "storage/sqlite.h"

namespace carrel {

enum class CatalogMode {
  kReadWrite,  // made when absent, upgraded when old
  kReadOnly,   // must exist and be current; every change answers kUnsupported
};

struct CatalogOptions {
  int busy_timeout_ms = 15'000;  // how long another process may hold the write lock
  int usage_flush_ms = 500;
};

struct TenantInfo {
  std::string name;
  std::string namespace_id;
  int64_t created_ms = 0;
  int64_t n_keys = 0;  // not revoked; expired ones count
};

/// What the state manager keys its block hashes with.
struct Namespace {
  std::string id;
  Digest secret = {};
};

#define CARREL_KEY_SCOPES(X)      \
  X(kInference, "inference")      \
  X(kMetricsRead, "metrics:read") \
  X(kAdmin, "admin")

enum class KeyScope {
#define X(name, text) name,
  CARREL_KEY_SCOPES(X)
#undef X
};
const char* to_string(KeyScope scope);
Result<KeyScope> parse_scope(std::string_view text);

struct KeySpec {
  std::string tenant = "default";
  std::string name;  // for people; up to 100 printable characters
  std::vector<KeyScope> scopes = {KeyScope::kInference};
  std::optional<int64_t> not_before_ms, expires_ms;
  std::vector<std::string> models;  // empty: all
  std::vector<std::string> nets;    // networks or addresses (source_net.h); empty: from anywhere
};

struct KeyInfo {
  std::string id;
  std::string tenant, namespace_id;
  std::string name;
  std::vector<KeyScope> scopes;
  std::vector<std::string> models, nets;
  int64_t created_ms = 0;
  std::optional<int64_t> not_before_ms, expires_ms, revoked_ms;
  std::string rotated_from;  // id of the key before it; empty: none

  bool has_scope(KeyScope scope) const;
  bool allows_model(std::string_view model) const;
  bool allows_source(const std::string& address) const;
};

struct CreatedKey {
  KeyInfo info;
  std::string key;  // shown once; only a keyed digest is kept
};

/// Why a key was refused: for log and metrics. The API answers one 401 for all.
enum class KeyRefusal { kNone, kMalformed, kUnknown, kRevoked, kExpired, kNotYetValid };
const char* to_string(KeyRefusal refusal);

enum class ModelStatus { kReady, kDamaged };
const char* to_string(ModelStatus status);

struct ModelRecord {
  std::string name;  // letters, digits and . _ : / -
  std::string source;
  std::string store_digest;  // hexadecimal SHA-256
  std::string family;
  int64_t bytes = 0;
  int64_t n_tensors = 0;
  int64_t created_ms = 0;  // set by add_model
  ModelStatus status = ModelStatus::kReady;
  std::string settings_json = "{}";
};

struct UsageCounts {
  int64_t requests = 0, prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
};

struct UsageRow {
  std::string tenant, key_id, model;
  std::string day;  // UTC, YYYY-MM-DD
  UsageCounts counts;
};

struct CatalogFigures {
  uint64_t wal_bytes = 0;  // size of catalog.db-wal
  int64_t audit_head_seq = 0;
  std::vector<double> write_seconds;  // how long each change with its audit entry took to be durable, since the last call; at most 1000
};

class Catalog {
 public:
  static constexpr std::string_view kDefaultTenant = "default";

  /// Opens <data>/catalog.db: settings read back, integrity check, upgrade in one transaction, orphaned secrets swept, tenant
  /// `default` made at the first start. env outlives the catalog.
  static Result<std::unique_ptr<Catalog>> open(Env* env, const std::string& data_dir, CatalogMode mode, CatalogOptions options = {});
  ~Catalog();  // writes the last usage counters

  // Tenants. actor says who acts, for the audit log: "cli", "system", "key:<id>".
  Result<TenantInfo> create_tenant(const std::string& name, std::string_view actor);
  Result<std::vector<TenantInfo>> tenants();
  /// Revokes its keys and destroys its namespace: hash secret and data key. Its usage stays.
  Status remove_tenant(const std::string& name, std::string_view actor);
  Result<Namespace> tenant_namespace(const std::string& tenant);
  /// What the extents of a namespace are sealed with; made, durable, at the first use. A damaged one is replaced: what it sealed is lost.
  /// kNotFound: no tenant has this namespace (any more). Reads a file: keep the key while the namespace is in use.
  Result<SecretKey> data_key(const std::string& namespace_id);
  /// The tenant goes on with a new namespace; secret and data key of the old one are destroyed, and with them all that was sealed.
  /// Returns the new id. An error that says so leaves the tenant renewed and files for the next start to destroy.
  Result<std::string> renew_namespace(const std::string& tenant, std::string_view actor);

  // API keys.
  Result<CreatedKey> create_key(const KeySpec& spec, std::string_view actor);
  /// Of one tenant, or of all for an empty name; revoked ones too, oldest first.
  Result<std::vector<KeyInfo>> keys(const std::string& tenant = {});
  Status revoke_key(const std::string& id, std::string_view actor);
  /// A new key with the same rights; the old one stays valid for overlap_ms (0: revoked at once). The validity's start is now, its
  /// end that of the old key.
  Result<CreatedKey> rotate_key(const std::string& id, int64_t overlap_ms, std::string_view actor);
  /// The key's record, or kDenied; microseconds. Sees a revocation by another process at once.
  Result<KeyInfo> authenticate(std::string_view presented, KeyRefusal* why = nullptr);
  /// The same verdict for a key that has authenticated before: is it still valid? For running streams.
  Status check_key(const std::string& id, KeyRefusal* why = nullptr);
  /// The first key of tenant `default`, once in the life of the data folder; nothing afterwards.
  Result<std::optional<CreatedKey>> bootstrap_key(std::string_view actor);

  // Model registry.
  Status add_model(const ModelRecord& model, std::string_view actor);
  Result<std::vector<ModelRecord>> models();
  Result<ModelRecord> model(const std::string& name);
  Status set_model_status(const std::string& name, ModelStatus status, std::string_view actor);
  Status remove_model(const std::string& name, std::string_view actor);

  // Usage, per tenant, key, model and UTC day.
  /// Never waits; durable about usage_flush_ms later and at the end. The tenant is the key's.
  void add_usage(const std::string& key_id, const std::string& model, const UsageCounts& counts);
  Status flush_usage();
  /// Of one tenant, or all for an empty name; days inclusive, empty: no limit. Removed tenants' rows appear only for all.
  Result<std::vector<UsageRow>> usage(const std::string& tenant, const std::string& from_day = {}, const std::string& to_day = {});

  // Audit.
  /// An act that changes nothing in the catalog itself: a drill, a purge. Recorded before it is done, so that none goes unrecorded.
  Status record_act(std::string_view actor, AuditAction action, std::string_view object, const AuditDetail& detail);
  Result<std::vector<AuditEntry>> audit(int64_t after_seq, int64_t limit);
  /// The number of entries when none was edited or removed; kCorrupt otherwise.
  Result<int64_t> verify_audit();

  /// Changes whenever anyone, here or in another process, commits. Microseconds.
  Result<int64_t> data_version();
  /// Ok while changes can be written: no write failed for good, catalog.db is still the open file, and the last usage counters were
  /// written. Microseconds; a change is logged.
  Status health();
  /// For metrics.
  Result<CatalogFigures> figures();
  Result<DbSettings> writer_settings();
  Result<DbSettings> reader_settings();

  struct Impl;

 private:
  explicit Catalog(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Letters, digits, - and _, at most 64, first a letter or digit, lower case.
Status check_tenant_name(const std::string& name);
/// 1 to 128 letters, digits and . _ : / -, first a letter or digit, no "..".
Status check_model_name(const std::string& name);

}  // namespace carrel
