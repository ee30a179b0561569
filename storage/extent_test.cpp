#include "storage/extent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "storage/extent_samples.h"

namespace carrel {
namespace {

using samples::key_of;
using samples::sample;
using samples::Sample;

void expect_round_trip(const Sample& s, const ExtentKey* key) {
  FaultEnv env;
  const auto blob = seal_extent(s.identity, s.tokens, s.parts, key, 7, 2, &env);
  ASSERT_TRUE(blob) << blob.error().text();
  EXPECT_EQ(blob->size() % kExtentUnitBytes, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(blob->data()) % kExtentUnitBytes, 0u);
  const auto view = ExtentView::parse(blob->span());
  ASSERT_TRUE(view) << view.error().text();
  const ExtentHeader& h = view->header();
  EXPECT_EQ(h.identity, s.identity);
  EXPECT_EQ(h.sequence, 7u);
  EXPECT_EQ(h.generation, 2u);
  EXPECT_EQ(h.n_tokens, s.tokens.size());
  EXPECT_EQ(h.encrypted, key != nullptr);
  EXPECT_EQ(h.total_bytes, blob->size());
  EXPECT_EQ(open_tokens(*view, key).value(), s.tokens);
  ASSERT_EQ(view->parts().size(), s.parts.size());
  for (size_t i = 0; i < s.parts.size(); i++) {
    const ExtentPartInfo& p = view->parts()[i];
    EXPECT_EQ(p.group, s.parts[i].group);
    EXPECT_EQ(p.kind, s.parts[i].kind);
    EXPECT_EQ(p.offset % 64, 0u);
    ASSERT_EQ(p.rows_bytes, s.rows[i].size());
    Bytes rows(p.rows_bytes);
    Digest digest{};
    const Status opened = open_part(*view, i, key, rows, &digest);
    ASSERT_TRUE(opened) << opened.error().text();
    EXPECT_EQ(rows, s.rows[i]);
    EXPECT_EQ(digest, s.parts[i].digest);
  }
  const Status checked = check_extent(blob->span(), key, s.identity);
  EXPECT_TRUE(checked) << checked.error().text();

  // What rebuilds an index reads two units.
  const auto lengths = peek_extent(blob->span().first(64));
  ASSERT_TRUE(lengths);
  EXPECT_EQ(lengths->total_bytes, blob->size());
  const auto header = parse_extent_header(blob->span().first(lengths->header_bytes));
  ASSERT_TRUE(header) << header.error().text();
  EXPECT_EQ(header->checksum, h.checksum);
  EXPECT_TRUE(extent_tail_matches(*header, blob->span().last(kExtentUnitBytes)));
  EXPECT_FALSE(parse_extent_header(blob->span().first(lengths->header_bytes - 1)));
}

TEST(Extent, WhatGoesInComesOut) {
  const ExtentKey key = key_of("namespace");
  for (const ExtentKey* k : {&key, static_cast<const ExtentKey*>(nullptr)}) {
    expect_round_trip(sample("none", {}), k);
    expect_round_trip(sample("one", {1}, 1), k);
    expect_round_trip(sample("borders", {0, 31, 32, 33, 63, 64, 65, 4095, 4096, 4097}, 128), k);
    expect_round_trip(sample("big", {300'000, 5, 1 << 20}), k);
    // Headers that just fit a unit, just do not, and the largest.
    for (const size_t n : {66, 67, 93, 94, 512}) expect_round_trip(sample("many", std::vector<size_t>(n, 16)), k);
  }
}

// The bytes of version 1, once and for all. They were read by a program in another language that was written from docs/formats/extent.md.
TEST(Extent, GoldenFilesOfVersion1) {
  const ExtentKey key = key_of("golden namespace");
  const Sample s = sample("golden", {1000, 64, 2500}, 64);
  for (const ExtentKey* k : {&key, static_cast<const ExtentKey*>(nullptr)}) {
    const std::string path = std::string("storage/testdata/extent/golden_v1_") + (k != nullptr ? "sealed" : "plain");
    const auto file = read_file(Env::real(), path);
    ASSERT_TRUE(file) << file.error().text();
    const auto stored = std::as_bytes(std::span(*file));
    const Status checked = check_extent(stored, k, s.identity);
    EXPECT_TRUE(checked) << checked.error().text();
    const auto view = ExtentView::parse(stored);
    ASSERT_TRUE(view) << view.error().text();
    EXPECT_EQ(open_tokens(*view, k).value(), s.tokens);
    FaultEnv env(5);  // the same random bytes each time: the salt is fixed
    EXPECT_TRUE(std::ranges::equal(samples::sealed(s, k, &env), stored)) << path;
  }
}

TEST(Extent, EachSealingHasAKeyOfItsOwnAndShowsNothing) {
  FaultEnv env;
  const ExtentKey key = key_of("namespace");
  Sample s = sample("zeros", {64 << 10});
  std::ranges::fill(s.rows[0], std::byte{0});
  s.parts[0].digest = sha256(s.rows[0]);
  const Bytes a = samples::sealed(s, &key, &env), b = samples::sealed(s, &key, &env);
  ASSERT_EQ(a.size(), b.size());
  const auto view = ExtentView::parse(a).value();
  const ExtentPartInfo p = view.parts()[0];
  std::vector<std::string> pieces;
  for (const Bytes* e : {&a, &b}) {
    for (size_t at = 0; at < p.rows_bytes; at += 16) pieces.emplace_back(reinterpret_cast<const char*>(e->data() + p.offset + at), 16);
  }
  std::ranges::sort(pieces);
  EXPECT_EQ(std::ranges::adjacent_find(pieces), pieces.end()) << "a key stream came twice";
}

TEST(Extent, WhatTheFormatDoesNotHaveIsRefused) {
  FaultEnv env;
  const auto refused = [&](const auto& change) {
    Sample s = sample("refused", {100, 100});
    change(s);
    const auto e = seal_extent(s.identity, s.tokens, s.parts, nullptr, 0, 0, &env);
    return !e && e.error().code == Code::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](Sample&) {}));
  EXPECT_TRUE(refused([](Sample& s) { s.tokens.clear(); }));
  EXPECT_TRUE(refused([](Sample& s) { s.identity.position = 63; }));
  EXPECT_TRUE(refused([](Sample& s) { s.identity.position = -1; }));
  EXPECT_TRUE(refused([](Sample& s) { s.identity.namespace_id.clear(); }));
  EXPECT_TRUE(refused([](Sample& s) { s.identity.namespace_id = "../a"; }));
  EXPECT_TRUE(refused([](Sample& s) { s.identity.namespace_id = std::string(65, 'a'); }));
  EXPECT_TRUE(refused([](Sample& s) { s.parts[1].group = s.parts[0].group; }));
  EXPECT_TRUE(refused([](Sample& s) { std::swap(s.parts[0], s.parts[1]); }));
  EXPECT_TRUE(refused([](Sample& s) { s.parts[0].rows = {s.rows[0].data(), size_t{1} << 30}; }));
  EXPECT_TRUE(refused([](Sample& s) { s.parts[0].rows = {s.rows[0].data(), SIZE_MAX}; }));
  EXPECT_TRUE(refused([](Sample& s) {
    s.parts.resize(513);
    for (size_t i = 0; i < s.parts.size(); i++) s.parts[i].group = static_cast<uint16_t>(i);
  }));
}

TEST(Extent, ABadCallIsNotTakenForADamagedExtent) {
  FaultEnv env;
  const ExtentKey key = key_of("namespace");
  const Sample s = sample("calls", {100});
  const Bytes e = samples::sealed(s, &key, &env);
  EXPECT_EQ(sealed_bytes(s.tokens, s.parts, true).value(), e.size());
  const auto view = ExtentView::parse(e).value();
  Bytes rows(100);
  EXPECT_EQ(open_part(view, 1, &key, rows, nullptr).error().code, Code::kInvalidArgument);
  EXPECT_EQ(open_part(view, 0, &key, std::span(rows).first(99), nullptr).error().code, Code::kInvalidArgument);
  EXPECT_TRUE(open_part(view, 0, &key, rows, nullptr));
  for (const size_t n : {e.size() - 1, e.size() + 1}) {
    Bytes room(n);
    EXPECT_EQ(seal_extent_into(s.identity, s.tokens, s.parts, &key, 0, 0, &env, room).error().code, Code::kInvalidArgument);
  }
}

double gb_per_s(size_t n_bytes, int n_times, const auto& work) {
  work();
  int64_t best = INT64_MAX;
  for (int i = 0; i < n_times; i++) {
    const int64_t start = Env::real()->mono_ns();
    work();
    best = std::min(best, Env::real()->mono_ns() - start);
  }
  return static_cast<double>(n_bytes) / static_cast<double>(best);
}

TEST(Extent, Speed) {
  const ExtentKey key = key_of("namespace");
  for (const size_t n_bytes : {size_t{8} << 20, size_t{256} << 10, size_t{4} << 10}) {
    const Sample s = sample("speed", {n_bytes});
    for (const ExtentKey* k : {&key, static_cast<const ExtentKey*>(nullptr)}) {
      auto blob = AlignedBytes::allocate(sealed_bytes(s.tokens, s.parts, k != nullptr).value()).value();
      bool good = true;
      const double seal =
          gb_per_s(n_bytes, 20, [&] { good = good && seal_extent_into(s.identity, s.tokens, s.parts, k, 0, 0, Env::real(), blob.span()); });
      const auto view = ExtentView::parse(blob.span()).value();
      auto opener = ExtentOpener::create(view, k).value();
      Bytes rows(n_bytes);
      const double open = gb_per_s(n_bytes, 20, [&] { good = good && opener.part(0, rows, nullptr); });
      const double alone = gb_per_s(n_bytes, 20, [&] { good = good && open_part(view, 0, k, rows, nullptr); });
      const double parse = gb_per_s(1, 20, [&] { good = good && ExtentView::parse(blob.span()); });
      EXPECT_TRUE(good);
      printf("extent of %zu KiB, %s: seal %.2f GB/s, open %.2f GB/s, open_part %.2f GB/s, parse %.1f us\n", n_bytes >> 10,
             k != nullptr ? "AES-256-GCM" : "SHA-256", seal, open, alone, 1e-3 / parse);
    }
  }
}

}  // namespace
}  // namespace carrel
