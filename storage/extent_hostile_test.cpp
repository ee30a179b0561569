// Extents that were damaged, forged, cut, swapped or put together: every one is found, by check_extent at the latest, and rows that do not
// hold never reach the caller.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "storage/extent.h"
#include "storage/extent_samples.h"

namespace carrel {
namespace {

using samples::get;
using samples::key_of;
using samples::put;
using samples::sample;
using samples::Sample;

class Hostile : public testing::TestWithParam<bool /* encrypted */> {
 protected:
  const ExtentKey* key() const { return GetParam() ? &key_ : nullptr; }
  Bytes sealed(const Sample& s) { return samples::sealed(s, key(), &env_); }

  /// Found, as damage and by name; and no part's rows were handed out that are not the sample's.
  bool found(const Bytes& bytes, const Sample& s) const {
    const Status r = check_extent(bytes, key(), s.identity);
    if (r || r.error().code == Code::kInternal || r.error().message.empty()) return false;
    const auto view = ExtentView::parse(bytes);
    if (!view || !check_identity(view->identity(), s.identity)) return true;
    for (size_t i = 0; i < view->parts().size(); i++) {
      Bytes rows(view->parts()[i].rows_bytes, std::byte{1});
      const Status opened = open_part(*view, i, key(), rows, nullptr);
      if (opened ? i >= s.rows.size() || rows != s.rows[i] : std::ranges::any_of(rows, [](std::byte b) { return b != std::byte{0}; }))
        return false;
    }
    return true;
  }

  FaultEnv env_;
  const ExtentKey key_ = key_of("namespace");
};

INSTANTIATE_TEST_SUITE_P(Modes, Hostile, testing::Bool(), [](const auto& p) { return std::string(p.param ? "Encrypted" : "Plain"); });

TEST_P(Hostile, EveryBitOfTheHeader) {
  const Sample s = sample("header", {300, 64, 1});
  const Bytes good = sealed(s);
  ASSERT_TRUE(check_extent(good, key(), s.identity));
  const size_t n_header = get<uint32_t>(good, 24);
  Bytes bad = good;
  size_t n = 0, n_found = 0;
  for (size_t at = 0; at < n_header; at++) {
    for (int bit = 0; bit < 8; bit++) {
      bad[at] ^= std::byte(1 << bit);
      n++;
      n_found += found(bad, s);
      bad[at] = good[at];
    }
  }
  printf("header: %zu of %zu flipped bits found\n", n_found, n);
  EXPECT_EQ(n_found, n);
}

// The checksum keeps accidents out; the tags keep out who can compute it.
TEST_P(Hostile, EveryByteOfTheHeaderWithItsChecksumMadeToFit) {
  const Sample s = sample("header", {300, 64, 1});
  const Bytes good = sealed(s);
  const size_t end = samples::checksum_at(good);
  for (size_t at = 0; at < end; at++) {
    for (const int mask : {1, 0x80, 0xff}) {
      Bytes bad = good;
      bad[at] ^= std::byte(mask);
      samples::repair(bad);
      EXPECT_TRUE(found(bad, s)) << "byte " << at;
    }
  }
}

TEST_P(Hostile, ABitInEachLineAndEveryByteBetweenSegments) {
  const Sample s = sample("lines", {200'001, 4096, 70'000, 7}, 100);
  const Bytes good = sealed(s);
  std::vector<size_t> places;
  for (size_t line = 0; line < good.size(); line += 64) places.push_back(line + line / 64 % 64);
  for (size_t i = 0; i < samples::n_segments(good); i++) {
    const uint64_t end = get<uint64_t>(good, samples::segment_at(i)) + get<uint64_t>(good, samples::segment_at(i) + 8);
    for (size_t at = end - 3; at < (end + 66) / 64 * 64 + 1 && at < good.size(); at++) places.push_back(at);
  }
  for (size_t at = good.size() - 64; at < good.size(); at++) places.push_back(at);
  Bytes bad = good;
  size_t n_found = 0;
  for (size_t i = 0; i < places.size(); i++) {
    bad[places[i]] ^= std::byte(1 << (i % 8));
    n_found += !check_extent(bad, key(), s.identity);
    bad[places[i]] = good[places[i]];
  }
  printf("lines: %zu of %zu flipped bits found in %zu bytes\n", n_found, places.size(), good.size());
  EXPECT_EQ(n_found, places.size());
}

TEST_P(Hostile, CutAtEachUnit) {
  const Sample s = sample("cut", {50'000, 20'000});
  const Bytes good = sealed(s);
  for (size_t n = 0; n < good.size(); n += kExtentUnitBytes) {
    Bytes bad(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n));
    EXPECT_TRUE(found(bad, s)) << n;
    if (n <= kExtentUnitBytes) continue;
    put<uint64_t>(bad, 16, n);  // and the header says so
    ASSERT_TRUE(samples::repair(bad));
    EXPECT_TRUE(found(bad, s)) << n;
  }
  Bytes longer = good;
  longer.resize(good.size() + kExtentUnitBytes);
  EXPECT_TRUE(found(longer, s));
  put<uint64_t>(longer, 16, longer.size());
  ASSERT_TRUE(samples::repair(longer));
  EXPECT_TRUE(found(longer, s));
}

// The old extent's bytes show behind what a torn write left, at every unit.
TEST_P(Hostile, TornBetweenTwoExtentsOfEqualSize) {
  Sample s = sample("torn", {50'000, 20'000});
  const Bytes older = sealed(s), newer = sealed(s);
  const auto header = parse_extent_header(newer);
  ASSERT_TRUE(header);
  for (size_t at = kExtentUnitBytes; at < newer.size(); at += kExtentUnitBytes) {
    for (const bool from_start : {true, false}) {
      Bytes bad = from_start ? newer : older;
      const Bytes& rest = from_start ? older : newer;
      std::copy(rest.begin() + static_cast<std::ptrdiff_t>(at), rest.end(), bad.begin() + static_cast<std::ptrdiff_t>(at));
      EXPECT_TRUE(found(bad, s)) << at;
      EXPECT_EQ(extent_tail_matches(*header, std::span(bad).last(kExtentUnitBytes)), !from_start);
    }
  }
}

void swap_segments(Bytes& a, size_t i, Bytes& b, size_t k) {
  const auto at = [](const Bytes& e, size_t n) { return static_cast<std::ptrdiff_t>(get<uint64_t>(e, samples::segment_at(n))); };
  const auto n_bytes = static_cast<std::ptrdiff_t>(get<uint64_t>(a, samples::segment_at(i) + 8));
  std::swap_ranges(a.begin() + at(a, i), a.begin() + at(a, i) + n_bytes, b.begin() + at(b, k));
  const auto check = static_cast<std::ptrdiff_t>(samples::check_at(a, i)), other = static_cast<std::ptrdiff_t>(samples::check_at(b, k));
  std::swap_ranges(a.begin() + check, a.begin() + check + static_cast<std::ptrdiff_t>(samples::check_bytes(a)), b.begin() + other);
}

TEST_P(Hostile, TwoSegmentsSwapped) {
  const Sample s = sample("swap", {5000, 5000, 5000});
  const Bytes good = sealed(s);
  for (const auto& [i, k] : {std::pair<size_t, size_t>{1, 2}, {2, 3}, {1, 3}}) {
    Bytes bad = good;
    swap_segments(bad, i, bad, k);
    EXPECT_TRUE(found(bad, s));
    ASSERT_TRUE(samples::repair(bad));
    EXPECT_TRUE(found(bad, s));
    swap_segments(bad, i, bad, k);
    ASSERT_TRUE(samples::repair(bad));
    EXPECT_TRUE(check_extent(bad, key(), s.identity)) << "swapped back, all is well";
  }
}

// Same namespace, same block, even the same rows: a segment belongs to the one extent that it was sealed with.
TEST_P(Hostile, ASegmentOfAnotherExtent) {
  const Sample s = sample("graft", {5000, 5000});
  const Sample other = sample("other", {5000, 5000});
  for (const Sample* from : {&s, &other}) {
    for (size_t i = 0; i < 3; i++) {
      Bytes a = sealed(s), b = sealed(*from);
      swap_segments(a, i, b, i);
      ASSERT_TRUE(samples::repair(a));
      EXPECT_TRUE(found(a, s)) << "segment " << i;
    }
  }
}

TEST_P(Hostile, AnotherExtentInItsPlace) {
  const Sample s = sample("mine", {5000});
  const auto refused = [&](const auto& change) {
    Sample other = sample("mine", {5000});
    change(other.identity);
    const Status r = check_extent(sealed(other), key(), s.identity);
    return !r && r.error().code == Code::kCorrupt && r.error().message.starts_with("is of another");
  };
  const Digest d = samples::digest_of("something else");
  EXPECT_TRUE(refused([&](ExtentIdentity& i) { i.key = d; }));
  EXPECT_TRUE(refused([&](ExtentIdentity& i) { i.parent = d; }));
  EXPECT_TRUE(refused([&](ExtentIdentity& i) { i.model = d; }));
  EXPECT_TRUE(refused([&](ExtentIdentity& i) { i.layout = d; }));
  EXPECT_TRUE(refused([&](ExtentIdentity& i) { i.namespace_id = "other"; }));
  EXPECT_TRUE(refused([&](ExtentIdentity& i) { i.position++; }));
  EXPECT_FALSE(refused([](ExtentIdentity&) {}));
}

TEST_P(Hostile, LyingLengths) {
  const Sample s = sample("lies", {5000, 64});
  const Bytes good = sealed(s);
  struct Field {
    size_t at, n_bytes;
    bool is_segment_length = false;
  };
  std::vector<Field> fields = {{16, 8}, {24, 4}, {28, 2}, {30, 2}, {44, 4}};  // total, header, segments, namespace, tokens
  for (size_t i = 0; i < 3; i++) {
    fields.push_back({samples::segment_at(i), 8});
    fields.push_back({samples::segment_at(i) + 8, 8, true});
  }
  for (const Field& f : fields) {
    uint64_t was = 0;
    std::memcpy(&was, good.data() + f.at, f.n_bytes);
    for (const uint64_t lie : {uint64_t{0}, uint64_t{1}, was - 1, was + 1, was - 64, was + 64, was - 4096, was + 4096, was * 2,
                               uint64_t{31}, uint64_t{0x7fff'ffff}, uint64_t{0xffff'ffff}, uint64_t{1} << 40, uint64_t{1} << 63, UINT64_MAX,
                               UINT64_MAX - 63, UINT64_MAX - 4095}) {
      Bytes bad = good;
      std::memcpy(bad.data() + f.at, &lie, f.n_bytes);
      if (bad == good) continue;
      EXPECT_TRUE(found(bad, s)) << "field at " << f.at << ": " << lie;
      samples::repair(bad);
      EXPECT_TRUE(found(bad, s)) << "field at " << f.at << ": " << lie << ", with its checksum";
      // A segment may grow into the zeros behind it, all of it within bounds: the tag alone knows.
      EXPECT_TRUE(f.is_segment_length || !ExtentView::parse(bad)) << "field at " << f.at << ": " << lie << " passes the parser";
    }
  }
}

// What the parser itself refuses, so that a rebuilt index holds nothing absurd: no tag is looked at there.
TEST_P(Hostile, HeadersThatMakeNoSense) {
  const Bytes good = sealed(sample("sense", {5000, 64}));
  struct Lie {
    size_t at, n_bytes;
    uint64_t value;
    const char* says;
  };
  const Lie lies[] = {{12, 4, get<uint32_t>(good, 12) | 2, "flags"},
                      {44, 4, 0, "states 0 tokens"},
                      {44, 4, 63, "differ in number"},
                      {44, 4, 193, "states 193 tokens up to position 192"},
                      {48, 8, 63, "up to position 63"},
                      {48, 8, UINT64_MAX, "up to position -1"},
                      {216, 1, '/', "namespace id"},
                      {218, 1, 0, "namespace id"},
                      {216 + 40, 1, 'a', "namespace id"},
                      {samples::segment_at(0) + 16, 2, 1, "do not lie where"},
                      {samples::segment_at(1) + 8, 8, 31, "a segment of 31 bytes"},
                      {samples::segment_at(2) + 16, 2, 0, "ascending"},
                      {samples::segment_at(1) + 16, 2, 9, "ascending"},
                      {samples::segment_at(1) + 19, 1, 1, "do not lie where"}};
  for (const Lie& lie : lies) {
    Bytes bad = good;
    std::memcpy(bad.data() + lie.at, &lie.value, lie.n_bytes);
    ASSERT_TRUE(samples::repair(bad));
    const auto r = parse_extent_header(bad);
    ASSERT_FALSE(r) << lie.says;
    EXPECT_EQ(r.error().code, Code::kCorrupt);
    EXPECT_NE(r.error().message.find(lie.says), std::string::npos) << r.error().text();
  }
  Bytes longer = good;
  longer.resize(good.size() + kExtentUnitBytes);
  EXPECT_NE(ExtentView::parse(longer).error().message.find("and states"), std::string::npos);
}

TEST_P(Hostile, RowsThatAreNotWhatWasComputed) {
  Sample s = sample("rows", {5000});
  s.parts[0].digest[0] ^= std::byte{1};
  const Status r = check_extent(sealed(s), key(), s.identity);
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message.find("state digest"), std::string::npos);
}

TEST(HostileKeys, AnotherNamespacesKeyOpensNothing) {
  FaultEnv env;
  const ExtentKey key = key_of("mine"), other = key_of("theirs");
  const Sample s = sample("key", {5000});
  const Bytes e = samples::sealed(s, &key, &env);
  const auto view = ExtentView::parse(e);
  ASSERT_TRUE(view);
  Bytes rows(5000, std::byte{1});
  const Status r = open_part(*view, 0, &other, rows, nullptr);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::kCorrupt);
  EXPECT_NE(r.error().text().find("group 0"), std::string::npos) << r.error().text();
  EXPECT_EQ(rows, Bytes(5000));
  EXPECT_FALSE(open_tokens(*view, &other));
  EXPECT_FALSE(check_extent(e, &other, s.identity));
}

// Who can write to the disk could otherwise put in what he likes, unsealed.
TEST(HostileKeys, AnUnsealedExtentIsNotTakenForASealedOne) {
  FaultEnv env;
  const ExtentKey key = key_of("mine");
  const Sample s = sample("plain", {500});
  Bytes plain = samples::sealed(s, nullptr, &env), sealed = samples::sealed(s, &key, &env);
  Bytes rows(500, std::byte{1});
  for (const auto& [bytes, with] : {std::pair<Bytes*, const ExtentKey*>{&plain, &key}, {&sealed, nullptr}}) {
    const auto view = ExtentView::parse(*bytes);
    ASSERT_TRUE(view);
    const Status r = open_part(*view, 0, with, rows, nullptr);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, Code::kCorrupt);
    EXPECT_TRUE(r.error().message.starts_with(with != nullptr ? "is not encrypted" : "is encrypted")) << r.error().text();
    EXPECT_EQ(rows, Bytes(500));
    EXPECT_EQ(open_tokens(*view, with).error().code, Code::kCorrupt);
    EXPECT_EQ(check_extent(*bytes, with, s.identity).error().code, Code::kCorrupt);
  }
}

TEST(HostileKeys, AnotherVersionIsNotCalledDamaged) {
  FaultEnv env;
  Bytes e = samples::sealed(sample("version", {500}), nullptr, &env);
  put<uint32_t>(e, 8, 2);
  EXPECT_EQ(peek_extent(e).error().code, Code::kUnsupported);
  EXPECT_EQ(ExtentView::parse(e).error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace carrel
