// The secrets of a data folder, each in a file of its own outside SQLite and backups: the pepper of API keys, and per namespace a hash
// secret and a data key, which its extents are sealed with. 32 random bytes, mode 0600, written whole or not at all, overwritten before
// they are unlinked.
//
// Threads: any, but who makes, lists or destroys holds the catalog's write transaction, so that no two processes interleave.
#pragma once
#include <string>
#include <vector>

#include "base/env.h"
#include "base/hash.h"

namespace carrel {

class Secrets {
 public:
  Secrets(Env* env, std::string data_dir) : env_(env), data_dir_(std::move(data_dir)) {}

  /// The folders, durable.
  Status prepare();
  std::string pepper_path() const { return data_dir_ + "/pepper.key"; }
  std::string namespace_path(const std::string& id) const { return data_dir_ + "/namespaces/" + id + ".key"; }
  std::string data_key_path(const std::string& id) const { return data_dir_ + "/namespaces/" + id + ".data"; }

  /// kNotFound: no such file. kCorrupt: not 32 bytes.
  Result<Digest> load(const std::string& path) const;
  Result<Digest> make(const std::string& path) const;
  /// Overwrites, syncs, unlinks, syncs the folder. A file that is gone already is fine.
  Status destroy(const std::string& path) const;
  /// Hash secret and data key of a namespace. Both are tried; the first failure is told.
  Status destroy_namespace(const std::string& id) const;
  /// Every file of the namespace folder, whatever its name; full paths.
  Result<std::vector<std::string>> namespace_files() const;

 private:
  Env* env_;
  std::string data_dir_;
};

}  // namespace carrel
