// Tenants and their namespaces.
#include <algorithm>

#include "base/log.h"
#include "storage/api_key.h"
#include "storage/catalog_impl.h"

namespace carrel {

Status check_tenant_name(const std::string& name) {
  const auto lower = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  const bool good = !name.empty() && name.size() <= 64 && lower(name[0]) &&
                    std::all_of(name.begin(), name.end(), [&](char c) { return lower(c) || c == '-' || c == '_'; });
  if (good) return {};
  return fail(Code::kInvalidArgument, "a tenant's name has 1 to 64 of a-z, 0-9, - and _, and starts with a letter or digit",
              "tenant '" + name.substr(0, 80) + "'");
}

Result<TenantRow> find_tenant(Db& db, const std::string& name) {
  CARREL_ASSIGN(Statement row, db.query("SELECT id, namespace_id FROM tenants WHERE name = ? AND removed_ms IS NULL", name));
  CARREL_ASSIGN(const bool found, row.step());
  if (!found) return fail(Code::kNotFound, "there is no such tenant; `carrel tenant list` shows those there are", "tenant " + name);
  return TenantRow{row.integer(0), row.text(1)};
}

// The secret is durable before the row that names it; a crash between leaves an orphan, which the next opening destroys.
Result<std::string> make_namespace(Catalog::Impl& impl) {
  const std::string id = random_name(impl.env, 26);
  CARREL_TRY(impl.secrets.make(impl.secrets.namespace_path(id)));
  return id;
}

Result<TenantInfo> Catalog::create_tenant(const std::string& name, std::string_view actor) {
  CARREL_TRY(check_tenant_name(name));
  TenantInfo info{.name = name, .namespace_id = {}, .created_ms = impl_->now_ms(), .n_keys = 0};
  CARREL_TRY(impl_->change([&](Db& db) -> Status {
    const auto present = find_tenant(db, name);
    if (present) return fail(Code::kAlreadyExists, "exists already", "tenant " + name);
    if (present.error().code != Code::kNotFound) return std::unexpected(present.error());
    CARREL_ASSIGN(info.namespace_id, make_namespace(*impl_));
    CARREL_TRY(db.run("INSERT INTO tenants(name, namespace_id, created_ms) VALUES(?,?,?)", name, info.namespace_id, info.created_ms));
    return impl_->record(db, actor, AuditAction::kTenantCreate, name, {{"namespace", info.namespace_id}});
  }));
  return info;
}

Result<std::vector<TenantInfo>> Catalog::tenants() {
  std::vector<TenantInfo> out;
  CARREL_TRY(impl_->read([&](Db& db) -> Status {
    CARREL_ASSIGN(Statement rows, db.query("SELECT t.name, t.namespace_id, t.created_ms, "
                                           "(SELECT count(*) FROM keys k WHERE k.tenant_id = t.id AND k.revoked_ms IS NULL) "
                                           "FROM tenants t WHERE t.removed_ms IS NULL ORDER BY t.name"));
    for (;;) {
      CARREL_ASSIGN(const bool more, rows.step());
      if (!more) return {};
      out.push_back({rows.text(0), rows.text(1), rows.integer(2), rows.integer(3)});
    }
  }));
  return out;
}

Status Catalog::remove_tenant(const std::string& name, std::string_view actor) {
  std::string namespace_id;
  CARREL_TRY(impl_->change([&](Db& db) -> Status {
    CARREL_ASSIGN(const TenantRow tenant, find_tenant(db, name));
    namespace_id = tenant.namespace_id;
    const int64_t now = impl_->now_ms();
    CARREL_TRY(db.run("UPDATE keys SET revoked_ms = ? WHERE tenant_id = ? AND revoked_ms IS NULL", now, tenant.id));
    const int64_t n_keys = db.n_changed();
    CARREL_TRY(db.run("UPDATE tenants SET removed_ms = ? WHERE id = ?", now, tenant.id));
    return impl_->record(db, actor, AuditAction::kTenantRemove, name,
                         {{"keys_revoked", std::to_string(n_keys)}, {"namespace", namespace_id}});
  }));
  // After the commit, so that no tenant is ever without its secret; a crash in between leaves an orphan for the next opening.
  Status s = impl_->secrets.destroy_namespace(namespace_id);
  if (!s) s.error().message += "; the tenant is removed, but a secret of its namespace is still there: the next start destroys it";
  return s;
}

Result<Namespace> Catalog::tenant_namespace(const std::string& tenant) {
  Namespace out;
  CARREL_TRY(impl_->read([&](Db& db) -> Status {
    CARREL_ASSIGN(const TenantRow row, find_tenant(db, tenant));
    out.id = row.namespace_id;
    return {};
  }));
  CARREL_ASSIGN(out.secret, impl_->secrets.load(impl_->secrets.namespace_path(out.id)));
  return out;
}

namespace {

Status expect_in_use(Db& db, const std::string& namespace_id) {
  CARREL_ASSIGN(Statement row, db.query("SELECT 1 FROM tenants WHERE namespace_id = ? AND removed_ms IS NULL", namespace_id));
  CARREL_ASSIGN(const bool found, row.step());
  return found ? Status{}
               : fail(Code::kNotFound, "belongs to no tenant; it was purged or its tenant removed",
                      "namespace " + namespace_id.substr(0, 64));
}

Result<SecretKey> load_key(const Secrets& secrets, const std::string& path) {
  CARREL_ASSIGN(Digest bytes, secrets.load(path));
  SecretKey key(bytes);
  wipe(bytes);
  return key;
}

}  // namespace

// The id is looked up before it becomes a path: it may come from the header of a foreign file. Made within a write transaction, so that two
// processes do not both make one, and that none is made behind a removal.
Result<SecretKey> Catalog::data_key(const std::string& namespace_id) {
  CARREL_TRY(impl_->read([&](Db& db) { return expect_in_use(db, namespace_id); }));
  const Secrets& secrets = impl_->secrets;
  const std::string path = secrets.data_key_path(namespace_id);
  auto key = load_key(secrets, path);
  if (key || (key.error().code != Code::kNotFound && key.error().code != Code::kCorrupt)) return key;
  CARREL_TRY(impl_->change([&](Db& db) -> Status {
    CARREL_TRY(expect_in_use(db, namespace_id));
    key = load_key(secrets, path);
    if (key) return {};
    if (key.error().code == Code::kCorrupt) {
      spdlog::warn("{}; it is replaced, and what it sealed is lost", key.error().text());
      CARREL_TRY(secrets.destroy(path));
    } else if (key.error().code != Code::kNotFound) {
      return std::unexpected(key.error());
    }
    CARREL_ASSIGN(Digest made, secrets.make(path));
    key = SecretKey(made);
    wipe(made);
    return {};
  }));
  return key;
}

Result<std::string> Catalog::renew_namespace(const std::string& tenant, std::string_view actor) {
  std::string fresh, old;
  CARREL_TRY(impl_->change([&](Db& db) -> Status {
    CARREL_ASSIGN(const TenantRow row, find_tenant(db, tenant));
    old = row.namespace_id;
    CARREL_ASSIGN(fresh, make_namespace(*impl_));
    CARREL_TRY(db.run("UPDATE tenants SET namespace_id = ? WHERE id = ?", fresh, row.id));
    return impl_->record(db, actor, AuditAction::kNamespaceRenew, tenant, {{"namespace", fresh}, {"was", old}});
  }));
  Status s = impl_->secrets.destroy_namespace(old);
  if (s) return fresh;
  s.error().message += "; the tenant has a new namespace, but a secret of the old one is still there: the next start destroys it";
  return std::unexpected(s.error());
}

}  // namespace carrel
