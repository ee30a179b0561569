// API keys: made, listed, rotated, revoked, checked.
#include <algorithm>

#include "storage/api_key.h"
#include "storage/catalog_impl.h"
#include "storage/source_net.h"

namespace carrel {
namespace {

constexpr std::string_view kKeyColumns =
    "SELECT k.id, t.name, t.namespace_id, k.name, k.scopes, k.models, k.nets, k.created_ms, k.not_before_ms, k.expires_ms, k.revoked_ms, "
    "coalesce(k.rotated_from, ''), k.digest FROM keys k JOIN tenants t ON t.id = k.tenant_id ";

Result<AccessTable::Entry> entry_of(const Statement& row) {
  AccessTable::Entry e;
  KeyInfo& k = e.info;
  k = {.id = row.text(0),
       .tenant = row.text(1),
       .namespace_id = row.text(2),
       .name = row.text(3),
       .scopes = {},
       .models = split_words(row.text(5)),
       .nets = split_words(row.text(6)),
       .created_ms = row.integer(7),
       .not_before_ms = row.integer_or_null(8),
       .expires_ms = row.integer_or_null(9),
       .revoked_ms = row.integer_or_null(10),
       .rotated_from = row.text(11)};
  for (const std::string& word : split_words(row.text(4))) {
    CARREL_ASSIGN(const KeyScope scope, parse_scope(word));
    k.scopes.push_back(scope);
  }
  CARREL_ASSIGN(e.digest, row.digest(12));
  return e;
}

Result<std::vector<AccessTable::Entry>> entries_of(Statement& rows) {
  std::vector<AccessTable::Entry> out;
  for (;;) {
    CARREL_ASSIGN(const bool more, rows.step());
    if (!more) return out;
    CARREL_ASSIGN(auto entry, entry_of(rows));
    out.push_back(std::move(entry));
  }
}

Result<KeyInfo> find_key(Db& db, const std::string& id) {
  CARREL_ASSIGN(Statement row, db.query(std::string(kKeyColumns) + "WHERE k.id = ?", id));
  CARREL_ASSIGN(auto found, entries_of(row));
  if (found.empty()) return fail(Code::kNotFound, "there is no such key; `carrel key list` shows their ids", "key " + id);
  return found[0].info;
}

std::string scope_words(const std::vector<KeyScope>& scopes) {
  std::vector<std::string> words;
  for (const KeyScope s : scopes) words.push_back(to_string(s));
  return join_words(words);
}

Status check_spec(const KeySpec& spec) {
  const auto refuse = [](const std::string& why) { return fail(Code::kInvalidArgument, why, "key"); };
  if (spec.name.size() > 100) return refuse("a key's name has at most 100 characters");
  for (const char c : spec.name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return refuse("a key's name has no control characters");
  }
  if (spec.scopes.empty()) return refuse("a key needs a scope: inference or metrics:read");
  for (const std::string& model : spec.models) {
    if (model.empty() || model.find(' ') != std::string::npos)
      return refuse("a model's name is not empty and has no space: \"" + model + "\"");
  }
  for (const std::string& net : spec.nets) CARREL_TRY(SourceNet::parse(net));
  if (spec.not_before_ms && spec.expires_ms && *spec.not_before_ms >= *spec.expires_ms)
    return refuse("the key would expire before it is valid");
  return {};
}

KeyRefusal verdict_on(const KeyInfo& key, int64_t now_ms) {
  if (key.revoked_ms) return KeyRefusal::kRevoked;
  if (key.expires_ms && now_ms >= *key.expires_ms) return KeyRefusal::kExpired;
  if (key.not_before_ms && now_ms < *key.not_before_ms) return KeyRefusal::kNotYetValid;
  return KeyRefusal::kNone;
}

std::unexpected<Error> refusal(KeyRefusal reason, const std::string& id, KeyRefusal* why) {
  if (why != nullptr) *why = reason;
  return fail(Code::kDenied, std::string("the key is ") + to_string(reason), "key " + id);
}

std::string_view text_of(const Digest& d) {
  return {reinterpret_cast<const char*>(d.data()), d.size()};
}

}  // namespace

const char* to_string(KeyScope scope) {
  switch (scope) {
#define X(name, text)  \
  case KeyScope::name: \
    return text;
    CARREL_KEY_SCOPES(X)
#undef X
  }
  return "unknown";
}

Result<KeyScope> parse_scope(std::string_view text) {
  std::string known;
#define X(name, word)                      \
  if (text == word) return KeyScope::name; \
  known += (known.empty() ? "" : ", ") + std::string(word);
  CARREL_KEY_SCOPES(X)
#undef X
  return fail(Code::kInvalidArgument, "is not a scope; those there are: " + known, std::string(text));
}

const char* to_string(KeyRefusal refusal) {
  switch (refusal) {
    case KeyRefusal::kNone:
      return "valid";
    case KeyRefusal::kMalformed:
      return "malformed";
    case KeyRefusal::kUnknown:
      return "unknown";
    case KeyRefusal::kRevoked:
      return "revoked";
    case KeyRefusal::kExpired:
      return "expired";
    case KeyRefusal::kNotYetValid:
      return "not valid yet";
  }
  return "unknown";
}

bool KeyInfo::has_scope(KeyScope scope) const {
  return std::find(scopes.begin(), scopes.end(), scope) != scopes.end();
}

bool KeyInfo::allows_model(std::string_view model) const {
  return models.empty() || std::find(models.begin(), models.end(), model) != models.end();
}

bool KeyInfo::allows_source(const std::string& address) const {
  return nets.empty() || std::any_of(nets.begin(), nets.end(), [&](const std::string& text) {
           const auto net = SourceNet::parse(text);
           return net && net->contains(address);
         });
}

Result<std::vector<AccessTable::Entry>> load_keys(Db& db) {
  CARREL_ASSIGN(Statement rows, db.query(kKeyColumns));
  return entries_of(rows);
}

Result<CreatedKey> Catalog::Impl::insert_key(Db& db, const KeySpec& spec, const std::string& rotated_from) {
  CARREL_ASSIGN(const TenantRow tenant, find_tenant(db, spec.tenant));
  const ApiKey key = ApiKey::make(env);
  CARREL_TRY(
      db.run("INSERT INTO keys(id, tenant_id, name, digest, scopes, models, nets, created_ms, not_before_ms, expires_ms, rotated_from) "
             "VALUES(?,?,?,?,?,?,?,?,?,?,nullif(?,''))",
             key.id, tenant.id, spec.name, key.digest(pepper), scope_words(spec.scopes), join_words(spec.models), join_words(spec.nets),
             now_ms(), spec.not_before_ms, spec.expires_ms, rotated_from));
  CARREL_ASSIGN(KeyInfo info, find_key(db, key.id));
  return CreatedKey{std::move(info), key.text()};
}

Result<CreatedKey> Catalog::create_key(const KeySpec& spec, std::string_view actor) {
  CARREL_TRY(check_spec(spec));
  CreatedKey out;
  CARREL_TRY(impl_->change([&](Db& db) -> Status {
    CARREL_ASSIGN(out, impl_->insert_key(db, spec, {}));
    return impl_->record(db, actor, AuditAction::kKeyCreate, out.info.id, {{"tenant", spec.tenant}, {"scopes", scope_words(spec.scopes)}});
  }));
  return out;
}

Result<std::optional<CreatedKey>> Catalog::bootstrap_key(std::string_view actor) {
  std::optional<CreatedKey> out;
  CARREL_TRY(impl_->change([&](Db& db) -> Status {
    CARREL_ASSIGN(const int64_t done, db.integer("SELECT count(*) FROM meta WHERE name = 'bootstrap_done'"));
    if (done != 0) return {};
    CARREL_TRY(db.run("INSERT INTO meta(name, value) VALUES('bootstrap_done', ?)", impl_->now_ms()));
    const auto tenant = find_tenant(db, std::string(kDefaultTenant));
    if (!tenant && tenant.error().code == Code::kNotFound) return {};  // removed before the first start: nobody waits for a key
    KeySpec spec;
    spec.name = "first key";
    CARREL_ASSIGN(out, impl_->insert_key(db, spec, {}));
    return impl_->record(db, actor, AuditAction::kKeyCreate, out->info.id, {{"tenant", spec.tenant}, {"scopes", scope_words(spec.scopes)}});
  }));
  return out;
}

Result<std::vector<KeyInfo>> Catalog::keys(const std::string& tenant) {
  std::vector<KeyInfo> out;
  CARREL_TRY(impl_->read([&](Db& db) -> Status {
    if (!tenant.empty()) CARREL_TRY(find_tenant(db, tenant));
    CARREL_ASSIGN(
        Statement rows,
        db.query(std::string(kKeyColumns) + "WHERE t.removed_ms IS NULL AND (?1 = '' OR t.name = ?1) ORDER BY k.created_ms, k.id", tenant));
    CARREL_ASSIGN(auto entries, entries_of(rows));
    for (auto& e : entries) out.push_back(std::move(e.info));
    return {};
  }));
  return out;
}

Status Catalog::revoke_key(const std::string& id, std::string_view actor) {
  return impl_->change([&](Db& db) -> Status {
    CARREL_ASSIGN(const KeyInfo key, find_key(db, id));
    if (key.revoked_ms) return {};
    CARREL_TRY(db.run("UPDATE keys SET revoked_ms = ? WHERE id = ?", impl_->now_ms(), id));
    return impl_->record(db, actor, AuditAction::kKeyRevoke, id, {{"tenant", key.tenant}});
  });
}

Result<CreatedKey> Catalog::rotate_key(const std::string& id, int64_t overlap_ms, std::string_view actor) {
  constexpr int64_t kLongestOverlapMs = int64_t{366} * 24 * 3600 * 1000;
  if (overlap_ms < 0 || overlap_ms > kLongestOverlapMs)
    return fail(Code::kInvalidArgument, "the overlap must be between 0 and 366 days", "key " + id);
  CreatedKey out;
  CARREL_TRY(impl_->change([&](Db& db) -> Status {
    CARREL_ASSIGN(const KeyInfo old, find_key(db, id));
    const int64_t now = impl_->now_ms();
    const KeyRefusal verdict = verdict_on(old, now);
    if (verdict != KeyRefusal::kNone && verdict != KeyRefusal::kNotYetValid) {
      return fail(Code::kInvalidArgument, std::string("is ") + to_string(verdict) + " and cannot be rotated; create a new key",
                  "key " + id);
    }
    const KeySpec spec{.tenant = old.tenant,
                       .name = old.name,
                       .scopes = old.scopes,
                       .not_before_ms = old.not_before_ms,
                       .expires_ms = old.expires_ms,
                       .models = old.models,
                       .nets = old.nets};
    CARREL_ASSIGN(out, impl_->insert_key(db, spec, id));
    if (overlap_ms == 0) {
      CARREL_TRY(db.run("UPDATE keys SET revoked_ms = ? WHERE id = ?", now, id));
    } else {
      CARREL_TRY(db.run("UPDATE keys SET expires_ms = min(coalesce(expires_ms, ?1), ?1) WHERE id = ?2", now + overlap_ms, id));
    }
    return impl_->record(db, actor, AuditAction::kKeyRotate, id,
                         {{"tenant", old.tenant}, {"new_key", out.info.id}, {"overlap_ms", std::to_string(overlap_ms)}});
  }));
  return out;
}

Result<KeyInfo> Catalog::authenticate(std::string_view presented, KeyRefusal* why) {
  if (why != nullptr) *why = KeyRefusal::kNone;
  const auto parsed = ApiKey::parse(presented);
  if (!parsed) return refusal(KeyRefusal::kMalformed, "(unreadable)", why);
  CARREL_ASSIGN(const auto table, impl_->access());
  const auto it = table->keys.find(parsed->id);
  // An unknown id costs the same digest as a known one with a wrong secret.
  const Digest digest = parsed->digest(impl_->pepper);
  const Digest& expected = it == table->keys.end() ? impl_->audit_key : it->second.digest;
  if (!equal_constant_time(text_of(digest), text_of(expected)) || it == table->keys.end())
    return refusal(KeyRefusal::kUnknown, parsed->id, why);
  const KeyRefusal verdict = verdict_on(it->second.info, impl_->now_ms());
  if (verdict != KeyRefusal::kNone) return refusal(verdict, parsed->id, why);
  return it->second.info;
}

Status Catalog::check_key(const std::string& id, KeyRefusal* why) {
  if (why != nullptr) *why = KeyRefusal::kNone;
  CARREL_ASSIGN(const auto table, impl_->access());
  const auto it = table->keys.find(id);
  const KeyRefusal verdict = it == table->keys.end() ? KeyRefusal::kUnknown : verdict_on(it->second.info, impl_->now_ms());
  if (verdict != KeyRefusal::kNone) return refusal(verdict, id, why);
  return {};
}

}  // namespace carrel
