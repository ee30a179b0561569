#include "storage/catalog.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "base/fault_env.h"
#include "storage/api_key.h"
#include "storage/source_net.h"

namespace carrel {
namespace {

constexpr int64_t kHourMs = 3'600'000;

std::unique_ptr<Catalog> open_at(Env* env, const std::string& dir, CatalogMode mode = CatalogMode::kReadWrite,
                                 CatalogOptions options = {}) {
  auto c = Catalog::open(env, dir, mode, options);
  EXPECT_TRUE(c) << c.error().text();
  return c ? *std::move(c) : nullptr;
}

/// An empty folder of the real disk, removed at the end.
class RealFolder {
 public:
  explicit RealFolder(const std::string& name) : path_(testing::TempDir() + "carrel_" + name + std::to_string(::getpid())) {
    EXPECT_TRUE(Env::real()->remove_all(path_));
  }
  ~RealFolder() { (void)Env::real()->remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(ApiKey, TextCarriesIdAndFindsTypingErrors) {
  FaultEnv env;
  const ApiKey key = ApiKey::make(&env);
  const std::string text = key.text();
  EXPECT_TRUE(text.starts_with("crl_" + key.id + "_"));
  EXPECT_EQ(ApiKey::parse(text).value().secret, key.secret);
  for (size_t i = 0; i < text.size(); i++) {
    std::string wrong = text;
    wrong[i] = wrong[i] == 'a' ? 'b' : 'a';
    const auto r = ApiKey::parse(wrong);
    ASSERT_FALSE(r) << i;
    EXPECT_EQ(r.error().text().find(key.secret.substr(0, 8)), std::string::npos) << "a message repeats the secret";
    EXPECT_FALSE(ApiKey::parse(text.substr(0, i)));
  }
  EXPECT_FALSE(ApiKey::parse(text + "0"));
}

TEST(SourceNet, MatchesNetworksOfBothFamilies) {
  const auto in = [](const std::string& net, const std::string& address) { return SourceNet::parse(net).value().contains(address); };
  EXPECT_TRUE(in("10.0.0.0/8", "10.255.1.2"));
  EXPECT_TRUE(in("10.0.0.0/8", "::ffff:10.255.1.2"));
  EXPECT_FALSE(in("10.0.0.0/8", "11.0.0.1"));
  EXPECT_TRUE(in("192.168.4.0/22", "192.168.7.255"));
  EXPECT_FALSE(in("192.168.4.0/22", "192.168.8.0"));
  EXPECT_TRUE(in("::1", "::1"));
  EXPECT_TRUE(in("fd00::/8", "fdff::1"));
  EXPECT_FALSE(in("0.0.0.0/0", "::1"));
  EXPECT_FALSE(in("::/0", "rubbish"));
  for (const char* bad : {"", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/", "10.0.0.0/8x", "10.0.0.0/-1"})
    EXPECT_FALSE(SourceNet::parse(bad)) << bad;
}

TEST(Catalog, FirstStartMakesDefaultTenantAndOneKey) {
  FaultEnv env;
  auto c = open_at(&env, "/data");
  ASSERT_EQ(c->tenants()->size(), 1u);
  EXPECT_EQ(c->tenants()->at(0).name, "default");
  const auto first = c->bootstrap_key("system").value();
  ASSERT_TRUE(first);
  EXPECT_EQ(c->authenticate(first->key).value().tenant, "default");
  EXPECT_FALSE(c->bootstrap_key("system").value());
  c.reset();
  c = open_at(&env, "/data");
  EXPECT_FALSE(c->bootstrap_key("system").value());
  EXPECT_TRUE(c->authenticate(first->key));
}

TEST(Catalog, TenantsHaveRulesForNamesAndLifetimes) {
  FaultEnv env;
  auto c = open_at(&env, "/data");
  for (const char* bad : {"", "-a", "A", "a b", "ä", "a/b", "_x"})
    EXPECT_EQ(c->create_tenant(bad, "cli").error().code, Code::kInvalidArgument) << bad;
  EXPECT_FALSE(c->create_tenant(std::string(65, 'a'), "cli"));
  const TenantInfo made = c->create_tenant("team-1", "cli").value();
  EXPECT_EQ(c->create_tenant("team-1", "cli").error().code, Code::kAlreadyExists);
  EXPECT_EQ(c->remove_tenant("nobody", "cli").error().code, Code::kNotFound);
  const Namespace space = c->tenant_namespace("team-1").value();
  EXPECT_EQ(space.id, made.namespace_id);
  EXPECT_NE(space.secret, c->tenant_namespace("default")->secret);
  const std::string secret_file = "/data/namespaces/" + space.id + ".key";
  EXPECT_EQ(read_file(&env, secret_file)->size(), 32u);

  KeySpec spec;
  spec.tenant = "team-1";
  const CreatedKey key = c->create_key(spec, "cli").value();
  EXPECT_EQ(c->tenants()->at(1).n_keys, 1);
  ASSERT_TRUE(c->remove_tenant("team-1", "cli"));
  KeyRefusal why;
  EXPECT_FALSE(c->authenticate(key.key, &why));
  EXPECT_EQ(why, KeyRefusal::kRevoked);
  EXPECT_FALSE(env.exists(secret_file));
  EXPECT_EQ(c->tenant_namespace("team-1").error().code, Code::kNotFound);
  EXPECT_EQ(c->create_key(spec, "cli").error().code, Code::kNotFound);
  const TenantInfo again = c->create_tenant("team-1", "cli").value();
  EXPECT_NE(again.namespace_id, made.namespace_id);
  EXPECT_FALSE(c->authenticate(key.key)) << "a key came back with the name of its tenant";
}

TEST(Catalog, KeysKeepTheirRightsAndNothingKeepsTheirSecret) {
  FaultEnv env;
  auto c = open_at(&env, "/data");
  KeySpec spec;
  spec.name = "metrics";
  spec.scopes = {KeyScope::kMetricsRead};
  spec.models = {"demo", "a/b:c"};
  spec.nets = {"10.0.0.0/8"};
  spec.expires_ms = env.wall_ms() + kHourMs;
  const CreatedKey key = c->create_key(spec, "cli").value();
  const KeyInfo info = c->authenticate(key.key).value();
  EXPECT_TRUE(info.has_scope(KeyScope::kMetricsRead));
  EXPECT_FALSE(info.has_scope(KeyScope::kInference));
  EXPECT_TRUE(info.allows_model("a/b:c"));
  EXPECT_FALSE(info.allows_model("other"));
  EXPECT_TRUE(info.allows_source("10.1.2.3"));
  EXPECT_FALSE(info.allows_source("8.8.8.8"));
  EXPECT_EQ(info.expires_ms, spec.expires_ms);
  c.reset();
  const std::string secret = ApiKey::parse(key.key).value().secret;
  const std::string file = read_file(&env, "/data/catalog.db").value();
  EXPECT_EQ(file.find(secret), std::string::npos);
  EXPECT_NE(file.find(info.id), std::string::npos);

  c = open_at(&env, "/data");
  for (auto change : std::vector<std::function<void(KeySpec&)>>{[](KeySpec& s) { s.scopes.clear(); }, [](KeySpec& s) { s.nets = {"x"}; },
                                                                [](KeySpec& s) { s.models = {"a b"}; }, [](KeySpec& s) { s.name = "a\nb"; },
                                                                [](KeySpec& s) { s.not_before_ms = s.expires_ms; }}) {
    KeySpec bad = spec;
    change(bad);
    EXPECT_EQ(c->create_key(bad, "cli").error().code, Code::kInvalidArgument);
  }
}

TEST(Catalog, RefusalsDifferInsideOnly) {
  FaultEnv env;
  auto c = open_at(&env, "/data");
  KeyRefusal why = KeyRefusal::kNone;
  EXPECT_EQ(c->authenticate("Bearer nonsense", &why).error().code, Code::kDenied);
  EXPECT_EQ(why, KeyRefusal::kMalformed);
  const CreatedKey key = c->create_key({}, "cli").value();
  ApiKey forged = ApiKey::parse(key.key).value();
  forged.secret[0] = forged.secret[0] == 'a' ? 'b' : 'a';
  EXPECT_EQ(c->authenticate(forged.text(), &why).error().code, Code::kDenied);
  EXPECT_EQ(why, KeyRefusal::kUnknown);
  EXPECT_FALSE(c->authenticate(ApiKey::make(&env).text(), &why));
  EXPECT_EQ(why, KeyRefusal::kUnknown);
  ASSERT_TRUE(c->revoke_key(key.info.id, "cli"));
  EXPECT_FALSE(c->authenticate(key.key, &why));
  EXPECT_EQ(why, KeyRefusal::kRevoked);
  EXPECT_FALSE(c->check_key(key.info.id, &why));
  EXPECT_TRUE(c->revoke_key(key.info.id, "cli")) << "revoking twice is no error";
  EXPECT_EQ(c->revoke_key("nosuchkey", "cli").error().code, Code::kNotFound);
}

TEST(Catalog, RotationOverlaps) {
  FaultEnv env;
  auto c = open_at(&env, "/data");
  const CreatedKey old = c->create_key({}, "cli").value();
  const CreatedKey next = c->rotate_key(old.info.id, kHourMs, "cli").value();
  EXPECT_EQ(next.info.rotated_from, old.info.id);
  EXPECT_TRUE(c->authenticate(old.key));
  EXPECT_TRUE(c->authenticate(next.key));
  env.advance_ms(kHourMs);
  KeyRefusal why;
  EXPECT_FALSE(c->authenticate(old.key, &why));
  EXPECT_EQ(why, KeyRefusal::kExpired);
  EXPECT_TRUE(c->authenticate(next.key));
  EXPECT_FALSE(c->rotate_key(old.info.id, 0, "cli")) << "an expired key came back by rotation";
  const CreatedKey last = c->rotate_key(next.info.id, 0, "cli").value();
  EXPECT_FALSE(c->authenticate(next.key));
  EXPECT_TRUE(c->authenticate(last.key));
  EXPECT_FALSE(c->rotate_key(last.info.id, -1, "cli"));
}

TEST(Cases, case_appliance_s12) {
  FaultEnv env;
  auto c = open_at(&env, "/data");
  KeySpec spec;
  spec.expires_ms = env.wall_ms() + kHourMs;
  const CreatedKey key = c->create_key(spec, "cli").value();
  const CreatedKey revoked = c->create_key({}, "cli").value();
  ASSERT_TRUE(c->revoke_key(revoked.info.id, "cli"));
  env.advance_ms(kHourMs + 1);
  EXPECT_FALSE(c->authenticate(key.key));
  env.jump_wall_ms(-24 * kHourMs);
  EXPECT_FALSE(c->authenticate(key.key)) << "a clock set back revived an expired key";
  EXPECT_FALSE(c->authenticate(revoked.key));
  env.jump_wall_ms(48 * kHourMs);
  EXPECT_FALSE(c->authenticate(revoked.key));
  EXPECT_EQ(c->audit(0, 100)->size(), static_cast<size_t>(c->verify_audit().value()));
  const CatalogFigures figures = c->figures().value();
  EXPECT_EQ(figures.audit_head_seq, c->verify_audit().value());
  EXPECT_GE(figures.write_seconds.size(), 3u) << "two keys made, one revoked";
  EXPECT_TRUE(c->figures()->write_seconds.empty()) << "each is told once";
}

// Random changes against a model: a key authenticates exactly while it is neither revoked nor expired, and never after it was revoked.
TEST(Catalog, NoKeyAuthenticatesAfterRevoke) {
  FaultEnv env(7);
  std::mt19937_64 dice(7);
  auto c = open_at(&env, "/data");
  struct Known {
    CreatedKey key;
    int64_t expires_ms;
    bool revoked = false;
  };
  std::vector<Known> known;
  int64_t now = env.wall_ms();
  for (int step = 0; step < 400; step++) {
    const auto pick = [&]() -> Known& { return known[dice() % known.size()]; };
    const auto action = known.empty() ? 0 : dice() % 6;
    if (action == 0) {
      KeySpec spec;
      spec.expires_ms = now + static_cast<int64_t>(dice() % 1'000'000) + 1;
      known.push_back({c->create_key(spec, "t").value(), *spec.expires_ms});
    } else if (action == 1) {
      Known& k = pick();
      ASSERT_TRUE(c->revoke_key(k.key.info.id, "t"));
      k.revoked = true;
    } else if (action == 2) {
      Known& k = pick();
      const int64_t overlap = static_cast<int64_t>(dice() % 3) * 50'000;
      const int64_t expires = k.expires_ms;
      const auto next = c->rotate_key(k.key.info.id, overlap, "t");
      ASSERT_EQ(next.has_value(), !k.revoked && now < expires);
      if (next) {
        if (overlap == 0) k.revoked = true;
        k.expires_ms = std::min(k.expires_ms, now + overlap);
        known.push_back({*next, expires});
      }
    } else if (action == 3) {
      const auto ms = static_cast<int64_t>(dice() % 100'000);
      env.advance_ms(ms);
      now += ms;
    } else if (action == 4 && dice() % 8 == 0) {
      c.reset();
      c = open_at(&env, "/data");
    }
    for (const Known& k : known) ASSERT_EQ(c->authenticate(k.key.key).has_value(), !k.revoked && now < k.expires_ms) << step;
  }
  EXPECT_GT(c->verify_audit().value(), 100);
}

TEST(Catalog, UsageSumsAndSurvives) {
  FaultEnv env;
  auto c = open_at(&env, "/data");
  ASSERT_TRUE(c->create_tenant("b", "cli"));
  const std::string a = c->create_key({}, "cli")->info.id;
  KeySpec spec;
  spec.tenant = "b";
  const std::string b = c->create_key(spec, "cli")->info.id;
  for (int i = 0; i < 10; i++) c->add_usage(a, "demo", {1, 100, 60, 7});
  c->add_usage(b, "demo", {1, 1, 0, 1});
  c->add_usage("nosuchkey", "demo", {1, 1, 0, 1});
  ASSERT_TRUE(c->flush_usage());
  env.advance_ms(24 * kHourMs);
  c->add_usage(a, "demo", {1, 5, 0, 5});
  c.reset();  // writes the rest
  c = open_at(&env, "/data");
  const auto rows = c->usage("default").value();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].counts.requests, 10);
  EXPECT_EQ(rows[0].counts.prompt_tokens, 1000);
  EXPECT_EQ(rows[0].counts.cached_tokens, 600);
  EXPECT_EQ(rows[0].counts.completion_tokens, 70);
  EXPECT_EQ(rows[0].day, "2027-01-15");
  EXPECT_EQ(rows[1].day, "2027-01-16");
  EXPECT_EQ(c->usage("default", "2027-01-16")->size(), 1u);
  EXPECT_EQ(c->usage("default", {}, "2027-01-14")->size(), 0u);
  EXPECT_EQ(c->usage("")->size(), 3u);
  EXPECT_EQ(c->usage("nobody").error().code, Code::kNotFound);
  EXPECT_EQ(c->usage("default", "2027-02-30").error().code, Code::kInvalidArgument);
}

TEST(Catalog, UsageThatCannotBeWrittenIsSaidUntilItIs) {
  FaultEnv env;
  auto c = open_at(&env, "/data", CatalogMode::kReadWrite, {.busy_timeout_ms = 20, .usage_flush_ms = kHourMs});
  const std::string key = c->create_key({}, "cli")->info.id;
  auto other = Db::open(&env, "/data/catalog.db", DbRole::kWriter, 1000).value();
  ASSERT_TRUE(other.script("BEGIN IMMEDIATE"));
  EXPECT_FALSE(c->flush_usage());
  EXPECT_TRUE(c->health()) << "no counter waited";
  c->add_usage(key, "demo", {1, 2, 0, 3});
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(c->flush_usage().error().code, Code::kUnavailable);
    EXPECT_EQ(c->health().error().code, Code::kUnavailable);
  }
  ASSERT_TRUE(other.script("ROLLBACK"));
  EXPECT_FALSE(c->health());
  ASSERT_TRUE(c->flush_usage());
  EXPECT_TRUE(c->health());
  ASSERT_EQ(c->usage("")->size(), 1u);
  EXPECT_EQ(c->usage("")->at(0).counts.requests, 1);
}

// A limit on the size of files stands for the full disk: the file has room for its first page, WAL's shared memory has none.
TEST(Catalog, SharedMemoryThatCannotGrowIsAFullDisk) {
  RealFolder folder("shm");
  ASSERT_TRUE(Env::real()->make_dirs(folder.path()));
  const std::string path = Env::real()->canonical(folder.path()).value() + "/x.db";
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 16384;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status r = [&]() -> Status {
    CARREL_ASSIGN(Db db, Db::open(Env::real(), path, DbRole::kWriter, 1000));
    return db.script("CREATE TABLE t(x)");
  }();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::kExhausted) << r.error().text();
  EXPECT_NE(r.error().message.find("free space"), std::string::npos);
  EXPECT_TRUE(Db::open(Env::real(), path, DbRole::kWriter, 1000)->script("CREATE TABLE t(x)"));
}

TEST(Catalog, ARemovedOrReplacedFileIsNoticed) {
  RealFolder folder("moved");
  Env* env = Env::real();
  auto c = open_at(env, folder.path(), CatalogMode::kReadWrite, {.usage_flush_ms = kHourMs});
  const std::string file = folder.path() + "/catalog.db", aside = folder.path() + "/aside.db";
  const std::string content = read_file(env, file).value();
  ASSERT_TRUE(c->health());
  ASSERT_TRUE(env->rename(file, aside));
  for (const bool replaced : {false, true}) {
    if (replaced) {
      ASSERT_TRUE(write_file_atomic(env, file, content));
    }
    EXPECT_EQ(c->health().error().code, Code::kUnavailable);
    EXPECT_EQ(c->health().error().where, env->canonical(folder.path()).value() + "/catalog.db");
    EXPECT_EQ(c->create_tenant("lost", "cli").error().code, Code::kUnavailable) << "acknowledged, and gone at the next start";
  }
  ASSERT_TRUE(env->rename(aside, file));
  EXPECT_TRUE(c->health());
  EXPECT_TRUE(c->create_tenant("kept", "cli"));
  FaultEnv memory;
  auto m = open_at(&memory, "/data");
  ASSERT_TRUE(memory.remove("/data/catalog.db"));
  EXPECT_FALSE(m->health());
}

TEST(Catalog, SecretsWithoutACatalogAreKept) {
  FaultEnv env;
  const std::string space = open_at(&env, "/data")->tenant_namespace("default")->id;
  for (const char* left : {"/data/pepper.key", "/data/namespaces"}) {
    for (const std::string name : {"catalog.db", "catalog.db-wal", "catalog.db-shm"}) (void)env.remove("/data/" + name);
    for (const auto mode : {CatalogMode::kReadWrite, CatalogMode::kReadOnly}) {
      const auto r = Catalog::open(&env, "/data", mode);
      ASSERT_FALSE(r) << left;
      EXPECT_EQ(r.error().code, Code::kCorrupt);
      EXPECT_EQ(r.error().where, "/data/catalog.db");
      EXPECT_NE(r.error().message.find("backup"), std::string::npos);
    }
    EXPECT_FALSE(env.exists("/data/catalog.db"));
    EXPECT_TRUE(env.exists("/data/namespaces/" + space + ".key")) << "the secret was swept";
    (void)env.remove("/data/pepper.key");
  }
  ASSERT_TRUE(env.remove("/data/namespaces/" + space + ".key"));
  EXPECT_TRUE(Catalog::open(&env, "/data", CatalogMode::kReadWrite)) << "an empty folder is a first start";
}

TEST(Catalog, UsageIsDurableWithinASecond) {
  RealFolder folder("usage");
  auto c = open_at(Env::real(), folder.path());
  auto reader = open_at(Env::real(), folder.path(), CatalogMode::kReadOnly);
  c->add_usage(c->create_key({}, "cli")->info.id, "demo", {1, 2, 0, 3});
  for (int waited = 0; waited < 1000 && reader->usage("")->empty(); waited += 20) Env::real()->sleep_ms(20);
  EXPECT_EQ(reader->usage("")->size(), 1u);
}

TEST(Catalog, ModelsAreRegistered) {
  FaultEnv env;
  auto c = open_at(&env, "/data");
  ModelRecord m{.name = "org/model:q4",
                .source = "/models/x",
                .store_digest = std::string(64, 'a'),
                .family = "gemma3",
                .bytes = 123,
                .n_tensors = 4};
  ASSERT_TRUE(c->add_model(m, "cli"));
  EXPECT_EQ(c->add_model(m, "cli").error().code, Code::kAlreadyExists);
  const ModelRecord read = c->model("org/model:q4").value();
  EXPECT_EQ(read.bytes, 123);
  EXPECT_EQ(read.source, "/models/x");
  EXPECT_EQ(read.status, ModelStatus::kReady);
  ASSERT_TRUE(c->set_model_status(m.name, ModelStatus::kDamaged, "system"));
  EXPECT_EQ(c->models()->at(0).status, ModelStatus::kDamaged);
  ASSERT_TRUE(c->remove_model(m.name, "cli"));
  EXPECT_EQ(c->model(m.name).error().code, Code::kNotFound);
  EXPECT_EQ(c->remove_model(m.name, "cli").error().code, Code::kNotFound);
  m.settings_json = "[1";
  EXPECT_EQ(c->add_model(m, "cli").error().code, Code::kInvalidArgument);
  m.settings_json = "{}";
  for (const char* good : {"x", "org/model:q4", "0.5B-it_v1"}) EXPECT_TRUE(check_model_name(good)) << good;
  for (const char* bad : {"", "../x", "../../evil", "a/../b", ".x", "a b", "a\nb"}) {
    m.name = bad;
    EXPECT_EQ(check_model_name(bad).error().code, Code::kInvalidArgument) << bad;
    EXPECT_EQ(c->add_model(m, "cli").error().code, Code::kInvalidArgument) << bad;
  }
  m.name = "x";
  m.store_digest = "aa";
  EXPECT_FALSE(c->add_model(m, "cli"));
}

TEST(Catalog, EveryChangeIsAuditedOnce) {
  FaultEnv env;
  auto c = open_at(&env, "/data");
  ASSERT_TRUE(c->create_tenant("t", "cli:root"));
  EXPECT_FALSE(c->create_tenant("t", "cli:root"));
  KeySpec spec;
  spec.tenant = "t";
  const std::string id = c->create_key(spec, "a\"\xff").value().info.id;
  ASSERT_TRUE(c->revoke_key(id, "cli"));
  ASSERT_TRUE(c->remove_tenant("t", "cli"));
  std::vector<std::string> actions;
  const auto entries = c->audit(0, 100).value();
  for (const AuditEntry& e : entries) actions.push_back(e.action + " " + e.object);
  EXPECT_EQ(actions, (std::vector<std::string>{"catalog.create catalog", "tenant.create default", "tenant.create t", "key.create " + id,
                                               "key.revoke " + id, "tenant.remove t"}));
  EXPECT_EQ(c->verify_audit(), 6);
  EXPECT_EQ(c->audit(4, 1)->at(0).seq, 5);
}

TEST(Catalog, ActsOutsideOfTheCatalogAreAuditedToo) {
  FaultEnv env;
  auto c = open_at(&env, "/data");
  const int64_t before = c->verify_audit().value();
  ASSERT_TRUE(c->record_act("key:abc", AuditAction::kCachePurge, "t", {{"namespace", "n"}}));
  EXPECT_EQ(c->verify_audit(), before + 1);
  const AuditEntry last = c->audit(before, 1)->at(0);
  EXPECT_EQ(last.actor + " " + last.action + " " + last.object + " " + last.detail, R"(key:abc cache.purge t {"namespace":"n"})");
}

TEST(Catalog, AuditFindsEditsRemovalsAndACutTail) {
  FaultEnv env;
  const std::vector<std::string> attacks = {
      "UPDATE audit SET actor = 'nobody' WHERE seq = 3",
      "UPDATE audit SET time_ms = time_ms + 1 WHERE seq = 5",
      "DELETE FROM audit WHERE seq = 3",
      "DELETE FROM audit WHERE seq = 1",
      "DELETE FROM audit WHERE seq = (SELECT max(seq) FROM audit)",
      "DELETE FROM audit",
      "DELETE FROM meta WHERE name = 'audit_head'",
      "UPDATE audit SET seq = seq + 1 WHERE seq = (SELECT max(seq) FROM audit)",
  };
  for (size_t i = 0; i < attacks.size(); i++) {
    const std::string dir = "/data" + std::to_string(i);
    auto c = open_at(&env, dir);
    for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(c->create_tenant(name, "cli"));
    ASSERT_EQ(c->verify_audit(), 5);
    auto db = Db::open(&env, dir + "/catalog.db", DbRole::kWriter, 1000).value();
    if (attacks[i].find("audit ") != std::string::npos) {
      EXPECT_FALSE(db.script(attacks[i])) << "the log is not append-only: " << attacks[i];
    }
    ASSERT_TRUE(db.script("DROP TRIGGER audit_is_not_edited; DROP TRIGGER audit_is_not_cut"));
    ASSERT_TRUE(db.script(attacks[i]));
    const auto verdict = c->verify_audit();
    ASSERT_FALSE(verdict) << attacks[i];
    EXPECT_EQ(verdict.error().code, Code::kCorrupt);
  }
}

TEST(Catalog, RevokedKeysStayRevokedEvenForSql) {
  FaultEnv env;
  auto c = open_at(&env, "/data");
  ASSERT_TRUE(c->revoke_key(c->create_key({}, "cli")->info.id, "cli"));
  auto db = Db::open(&env, "/data/catalog.db", DbRole::kWriter, 1000).value();
  EXPECT_FALSE(db.script("UPDATE keys SET revoked_ms = NULL"));
  EXPECT_FALSE(db.script("DELETE FROM keys"));
}

TEST(Catalog, ReadOnlyModeReadsAndRefusesChanges) {
  FaultEnv env;
  EXPECT_EQ(Catalog::open(&env, "/data", CatalogMode::kReadOnly).error().code, Code::kNotFound);
  auto c = open_at(&env, "/data");
  const CreatedKey key = c->create_key({}, "cli").value();
  c.reset();
  c = open_at(&env, "/data", CatalogMode::kReadOnly);
  EXPECT_TRUE(c->authenticate(key.key));
  EXPECT_EQ(c->keys("default")->size(), 1u);
  EXPECT_EQ(c->keys("nobody").error().code, Code::kNotFound);
  EXPECT_EQ(c->create_tenant("x", "cli").error().code, Code::kUnsupported);
  EXPECT_EQ(c->health().error().code, Code::kUnsupported);
  EXPECT_TRUE(c->verify_audit());
}

// Two instances, as a server and a command are.
TEST(Catalog, InstancesSeeEachOthersChangesAtTheNextCall) {
  RealFolder folder("two");
  auto server = open_at(Env::real(), folder.path());
  auto command = open_at(Env::real(), folder.path());
  const int64_t before = server->data_version().value();
  EXPECT_EQ(server->data_version(), before);
  for (int i = 0; i < 20; i++) {
    const CreatedKey key = command->create_key({}, "cli").value();
    EXPECT_TRUE(server->authenticate(key.key));
    ASSERT_TRUE(command->revoke_key(key.info.id, "cli"));
    EXPECT_FALSE(server->authenticate(key.key));
  }
  EXPECT_NE(server->data_version(), before);
}

TEST(Catalog, LostPepperIsNamed) {
  FaultEnv env;
  open_at(&env, "/data");
  const std::string pepper = read_file(&env, "/data/pepper.key").value();
  ASSERT_TRUE(env.remove("/data/pepper.key"));
  auto r = Catalog::open(&env, "/data", CatalogMode::kReadWrite);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::kCorrupt);
  EXPECT_NE(r.error().text().find("/data/pepper.key"), std::string::npos);
  ASSERT_TRUE(write_file_atomic(&env, "/data/pepper.key", std::string(32, 'x')));
  EXPECT_EQ(Catalog::open(&env, "/data", CatalogMode::kReadOnly).error().code, Code::kCorrupt);
  ASSERT_TRUE(write_file_atomic(&env, "/data/pepper.key", pepper));
  EXPECT_TRUE(Catalog::open(&env, "/data", CatalogMode::kReadWrite));
}

TEST(Catalog, SweepDestroysOrphansAndRenewsLostSecrets) {
  FaultEnv env;
  auto c = open_at(&env, "/data");
  const Namespace old = c->tenant_namespace("default").value();
  c.reset();
  ASSERT_TRUE(env.remove("/data/namespaces/" + old.id + ".key"));
  ASSERT_TRUE(write_file_atomic(&env, "/data/namespaces/orphan.key", std::string(32, 'x')));
  c = open_at(&env, "/data");
  EXPECT_FALSE(env.exists("/data/namespaces/orphan.key"));
  const Namespace fresh = c->tenant_namespace("default").value();
  EXPECT_NE(fresh.id, old.id);
  EXPECT_NE(fresh.secret, old.secret);
  EXPECT_EQ(c->audit(0, 100)->back().action, "namespace.renew");
}

TEST(Catalog, DataKeysAreMadeOnceAndDieWithTheirNamespace) {
  FaultEnv env;
  auto c = open_at(&env, "/data");
  const auto hex = [&](const std::string& id) {
    const auto key = c->data_key(id);
    EXPECT_TRUE(key) << key.error().text();
    return key ? to_hex(key->bytes()) : std::string();
  };
  const auto file_of = [](const std::string& id) { return "/data/namespaces/" + id + ".data"; };
  const std::string id = c->create_tenant("a", "cli")->namespace_id, other = c->tenant_namespace("default")->id;
  EXPECT_FALSE(env.exists(file_of(id))) << "made before it is used";
  const std::string key = hex(id);
  EXPECT_NE(key, hex(other));
  EXPECT_NE(key, to_hex(c->tenant_namespace("a")->secret));
  const std::string stored = read_file(&env, file_of(id)).value();
  EXPECT_EQ(to_hex(std::as_bytes(std::span(stored))), key);
  c.reset();
  env.power_loss(FaultEnv::Loss::kUnsynced);
  c = open_at(&env, "/data");
  EXPECT_EQ(hex(id), key) << "not durable, or swept";

  const auto still_open = env.open(file_of(id), Open::kRead).value();
  const std::string fresh = c->renew_namespace("a", "cli").value();
  Bytes left(32);
  ASSERT_EQ(still_open->read_at(0, left).value(), left.size());
  EXPECT_NE(to_hex(left), key) << "unlinked, but not overwritten";
  EXPECT_NE(fresh, id);
  EXPECT_EQ(c->tenant_namespace("a")->id, fresh);
  EXPECT_EQ(c->audit(0, 100)->back().action, "namespace.renew");
  EXPECT_EQ(c->data_key(id).error().code, Code::kNotFound);
  EXPECT_FALSE(env.exists(file_of(id)) || env.exists("/data/namespaces/" + id + ".key"));
  EXPECT_NE(hex(fresh), key);

  ASSERT_TRUE(c->remove_tenant("a", "cli"));
  EXPECT_EQ(c->data_key(fresh).error().code, Code::kNotFound);
  EXPECT_FALSE(env.exists(file_of(fresh)));
  EXPECT_EQ(c->renew_namespace("a", "cli").error().code, Code::kNotFound);
  EXPECT_TRUE(env.exists(file_of(other)));
  ASSERT_TRUE(write_file_atomic(&env, file_of("orphan"), std::string(32, 'x')));
  c = open_at(&env, "/data");
  EXPECT_FALSE(env.exists(file_of("orphan")));
  EXPECT_TRUE(env.exists(file_of(other)));
}

TEST(Catalog, DataKeysThatAreDamagedOrForeign) {
  FaultEnv env;
  auto c = open_at(&env, "/data");
  const std::string id = c->tenant_namespace("default")->id;
  const std::string file = "/data/namespaces/" + id + ".data";
  ASSERT_TRUE(write_file_atomic(&env, file, "short"));
  const auto made = c->data_key(id);
  ASSERT_TRUE(made) << made.error().text();
  EXPECT_EQ(read_file(&env, file)->size(), 32u);
  EXPECT_EQ(to_hex(c->data_key(id)->bytes()), to_hex(made->bytes()));
  // Ids out of a foreign header.
  for (const char* bad : {"", ".", "../pepper", "../../etc/passwd", "nobody", "' OR 1=1 --"}) {
    EXPECT_EQ(c->data_key(bad).error().code, Code::kNotFound) << bad;
  }
  // A command beside the server finds the same key.
  const auto reader = open_at(&env, "/data", CatalogMode::kReadOnly);
  EXPECT_EQ(to_hex(reader->data_key(id)->bytes()), to_hex(made->bytes()));
  ASSERT_TRUE(env.remove(file));
  EXPECT_EQ(reader->data_key(id).error().code, Code::kUnsupported);
}

// Two processes, one first use: one key.
TEST(Catalog, DataKeysAreMadeByOneOfMany) {
  RealFolder folder("data_keys");
  auto a = open_at(Env::real(), folder.path()), b = open_at(Env::real(), folder.path());
  const std::string id = a->tenant_namespace("default")->id;
  std::vector<std::string> seen(8);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < seen.size(); i++) {
      threads.emplace_back([&, i] {
        const auto key = (i % 2 == 0 ? a : b)->data_key(id);
        seen[i] = key ? to_hex(key->bytes()) : key.error().text();
      });
    }
  }
  for (const std::string& s : seen) EXPECT_EQ(s, seen[0]);
  EXPECT_EQ(seen[0].size(), 64u);
}

TEST(Catalog, FilesArePrivate) {
  RealFolder folder("modes");
  auto c = open_at(Env::real(), folder.path());
  ASSERT_TRUE(c->create_tenant("a", "cli"));
  ASSERT_TRUE(c->data_key(c->tenant_namespace("a")->id));
  int n = 0;
  for (const std::string& dir : {folder.path(), folder.path() + "/namespaces"}) {
    const auto names = Env::real()->list(dir).value();
    for (const std::string& name : names) {
      struct stat s;
      ASSERT_EQ(::stat((dir + "/" + name).c_str(), &s), 0);
      if (!S_ISREG(s.st_mode)) continue;
      EXPECT_EQ(s.st_mode & 0777, 0600u) << name;
      n++;
    }
  }
  EXPECT_GE(n, 7);  // catalog.db, -wal, -shm, pepper, two namespaces, one data key
}

TEST(Catalog, ALinkInPlaceOfTheFileIsRefused) {
  RealFolder folder("link");
  open_at(Env::real(), folder.path());
  const std::string db = folder.path() + "/catalog.db";
  ASSERT_TRUE(Env::real()->rename(db, db + ".moved"));
  ASSERT_EQ(::symlink((db + ".moved").c_str(), db.c_str()), 0);
  const auto r = Catalog::open(Env::real(), folder.path(), CatalogMode::kReadWrite);
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message.find("symbolic link"), std::string::npos) << r.error().text();
}

TEST(Catalog, AuthenticationTakesMicroseconds) {
  RealFolder folder("speed");
  auto c = open_at(Env::real(), folder.path());
  const CreatedKey key = c->create_key({}, "cli").value();
  ASSERT_TRUE(c->authenticate(key.key));
  constexpr int kTimes = 2000;
  const int64_t start = Env::real()->mono_ns();
  for (int i = 0; i < kTimes; i++) ASSERT_TRUE(c->authenticate(key.key));
  const double us = static_cast<double>(Env::real()->mono_ns() - start) / 1000.0 / kTimes;
  printf("authenticate: %.1f us\n", us);
  EXPECT_LT(us, 500.0);  // far above what it takes, below what a table read per request would
}

// 64 threads write at the same time, a second instance too, and nobody is ever told that the database is busy.
TEST(Cases, case_appliance_s3) {
  RealFolder folder("s3");
  auto a = open_at(Env::real(), folder.path());
  auto b = open_at(Env::real(), folder.path());
  const int n_writes = getenv("CARREL_LONG") != nullptr ? 1000 : 25;
  std::atomic<int> busy{0}, failed{0}, done{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 64; t++) {
    threads.emplace_back([&, t] {
      Catalog& c = t % 8 == 0 ? *b : *a;
      for (int i = 0; i < n_writes; i++) {
        const auto key = c.create_key({}, "thread");
        if (key) {
          done++;
          c.add_usage(key->info.id, "demo", {1, 1, 0, 1});
          if (i + 1 == n_writes && !c.authenticate(key->key)) failed++;
        } else {
          (key.error().code == Code::kUnavailable ? busy : failed)++;
        }
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(busy, 0);
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(done, 64 * n_writes);
  ASSERT_TRUE(a->flush_usage());
  ASSERT_TRUE(b->flush_usage());
  EXPECT_EQ(a->keys()->size(), static_cast<size_t>(64 * n_writes));
  EXPECT_EQ(a->usage("")->size(), static_cast<size_t>(64 * n_writes));
  EXPECT_EQ(a->verify_audit(), 64 * n_writes + 2);
}

// The settings are read back from SQLite, and a connection whose settings differ does not open.
TEST(Cases, case_appliance_s4) {
  RealFolder folder("s4");
  auto c = open_at(Env::real(), folder.path());
  const DbSettings w = c->writer_settings().value(), r = c->reader_settings().value();
  for (const DbSettings& s : {w, r}) {
    EXPECT_EQ(s.journal_mode, "wal");
    EXPECT_EQ(s.synchronous, 2);
    EXPECT_TRUE(s.foreign_keys);
    EXPECT_TRUE(s.defensive);
    EXPECT_FALSE(s.double_quoted_strings);
    EXPECT_FALSE(s.load_extension);
    EXPECT_FALSE(s.trusted_schema);
    EXPECT_GT(s.busy_timeout_ms, 0);
  }
  EXPECT_FALSE(w.query_only);
  auto db = Db::open(Env::real(), folder.path() + "/catalog.db", DbRole::kWriter, 1000).value();
  for (const char* pragma : {"synchronous=NORMAL", "synchronous=OFF", "foreign_keys=OFF", "query_only=ON", "busy_timeout=0"}) {
    EXPECT_TRUE(db.verify(DbRole::kWriter));
    ASSERT_TRUE(db.script(std::string("PRAGMA ") + pragma));
    const Status s = db.verify(DbRole::kWriter);
    ASSERT_FALSE(s) << pragma;
    EXPECT_EQ(s.error().code, Code::kUnsupported);
    ASSERT_TRUE(db.script("PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; PRAGMA query_only=OFF; PRAGMA busy_timeout=1000"));
  }
}

TEST(Cases, case_appliance_s7) {
  RealFolder folder("s7");
  auto c = open_at(Env::real(), folder.path());
  EXPECT_TRUE(c->reader_settings()->query_only);
  auto reader = Db::open(Env::real(), folder.path() + "/catalog.db", DbRole::kReader, 1000).value();
  EXPECT_FALSE(reader.script("DELETE FROM usage"));
  ASSERT_TRUE(reader.script("PRAGMA query_only=OFF"));
  EXPECT_EQ(reader.script("DELETE FROM usage").error().code, Code::kDenied) << "mode=ro does not hold without query_only";
}

}  // namespace
}  // namespace carrel
