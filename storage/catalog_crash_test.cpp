// What the catalog promises when the machine or the disk fails: every scenario is cut at each call that changes the disk.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "base/fault_env.h"
#include "storage/catalog.h"
#include "storage/migrations.h"

namespace carrel {
namespace {

using Loss = FaultEnv::Loss;

const CatalogOptions kQuiet{.busy_timeout_ms = 1000, .usage_flush_ms = 3'600'000};  // no writes but those of the scenario

/// What the scenario was told is done. Only what was acknowledged is here, and what was under way when the machine failed.
struct Ledger {
  std::set<std::string> tenants, removed_tenants, attempted_tenants;
  std::vector<std::string> valid_keys, revoked_keys, uncertain_keys;
  std::vector<Namespace> namespaces, destroyed;
  std::map<std::string, std::string> data_keys;  // hexadecimal, by namespace
  std::string renewing;                          // a namespace that is being replaced, or was
  bool renewed = false;
  int64_t requests = 0, attempted_requests = 0;
  std::string usage_key;
  bool model = false, bootstrapped = false;
};

// Runs until the first failure; later steps need earlier ones.
Status run_scenario(Env* env, Ledger& done) {
  CARREL_ASSIGN(auto c, Catalog::open(env, "/srv/data", CatalogMode::kReadWrite, kQuiet));
  CARREL_ASSIGN(const auto first, c->bootstrap_key("system"));
  if (first) {
    done.bootstrapped = true;
    done.valid_keys.push_back(first->key);
  }
  for (const char* name : {"a", "b"}) {
    done.attempted_tenants.insert(name);
    CARREL_TRY(c->create_tenant(name, "cli"));
    done.tenants.insert(name);
    CARREL_ASSIGN(const Namespace space, c->tenant_namespace(name));
    done.namespaces.push_back(space);
    CARREL_ASSIGN(const SecretKey key, c->data_key(space.id));
    done.data_keys[space.id] = to_hex(key.bytes());
  }
  std::vector<CreatedKey> keys;
  for (const char* tenant : {"a", "a", "b"}) {
    KeySpec spec;
    spec.tenant = tenant;
    CARREL_ASSIGN(CreatedKey key, c->create_key(spec, "cli"));
    done.valid_keys.push_back(key.key);
    keys.push_back(std::move(key));
  }
  const auto lift = [&](size_t i) {  // from here on, valid or not
    std::erase(done.valid_keys, keys[i].key);
    done.uncertain_keys.push_back(keys[i].key);
  };
  const auto settle = [&](size_t i) {
    std::erase(done.uncertain_keys, keys[i].key);
    done.revoked_keys.push_back(keys[i].key);
  };
  lift(0);
  CARREL_TRY(c->revoke_key(keys[0].info.id, "cli"));
  settle(0);
  done.usage_key = keys[1].info.id;
  for (int i = 0; i < 3; i++) {
    c->add_usage(done.usage_key, "demo", {1, 10, 5, 2});
    done.attempted_requests++;
    CARREL_TRY(c->flush_usage());
    done.requests++;
  }
  CARREL_TRY(c->add_model({.name = "m", .source = "s", .store_digest = std::string(64, '0'), .family = "llama"}, "cli"));
  done.model = true;
  CARREL_ASSIGN(const CreatedKey rotated, c->rotate_key(keys[1].info.id, 3'600'000, "cli"));
  done.valid_keys.push_back(rotated.key);
  lift(2);
  done.tenants.erase("b");
  done.destroyed.push_back(done.namespaces.back());
  done.namespaces.pop_back();
  CARREL_TRY(c->remove_tenant("b", "cli"));
  done.removed_tenants.insert("b");
  settle(2);
  done.renewing = done.namespaces.back().id;
  done.namespaces.pop_back();
  CARREL_ASSIGN(const std::string fresh, c->renew_namespace("a", "cli"));
  done.renewed = true;
  CARREL_ASSIGN(const SecretKey key, c->data_key(fresh));
  done.data_keys[fresh] = to_hex(key.bytes());
  return {};
}

// Each namespace in use has its secrets, a data key that was acknowledged is the same, and those of no other are left.
void check_secrets(FaultEnv& env, Catalog& c, const std::vector<TenantInfo>& tenants, const Ledger& done) {
  const auto exists = [&](const std::string& id, const char* what) { return env.exists("/srv/data/namespaces/" + id + what); };
  size_t n_files = 0;
  std::set<std::string> in_use;
  for (const TenantInfo& t : tenants) {
    in_use.insert(t.namespace_id);
    n_files += 1 + exists(t.namespace_id, ".data");
  }
  EXPECT_EQ(env.list("/srv/data/namespaces")->size(), n_files) << "an orphaned secret was left";
  for (const auto& [id, key] : done.data_keys) {
    if (in_use.contains(id)) {
      EXPECT_EQ(to_hex(c.data_key(id).value().bytes()), key) << "an acknowledged data key is lost";
    }
    EXPECT_EQ(exists(id, ".data"), in_use.contains(id));
  }
  if (!done.removed_tenants.empty()) {
    for (const Namespace& n : done.destroyed) EXPECT_FALSE(in_use.contains(n.id) || exists(n.id, ".key"));
  }
  if (done.renewed) {
    EXPECT_FALSE(in_use.contains(done.renewing) || exists(done.renewing, ".key"));
  }
}

// All that was acknowledged is there, nothing is half done, nothing forbidden came back.
void check(FaultEnv& env, const Ledger& done, const std::string& where) {
  SCOPED_TRACE(where);
  auto opened = Catalog::open(&env, "/srv/data", CatalogMode::kReadWrite, kQuiet);
  ASSERT_TRUE(opened) << opened.error().text();
  Catalog& c = **opened;
  std::set<std::string> tenants;
  const auto listed = c.tenants().value();
  for (const TenantInfo& t : listed) {
    tenants.insert(t.name);
    ASSERT_TRUE(c.tenant_namespace(t.name)) << "tenant " << t.name << " has no secret";
  }
  EXPECT_TRUE(tenants.contains("default"));
  for (const std::string& t : done.tenants) EXPECT_TRUE(tenants.contains(t)) << "lost tenant " << t;
  for (const std::string& t : done.removed_tenants) EXPECT_FALSE(tenants.contains(t)) << "removed tenant came back: " << t;
  for (const std::string& t : tenants) EXPECT_TRUE(t == "default" || done.attempted_tenants.contains(t));
  for (const Namespace& n : done.namespaces) EXPECT_EQ(read_file(&env, "/srv/data/namespaces/" + n.id + ".key").value_or("").size(), 32u);
  check_secrets(env, c, listed, done);
  for (const std::string& key : done.valid_keys) EXPECT_TRUE(c.authenticate(key)) << "an acknowledged key is lost";
  for (const std::string& key : done.revoked_keys) EXPECT_FALSE(c.authenticate(key)) << "a revoked key authenticates";
  const auto usage = c.usage("").value();
  const int64_t requests = usage.empty() ? 0 : usage[0].counts.requests;
  EXPECT_GE(requests, done.requests);
  EXPECT_LE(requests, done.attempted_requests);
  EXPECT_TRUE(usage.empty() || usage[0].counts.prompt_tokens == 10 * requests);
  EXPECT_TRUE(!done.model || c.model("m"));
  const auto audit = c.verify_audit();
  EXPECT_TRUE(audit) << audit.error().text();
  EXPECT_TRUE(c.create_key({}, "cli")) << "the catalog does not work after the crash";
  EXPECT_TRUE(!done.bootstrapped || !c.bootstrap_key("system").value());
}

uint64_t count_mutations() {
  FaultEnv env;
  Ledger done;
  const Status s = run_scenario(&env, done);
  EXPECT_TRUE(s) << s.error().text();
  return env.n_mutations();
}

TEST(CatalogCrash, EveryCallEveryLoss) {
  const uint64_t n = count_mutations();
  EXPECT_GT(n, 100u);
  const int n_random = getenv("CARREL_LONG") != nullptr ? 50 : 3;
  for (uint64_t k = 1; k <= n; k++) {
    for (int round = 0; round < 2 + n_random; round++) {
      FaultEnv env;
      env.crash_at(k);
      Ledger done;
      const Status s = run_scenario(&env, done);
      ASSERT_TRUE(env.crashed()) << k;
      const Loss loss = round == 0 ? Loss::kUnsynced : round == 1 ? Loss::kNone : Loss::kRandom;
      Bytes skip(static_cast<size_t>(round));
      env.random(skip);  // another random loss each round, the same scenario
      env.power_loss(loss);
      check(env, done, "crash at change " + std::to_string(k) + " of " + std::to_string(n) + ", loss " + std::to_string(round));
      if (HasFailure()) return;
    }
  }
  printf("crash points: %d\n", static_cast<int>(n));
}

// A second crash while the first one is being recovered from.
TEST(CatalogCrash, CrashDuringRecovery) {
  const uint64_t n = count_mutations();
  for (uint64_t k = 5; k <= n; k += 17) {
    for (uint64_t second = 1; second < 40; second += 3) {
      FaultEnv env(k);
      env.crash_at(k);
      Ledger done;
      (void)run_scenario(&env, done);
      env.power_loss(Loss::kRandom);
      env.crash_at(second);
      (void)Catalog::open(&env, "/srv/data", CatalogMode::kReadWrite, kQuiet);
      env.power_loss(Loss::kRandom);
      check(env, done, "crash at " + std::to_string(k) + ", then at " + std::to_string(second));
      if (HasFailure()) return;
    }
  }
}

// One failing call at a time: EIO, no space, short reads. What was acknowledged holds, before and after a restart.
TEST(CatalogFaults, EveryCallEveryFault) {
  uint64_t n_calls = 0;
  {
    FaultEnv env;
    Ledger done;
    ASSERT_TRUE(run_scenario(&env, done));
    n_calls = env.n_calls();
  }
  const uint64_t stride = getenv("CARREL_LONG") != nullptr ? 1 : 2;
  int n_failed = 0;
  for (const auto fault : {FaultEnv::Fault::kIo, FaultEnv::Fault::kNoSpace, FaultEnv::Fault::kShortRead}) {
    for (uint64_t k = 1; k <= n_calls; k += stride) {
      FaultEnv env;
      env.fail_at(k, fault);
      Ledger done;
      const Status s = run_scenario(&env, done);
      if (!s) {
        n_failed++;
        EXPECT_NE(s.error().code, Code::kInternal) << s.error().text();
      }
      env.power_loss(Loss::kUnsynced);
      check(env, done, "fault " + std::to_string(static_cast<int>(fault)) + " at call " + std::to_string(k));
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(n_failed, 50);
}

// A sync that failed once is not tried again: the kernel may have dropped the pages and would answer Ok.
TEST(CatalogFaults, AfterAFailedSyncTheCatalogIsReadOnly) {
  FaultEnv env;
  auto c = Catalog::open(&env, "/data", CatalogMode::kReadWrite, kQuiet).value();
  const CreatedKey key = c->create_key({}, "cli").value();
  bool seen = false;
  for (uint64_t k = 1; k < 100 && !seen; k++) {
    env.fail_at(k, FaultEnv::Fault::kIo);
    (void)c->revoke_key(c->create_key({}, "cli").value_or(key).info.id, "cli");
    seen = !c->health();
  }
  ASSERT_TRUE(seen);
  EXPECT_EQ(c->health().error().code, Code::kUnavailable);
  EXPECT_EQ(c->create_tenant("x", "cli").error().code, Code::kUnavailable);
  EXPECT_TRUE(c->tenants()) << "reading must go on";
  c.reset();
  EXPECT_TRUE(Catalog::open(&env, "/data", CatalogMode::kReadWrite, kQuiet).value()->create_tenant("x", "cli"));
}

TEST(CatalogFaults, AFullDiskRefusesAndRecovers) {
  FaultEnv env;
  auto c = Catalog::open(&env, "/data", CatalogMode::kReadWrite, kQuiet).value();
  int refused = 0;
  for (uint64_t k = 1; k < 12; k++) {
    env.fail_at(k, FaultEnv::Fault::kNoSpace);
    const auto r = c->create_key({}, "cli");
    if (!r) {
      refused++;
      EXPECT_EQ(r.error().code, Code::kExhausted) << r.error().text();
    }
    EXPECT_TRUE(c->health());
    env.fail_at(UINT32_MAX, FaultEnv::Fault::kNoSpace);  // whatever is left of it
    const auto next = c->create_key({}, "cli");
    EXPECT_TRUE(next) << k << ": " << next.error().text();
  }
  EXPECT_GT(refused, 0);
  EXPECT_TRUE(c->verify_audit());
}

TEST(CatalogFaults, DamagedFileIsSaidWithAdvice) {
  FaultEnv clean;
  Ledger done;
  ASSERT_TRUE(run_scenario(&clean, done));
  const std::string good = read_file(&clean, "/srv/data/catalog.db").value();
  int refused = 0;
  for (int round = 0; round < 40; round++) {
    FaultEnv env(static_cast<uint64_t>(round));
    std::string bad = good;
    std::mt19937_64 dice(static_cast<uint64_t>(round));
    if (round % 2 == 0) {
      bad.resize(bad.size() / 41 * static_cast<size_t>(round + 1));
    } else {
      for (int i = 0; i < 64; i++) bad[dice() % bad.size()] ^= static_cast<char>(1 + dice() % 255);
    }
    ASSERT_TRUE(env.make_dirs("/srv/data"));
    ASSERT_TRUE(write_file_atomic(&env, "/srv/data/catalog.db", bad));
    ASSERT_TRUE(write_file_atomic(&env, "/srv/data/pepper.key", read_file(&clean, "/srv/data/pepper.key").value()));
    const auto r = Catalog::open(&env, "/srv/data", CatalogMode::kReadWrite, kQuiet);
    if (r) continue;  // only bytes inside rows changed: the audit chain and digests are what finds those
    refused++;
    EXPECT_NE(r.error().code, Code::kInternal) << r.error().text();
    EXPECT_FALSE(r.error().where.empty());
  }
  EXPECT_GT(refused, 15);
  FaultEnv env;
  ASSERT_TRUE(env.make_dirs("/srv/data"));
  ASSERT_TRUE(write_file_atomic(&env, "/srv/data/catalog.db",
                                "this is no database, and it is longer than a header of SQLite is, by some way, to be sure of it."));
  const auto r = Catalog::open(&env, "/srv/data", CatalogMode::kReadWrite, kQuiet);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::kCorrupt);
  EXPECT_NE(r.error().message.find("backup"), std::string::npos);
}

// --- Migrations (S11) ---

constexpr Migration kTwoSteps[] = {{"first", "CREATE TABLE one(x INTEGER) STRICT; INSERT INTO one VALUES(1), (2);"},
                                   {"second", "CREATE TABLE two(x INTEGER) STRICT; INSERT INTO two SELECT x FROM one; DROP TABLE one;"}};
constexpr Migration kBadSecond[] = {kTwoSteps[0], {"second", "CREATE TABLE two(x INTEGER) STRICT; INSERT INTO nowhere VALUES(1);"}};

Status upgrade(Env* env, std::span<const Migration> steps) {
  CARREL_ASSIGN(Db db, Db::open(env, "/m.db", DbRole::kWriter, 1000));
  CARREL_TRY(db.script("BEGIN IMMEDIATE"));
  CARREL_TRY(migrate(db, steps));
  return db.script("COMMIT");
}

TEST(Cases, case_appliance_s11) {
  FaultEnv env;
  ASSERT_TRUE(upgrade(&env, std::span(kTwoSteps).first(1)));
  const Status bad = upgrade(&env, kBadSecond);
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("nothing was changed"), std::string::npos);
  {
    Db db = Db::open(&env, "/m.db", DbRole::kWriter, 1000).value();
    EXPECT_EQ(db.integer("PRAGMA user_version"), 1);
    EXPECT_EQ(db.integer("SELECT count(*) FROM one"), 2);
    EXPECT_FALSE(db.integer("SELECT count(*) FROM two")) << "a half-done step is visible";
  }
  ASSERT_TRUE(upgrade(&env, kTwoSteps));
  {
    Db db = Db::open(&env, "/m.db", DbRole::kReader, 1000).value();
    EXPECT_EQ(db.integer("SELECT count(*) FROM two"), 2);
    EXPECT_TRUE(require_current(db, kTwoSteps));
    const Status newer = require_current(db, std::span(kTwoSteps).first(1));
    ASSERT_FALSE(newer);
    EXPECT_EQ(newer.error().code, Code::kUnsupported);
    EXPECT_NE(newer.error().message.find("newer Carrel"), std::string::npos);
  }
  EXPECT_EQ(upgrade(&env, std::span(kTwoSteps).first(1)).error().code, Code::kUnsupported);
}

TEST(CatalogCrash, AnUpgradeIsWholeOrNotAtAll) {
  for (uint64_t k = 1;; k++) {
    FaultEnv env(k);
    ASSERT_TRUE(upgrade(&env, std::span(kTwoSteps).first(1)));
    env.crash_at(k);
    const Status s = upgrade(&env, kTwoSteps);
    if (!env.crashed()) {
      EXPECT_TRUE(s);
      EXPECT_GT(k, 5u);
      return;
    }
    env.power_loss(k % 2 == 0 ? Loss::kRandom : Loss::kUnsynced);
    Db db = Db::open(&env, "/m.db", DbRole::kWriter, 1000).value();
    const int64_t version = db.integer("PRAGMA user_version").value();
    EXPECT_EQ(db.integer("SELECT count(*) FROM sqlite_schema WHERE name = 'one'"), version == 1);
    EXPECT_EQ(db.integer("SELECT count(*) FROM sqlite_schema WHERE name = 'two'"), version == 2);
    EXPECT_TRUE(version == 2 || (version == 1 && !s)) << "an acknowledged upgrade is lost";
    EXPECT_TRUE(db.quick_check());
  }
}

TEST(Catalog, ForeignDatabasesAndNewerOnesAreRefused) {
  FaultEnv env;
  ASSERT_TRUE(env.make_dirs("/data"));
  {
    Db db = Db::open(&env, "/data/catalog.db", DbRole::kWriter, 1000).value();
    ASSERT_TRUE(db.script("CREATE TABLE theirs(x)"));
  }
  EXPECT_EQ(Catalog::open(&env, "/data", CatalogMode::kReadWrite).error().code, Code::kUnsupported);
  ASSERT_TRUE(Catalog::open(&env, "/new", CatalogMode::kReadWrite));
  {
    Db db = Db::open(&env, "/new/catalog.db", DbRole::kWriter, 1000).value();
    ASSERT_TRUE(db.script("PRAGMA user_version=99"));
  }
  for (const auto mode : {CatalogMode::kReadWrite, CatalogMode::kReadOnly}) {
    const auto r = Catalog::open(&env, "/new", mode);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, Code::kUnsupported);
    EXPECT_NE(r.error().message.find("99"), std::string::npos);
  }
}

}  // namespace
}  // namespace carrel
