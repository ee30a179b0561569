// For tests: small extents whose content follows from their number, a store over them, and what a look at the raw files says.
#pragma once
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "storage/extent.h"
#include "storage/extent_store.h"

namespace carrel::testing_extents {

inline Digest digest_of(const std::string& text) {
  return sha256(text);
}

inline ExtentIdentity identity_of(int n, const std::string& space) {
  return {digest_of(space + "/key" + std::to_string(n)),
          digest_of(space + "/key" + std::to_string(n - 1)),
          digest_of("model"),
          digest_of("layout"),
          space,
          256 * (n + 1)};
}

inline ExtentId id_of(int n, const std::string& space = "ns-a", uint32_t generation = 0) {
  const ExtentIdentity i = identity_of(n, space);
  return {i.key, i.model, i.layout, generation};
}

/// Two groups of kinds 1 and 3; with `rows_bytes` 3000 it takes three units of 4 KiB.
inline std::shared_ptr<const AlignedBytes> extent_of(Env* env, uint64_t sequence, int n, const std::string& space = "ns-a",
                                                     size_t rows_bytes = 3000, const ExtentKey* key = nullptr) {
  Bytes rows(rows_bytes, static_cast<std::byte>(n + 1));
  const std::vector<int32_t> tokens(256, n);
  const ExtentPartSource parts[] = {{0, 1, sha256(rows), rows}, {4, 3, sha256(rows), rows}};
  return std::make_shared<AlignedBytes>(seal_extent(identity_of(n, space), tokens, parts, key, sequence, 0, env).value());
}

inline Status check_plain(const ExtentRow& row, std::span<const std::byte> bytes) {
  return check_extent(bytes, nullptr, {row.id.key, row.parent, row.id.model, row.id.layout, row.namespace_id, row.position});
}

inline ExtentStoreConfig small_config() {
  ExtentStoreConfig c;
  c.dir = "/cache";
  c.max_bytes = 64 * kUnitBytes;
  c.segment_bytes = 32 * kUnitBytes;
  c.growth_bytes = 8 * kUnitBytes;
  c.background = false;
  c.check = check_plain;
  return c;
}

/// Extents [first, last) of a namespace, in one put.
inline std::vector<Result<PutOutcome>> put_some(Env* env, ExtentStore& store, int first, int last, const std::string& space = "ns-a") {
  std::vector<std::shared_ptr<const AlignedBytes>> batch;
  for (int n = first; n < last; n++) batch.push_back(extent_of(env, store.next_sequence(), n, space));
  return store.put(batch);
}

/// Reads one and opens what is in it: whether the content is that of number n.
inline Status read_back(Env* env, ExtentStore& store, int n, const std::string& space = "ns-a", int64_t wait_ms = 60'000) {
  const ExtentId id = id_of(n, space);
  const auto leases = store.lease(std::span(&id, 1));
  if (leases.empty()) return fail(Code::kNotFound, "no row");
  const auto got = store.read(leases, env->mono_ns() + wait_ms * 1'000'000);
  if (!got[0]) return std::unexpected(got[0].error());
  CARREL_TRY(check_plain(leases[0].row(), got[0]->bytes));
  CARREL_ASSIGN(const ExtentView view, ExtentView::parse(got[0]->bytes));
  CARREL_ASSIGN(const auto tokens, open_tokens(view, nullptr));
  return tokens.at(0) == n ? Status{} : fail(Code::kInternal, "the tokens of another extent");
}

inline std::vector<std::string> segments_of(Env* env, const std::string& dir) {
  std::vector<std::string> paths;
  for (const std::string& name : env->list(dir).value_or(std::vector<std::string>()))
    if (name.starts_with("segment-") && name.ends_with(".ext")) paths.push_back(dir + "/" + name);
  return paths;
}

inline uint64_t segment_bytes(Env* env, const std::string& dir) {
  uint64_t sum = 0;
  for (const std::string& path : segments_of(env, dir)) sum += env->open(path, Open::kRead).value()->size().value();
  return sum;
}

/// Segment number and unit of everything in the raw files that begins like an extent.
inline std::set<std::pair<uint32_t, uint32_t>> headers_in(Env* env, const std::string& dir) {
  std::set<std::pair<uint32_t, uint32_t>> found;
  for (const std::string& path : segments_of(env, dir)) {
    const std::string content = read_file(env, path).value();
    const auto number = static_cast<uint32_t>(std::stoul(path.substr(path.rfind('-') + 1)));
    for (size_t unit = 1; (unit + 1) * kUnitBytes <= content.size(); unit++) {
      if (peek_extent(std::as_bytes(std::span(content)).subspan(unit * kUnitBytes))) found.emplace(number, static_cast<uint32_t>(unit));
    }
  }
  return found;
}

}  // namespace carrel::testing_extents
