// The schema of catalog.db as a numbered list of steps; the file's user_version counts those it has. A released step never changes.
//
// Runs inside the caller's write transaction, so that a crash leaves all steps or none. One thread, the one of the Db.
#pragma once
#include <span>

#include "storage/sqlite.h"

namespace carrel {

struct Migration {
  const char* what;
  const char* sql;
};

/// Step i brings version i to version i + 1.
std::span<const Migration> catalog_migrations();

/// Brings the database to the newest version; answers how many steps ran. kUnsupported: the file is of a newer Carrel, or no catalog.
Result<int> migrate(Db& db, std::span<const Migration> steps);
/// The same checks without a change: kUnsupported also when steps are missing.
Status require_current(Db& db, std::span<const Migration> steps);

}  // namespace carrel
