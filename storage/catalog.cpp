// Opening, connections, clock and the noticing of foreign changes. Tenants, keys, models and usage have files of their own.
#include "storage/catalog.h"

#include <algorithm>
#include <set>

#include "base/log.h"
#include "storage/api_key.h"
#include "storage/catalog_impl.h"
#include "storage/migrations.h"

namespace carrel {
namespace {

Digest derive(const Digest& secret, std::string_view purpose) {
  return hmac_sha256(secret, std::as_bytes(std::span(purpose)));
}

// catalog.db is durable before the first secret is made, so that secrets alone mean a lost catalog. Opening would make a new one and sweep
// them. The secrets are looked for first: another process may be at its first start.
Status refuse_secrets_alone(Env* env, const std::string& data_dir) {
  const Secrets secrets(env, data_dir);
  bool found = env->exists(secrets.pepper_path());
  if (!found && env->is_dir(data_dir + "/namespaces")) {
    CARREL_ASSIGN(const auto files, secrets.namespace_files());
    found = !files.empty();
  }
  if (!found || env->exists(data_dir + "/catalog.db")) return {};
  return fail(
      Code::kCorrupt,
      "is missing, though pepper.key or namespaces/ beside it belong to one: nothing was changed. Restore catalog.db and pepper.key "
      "from the same backup; or, to begin anew without the old keys and caches, move pepper.key and namespaces/ away",
      data_dir + "/catalog.db");
}

}  // namespace

Catalog::Impl::Impl(Env* e, std::string dir, CatalogMode m, CatalogOptions o)
    : env(e),
      data_dir(std::move(dir)),
      db_path(data_dir + "/catalog.db"),
      mode(m),
      options(o),
      secrets(e, data_dir),
      opened_wall_ms(e->wall_ms()),
      opened_mono_ns(e->mono_ns()) {}

Catalog::Catalog(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

// The writer is the last to close: only a connection that may write can fold the WAL back into the file.
Catalog::~Catalog() {
  {
    MutexLock lock(impl_->access_mutex);
    impl_->poll.reset();
    impl_->watch.reset();
  }
  {
    MutexLock lock(impl_->readers_mutex);
    impl_->idle_readers.clear();
  }
  impl_->writer.reset();
}

Result<std::unique_ptr<Catalog>> Catalog::open(Env* env, const std::string& data_dir, CatalogMode mode, CatalogOptions options) {
  CARREL_TRY(refuse_secrets_alone(env, data_dir));
  if (mode == CatalogMode::kReadOnly && !env->exists(data_dir + "/catalog.db")) {
    return fail(Code::kNotFound, "there is no catalog here yet; start `carrel serve` on this data folder once", data_dir);
  }
  if (mode == CatalogMode::kReadWrite) CARREL_TRY(Secrets(env, data_dir).prepare());
  CARREL_ASSIGN(std::string full, env->canonical(data_dir));
  auto impl = std::make_unique<Impl>(env, std::move(full), mode, options);
  CARREL_TRY(impl->open_connections());
  return std::unique_ptr<Catalog>(new Catalog(std::move(impl)));
}

Status Catalog::Impl::open_connections() {
  if (mode == CatalogMode::kReadWrite) {
    CARREL_ASSIGN(Db db, Db::open(env, db_path, DbRole::kWriter, options.busy_timeout_ms));
    CARREL_TRY(db.quick_check());
    CARREL_TRY(db.script("BEGIN IMMEDIATE"));
    if (const Status s = initialise(db); !s) {
      if (db.in_transaction()) (void)db.script("ROLLBACK");
      return s;
    }
    CARREL_TRY(db.script("COMMIT"));
    CARREL_TRY(env->sync_dir(data_dir));
    writer = std::make_unique<WriteQueue>(env, std::move(db), options.usage_flush_ms, [this] { return usage_job(); });
  }
  MutexLock lock(access_mutex);
  CARREL_ASSIGN(Db db, Db::open(env, db_path, DbRole::kReader, options.busy_timeout_ms));
  watch = std::make_unique<Db>(std::move(db));
  if (mode == CatalogMode::kReadOnly) {
    CARREL_TRY(watch->quick_check());
    CARREL_TRY(require_current(*watch, catalog_migrations()));
    CARREL_TRY(adopt_pepper(*watch));
  }
  CARREL_ASSIGN(Statement s, watch->prepare("PRAGMA data_version"));
  poll.emplace(std::move(s));
  return {};
}

// One write transaction, so that two processes at their first start do not both make secrets.
Status Catalog::Impl::initialise(Db& db) {
  CARREL_ASSIGN(const int64_t version, db.integer("PRAGMA user_version"));
  CARREL_ASSIGN(const int n_steps, migrate(db, catalog_migrations()));
  CARREL_TRY(adopt_pepper(db));
  if (version == 0) {
    CARREL_TRY(record(db, "system", AuditAction::kCatalogCreate, "catalog", {}));
    CARREL_ASSIGN(const std::string id, make_namespace(*this));
    CARREL_TRY(db.run("INSERT INTO tenants(name, namespace_id, created_ms) VALUES(?,?,?)", kDefaultTenant, id, now_ms()));
    CARREL_TRY(record(db, "system", AuditAction::kTenantCreate, kDefaultTenant, {{"namespace", id}}));
  } else if (n_steps > 0) {
    CARREL_TRY(record(db, "system", AuditAction::kCatalogUpgrade, "catalog", {{"from", std::to_string(version)}}));
  }
  return sweep_namespaces(db);
}

// The catalog remembers a fingerprint, so that a lost or exchanged pepper is said and not seen as "all keys are wrong".
Status Catalog::Impl::adopt_pepper(Db& db) {
  const std::string path = secrets.pepper_path();
  const auto stored = db.text("SELECT value FROM meta WHERE name = 'pepper_fingerprint'");
  if (!stored && stored.error().code != Code::kNotFound) return std::unexpected(stored.error());
  auto found = secrets.load(path);
  if (!found && found.error().code == Code::kNotFound && !stored) found = secrets.make(path);
  if (!found && found.error().code == Code::kNotFound) {
    return fail(Code::kCorrupt, "is missing, and no API key can be checked without it; restore it from a backup of the data folder", path);
  }
  if (!found) return std::unexpected(found.error());
  pepper = *found;
  audit_key = derive(pepper, "carrel audit head key 1");
  const std::string fingerprint = to_hex(derive(pepper, "carrel pepper fingerprint 1"));
  if (!stored) return db.run("INSERT INTO meta(name, value) VALUES('pepper_fingerprint', ?)", fingerprint);
  if (*stored == fingerprint) return {};
  return fail(Code::kCorrupt, "is not the file that this catalog was made with; restore catalog.db and pepper.key from the same backup",
              path);
}

// Secrets without a tenant are what a crash left: destroyed. Tenants without a hash secret are what a restore left (backups hold no
// secrets): they get a new namespace, and with it an empty cache. A data key is made when it is needed.
Status Catalog::Impl::sweep_namespaces(Db& db) {
  std::map<std::string, std::string> tenants;  // namespace id → tenant
  std::set<std::string> expected;              // paths
  {
    CARREL_ASSIGN(Statement rows, db.query("SELECT name, namespace_id FROM tenants WHERE removed_ms IS NULL"));
    for (;;) {
      CARREL_ASSIGN(const bool more, rows.step());
      if (!more) break;
      const std::string id = rows.text(1);
      tenants[id] = rows.text(0);
      expected.insert({secrets.namespace_path(id), secrets.data_key_path(id)});
    }
  }
  CARREL_ASSIGN(const auto files, secrets.namespace_files());
  for (const std::string& path : files) {
    if (!expected.contains(path)) CARREL_TRY(secrets.destroy(path));
  }
  for (const auto& [old, tenant] : tenants) {
    const auto secret = secrets.load(secrets.namespace_path(old));
    if (secret) continue;
    if (secret.error().code != Code::kNotFound && secret.error().code != Code::kCorrupt) return std::unexpected(secret.error());
    spdlog::warn("tenant {}: its namespace secret is gone; it gets a new namespace and an empty cache", tenant);
    CARREL_TRY(secrets.destroy_namespace(old));
    CARREL_ASSIGN(const std::string id, make_namespace(*this));
    CARREL_TRY(db.run("UPDATE tenants SET namespace_id = ? WHERE name = ? AND removed_ms IS NULL", id, tenant));
    CARREL_TRY(record(db, "system", AuditAction::kNamespaceRenew, tenant, {{"namespace", id}}));
  }
  return {};
}

int64_t Catalog::Impl::now_ms() const {
  return std::max(env->wall_ms(), opened_wall_ms + (env->mono_ns() - opened_mono_ns) / 1'000'000);
}

Status Catalog::Impl::change(WriteQueue::Work work) {
  if (!writer) return fail(Code::kUnsupported, "the catalog is open for reading only", db_path);
  const int64_t begin = env->mono_ns();
  CARREL_TRY(writer->run(std::move(work)));
  constexpr size_t kMostTimes = 1000;
  const MutexLock lock(times_mutex);
  if (write_seconds.size() < kMostTimes) write_seconds.push_back(static_cast<double>(env->mono_ns() - begin) / 1e9);
  return {};
}

Status Catalog::Impl::record(Db& db, std::string_view actor, AuditAction action, std::string_view object, const AuditDetail& detail) {
  return append_audit(db, audit_key, now_ms(), actor, action, object, detail);
}

Status Catalog::Impl::read(const std::function<Status(Db&)>& work) {
  constexpr size_t kMostIdle = 4;
  std::unique_ptr<Db> reader;
  {
    MutexLock lock(readers_mutex);
    if (!idle_readers.empty()) {
      reader = std::move(idle_readers.back());
      idle_readers.pop_back();
    }
  }
  if (!reader) {
    CARREL_ASSIGN(Db db, Db::open(env, db_path, DbRole::kReader, options.busy_timeout_ms));
    reader = std::make_unique<Db>(std::move(db));
  }
  // One transaction per reading: all its statements see the same state, and none is left open.
  CARREL_TRY(reader->script("BEGIN"));
  const Status s = work(*reader);
  if (reader->in_transaction()) CARREL_TRY(reader->script("COMMIT"));  // an I/O error has ended it already
  MutexLock lock(readers_mutex);
  if (idle_readers.size() < kMostIdle) idle_readers.push_back(std::move(reader));
  return s;
}

Result<int64_t> Catalog::Impl::poll_version() {
  CARREL_ASSIGN(const bool row, poll->step());
  const int64_t version = row ? poll->integer(0) : -1;
  poll->reset();
  return version;
}

// Usage is written every half second and changes the version too; only an administrative change, which is always audited, makes
// a new table.
Result<std::shared_ptr<const AccessTable>> Catalog::Impl::access() {
  MutexLock lock(access_mutex);
  CARREL_ASSIGN(const int64_t version, poll_version());
  if (table && version == seen_version) return table;
  CARREL_TRY(watch->script("BEGIN"));
  const Status s = [&]() CARREL_REQUIRES(access_mutex) -> Status {
    CARREL_ASSIGN(const int64_t seq, watch->integer("SELECT coalesce(max(seq), 0) FROM audit"));
    if (table && seq == seen_audit_seq) return {};
    CARREL_ASSIGN(auto rows, load_keys(*watch));
    auto fresh = std::make_shared<AccessTable>();
    for (auto& entry : rows) fresh->keys.emplace(entry.info.id, std::move(entry));
    table = std::move(fresh);
    seen_audit_seq = seq;
    return {};
  }();
  if (watch->in_transaction()) CARREL_TRY(watch->script("COMMIT"));
  if (!s) return std::unexpected(s.error());
  seen_version = version;
  return table;
}

Result<int64_t> Catalog::data_version() {
  MutexLock lock(impl_->access_mutex);
  return impl_->poll_version();
}

Status Catalog::health() {
  if (!impl_->writer) return fail(Code::kUnsupported, "the catalog is open for reading only", impl_->db_path);
  CARREL_TRY(impl_->writer->health());
  CARREL_TRY(impl_->check_in_place());
  MutexLock lock(impl_->trouble_mutex);
  return impl_->usage_trouble;
}

Status Catalog::Impl::check_in_place() {
  const Status now = [this] {
    MutexLock lock(access_mutex);
    return watch->check_in_place();
  }();
  MutexLock lock(trouble_mutex);
  if (place_trouble && !now) spdlog::error("{}; nothing is written meanwhile", now.error().text());
  if (!place_trouble && now) spdlog::info("{} is back in its place", db_path);
  place_trouble = now;
  return now;
}

Result<DbSettings> Catalog::writer_settings() {
  CARREL_TRY(health());
  return impl_->writer->settings();
}

Result<DbSettings> Catalog::reader_settings() {
  DbSettings settings;
  CARREL_TRY(impl_->read([&](Db& db) -> Status {
    CARREL_ASSIGN(settings, db.settings());
    return {};
  }));
  return settings;
}

Result<CatalogFigures> Catalog::figures() {
  CatalogFigures f;
  CARREL_TRY(impl_->read([&](Db& db) -> Status {
    CARREL_ASSIGN(f.audit_head_seq, db.integer("SELECT COALESCE(MAX(seq), 0) FROM audit"));
    return {};
  }));
  const std::string wal = impl_->db_path + "-wal";
  if (impl_->env->exists(wal)) {
    CARREL_ASSIGN(const auto file, impl_->env->open(wal, Open::kRead));
    CARREL_ASSIGN(f.wal_bytes, file->size());
  }
  const MutexLock lock(impl_->times_mutex);
  f.write_seconds.swap(impl_->write_seconds);
  return f;
}

Status Catalog::record_act(std::string_view actor, AuditAction action, std::string_view object, const AuditDetail& detail) {
  return impl_->change([&](Db& db) { return impl_->record(db, actor, action, object, detail); });
}

Result<std::vector<AuditEntry>> Catalog::audit(int64_t after_seq, int64_t limit) {
  std::vector<AuditEntry> out;
  CARREL_TRY(impl_->read([&](Db& db) -> Status {
    CARREL_ASSIGN(out, list_audit(db, after_seq, limit));
    return {};
  }));
  return out;
}

Result<int64_t> Catalog::verify_audit() {
  int64_t n = 0;
  CARREL_TRY(impl_->read([&](Db& db) -> Status {
    CARREL_ASSIGN(n, carrel::verify_audit(db, impl_->audit_key));
    return {};
  }));
  return n;
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0) words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

std::string join_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : " ") + w;
  return text;
}

}  // namespace carrel
