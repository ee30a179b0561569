// The keys that namespaces' extents are sealed with, kept in memory as long as their namespaces exist.
//
// Threads: any. The first question about a namespace reads (or makes) a file; later ones look it up. What the catalog does not know has no
// key, and is asked about again.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/seal.h"
#include "storage/catalog.h"

namespace carrel {

class DataKeys {
 public:
  explicit DataKeys(Catalog* catalog) : catalog_(catalog) {}
  /// Null: there is no such namespace (any more).
  std::shared_ptr<const SecretKey> of(const std::string& namespace_id);
  /// After a purge: nobody gets it from here again.
  void forget(const std::string& namespace_id);

 private:
  Catalog* const catalog_;
  std::mutex mu_;  // guards keys_
  std::map<std::string, std::shared_ptr<const SecretKey>> keys_;
};

}  // namespace carrel
