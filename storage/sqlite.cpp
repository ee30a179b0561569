#include "storage/sqlite.h"

#include <errno.h>
#include <sqlite3.h>

#include <algorithm>
#include <utility>

#include "storage/env_vfs.h"

namespace carrel {
namespace {

constexpr const char* kBrokenAdvice =
    "; stop the server, keep a copy of the file with its -wal file, and restore the data folder from a backup";

bool is_write_failure(int extended) {
  switch (extended) {
    case SQLITE_IOERR_WRITE:
    case SQLITE_IOERR_FSYNC:
    case SQLITE_IOERR_DIR_FSYNC:
    case SQLITE_IOERR_TRUNCATE:
      return true;
    default:
      return (extended & 0xff) == SQLITE_CORRUPT;
  }
}

/// A full disk has more than one face: WAL's shared memory cannot grow, or the file layer passes on the system's word.
bool is_disk_full(sqlite3* db, int extended) {
  if ((extended & 0xff) == SQLITE_FULL || extended == SQLITE_IOERR_SHMSIZE) return true;
  const bool from_system = (extended & 0xff) == SQLITE_IOERR || (extended & 0xff) == SQLITE_CANTOPEN;
  if (!from_system || db == nullptr) return false;
  const int e = sqlite3_system_errno(db);
  return e == ENOSPC || e == EDQUOT;
}

bool flag(sqlite3* db, int option) {
  int value = -1;
  sqlite3_db_config(db, option, -1, &value);
  return value == 1;
}

}  // namespace

Statement::Statement(Statement&& other) noexcept
    : db_(other.db_), stmt_(std::exchange(other.stmt_, nullptr)), n_bound_(other.n_bound_), bind_error_(other.bind_error_) {}

Statement::~Statement() {
  sqlite3_finalize(stmt_);
}

void Statement::note(int rc) {
  if (rc != SQLITE_OK) bind_error_ = rc;
}

void Statement::bind(int64_t v) {
  note(sqlite3_bind_int64(stmt_, ++n_bound_, v));
}
void Statement::bind(std::string_view v) {
  note(sqlite3_bind_text64(stmt_, ++n_bound_, v.empty() ? "" : v.data(), v.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
}
void Statement::bind(const Digest& v) {
  note(sqlite3_bind_blob64(stmt_, ++n_bound_, v.data(), v.size(), SQLITE_TRANSIENT));
}
void Statement::bind(std::optional<int64_t> v) {
  if (v) return bind(*v);
  note(sqlite3_bind_null(stmt_, ++n_bound_));
}
void Statement::bind(std::span<const std::byte> v) {
  note(sqlite3_bind_blob64(stmt_, ++n_bound_, v.empty() ? nullptr : v.data(), v.size(), SQLITE_TRANSIENT));
}

Result<bool> Statement::step() {
  if (bind_error_ != 0) return db_->error(bind_error_, "cannot pass a value");
  const int rc = sqlite3_step(stmt_);
  if (rc == SQLITE_ROW) return true;
  if (rc == SQLITE_DONE) return false;
  auto failure = db_->error(rc, "cannot read or write");
  sqlite3_reset(stmt_);
  return failure;
}

Status Statement::run() {
  for (;;) {
    CARREL_ASSIGN(const bool more, step());
    if (!more) return {};
  }
}

void Statement::reset() {
  sqlite3_reset(stmt_);
  n_bound_ = 0;  // a next bind starts at the first parameter again
}

int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(stmt_, column);
}

std::optional<int64_t> Statement::integer_or_null(int column) const {
  if (sqlite3_column_type(stmt_, column) == SQLITE_NULL) return std::nullopt;
  return integer(column);
}

std::string Statement::text(int column) const {
  const auto* p = reinterpret_cast<const char*>(sqlite3_column_text(stmt_, column));
  return p == nullptr ? std::string() : std::string(p, static_cast<size_t>(sqlite3_column_bytes(stmt_, column)));
}

std::span<const std::byte> Statement::blob(int column) const {
  const auto* p = static_cast<const std::byte*>(sqlite3_column_blob(stmt_, column));
  return {p, p == nullptr ? size_t{0} : static_cast<size_t>(sqlite3_column_bytes(stmt_, column))};
}

Result<Digest> Statement::digest(int column) const {
  const auto* p = static_cast<const std::byte*>(sqlite3_column_blob(stmt_, column));
  Digest d;
  if (p == nullptr || sqlite3_column_bytes(stmt_, column) != static_cast<int>(d.size())) {
    return fail(Code::kCorrupt, "a stored digest does not have 32 bytes", db_->path_);
  }
  std::copy(p, p + d.size(), d.begin());
  return d;
}

Db::Db(Db&& other) noexcept {
  *this = std::move(other);
}

Db& Db::operator=(Db&& other) noexcept {
  std::swap(vfs_, other.vfs_);
  std::swap(path_, other.path_);
  std::swap(db_, other.db_);
  std::swap(write_failed_, other.write_failed_);
  std::swap(rebuildable_, other.rebuildable_);
  return *this;
}

Db::~Db() {
  sqlite3_close_v2(db_);
}

const char* Db::advice() const {
  return rebuildable_ ? "" : kBrokenAdvice;
}

std::unexpected<Error> Db::error(int rc, std::string_view what) {
  const int latest = db_ != nullptr ? sqlite3_extended_errcode(db_) : rc;
  const bool described = (latest & 0xff) == (rc & 0xff);
  const int extended = described ? latest : rc;
  if (is_write_failure(extended)) write_failed_ = true;
  const std::string text = std::string(what) + ": " + (described && db_ != nullptr ? sqlite3_errmsg(db_) : sqlite3_errstr(rc));
  if (extended == SQLITE_CANTOPEN_SYMLINK) return fail(Code::kDenied, "is a symbolic link; the database must be a plain file", path_);
  if (is_disk_full(db_, extended)) return fail(Code::kExhausted, text + "; free space on this disk or raise its quota", path_);
  switch (extended & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return fail(Code::kUnavailable, text + "; another process holds the database, try again", path_);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return fail(Code::kCorrupt, text + advice(), path_);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return fail(Code::kDenied, text + "; check the owner and permissions of the data folder", path_);
    case SQLITE_CANTOPEN:
    case SQLITE_IOERR:
      return fail(Code::kIo, text + " (SQLite code " + std::to_string(extended) + ")", path_);
    default:
      return fail(Code::kInternal, text, path_);
  }
}

Result<Db> Db::open(Env* env, const std::string& path, DbRole role, int busy_timeout_ms) {
  Db db;
  db.path_ = path;
  db.rebuildable_ = role == DbRole::kCache;
  const char* vfs_name = nullptr;
  if (env != Env::real()) {
    db.vfs_ = EnvVfs::acquire(env);
    vfs_name = db.vfs_->name();
  }
  int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE | SQLITE_OPEN_NOFOLLOW;
  flags |= role != DbRole::kReader ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY;
  if (const int rc = sqlite3_open_v2(path.c_str(), &db.db_, flags, vfs_name); rc != SQLITE_OK)
    return db.error(rc, "cannot open the database");
  if (role != DbRole::kReader) CARREL_TRY(env->set_mode(path, 0600));  // before the first byte; -wal and -shm inherit it
  CARREL_TRY(db.harden(role, busy_timeout_ms));
  if (role != DbRole::kReader) CARREL_TRY(db.enter_wal(env, busy_timeout_ms));
  CARREL_TRY(db.verify(role));
  return db;
}

Status Db::harden(DbRole role, int busy_timeout_ms) {
  sqlite3_busy_timeout(db_, busy_timeout_ms);
  for (const auto& [option, value] :
       {std::pair{SQLITE_DBCONFIG_DQS_DML, 0}, std::pair{SQLITE_DBCONFIG_DQS_DDL, 0}, std::pair{SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0},
        std::pair{SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0}, std::pair{SQLITE_DBCONFIG_DEFENSIVE, 1}, std::pair{SQLITE_DBCONFIG_ENABLE_FKEY, 1}}) {
    if (const int rc = sqlite3_db_config(db_, option, value, nullptr); rc != SQLITE_OK) return error(rc, "cannot harden the connection");
  }
  sqlite3_limit(db_, SQLITE_LIMIT_ATTACHED, 0);
  CARREL_TRY(script(role == DbRole::kCache ? "PRAGMA locking_mode=EXCLUSIVE; PRAGMA synchronous=NORMAL; PRAGMA temp_store=MEMORY;"
                                           : "PRAGMA synchronous=FULL; PRAGMA temp_store=MEMORY;"));
  return role == DbRole::kReader ? script("PRAGMA query_only=ON;") : script("PRAGMA journal_size_limit=16777216;");
}

// Switching a new file to WAL needs it alone for a moment, and SQLite does not always wait for that by itself.
Status Db::enter_wal(Env* env, int busy_timeout_ms) {
  for (int waited = 0;; waited += 20) {
    const auto mode = text("PRAGMA journal_mode=WAL");
    if (mode) return {};  // verify() reads the answer back
    if (mode.error().code != Code::kUnavailable || waited >= busy_timeout_ms) return std::unexpected(mode.error());
    env->sleep_ms(20);
  }
}

Result<Statement> Db::prepare(std::string_view sql) {
  sqlite3_stmt* stmt = nullptr;
  const int rc = sqlite3_prepare_v2(db_, sql.data(), static_cast<int>(sql.size()), &stmt, nullptr);
  if (rc != SQLITE_OK) return error(rc, "cannot prepare a statement");
  return Statement(this, stmt);
}

Status Db::script(const std::string& sql) {
  if (const int rc = sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr); rc != SQLITE_OK) return error(rc, "cannot run a statement");
  return {};
}

Result<int64_t> Db::integer(std::string_view sql) {
  CARREL_ASSIGN(Statement s, prepare(sql));
  CARREL_ASSIGN(const bool row, s.step());
  if (!row) return fail(Code::kNotFound, "no row", path_);
  return s.integer(0);
}

Result<std::string> Db::text(std::string_view sql) {
  CARREL_ASSIGN(Statement s, prepare(sql));
  CARREL_ASSIGN(const bool row, s.step());
  if (!row) return fail(Code::kNotFound, "no row", path_);
  return s.text(0);
}

int64_t Db::n_changed() const {
  return sqlite3_changes64(db_);
}
bool Db::in_transaction() const {
  return sqlite3_get_autocommit(db_) == 0;
}

Result<DbSettings> Db::settings() {
  DbSettings s;
  CARREL_ASSIGN(s.journal_mode, text("PRAGMA journal_mode"));
  CARREL_ASSIGN(s.synchronous, integer("PRAGMA synchronous"));
  CARREL_ASSIGN(s.foreign_keys, integer("PRAGMA foreign_keys"));
  CARREL_ASSIGN(s.query_only, integer("PRAGMA query_only"));
  CARREL_ASSIGN(s.busy_timeout_ms, integer("PRAGMA busy_timeout"));
  s.defensive = flag(db_, SQLITE_DBCONFIG_DEFENSIVE);
  s.double_quoted_strings = flag(db_, SQLITE_DBCONFIG_DQS_DML) || flag(db_, SQLITE_DBCONFIG_DQS_DDL);
  s.load_extension = flag(db_, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION);
  s.trusted_schema = flag(db_, SQLITE_DBCONFIG_TRUSTED_SCHEMA);
  return s;
}

Status Db::verify(DbRole role) {
  CARREL_ASSIGN(const DbSettings s, settings());
  const auto refuse = [&](const std::string& what) {
    return fail(Code::kUnsupported,
                "the database does not run as Carrel needs it: " + what + "; it stays closed. It needs a local file system", path_);
  };
  if (s.journal_mode != "wal") return refuse("journal_mode is " + s.journal_mode + ", not wal");
  const int64_t synchronous = role == DbRole::kCache ? 1 : 2;
  if (s.synchronous != synchronous)
    return refuse("synchronous is " + std::to_string(s.synchronous) + ", not " + std::to_string(synchronous));
  if (!s.foreign_keys) return refuse("foreign_keys is off");
  if (s.query_only != (role == DbRole::kReader)) return refuse("query_only does not fit the connection");
  if (!s.defensive || s.double_quoted_strings || s.load_extension || s.trusted_schema) return refuse("a hardening option did not take");
  if (s.busy_timeout_ms <= 0) return refuse("busy_timeout is 0");
  return {};
}

// SQLite itself asks this only when it closes; with WAL it would go on writing to a file without a name.
Status Db::check_in_place() {
  int moved = 0;
  const int rc = sqlite3_file_control(db_, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
  if (rc != SQLITE_OK && rc != SQLITE_NOTFOUND) return error(rc, "cannot look for the file");
  if (moved == 0) return {};
  return fail(Code::kUnavailable,
              "was removed or replaced while it is in use; what is written now would be lost. Put back the file that was there, or stop "
              "this process, restore the data folder from a backup and start again",
              path_);
}

Status Db::quick_check() {
  CARREL_ASSIGN(const std::string verdict, text("PRAGMA quick_check(1)"));
  if (verdict == "ok") return {};
  return fail(Code::kCorrupt, "the integrity check says: " + verdict + advice(), path_);
}

}  // namespace carrel
