#include "storage/audit.h"

#include <nlohmann/json.hpp>

#include "base/codec.h"

namespace carrel {
namespace {

Digest hash_of(const AuditEntry& e, const Digest& prev) {
  ByteWriter w;
  w.field("carrel audit 1");
  w.raw(prev);
  w.i64(e.seq);
  w.i64(e.time_ms);
  for (const std::string* text : {&e.actor, &e.action, &e.object, &e.detail}) w.field(*text);
  return sha256(w.bytes());
}

std::string head_of(const Digest& head_key, int64_t seq, const Digest& hash) {
  ByteWriter w;
  w.field("carrel audit head 1");
  w.i64(seq);
  w.raw(hash);
  return to_hex(hmac_sha256(head_key, w.bytes()));
}

std::string json_of(const AuditDetail& detail) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, value] : detail) object[name] = value;
  return object.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

AuditEntry entry_of(const Statement& row) {
  return {row.integer(0), row.integer(1), row.text(2), row.text(3), row.text(4), row.text(5)};
}

}  // namespace

const char* to_string(AuditAction action) {
  switch (action) {
#define X(name, text)     \
  case AuditAction::name: \
    return text;
    CARREL_AUDIT_ACTIONS(X)
#undef X
  }
  return "unknown";
}

Status append_audit(Db& db, const Digest& head_key, int64_t time_ms, std::string_view actor, AuditAction action, std::string_view object,
                    const AuditDetail& detail) {
  Digest prev = {};
  AuditEntry e{1, time_ms, std::string(actor), to_string(action), std::string(object), json_of(detail)};
  {
    CARREL_ASSIGN(Statement last, db.query("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1"));
    CARREL_ASSIGN(const bool any, last.step());
    if (any) {
      e.seq = last.integer(0) + 1;
      CARREL_ASSIGN(prev, last.digest(1));
    }
  }
  const Digest hash = hash_of(e, prev);
  CARREL_TRY(db.run("INSERT INTO audit(seq, time_ms, actor, action, object, detail, prev, hash) VALUES(?,?,?,?,?,?,?,?)", e.seq, e.time_ms,
                    e.actor, e.action, e.object, e.detail, prev, hash));
  return db.run("INSERT INTO meta(name, value) VALUES('audit_head', ?) ON CONFLICT(name) DO UPDATE SET value = excluded.value",
                head_of(head_key, e.seq, hash));
}

Result<std::vector<AuditEntry>> list_audit(Db& db, int64_t after_seq, int64_t limit) {
  CARREL_ASSIGN(Statement rows, db.query("SELECT seq, time_ms, actor, action, object, detail FROM audit WHERE seq > ? ORDER BY seq LIMIT ?",
                                         after_seq, limit));
  std::vector<AuditEntry> out;
  for (;;) {
    CARREL_ASSIGN(const bool more, rows.step());
    if (!more) return out;
    out.push_back(entry_of(rows));
  }
}

Result<int64_t> verify_audit(Db& db, const Digest& head_key) {
  const auto broken = [](int64_t seq, const std::string& why) {
    return fail(Code::kCorrupt, why + "; somebody changed the catalog outside Carrel: compare it with a backup",
                "audit entry " + std::to_string(seq));
  };
  CARREL_ASSIGN(Statement rows, db.query("SELECT seq, time_ms, actor, action, object, detail, prev, hash FROM audit ORDER BY seq"));
  Digest last = {};
  int64_t n = 0;
  for (;;) {
    CARREL_ASSIGN(const bool more, rows.step());
    if (!more) break;
    const AuditEntry e = entry_of(rows);
    if (e.seq != n + 1) return broken(n + 1, "is missing");
    CARREL_ASSIGN(const Digest prev, rows.digest(6));
    CARREL_ASSIGN(const Digest hash, rows.digest(7));
    if (prev != last || hash != hash_of(e, prev)) return broken(e.seq, "was edited");
    last = hash;
    n = e.seq;
  }
  const auto head = db.text("SELECT value FROM meta WHERE name = 'audit_head'");
  if (!head && head.error().code != Code::kNotFound) return std::unexpected(head.error());
  if (!head || *head != head_of(head_key, n, last)) return broken(n + 1, "and those after it were removed, or the head record was edited");
  return n;
}

}  // namespace carrel
