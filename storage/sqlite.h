// SQLite at the edge: a hardened connection, statements, errors as values. The only header that the rest of storage/ sees;
// sqlite3.h stays in .cpp files.
//
// Threads: a Db and its statements belong to one thread at a time. Ownership: a Db closes its connection; a Statement must die
// before its Db. Errors: kUnavailable (locked by another process), kExhausted (disk full), kCorrupt, kIo, kDenied (read-only,
// symbolic link), kInternal (a constraint or our own SQL).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/env.h"
#include "base/hash.h"

struct sqlite3;
struct sqlite3_stmt;

namespace carrel {

class Db;
class EnvVfs;

class Statement {
 public:
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;
  ~Statement();

  /// Values for the parameters, from left to right. The bytes are copied.
  void bind(int64_t v);
  void bind(std::string_view v);
  void bind(const Digest& v);
  void bind(std::optional<int64_t> v);
  void bind(std::span<const std::byte> v);

  /// True: there is a row. False: done.
  Result<bool> step();
  /// Runs to the end and drops rows.
  Status run();
  /// Back to before the first step; the bound values stay until the next bind, which is for the first parameter again.
  void reset();

  int64_t integer(int column) const;
  std::optional<int64_t> integer_or_null(int column) const;
  std::string text(int column) const;
  /// Valid until the next step.
  std::span<const std::byte> blob(int column) const;
  /// kCorrupt unless the column holds exactly 32 bytes.
  Result<Digest> digest(int column) const;

 private:
  friend class Db;
  Statement(Db* db, sqlite3_stmt* stmt) : db_(db), stmt_(stmt) {}
  void note(int rc);

  Db* db_;
  sqlite3_stmt* stmt_;
  int n_bound_ = 0;
  int bind_error_ = 0;
};

/// What a connection promises, read back from SQLite.
struct DbSettings {
  std::string journal_mode;
  int64_t synchronous = -1;
  bool foreign_keys = false;
  bool query_only = false;
  bool defensive = false;
  bool double_quoted_strings = true;
  bool load_extension = true;
  bool trusted_schema = true;
  int64_t busy_timeout_ms = 0;
};

enum class DbRole {
  kWriter,  // the file is made when absent
  kReader,
  kCache  // as kWriter, but synchronous=NORMAL (an index that can be rebuilt) and for one connection alone
};

class Db {
 public:
  Db() = default;
  Db(Db&& other) noexcept;
  Db& operator=(Db&& other) noexcept;
  ~Db();

  /// Opens and hardens: WAL, synchronous=FULL (kCache: NORMAL, and locking_mode=EXCLUSIVE), foreign keys, busy timeout, no double-quoted
  /// strings, no extensions, DEFENSIVE; readers are mode=ro and query_only. Each setting is read back; a mismatch is an error. The real env
  /// uses SQLite's own file layer, any other one an EnvVfs. The Db must not move while one of its statements lives.
  static Result<Db> open(Env* env, const std::string& path, DbRole role, int busy_timeout_ms);

  Result<Statement> prepare(std::string_view sql);
  /// Several statements without parameters.
  Status script(const std::string& sql);
  /// One statement with its values, rows dropped.
  template <class... A>
  Status run(std::string_view sql, A&&... values) {
    CARREL_ASSIGN(Statement s, prepare(sql));
    (s.bind(std::forward<A>(values)), ...);
    return s.run();
  }
  template <class... A>
  Result<Statement> query(std::string_view sql, A&&... values) {
    CARREL_ASSIGN(Statement s, prepare(sql));
    (s.bind(std::forward<A>(values)), ...);
    return s;
  }
  /// The first column of the first row; kNotFound without a row.
  Result<int64_t> integer(std::string_view sql);
  Result<std::string> text(std::string_view sql);

  int64_t n_changed() const;  // rows of the last statement
  bool in_transaction() const;
  /// A write or sync failed underneath: what is on the disk is uncertain, and this connection must not write again.
  bool write_failed() const { return write_failed_; }

  Result<DbSettings> settings();
  /// kUnsupported unless the settings are what the role promises.
  Status verify(DbRole role);
  /// kUnavailable when the path no longer names the open file. An EnvVfs sees a removal only. Microseconds.
  Status check_in_place();
  /// kCorrupt with advice unless the file is a healthy database.
  Status quick_check();

 private:
  friend class Statement;
  const char* advice() const;
  std::unexpected<Error> error(int rc, std::string_view what);
  Status harden(DbRole role, int busy_timeout_ms);
  Status enter_wal(Env* env, int busy_timeout_ms);

  std::shared_ptr<EnvVfs> vfs_;
  std::string path_;
  sqlite3* db_ = nullptr;
  bool write_failed_ = false;
  bool rebuildable_ = false;  // no advice to restore a backup
};

}  // namespace carrel
