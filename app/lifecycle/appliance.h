// The running appliance: what starts in which order, how it is known to be ready, how it stops.
//
// Start: data folder and catalog, model, state manager, engine, self-probe, certificates, listener, and the first key when nothing can fail any more. One server per data
// folder. Stop: listener takes nothing new, requests drain,
// usage is written, then everything in reverse. Threads: start, run and stop from one thread.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "app/config/config.h"
#include "base/env.h"
#include "base/error.h"
#include "storage/catalog.h"

namespace carrel {

class Appliance {
 public:
  static Result<std::unique_ptr<Appliance>> start(Env* env, Config config, const std::string& data_dir);
  ~Appliance();

  std::string url() const;      // https://127.0.0.1:8443
  std::string ca_file() const;  // empty without an internal CA
  /// The first key of tenant `default`, once in the life of the data folder.
  const std::optional<CreatedKey>& first_key() const;
  /// Housekeeping, about once a second: self-probe, renewal of the certificate.
  void tick();
  /// Ends new work, waits for the running requests.
  void drain();

 private:
  struct Impl;
  explicit Appliance(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};


}  // namespace carrel
