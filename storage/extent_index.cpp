#include "storage/extent_index.h"

#include <algorithm>

#include "base/codec.h"
#include "base/log.h"

namespace carrel {
namespace {

constexpr int64_t kApplication = 0x43524558;  // "CREX"
constexpr int64_t kVersion = 1;
constexpr const char* kSchema =
    "CREATE TABLE extent(place INTEGER PRIMARY KEY, namespace TEXT NOT NULL, row BLOB NOT NULL, last_used_ms INTEGER NOT NULL,"
    " hits INTEGER NOT NULL, pinned_until_ms INTEGER NOT NULL) STRICT;"
    "CREATE TABLE state(clean INTEGER NOT NULL, rebuild INTEGER NOT NULL) STRICT;";
constexpr size_t kMostRows = size_t{1} << 26;

int64_t code_of(const Place& p) {
  return static_cast<int64_t>((uint64_t{p.segment} << 32) | p.unit);
}

// What never changes of a row, with a CRC over it and its place: a flipped bit of the file must not become another extent.
Bytes encode(const ExtentRow& row) {
  ByteWriter w;
  w.i64(code_of(row.place));
  w.u32(row.place.n_units);
  for (const Digest* d : {&row.id.key, &row.id.model, &row.id.layout, &row.parent}) w.raw(*d);
  w.u32(row.id.generation);
  w.i64(row.position);
  w.u64(row.sequence);
  w.i64(row.created_ms);
  w.u64(row.stamp);
  w.field(row.namespace_id);
  w.u16(static_cast<uint16_t>(row.parts.size()));
  for (const ExtentPartBytes& p : row.parts) {
    w.u16(p.group);
    w.u8(p.kind);
    w.u32(p.rows_bytes);
  }
  w.u32(crc32(w.bytes()));
  return w.take();
}

Result<Digest> read_digest(ByteReader& r) {
  CARREL_ASSIGN(const auto bytes, r.raw(sizeof(Digest)));
  Digest d;
  std::copy(bytes.begin(), bytes.end(), d.begin());
  return d;
}

Result<ExtentRow> decode(int64_t place, std::span<const std::byte> bytes) {
  if (bytes.size() < 4) return fail(Code::kCorrupt, "a row is too short");
  ByteReader sum(bytes.last(4));
  if (sum.u32().value_or(0) != crc32(bytes.first(bytes.size() - 4))) return fail(Code::kCorrupt, "a row does not have its checksum");
  ByteReader r(bytes.first(bytes.size() - 4));
  ExtentRow row;
  CARREL_ASSIGN(const int64_t code, r.i64());
  if (code != place) return fail(Code::kCorrupt, "a row lies under another place");
  row.place.segment = static_cast<uint32_t>(static_cast<uint64_t>(code) >> 32);
  row.place.unit = static_cast<uint32_t>(code);
  CARREL_ASSIGN(row.place.n_units, r.u32());
  for (Digest* d : {&row.id.key, &row.id.model, &row.id.layout, &row.parent}) {
    CARREL_ASSIGN(*d, read_digest(r));
  }
  CARREL_ASSIGN(row.id.generation, r.u32());
  CARREL_ASSIGN(row.position, r.i64());
  CARREL_ASSIGN(row.sequence, r.u64());
  CARREL_ASSIGN(row.created_ms, r.i64());
  CARREL_ASSIGN(row.stamp, r.u64());
  CARREL_ASSIGN(const std::string_view space, r.text_field());
  row.namespace_id = space;
  CARREL_ASSIGN(const uint16_t n_parts, r.u16());
  row.parts.resize(n_parts);
  for (ExtentPartBytes& p : row.parts) {
    CARREL_ASSIGN(p.group, r.u16());
    CARREL_ASSIGN(p.kind, r.u8());
    CARREL_ASSIGN(p.rows_bytes, r.u32());
  }
  row.bytes = row.place.bytes();
  if (r.left() != 0) return fail(Code::kCorrupt, "a row is too long");
  return row;
}

// An index that cannot be used, as opposed to a disk that cannot be used.
bool is_broken(const Error& e) {
  return e.code == Code::kCorrupt || e.code == Code::kInternal || e.code == Code::kUnsupported;
}

}  // namespace

template <class F>
Status ExtentIndex::transact(Durable durable, F&& work) {
  if (!db_ || stale_) return fail(Code::kUnavailable, "the index waits to be written anew", path_);
  CARREL_TRY(db_->script(durable == Durable::kYes ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL"));
  Status s = db_->check_in_place();
  bool began = false;
  if (s) s = db_->script("BEGIN IMMEDIATE");
  if (s) {
    began = true;
    s = work();
  }
  if (s) s = db_->script("COMMIT");
  if (s) return s;
  if (db_->in_transaction() && !db_->script("ROLLBACK")) stale_ = true;
  // A full disk and a lock end a transaction cleanly. Anything else leaves open what the file says.
  const bool clean = s.error().code == Code::kExhausted || (s.error().code == Code::kUnavailable && began);
  if (!clean || db_->write_failed()) stale_ = true;
  return s;
}

Status ExtentIndex::open_file() {
  db_.reset();
  CARREL_ASSIGN(Db db, Db::open(env_, path_, DbRole::kCache, 1000));
  db_ = std::move(db);
  stale_ = false;
  return prepare_schema();
}

Status ExtentIndex::prepare_schema() {
  CARREL_ASSIGN(const int64_t application, db_->integer("PRAGMA application_id"));
  CARREL_ASSIGN(const int64_t version, db_->integer("PRAGMA user_version"));
  if (application == kApplication && version == kVersion) return db_->quick_check();
  CARREL_ASSIGN(const int64_t n_tables, db_->integer("SELECT count(*) FROM sqlite_schema"));
  if (application != 0 || version != 0 || n_tables != 0) return fail(Code::kUnsupported, "is an index of another version", path_);
  rebuilding_ = true;
  return transact(Durable::kYes, [&]() -> Status {
    CARREL_TRY(db_->script(kSchema));
    CARREL_TRY(db_->script("INSERT INTO state VALUES(0, 1)"));
    return db_->script("PRAGMA application_id=" + std::to_string(kApplication) + "; PRAGMA user_version=" + std::to_string(kVersion));
  });
}

Status ExtentIndex::set_aside() {
  db_.reset();
  for (const char* tail : {"", "-wal"}) {
    if (!env_->exists(path_ + tail)) continue;
    CARREL_TRY(env_->rename(path_ + tail, path_ + ".broken" + tail));
  }
  if (env_->exists(path_ + "-shm")) CARREL_TRY(env_->remove(path_ + "-shm"));
  return env_->sync_dir(folder_of(path_));
}

Result<ExtentIndex::Loaded> ExtentIndex::open() {
  Status opened = open_file();
  auto loaded = opened ? load() : std::unexpected(opened.error());
  if (loaded || !is_broken(loaded.error())) return loaded;
  const std::string why = loaded.error().message;
  spdlog::warn("offload store: the index {} is set aside and made anew: {}", path_, why);
  CARREL_TRY(set_aside());
  CARREL_TRY(open_file());
  loaded = load();
  if (loaded) loaded->broken = why;
  return loaded;
}

Result<ExtentIndex::Loaded> ExtentIndex::load() {
  Loaded out;
  {
    CARREL_ASSIGN(Statement state, db_->prepare("SELECT clean, rebuild FROM state"));
    CARREL_ASSIGN(const bool there, state.step());
    if (!there) return fail(Code::kCorrupt, "the index does not say its state", path_);
    out.clean = state.integer(0) != 0;
    out.rebuild = rebuilding_ = state.integer(1) != 0;
  }
  CARREL_ASSIGN(Statement rows, db_->prepare("SELECT place, row, last_used_ms, hits, pinned_until_ms FROM extent ORDER BY place"));
  for (;;) {
    CARREL_ASSIGN(const bool more, rows.step());
    if (!more) break;
    if (out.rows.size() >= kMostRows) return fail(Code::kCorrupt, "the index has too many rows", path_);
    CARREL_ASSIGN(ExtentRow row, decode(rows.integer(0), rows.blob(1)));
    row.usage = {rows.integer(2), std::max<int64_t>(rows.integer(3), 0), std::max<int64_t>(rows.integer(4), 0)};
    out.rows.push_back(std::move(row));
  }
  if (out.clean) CARREL_TRY(transact(Durable::kYes, [&] { return db_->script("UPDATE state SET clean = 0"); }));
  return out;
}

Status ExtentIndex::insert_rows(std::span<const ExtentRow* const> rows) {
  CARREL_ASSIGN(Statement s, db_->prepare("INSERT INTO extent VALUES(?, ?, ?, ?, ?, ?)"));
  for (const ExtentRow* row : rows) {
    s.bind(code_of(row->place));
    s.bind(std::string_view(row->namespace_id));
    s.bind(std::span<const std::byte>(encode(*row)));
    s.bind(row->usage.last_used_ms);
    s.bind(row->usage.hits);
    s.bind(row->usage.pinned_until_ms);
    CARREL_TRY(s.run());
    s.reset();
  }
  return {};
}

Status ExtentIndex::insert(std::span<const ExtentRow* const> rows) {
  return transact(Durable::kNo, [&] { return insert_rows(rows); });
}

Status ExtentIndex::remove(std::span<const Place> places) {
  return transact(Durable::kYes, [&]() -> Status {
    CARREL_ASSIGN(Statement s, db_->prepare("DELETE FROM extent WHERE place = ?"));
    for (const Place& p : places) {
      s.bind(code_of(p));
      CARREL_TRY(s.run());
      s.reset();
    }
    return {};
  });
}

Status ExtentIndex::touch(std::span<const ExtentRow> rows) {
  return transact(Durable::kNo, [&]() -> Status {
    CARREL_ASSIGN(Statement s, db_->prepare("UPDATE extent SET last_used_ms = ?, hits = ?, pinned_until_ms = ? WHERE place = ?"));
    for (const ExtentRow& row : rows) {
      s.bind(row.usage.last_used_ms);
      s.bind(row.usage.hits);
      s.bind(row.usage.pinned_until_ms);
      s.bind(code_of(row.place));
      CARREL_TRY(s.run());
      s.reset();
    }
    return {};
  });
}

Status ExtentIndex::replace_all(std::span<const ExtentRow* const> rows) {
  const bool rebuilding = rebuilding_;
  if (stale_ || !db_) {
    Status s = open_file();
    if (!s && is_broken(s.error())) {
      CARREL_TRY(set_aside());
      s = open_file();
    }
    if (!s) {
      stale_ = true;
      return s;
    }
  }
  const Status s = transact(Durable::kYes, [&]() -> Status {
    CARREL_TRY(db_->script("DELETE FROM extent"));
    CARREL_TRY(insert_rows(rows));
    return db_->script(std::string("UPDATE state SET clean = 0, rebuild = ") + (rebuilding ? "1" : "0"));
  });
  rebuilding_ = rebuilding;
  if (!s) stale_ = true;
  return s;
}

Status ExtentIndex::end_rebuild() {
  CARREL_TRY(transact(Durable::kYes, [&] { return db_->script("UPDATE state SET rebuild = 0"); }));
  rebuilding_ = false;
  return {};
}

Status ExtentIndex::close_clean() {
  CARREL_TRY(transact(Durable::kYes, [&] { return db_->script("UPDATE state SET clean = 1"); }));
  db_.reset();
  return {};
}

Result<int64_t> ExtentIndex::count(const std::string& namespace_id) {
  if (!db_ || stale_) return fail(Code::kUnavailable, "the index waits to be written anew", path_);
  CARREL_ASSIGN(Statement s, db_->query("SELECT count(*) FROM extent WHERE namespace = ?", std::string_view(namespace_id)));
  CARREL_ASSIGN(const bool row, s.step());
  return row ? s.integer(0) : int64_t{0};
}

Result<int64_t> ExtentIndex::count() {
  if (!db_ || stale_) return fail(Code::kUnavailable, "the index waits to be written anew", path_);
  return db_->integer("SELECT count(*) FROM extent");
}

}  // namespace carrel
