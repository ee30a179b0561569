// The registry of imported models. The weights themselves are the model store's.
#include <algorithm>
#include <cctype>

#include "storage/catalog_impl.h"

namespace carrel {
namespace {

constexpr std::string_view kModelColumns =
    "SELECT name, source, store_digest, family, bytes, n_tensors, created_ms, status, settings FROM models ";

Result<std::vector<ModelRecord>> models_of(Statement& rows) {
  std::vector<ModelRecord> out;
  for (;;) {
    CARREL_ASSIGN(const bool more, rows.step());
    if (!more) return out;
    const std::string status = rows.text(7);
    if (status != to_string(ModelStatus::kReady) && status != to_string(ModelStatus::kDamaged)) {
      return fail(Code::kCorrupt, "has the unknown status \"" + status + "\"", "model " + rows.text(0));
    }
    out.push_back({.name = rows.text(0),
                   .source = rows.text(1),
                   .store_digest = rows.text(2),
                   .family = rows.text(3),
                   .bytes = rows.integer(4),
                   .n_tensors = rows.integer(5),
                   .created_ms = rows.integer(6),
                   .status = status == to_string(ModelStatus::kReady) ? ModelStatus::kReady : ModelStatus::kDamaged,
                   .settings_json = rows.text(8)});
  }
}

std::unexpected<Error> no_such_model(const std::string& name) {
  return fail(Code::kNotFound, "there is no such model; `carrel model list` shows those there are", "model " + name);
}

}  // namespace

Status check_model_name(const std::string& name) {
  const bool good =
      !name.empty() && name.size() <= 128 && std::isalnum(static_cast<unsigned char>(name[0])) != 0 &&
      name.find("..") == std::string::npos && std::all_of(name.begin(), name.end(), [](unsigned char c) {
        return c < 0x80 && (std::isalnum(c) != 0 || std::string_view("._:/-").find(static_cast<char>(c)) != std::string_view::npos);
      });
  if (good) return {};
  return fail(Code::kInvalidArgument, "a model's name has 1 to 128 letters, digits and . _ : / - and starts with a letter or digit",
              "model");
}

const char* to_string(ModelStatus status) {
  return status == ModelStatus::kReady ? "ready" : "damaged";
}

Status Catalog::add_model(const ModelRecord& m, std::string_view actor) {
  CARREL_TRY(check_model_name(m.name));
  if (const auto digest = from_hex(m.store_digest); !digest || digest->size() != 32) {
    return fail(Code::kInvalidArgument, "the store digest is not a hexadecimal SHA-256", "model " + m.name);
  }
  return impl_->change([&](Db& db) -> Status {
    CARREL_ASSIGN(
        Statement valid,
        db.query("SELECT CASE WHEN json_valid(?1) THEN json_type(?1) = 'object' ELSE 0 END, EXISTS(SELECT 1 FROM models WHERE name = ?2)",
                 m.settings_json, m.name));
    CARREL_TRY(valid.step());
    if (valid.integer(0) == 0) return fail(Code::kInvalidArgument, "its settings are not a JSON object", "model " + m.name);
    if (valid.integer(1) != 0)
      return fail(Code::kAlreadyExists, "exists already; remove it first or choose another name", "model " + m.name);
    CARREL_TRY(db.run(
        "INSERT INTO models(name, source, store_digest, family, bytes, n_tensors, created_ms, status, settings) VALUES(?,?,?,?,?,?,?,?,?)",
        m.name, m.source, m.store_digest, m.family, m.bytes, m.n_tensors, impl_->now_ms(), to_string(m.status), m.settings_json));
    return impl_->record(db, actor, AuditAction::kModelAdd, m.name, {{"digest", m.store_digest}, {"source", m.source}});
  });
}

Result<std::vector<ModelRecord>> Catalog::models() {
  std::vector<ModelRecord> out;
  CARREL_TRY(impl_->read([&](Db& db) -> Status {
    CARREL_ASSIGN(Statement rows, db.query(std::string(kModelColumns) + "ORDER BY name"));
    CARREL_ASSIGN(out, models_of(rows));
    return {};
  }));
  return out;
}

Result<ModelRecord> Catalog::model(const std::string& name) {
  std::vector<ModelRecord> out;
  CARREL_TRY(impl_->read([&](Db& db) -> Status {
    CARREL_ASSIGN(Statement rows, db.query(std::string(kModelColumns) + "WHERE name = ?", name));
    CARREL_ASSIGN(out, models_of(rows));
    return {};
  }));
  if (out.empty()) return no_such_model(name);
  return out[0];
}

Status Catalog::set_model_status(const std::string& name, ModelStatus status, std::string_view actor) {
  return impl_->change([&](Db& db) -> Status {
    CARREL_TRY(db.run("UPDATE models SET status = ? WHERE name = ?", to_string(status), name));
    if (db.n_changed() == 0) return no_such_model(name);
    return impl_->record(db, actor, AuditAction::kModelStatus, name, {{"status", to_string(status)}});
  });
}

Status Catalog::remove_model(const std::string& name, std::string_view actor) {
  return impl_->change([&](Db& db) -> Status {
    CARREL_TRY(db.run("DELETE FROM models WHERE name = ?", name));
    if (db.n_changed() == 0) return no_such_model(name);
    return impl_->record(db, actor, AuditAction::kModelRemove, name, {});
  });
}

}  // namespace carrel
