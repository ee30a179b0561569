// SQLite's file layer over an Env, so that tests lose unsynced data and inject faults below a real database.
//
// One VFS per Env, shared by all its connections. Locks and the shared memory of WAL live on the heap, so all connections must be
// in this process; the product uses it for no Env but those of tests. Threads: any. It must not know the catalog.
#pragma once
#include <memory>

#include "base/env.h"

namespace carrel {

class EnvVfs {
 public:
  /// The VFS of the Env, registered with SQLite while anyone holds it. The Env outlives it.
  static std::shared_ptr<EnvVfs> acquire(Env* env);
  ~EnvVfs();
  /// For sqlite3_open_v2.
  const char* name() const;

  struct Impl;

 private:
  explicit EnvVfs(Env* env);
  std::unique_ptr<Impl> impl_;
};

}  // namespace carrel
