// Inside of Catalog, shared by its .cpp files: connections, clock, secrets, the table of keys in memory.
//
// Lock order: access_mutex, then readers_mutex; usage_mutex, trouble_mutex and times_mutex are taken alone.
#pragma once
#include <functional>
#include <map>
#include <tuple>

#include "base/mutex.h"
#include "storage/catalog.h"
#include "storage/secrets.h"
#include "storage/write_queue.h"

namespace carrel {

/// Keys and namespaces as of one state of the catalog; immutable.
struct AccessTable {
  struct Entry {
    KeyInfo info;
    Digest digest;
  };
  std::map<std::string, Entry, std::less<>> keys;
};

struct Catalog::Impl {
  Env* env;
  std::string data_dir, db_path;
  CatalogMode mode;
  CatalogOptions options;
  Secrets secrets;
  Digest pepper = {}, audit_key = {};
  int64_t opened_wall_ms, opened_mono_ns;

  Mutex readers_mutex;
  std::vector<std::unique_ptr<Db>> idle_readers CARREL_GUARDED_BY(readers_mutex);

  Mutex access_mutex;  // guards what notices changes and the table made from them
  std::unique_ptr<Db> watch CARREL_GUARDED_BY(access_mutex);
  std::optional<Statement> poll CARREL_GUARDED_BY(access_mutex);
  int64_t seen_version CARREL_GUARDED_BY(access_mutex) = -1;
  int64_t seen_audit_seq CARREL_GUARDED_BY(access_mutex) = -1;
  std::shared_ptr<const AccessTable> table CARREL_GUARDED_BY(access_mutex);

  using UsageKey = std::tuple<std::string, std::string, int64_t>;  // key id, model, day
  Mutex usage_mutex;
  std::map<UsageKey, UsageCounts> usage CARREL_GUARDED_BY(usage_mutex);

  Mutex trouble_mutex;                                    // guards what is wrong now, so that each change of it is logged once
  Status usage_trouble CARREL_GUARDED_BY(trouble_mutex);  // of the last writing of counters that there were
  Status place_trouble CARREL_GUARDED_BY(trouble_mutex);  // of the last look for the file

  Mutex times_mutex;
  std::vector<double> write_seconds CARREL_GUARDED_BY(times_mutex);  // of changes since figures() asked; bounded

  std::unique_ptr<WriteQueue> writer;  // last: its thread uses the rest; none in kReadOnly

  Impl(Env* e, std::string dir, CatalogMode m, CatalogOptions o);

  Status open_connections();
  Status initialise(Db& db);
  Status adopt_pepper(Db& db);
  Status sweep_namespaces(Db& db);

  /// The wall clock, which may not fall behind the time that has passed since the opening: a clock set back revives no expired key.
  int64_t now_ms() const;
  Status change(WriteQueue::Work work);
  Status record(Db& db, std::string_view actor, AuditAction action, std::string_view object, const AuditDetail& detail);
  Status read(const std::function<Status(Db&)>& work);

  Result<int64_t> poll_version() CARREL_REQUIRES(access_mutex);
  Result<std::shared_ptr<const AccessTable>> access();
  Result<CreatedKey> insert_key(Db& db, const KeySpec& spec, const std::string& rotated_from);

  std::map<UsageKey, UsageCounts> take_usage();
  std::optional<WriteQueue::Job> usage_job();
  /// After a writing of counters: gives back what was not written, and remembers and logs the trouble.
  void settle_usage(const std::map<UsageKey, UsageCounts>& counts, const Status& written);
  /// Is catalog.db still the file that is open? Logs when that changes.
  Status check_in_place();
};

// Rows shared by two files.
struct TenantRow {
  int64_t id = 0;
  std::string namespace_id;
};
Result<TenantRow> find_tenant(Db& db, const std::string& name);
Result<std::string> make_namespace(Catalog::Impl& impl);
Result<std::vector<AccessTable::Entry>> load_keys(Db& db);

std::vector<std::string> split_words(std::string_view text);
std::string join_words(const std::vector<std::string>& words);

}  // namespace carrel
