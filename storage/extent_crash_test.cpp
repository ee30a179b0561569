// What the disk tier promises when the machine or the disk fails: one fixed scenario, cut or hurt at each of its I/O calls (submissions and
// completions of block operations among them), in each way.
#include <gtest/gtest.h>

#include "base/fault_env.h"
#include "storage/extent_fixture.h"

namespace carrel {
namespace {

using namespace testing_extents;
using Fault = FaultEnv::Fault;
using Loss = FaultEnv::Loss;

constexpr int64_t kHangMs = 90'000;  // beyond every deadline of the store

/// What the scenario was told.
struct Told {
  std::set<std::pair<std::string, int>> stored, removed;  // acknowledged and not undone
  bool purged = false;
  uint64_t most_bytes = 0;  // of the segment files at any time
};

class Scenario {
 public:
  explicit Scenario(FaultEnv* env) : env_(env) {}

  /// Goes on after failures as far as there is a store: a cache that fails is a cache that misses.
  Told run() {
    if (open()) {
      put(0, 4, "ns-a");
      put(0, 3, "ns-b");
      (void)read_back(env_, *store_, 1, "ns-a", 30'000);
      put(2, 5, "ns-a");  // two are there already
      remove({1, 3});
      put(10, 13, "ns-a");  // where those were
      quarantine(2);
      const ExtentId used[] = {id_of(0)};
      store_->touch(used);
      (void)store_->sweep();
      put(20, 26, "ns-a");  // beyond the first segment
      remove({20, 21, 22, 23, 24, 25});
      std::erase_if(told_.stored, [](const auto& e) { return e.first == "ns-b"; });
      const auto purged = store_->purge("ns-b", env_->mono_ns());
      told_.purged = purged && purged->n_leased == 0;
      put(30, 32, "ns-a");
      measure();
      store_.reset();
    }
    if (open()) {
      (void)read_back(env_, *store_, 0, "ns-a", 30'000);
      put(40, 42, "ns-a");
      store_.reset();
    }
    return told_;
  }

 private:
  bool open() {
    auto store = ExtentStore::open(env_, small_config());
    if (store) store_ = *std::move(store);
    if (store_) (void)store_->maintain();
    return store_ != nullptr;
  }
  void put(int first, int last, const std::string& space) {
    const auto results = put_some(env_, *store_, first, last, space);
    for (int n = first; n < last; n++) {
      if (!results[static_cast<size_t>(n - first)]) continue;
      told_.stored.emplace(space, n);
      told_.removed.erase({space, n});
    }
    measure();
  }
  void remove(const std::vector<int>& numbers) {
    std::vector<ExtentId> ids;
    for (const int n : numbers) ids.push_back(id_of(n));
    const auto done = store_->erase(ids);
    for (const int n : numbers) {
      told_.stored.erase({"ns-a", n});
      if (done) told_.removed.emplace("ns-a", n);
    }
    measure();
  }
  void quarantine(int n) {
    store_->quarantine(store_->lease(id_of(n)), Error{Code::kCorrupt, "planted", ""});
    told_.stored.erase({"ns-a", n});
  }
  void measure() { told_.most_bytes = std::max(told_.most_bytes, store_->stats().file_bytes); }

  FaultEnv* env_;
  Told told_;
  std::unique_ptr<ExtentStore> store_;
};

// After the machine came back: everything that is visible is right, nothing that was removed is back, nothing lies about.
// lossless: the process died and the machine did not, so what was acknowledged is there.
void check(FaultEnv& env, const Told& told, bool lossless, const std::string& where) {
  SCOPED_TRACE(where);
  EXPECT_LE(told.most_bytes, small_config().max_bytes);
  const auto headers = headers_in(&env, "/cache");
  EXPECT_LE(segment_bytes(&env, "/cache"), small_config().max_bytes);
  auto opened = ExtentStore::open(&env, small_config());
  ASSERT_TRUE(opened) << opened.error().text();
  ExtentStore& store = **opened;
  const bool was_clean = store.stats().work == ExtentStoreStats::Work::kNone;
  ASSERT_TRUE(store.maintain());
  std::set<std::pair<uint32_t, uint32_t>> visible;
  const auto rows = store.rows();
  for (const ExtentRow& row : rows) {
    visible.emplace(row.place.segment, row.place.unit);
    const ExtentId ids[] = {row.id};
    const auto got = store.read(store.lease(ids), env.mono_ns() + 60'000'000'000);
    ASSERT_TRUE(got[0]) << "a visible row without its bytes: " << got[0].error().text();
    EXPECT_TRUE(check_plain(row, got[0]->bytes));
  }
  size_t orphans = 0;
  for (const auto& place : headers) orphans += visible.contains(place) ? 0 : 1;
  if (was_clean) {
    EXPECT_EQ(orphans, 0u) << "an orderly end left something";
  } else {
    EXPECT_EQ(store.stats().n_orphans, orphans) << "orphans are counted";
    EXPECT_TRUE((store.stats().orphan_bytes != 0) == (orphans != 0));
  }
  EXPECT_EQ(headers_in(&env, "/cache"), visible) << "and overwritten";
  for (const auto& [space, n] : told.removed) EXPECT_FALSE(store.find(id_of(n, space))) << "what was removed is back: " << n;
  EXPECT_TRUE(!told.purged || store.rows("ns-b").empty());
  for (const auto& [space, n] : told.stored) {
    EXPECT_TRUE(!lossless || store.find(id_of(n, space))) << "an acknowledged extent is lost: " << n;
  }
  const auto v = store.verify();
  ASSERT_TRUE(v);
  EXPECT_TRUE(v->clean()) << (v->findings.empty() ? "" : v->findings[0]);
  const auto results = put_some(&env, store, 60, 62);
  for (const auto& r : results) EXPECT_TRUE(r) << "the store does not work afterwards: " << r.error().text();
}

struct Size {
  uint64_t n_calls = 0, n_mutations = 0;
};

Size measure_scenario() {
  FaultEnv env;
  const Told told = Scenario(&env).run();
  EXPECT_TRUE(told.purged);
  EXPECT_EQ(told.stored.size(), 2u + 3 + 2 + 2);
  const Size size{env.n_calls(), env.n_mutations()};
  check(env, told, true, "no fault");
  return size;
}

TEST(ExtentFaults, EveryCallEveryFault) {
  const Size size = measure_scenario();
  EXPECT_LE(size.n_calls, 400u);
  int n_runs = 0;
  for (const Fault fault : {Fault::kIo, Fault::kNoSpace, Fault::kShortRead, Fault::kHang}) {
    for (uint64_t k = 1; k <= size.n_calls; k++) {
      FaultEnv env;
      env.set_hang_ms(k % 2 == 0 ? kHangMs : INT64_MAX / 4'000'000);
      env.fail_at(k, fault);
      const Told told = Scenario(&env).run();
      env.power_loss(k % 2 == 0 ? Loss::kNone : Loss::kUnsynced);
      check(env, told, false, "fault " + std::to_string(static_cast<int>(fault)) + " at call " + std::to_string(k));
      n_runs++;
      if (HasFailure()) return;
    }
  }
  printf("calls of the scenario: %d (%d of them change something); runs with a fault: %d\n", static_cast<int>(size.n_calls),
         static_cast<int>(size.n_mutations), n_runs);
}

TEST(ExtentFaults, ACrashAtEveryChangeWithEveryLoss) {
  const uint64_t n = measure_scenario().n_mutations;
  const int n_random = getenv("CARREL_LONG") != nullptr ? 30 : 3;
  int n_runs = 0;
  for (uint64_t k = 1; k <= n; k++) {
    for (int round = 0; round < 2 + n_random; round++) {
      FaultEnv env;
      env.crash_at(k);
      const Told told = Scenario(&env).run();
      ASSERT_TRUE(env.crashed());
      const Loss loss = round == 0 ? Loss::kUnsynced : round == 1 ? Loss::kNone : Loss::kRandom;
      Bytes skip(static_cast<size_t>(round));
      env.random(skip);
      env.power_loss(loss);
      check(env, told, loss == Loss::kNone, "crash at change " + std::to_string(k) + ", loss " + std::to_string(round));
      n_runs++;
      if (HasFailure()) return;
    }
  }
  printf("crashes: %d at %d changes\n", n_runs, static_cast<int>(n));
}

// The power goes a second time while the store opens and works off what the first loss left.
TEST(ExtentFaults, ACrashDuringRecovery) {
  const uint64_t n = measure_scenario().n_mutations;
  int n_runs = 0;
  for (uint64_t k = 3; k <= n; k += 7) {
    for (uint64_t second = 1; second < 40; second += 3) {
      FaultEnv env(k);
      env.crash_at(k);
      const Told told = Scenario(&env).run();
      env.power_loss(Loss::kRandom);
      env.crash_at(second);
      if (auto store = ExtentStore::open(&env, small_config())) (void)(*store)->maintain();
      env.power_loss(Loss::kRandom);
      check(env, told, false, "crash at " + std::to_string(k) + ", then at " + std::to_string(second));
      n_runs++;
      if (HasFailure()) return;
    }
  }
  printf("crashes during recovery: %d\n", n_runs);
}

// One flipped bit in each 4 KiB of the segment files, and files cut at each unit: found by a read or by verify, never handed out.
TEST(ExtentFaults, FlippedBitsAndCutFilesAreFound) {
  FaultEnv clean;
  {
    auto store = ExtentStore::open(&clean, small_config()).value();
    for (const auto& r : put_some(&clean, *store, 0, 9)) ASSERT_TRUE(r);
  }
  const auto paths = segments_of(&clean, "/cache");
  ASSERT_EQ(paths.size(), 1u);
  const std::string whole = read_file(&clean, paths[0]).value(), db = read_file(&clean, "/cache/extents.db").value(),
                    id = read_file(&clean, "/cache/store.id").value();
  const auto with = [&](FaultEnv& env, const std::string& segment) {
    ASSERT_TRUE(env.make_dirs("/cache"));
    ASSERT_TRUE(write_file_atomic(&env, "/cache/extents.db", db));
    ASSERT_TRUE(write_file_atomic(&env, "/cache/store.id", id));
    ASSERT_TRUE(write_file_atomic(&env, paths[0], segment));
  };
  constexpr size_t kUsed = 1 + 9 * 3;
  int n_flips = 0, n_cuts = 0;
  for (size_t unit = 0; unit < kUsed; unit++) {
    for (const size_t bit : {size_t{0}, size_t{5000}, size_t{32'767}}) {
      FaultEnv env;
      with(env, whole);
      ASSERT_TRUE(env.flip_bit(paths[0], unit * kUnitBytes * 8 + bit));
      auto store = ExtentStore::open(&env, small_config()).value();
      const auto v = store->verify().value();
      if (unit == 0) {
        EXPECT_EQ(store->stats().n_lost_rows, 9u);
      } else {
        EXPECT_EQ(v.n_bad, 1u) << unit << " " << bit;
        EXPECT_EQ(store->rows().size(), 8u);
      }
      EXPECT_TRUE(store->verify().value().clean());
      n_flips++;
    }
    FaultEnv env;
    with(env, whole.substr(0, unit * kUnitBytes + 100));
    auto store = ExtentStore::open(&env, small_config()).value();
    EXPECT_EQ(store->rows().size(), unit == 0 ? 0 : (unit - 1) / 3);
    ASSERT_TRUE(store->maintain());
    EXPECT_TRUE(store->verify().value().clean());
    n_cuts++;
  }
  printf("flipped bits: %d, cuts: %d, all found\n", n_flips, n_cuts);
}

}  // namespace
}  // namespace carrel
