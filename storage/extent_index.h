// extents.db: the rows of the disk tier, in SQLite (WAL, synchronous=NORMAL, one connection). Derived data: what is broken is set aside and
// made anew from the extents' headers.
//
// What was inserted may be lost with the power (its extent is then an orphan); what was removed is durably removed when remove() returns,
// since its space is used again. After a write that failed underneath, the file no longer counts: replace_all opens it again and writes
// what the caller holds. Threads: one at a time. Must not know files of extents, leases or budgets.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/extent_row.h"
#include "storage/sqlite.h"

namespace carrel {

class ExtentIndex {
 public:
  struct Loaded {
    std::vector<ExtentRow> rows;
    bool clean = false;    // the store was closed: there is nothing on disk that no row knows
    bool rebuild = false;  // the file was made anew, or an earlier rebuild did not end
    std::string broken;    // why it was set aside; empty: it was not
  };

  ExtentIndex(Env* env, std::string dir) : env_(env), path_(dir + "/extents.db") {}

  /// Opens, checks and reads all rows. A file that is damaged or of another version is renamed to extents.db.broken (one is kept).
  /// From then on the state is "open", durably. Errors: kUnavailable (another process has it), kIo, kExhausted, kDenied (a link).
  Result<Loaded> open();

  /// All or none. Not durable before the next remove or close.
  Status insert(std::span<const ExtentRow* const> rows);
  /// Durable. Places that are not there are fine.
  Status remove(std::span<const Place> places);
  /// Usage of rows that may be gone.
  Status touch(std::span<const ExtentRow> rows);
  /// The file holds exactly these rows, durably; opens it again first when a write failed.
  Status replace_all(std::span<const ExtentRow* const> rows);
  /// Durable. From now on a rebuild is not needed.
  Status end_rebuild();
  /// Durable: the next open says clean. Nothing may be written afterwards.
  Status close_clean();

  /// A write failed: only replace_all helps.
  bool stale() const { return stale_; }
  /// Rows of a namespace, as the file has them.
  Result<int64_t> count(const std::string& namespace_id);
  Result<int64_t> count();

 private:
  enum class Durable { kNo, kYes };
  template <class F>
  Status transact(Durable durable, F&& work);
  Status set_aside();
  Status open_file();
  Status prepare_schema();
  Result<Loaded> load();
  Status insert_rows(std::span<const ExtentRow* const> rows);

  Env* env_;
  const std::string path_;
  std::optional<Db> db_;
  bool stale_ = false;
  bool rebuilding_ = false;
};

}  // namespace carrel
