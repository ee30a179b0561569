#include "storage/extent_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/fault_env.h"
#include "storage/extent_fixture.h"
#include "storage/extent_index.h"

namespace carrel {
namespace {

using namespace testing_extents;

#if defined(__has_feature)
constexpr bool kSanitized = __has_feature(thread_sanitizer) || __has_feature(address_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

std::unique_ptr<ExtentStore> open_at(Env* env, const ExtentStoreConfig& config = small_config()) {
  auto store = ExtentStore::open(env, config);
  EXPECT_TRUE(store) << store.error().text();
  return store ? *std::move(store) : nullptr;
}

void expect_stored(const std::vector<Result<PutOutcome>>& results, PutOutcome outcome = PutOutcome::kStored) {
  for (const auto& r : results) EXPECT_EQ(r, outcome) << (r ? "" : r.error().text());
}

void expect_ledger(ExtentStore& store) {
  const ExtentLedger l = store.ledger();
  uint64_t spaces = 0, kinds = l.overhead_bytes;
  for (const auto& [name, bytes] : l.by_namespace) spaces += bytes;
  for (const auto& [kind, bytes] : l.by_kind) kinds += bytes;
  EXPECT_EQ(spaces, kinds);
  EXPECT_EQ(spaces + l.dead_bytes + l.free_bytes + l.segment_header_bytes, l.file_bytes);
}

TEST(ExtentStore, StoresAdoptsReadsAndKeepsAcrossRestarts) {
  FaultEnv env;
  {
    auto store = open_at(&env);
    expect_stored(put_some(&env, *store, 0, 4));
    expect_stored(put_some(&env, *store, 2, 4), PutOutcome::kAdopted);
    expect_stored(put_some(&env, *store, 0, 2, "ns-b"));
    const auto twice = extent_of(&env, store->next_sequence(), 9);
    const auto results = store->put(std::vector{twice, twice});
    EXPECT_EQ(results[0], PutOutcome::kStored);
    EXPECT_EQ(results[1], PutOutcome::kAdopted);
    EXPECT_TRUE(store->pin(id_of(1), INT64_MAX));
    expect_ledger(*store);
    EXPECT_EQ(store->ledger().by_kind.at(3), 7 * 3000u);
  }
  auto store = open_at(&env);
  EXPECT_EQ(store->stats().work, ExtentStoreStats::Work::kNone) << "it was closed";
  EXPECT_EQ(store->rows().size(), 7u);
  EXPECT_EQ(store->rows("ns-b").size(), 2u);
  for (const int n : {0, 1, 2, 3, 9}) EXPECT_TRUE(read_back(&env, *store, n));
  EXPECT_FALSE(store->lease(id_of(5)));
  EXPECT_FALSE(store->lease(id_of(0, "ns-a", 1))) << "another generation";
  const ExtentRow row = store->find(id_of(1)).value();
  EXPECT_EQ(row.usage.pinned_until_ms, INT64_MAX);
  EXPECT_EQ(row.usage.hits, 1);
  EXPECT_EQ(row.parent, id_of(0).key);
  EXPECT_EQ(row.position, 512);
  EXPECT_EQ(row.parts, (std::vector<ExtentPartBytes>{{0, 1, 3000}, {4, 3, 3000}}));
  EXPECT_GT(store->next_sequence(), row.sequence);
  const auto v = store->verify().value();
  EXPECT_TRUE(v.clean());
  EXPECT_EQ(v.n_rows, 7u);
  expect_ledger(*store);
}

TEST(ExtentStore, LeasesOfAChainEndAtTheFirstGapAndNeighboursAreReadTogether) {
  FaultEnv env;
  auto store = open_at(&env);
  expect_stored(put_some(&env, *store, 0, 4));
  const std::vector<ExtentId> chain = {id_of(0), id_of(1), id_of(2), id_of(7), id_of(3)};
  const auto leases = store->lease(chain);
  ASSERT_EQ(leases.size(), 3u);
  const auto before = env.n_calls();
  const auto got = store->read(leases, INT64_MAX);
  EXPECT_EQ(env.n_calls() - before, 2u) << "one submission and one completion";
  for (size_t i = 0; i < 3; i++) {
    ASSERT_TRUE(got[i]);
    EXPECT_TRUE(check_plain(leases[i].row(), got[i]->bytes));
    EXPECT_EQ(got[i]->owner, got[0]->owner);
  }
}

TEST(ExtentStore, BudgetsAreHard) {
  FaultEnv env;
  auto config = small_config();
  auto store = open_at(&env, config);
  int stored = 0, n = 0;
  for (; n < 40; n++) {
    const auto r = put_some(&env, *store, n, n + 1).at(0);
    if (r) stored++;
    if (!r) {
      EXPECT_EQ(r.error().code, Code::kExhausted);
      EXPECT_EQ(r.error().where, "max_bytes");
    }
    EXPECT_LE(segment_bytes(&env, "/cache"), config.max_bytes);
  }
  EXPECT_GE(stored, 18) << "of 64 units, extents of three";
  EXPECT_EQ(store->stats().n_refused, 40u - static_cast<unsigned>(stored));
  EXPECT_TRUE(store->stats().alert.empty()) << "a full budget is no fault";
  const ExtentId gone[] = {id_of(3), id_of(4)};
  EXPECT_EQ(store->erase(gone), 2u);
  expect_stored(put_some(&env, *store, 100, 102));
  expect_ledger(*store);

  const uint64_t one = store->find(id_of(0))->bytes;
  store->set_namespace_limit("ns-b", 2 * one);
  const ExtentId more[] = {id_of(5), id_of(6), id_of(7), id_of(8)};
  EXPECT_EQ(store->erase(more), 4u);
  EXPECT_EQ(store->namespace_room("ns-b"), 2 * one);
  const auto r = put_some(&env, *store, 0, 3, "ns-b");
  EXPECT_TRUE(r[0] && r[1]);
  EXPECT_EQ(r[2].error().where, "ns-b");
  EXPECT_EQ(store->namespace_room("ns-b"), 0u);
  store->set_namespace_limit("ns-c", 0);
  EXPECT_FALSE(put_some(&env, *store, 0, 1, "ns-c")[0]);

  const size_t before = store->rows().size();
  store.reset();
  config.max_bytes = 40 * kUnitBytes;  // lowered: whole segments go at once
  store = open_at(&env, config);
  EXPECT_LE(segment_bytes(&env, "/cache"), config.max_bytes);
  EXPECT_LT(store->rows().size(), before);
  EXPECT_GT(store->rows().size(), 5u);
  EXPECT_TRUE(store->verify().value().clean());
}

TEST(ExtentStore, EmptySegmentsAreRemoved) {
  FaultEnv env;
  auto store = open_at(&env);
  expect_stored(put_some(&env, *store, 0, 18));
  EXPECT_EQ(segments_of(&env, "/cache").size(), 2u);
  std::vector<ExtentId> all;
  for (const ExtentRow& row : store->rows()) all.push_back(row.id);
  EXPECT_EQ(store->erase(all), 18u);
  EXPECT_TRUE(segments_of(&env, "/cache").empty());
  EXPECT_EQ(store->stats().file_bytes, 0u);
  expect_stored(put_some(&env, *store, 0, 1));
}

TEST(ExtentStore, ALeaseKeepsItsBytesWhileTheRowIsGone) {
  FaultEnv env;
  auto store = open_at(&env);
  expect_stored(put_some(&env, *store, 0, 2));
  std::vector<ExtentLease> lease;
  lease.push_back(store->lease(id_of(0)));
  const ExtentId ids[] = {id_of(0)};
  EXPECT_EQ(store->erase(ids), 1u);
  EXPECT_FALSE(store->find(id_of(0)));
  EXPECT_GT(store->stats().dead_bytes, 0u);
  expect_stored(put_some(&env, *store, 10, 18));  // would reuse the space
  const auto got = store->read(lease, INT64_MAX);
  ASSERT_TRUE(got[0]);
  EXPECT_TRUE(check_plain(lease[0].row(), got[0]->bytes));
  lease.clear();
  EXPECT_EQ(store->erase({}), 0u);
  EXPECT_EQ(store->stats().dead_bytes, 0u);
  EXPECT_EQ(headers_in(&env, "/cache").size(), 9u) << "the header of what is gone is overwritten";
  expect_ledger(*store);
}

TEST(ExtentStore, QuarantinedIsGoneAtOnceAndForGood) {
  FaultEnv env;
  auto store = open_at(&env);
  expect_stored(put_some(&env, *store, 0, 3));
  const Place place = store->find(id_of(1))->place;
  store->quarantine(store->lease(id_of(0)), Error{Code::kCorrupt, "its tag is wrong", ""});
  EXPECT_FALSE(store->find(id_of(0)));
  ASSERT_TRUE(env.flip_bit("/cache/segment-000001.ext", place.offset() * 8 + 300 * 8));
  EXPECT_EQ(read_back(&env, *store, 1).error().code, Code::kCorrupt);
  EXPECT_FALSE(store->find(id_of(1)));
  EXPECT_EQ(store->stats().n_quarantined, 2u);
  env.power_loss(FaultEnv::Loss::kUnsynced);
  store.reset();
  store = open_at(&env);
  EXPECT_FALSE(store->find(id_of(0)) || store->find(id_of(1)));
  EXPECT_TRUE(store->maintain());
  EXPECT_TRUE(store->verify().value().clean());
}

TEST(ExtentStore, ExpiresByLastUseWhateverTheClockDoes) {
  FaultEnv env;
  auto config = small_config();
  config.ttl_ms = 10'000;
  auto store = open_at(&env, config);
  expect_stored(put_some(&env, *store, 0, 4));
  EXPECT_TRUE(store->pin(id_of(3), env.wall_ms() + 25'000));
  env.advance_ms(6'000);
  EXPECT_TRUE(read_back(&env, *store, 0));
  const ExtentId used[] = {id_of(1)};
  store->touch(used);
  env.advance_ms(6'000);
  EXPECT_EQ(store->sweep()->size(), 1u);
  EXPECT_FALSE(store->find(id_of(2)));
  EXPECT_EQ(store->rows().size(), 3u);
  env.jump_wall_ms(-3'600'000);
  EXPECT_TRUE(store->sweep()->empty());
  env.advance_ms(11'000);
  EXPECT_EQ(store->sweep()->size(), 2u) << "an hour of waiting for the old clock";
  EXPECT_TRUE(store->find(id_of(3)));
  EXPECT_EQ(store->stats().n_expired, 3u);
}

TEST(ExtentStore, PurgeLeavesNothingAndProvesIt) {
  FaultEnv env;
  auto store = open_at(&env);
  expect_stored(put_some(&env, *store, 0, 5));
  expect_stored(put_some(&env, *store, 0, 3, "ns-b"));
  auto lease = store->lease(id_of(1));
  auto p = store->purge("ns-a", env.mono_ns() + 50'000'000).value();
  EXPECT_EQ(p.n_leased, 1u);
  EXPECT_EQ(store->rows("ns-a").size(), 0u);
  lease = {};
  p = store->purge("ns-a", env.mono_ns() + 50'000'000).value();
  EXPECT_EQ(p.n_leased, 0u);
  EXPECT_EQ(p.n_found, 0u);
  EXPECT_EQ(p.n_index_rows, 0);
  EXPECT_GT(p.scanned_bytes, 0u);
  EXPECT_EQ(headers_in(&env, "/cache").size(), 3u);
  EXPECT_EQ(store->rows().size(), 3u);
  expect_stored(put_some(&env, *store, 0, 1));
  EXPECT_TRUE(store->verify().value().clean());
}

TEST(ExtentStore, AFullDiskIsAnAlertAndPassesWithoutARestart) {
  FaultEnv env;
  auto store = open_at(&env);
  expect_stored(put_some(&env, *store, 0, 2));
  uint64_t used = 0;
  const auto names = env.list("/cache").value();
  for (const std::string& name : names) used += env.open("/cache/" + name, Open::kRead).value()->size().value();
  env.limit_space(used);
  std::vector<Result<PutOutcome>> results;
  for (int n = 10; n < 20; n++) results.push_back(put_some(&env, *store, n, n + 1)[0]);
  ASSERT_FALSE(results.back());
  EXPECT_EQ(results.back().error().code, Code::kExhausted);
  EXPECT_NE(results.back().error().where, "max_bytes");
  EXPECT_FALSE(store->stats().alert.empty());
  EXPECT_GT(store->stats().n_no_space, 0u);
  EXPECT_TRUE(read_back(&env, *store, 0));
  env.limit_space(UINT64_MAX);
  expect_stored(put_some(&env, *store, 30, 34));
  EXPECT_TRUE(store->stats().alert.empty());
  EXPECT_TRUE(store->verify().value().clean());
  expect_ledger(*store);
}

TEST(ExtentStore, TheReserveStaysFree) {
  FaultEnv env;
  auto config = small_config();
  config.reserve_bytes = 100 * kUnitBytes;
  env.limit_space(130 * kUnitBytes);
  auto store = open_at(&env, config);
  for (int n = 0; n < 20; n++) (void)put_some(&env, *store, n, n + 1);
  EXPECT_GT(store->rows().size(), 1u);
  EXPECT_GE(env.free_bytes("/cache").value(), 100 * kUnitBytes - 10 * kUnitBytes) << "the index alone grows into it";
  EXPECT_FALSE(store->stats().alert.empty());
}

TEST(ExtentStore, AHungDeviceCostsADeadlineAndNoBuffer) {
  FaultEnv env;
  auto config = small_config();
  config.write_deadline_ms = 1000;
  auto store = open_at(&env, config);
  expect_stored(put_some(&env, *store, 0, 1));
  env.set_hang_ms(60'000);
  env.fail_at(1, FaultEnv::Fault::kHang);
  EXPECT_EQ(read_back(&env, *store, 0, "ns-a", 100).error().code, Code::kDeadline);
  EXPECT_TRUE(store->find(id_of(0))) << "slow is not wrong";
  EXPECT_TRUE(read_back(&env, *store, 0)) << "another read goes around it";
  EXPECT_EQ(store->stats().n_io_hung, 1u);
  const auto late = extent_of(&env, store->next_sequence(), 5);
  const std::weak_ptr<const AlignedBytes> watch = late;
  env.fail_at(1, FaultEnv::Fault::kHang);
  EXPECT_EQ(store->put(std::vector{late})[0].error().code, Code::kDeadline);
  EXPECT_EQ(store->stats().n_io_hung, 2u);
  expect_stored(put_some(&env, *store, 10, 13));  // must not lie where the late write goes
  env.advance_ms(120'000);
  EXPECT_EQ(store->stats().n_io_hung, 0u);
  for (const int n : {0, 10, 11, 12}) EXPECT_TRUE(read_back(&env, *store, n)) << n;
  EXPECT_EQ(watch.use_count(), 1);
  expect_ledger(*store);
}

TEST(ExtentStore, RebuildFromHeadersEqualsTheIndex) {
  for (const std::string damage : {"removed", "cut", "garbled", "foreign", "newer"}) {
    SCOPED_TRACE(damage);
    FaultEnv env;
    std::vector<ExtentRow> before;
    {
      auto store = open_at(&env);
      expect_stored(put_some(&env, *store, 0, 12));
      const ExtentId gone[] = {id_of(2), id_of(3), id_of(7)};
      EXPECT_EQ(store->erase(gone), 3u);
      expect_stored(put_some(&env, *store, 20, 22, "ns-b"));
      before = store->rows();
    }
    std::string db = read_file(&env, "/cache/extents.db").value();
    if (damage == "cut") db.resize(db.size() / 2 + 100);
    if (damage == "garbled") std::fill(db.begin() + 40, db.begin() + 5000, 'x');
    if (damage == "foreign") db = std::string(9000, 'n');
    if (damage == "removed") {
      ASSERT_TRUE(env.remove("/cache/extents.db"));
    } else {
      ASSERT_TRUE(write_file_atomic(&env, "/cache/extents.db", db));
    }
    if (damage == "newer") {
      ASSERT_TRUE(Db::open(&env, "/cache/extents.db", DbRole::kCache, 1000)->script("PRAGMA user_version=2"));
    }
    auto store = open_at(&env);
    EXPECT_EQ(store->stats().work, ExtentStoreStats::Work::kRebuild);
    EXPECT_EQ(store->stats().index_broken.empty(), damage == "removed");
    EXPECT_EQ(env.exists("/cache/extents.db.broken"), damage != "removed");
    EXPECT_EQ(put_some(&env, *store, 50, 51)[0].error().code, Code::kUnavailable);
    ASSERT_TRUE(store->maintain());
    EXPECT_EQ(store->stats().work, ExtentStoreStats::Work::kNone);
    EXPECT_EQ(store->rows().size(), before.size());
    for (const ExtentRow& b : before) {
      const auto row = store->find(b.id);
      ASSERT_TRUE(row);
      EXPECT_TRUE(row->place == b.place && row->sequence == b.sequence && row->parent == b.parent && row->stamp == b.stamp &&
                  row->parts == b.parts && row->namespace_id == b.namespace_id && row->bytes == b.bytes && row->position == b.position);
    }
    EXPECT_GT(store->next_sequence(), before.back().sequence);
    EXPECT_TRUE(store->verify().value().clean());
    expect_ledger(*store);
    store.reset();
    store = open_at(&env);
    EXPECT_EQ(store->rows().size(), before.size());
  }
}

// The end of the log is lost: rows that were removed come back, and their bytes are others'.
TEST(ExtentStore, AGarbledLogIsNeverWrong) {
  FaultEnv reference;
  for (int round = 0; round < 12; round++) {
    FaultEnv env(static_cast<uint64_t>(round) + 1);
    auto store = open_at(&env);
    expect_stored(put_some(&env, *store, 0, 6));
    const ExtentId gone[] = {id_of(1), id_of(2)};
    EXPECT_EQ(store->erase(gone), 2u);
    expect_stored(put_some(&env, *store, 10, 14));
    std::string wal = read_file(&env, "/cache/extents.db-wal").value();
    ASSERT_GT(wal.size(), 8192u);
    env.power_loss(FaultEnv::Loss::kNone);
    store.reset();
    std::mt19937_64 dice(static_cast<uint64_t>(round));
    if (round % 2 == 0) wal.resize(wal.size() * static_cast<size_t>(round + 1) / 13);
    for (int i = 0; round % 2 == 1 && i < 40; i++) wal[dice() % wal.size()] ^= static_cast<char>(1 + dice() % 255);
    ASSERT_TRUE(write_file_atomic(&env, "/cache/extents.db-wal", wal));
    store = open_at(&env);
    ASSERT_TRUE(store);
    EXPECT_TRUE(store->maintain());
    for (const ExtentRow& row : store->rows()) {
      const ExtentId ids[] = {row.id};
      const auto lease = store->lease(ids);
      const auto got = store->read(lease, INT64_MAX);
      EXPECT_TRUE(!got[0] || check_plain(row, got[0]->bytes));
    }
    (void)store->verify();
    EXPECT_TRUE(store->verify().value().clean());
    expect_stored(put_some(&env, *store, 30, 32));
  }
}

class RealStore : public testing::Test {
 protected:
  void SetUp() override {
    config_ = small_config();
    config_.dir = std::filesystem::temp_directory_path() / ("carrel_extents." + std::to_string(::getpid()));
    std::filesystem::remove_all(config_.dir);
  }
  void TearDown() override { std::filesystem::remove_all(config_.dir); }
  Env* env_ = Env::real();
  ExtentStoreConfig config_;
};

TEST_F(RealStore, LinksForeignAndSwappedFilesAreRefusedAndLeftAlone) {
  auto store = open_at(env_, config_);
  expect_stored(put_some(env_, *store, 0, 18));
  ASSERT_EQ(segments_of(env_, config_.dir).size(), 2u);
  EXPECT_EQ(ExtentStore::open(env_, config_).error().code, Code::kUnavailable) << "two owners";
  store.reset();
  const std::filesystem::path dir = config_.dir, one = dir / "segment-000001.ext", two = dir / "segment-000002.ext";
  const auto n_rows = [&] {
    const auto again = open_at(env_, config_);
    EXPECT_TRUE(again->maintain());
    for (const ExtentRow& row : again->rows()) {
      const ExtentId ids[] = {row.id};
      EXPECT_TRUE(again->read(again->lease(ids), INT64_MAX)[0]);
    }
    return std::pair(again->rows().size(), again->stats().foreign.size());
  };
  // Kept aside, then put back: the rows of the second segment are gone, its file is whole and counts as orphans.
  std::filesystem::rename(two, dir / "aside");
  std::filesystem::create_symlink(dir / "aside", two);
  const auto [with_link, n_foreign] = n_rows();
  EXPECT_LT(with_link, 18u);
  EXPECT_GT(with_link, 5u);
  EXPECT_EQ(n_foreign, 2u) << "the link, and the file under a name that is not the store's";
  EXPECT_TRUE(std::filesystem::is_symlink(two));
  std::filesystem::remove(two);
  std::filesystem::create_directory(two);
  EXPECT_EQ(n_rows().first, with_link);
  std::filesystem::remove(two);
  ASSERT_TRUE(write_file_atomic(env_, two, std::string(50'000, 'f')));
  EXPECT_EQ(n_rows().first, with_link);
  EXPECT_EQ(read_file(env_, two).value(), std::string(50'000, 'f'));
  std::filesystem::rename(two, dir / "theirs");
  std::filesystem::rename(one, two);  // of this store, under another number
  EXPECT_EQ(n_rows().first, 0u);
}

TEST_F(RealStore, BothWaysOfBlockIoAndAReadBackFromTheDisk) {
  for (const bool plain : {false, true}) {
    TearDown();
    config_.plain_io = plain;
    auto store = open_at(env_, config_);
    expect_stored(put_some(env_, *store, 0, 10));
    for (int n = 0; n < 10; n++) EXPECT_TRUE(read_back(env_, *store, n));
    printf("extent store: %s, direct: %d\n", store->stats().io.c_str(), store->stats().direct);
    EXPECT_TRUE(store->verify().value().clean());
    store.reset();
    EXPECT_EQ(open_at(env_, config_)->rows().size(), 10u);
  }
}

TEST_F(RealStore, RebuildsInTheBackgroundWithProgress) {
  {
    auto store = open_at(env_, config_);
    expect_stored(put_some(env_, *store, 0, 12));
  }
  ASSERT_TRUE(write_file_atomic(env_, config_.dir + "/extents.db", std::string(8192, 'x')));
  config_.background = true;
  auto store = open_at(env_, config_);
  const int64_t start = env_->mono_ns();
  while (store->stats().work != ExtentStoreStats::Work::kNone && env_->mono_ns() - start < 20'000'000'000) env_->sleep_ms(1);
  const ExtentStoreStats s = store->stats();
  printf("rebuild of %d extents, %.1f MB: %.3f s\n", static_cast<int>(s.n_rebuilt), static_cast<double>(s.file_bytes) / 1e6,
         static_cast<double>(env_->mono_ns() - start) / 1e9);
  EXPECT_EQ(s.n_rebuilt, 12u);
  EXPECT_EQ(s.work_total_bytes, s.file_bytes);
  EXPECT_GT(s.work_done_bytes, 0u);
  EXPECT_TRUE(store->verify().value().clean());
}

TEST_F(RealStore, ReadersAgainstErasureAndWriting) {
  config_.max_bytes = 512 * kUnitBytes;
  config_.segment_bytes = 64 * kUnitBytes;
  auto store = open_at(env_, config_);
  constexpr int kKeys = 60;
  std::atomic<bool> stop{false};
  std::atomic<int> n_read{0}, n_wrong{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; r++) {
    readers.emplace_back([&, r] {
      std::mt19937_64 dice(static_cast<uint64_t>(r));
      while (!stop) {
        const int n = static_cast<int>(dice() % kKeys);
        const Status s = read_back(env_, *store, n);
        if (s) n_read++;
        if (!s && s.error().code != Code::kNotFound) n_wrong++;
        if (dice() % 16 == 0) (void)store->stats();
      }
    });
  }
  std::thread eraser([&] {
    std::mt19937_64 dice(99);
    while (!stop) {
      const ExtentId ids[] = {id_of(static_cast<int>(dice() % kKeys)), id_of(static_cast<int>(dice() % kKeys))};
      if (!store->erase(ids)) n_wrong++;
      (void)store->sweep();
    }
  });
  std::mt19937_64 dice(7);
  int n_put = 0;
  for (int round = 0; round < 150; round++) {
    const int n = static_cast<int>(dice() % kKeys);
    for (const auto& r : put_some(env_, *store, n, std::min(n + 3, kKeys))) n_put += r == PutOutcome::kStored ? 1 : 0;
  }
  stop = true;
  eraser.join();
  for (std::thread& t : readers) t.join();
  EXPECT_EQ(n_wrong, 0);
  EXPECT_GT(n_put, 50);
  printf("readers against erasure: %d reads, %d stored\n", n_read.load(), n_put);
  EXPECT_EQ(store->stats().n_quarantined, 0u);
  EXPECT_TRUE(store->verify().value().clean());
  expect_ledger(*store);
}

// The rows alone: what an opening has to read. Files of segments of that size would take a disk.
TEST_F(RealStore, OpensAHundredThousandRows) {
  constexpr int kRows = 100'000, kPerSegment = 12'500;
  config_.max_bytes = uint64_t{1} << 40;
  config_.segment_bytes = uint64_t{kPerSegment * 3 + 1} * kUnitBytes;
  config_.growth_bytes = config_.segment_bytes;
  config_.background = true;
  {
    auto store = open_at(env_, config_);  // makes the first segment with its header
    expect_stored(put_some(env_, *store, 0, 1));
  }
  {
    ExtentIndex index(env_, config_.dir);
    ASSERT_TRUE(index.open());
    std::vector<ExtentRow> rows(kRows);
    std::vector<const ExtentRow*> pointers;
    for (int n = 1; n < kRows; n++) {
      ExtentRow& row = rows[static_cast<size_t>(n)];
      row.id = id_of(n);
      row.parent = id_of(n - 1).key;
      row.namespace_id = "ns-a";
      row.sequence = static_cast<uint64_t>(n) + 10;
      row.place = {1, 4 + 3 * static_cast<uint32_t>(n - 1), 3};
      row.bytes = row.place.bytes();
      row.parts = {{0, 1, 3000}, {4, 3, 3000}};
      pointers.push_back(&row);
    }
    ASSERT_TRUE(index.insert(pointers));
    ASSERT_TRUE(index.close_clean());
  }
  std::filesystem::resize_file(std::filesystem::path(config_.dir) / "segment-000001.ext", uint64_t{3} * kRows * kUnitBytes + kUnitBytes);
  const int64_t start = env_->mono_ns();
  auto store = open_at(env_, config_);
  const double seconds = static_cast<double>(env_->mono_ns() - start) / 1e9;
  EXPECT_EQ(store->rows().size(), static_cast<size_t>(kRows));
  printf("open of %d rows: %.3f s\n", kRows, seconds);
  std::vector<ExtentId> chain;
  for (int n = 0; n < 1000; n++) chain.push_back(id_of(n));
  const int64_t before = env_->mono_ns();
  const auto leases = store->lease(chain);
  printf("1000 leases: %.1f us\n", static_cast<double>(env_->mono_ns() - before) / 1e3);
  EXPECT_EQ(leases.size(), 1000u);
  EXPECT_LT(seconds, kSanitized ? 60.0 : 2.0);
}

}  // namespace
}  // namespace carrel
