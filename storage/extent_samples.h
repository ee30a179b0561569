// Extents for tests: samples with content that the test knows, and what an enemy does who knows the format but no key. The offsets are
// those of docs/formats/extent.md, written down here again on purpose. For tests alone; linked into no library.
#pragma once
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/fault_env.h"
#include "storage/extent.h"

namespace carrel::samples {

inline Digest digest_of(std::string_view text) {
  return sha256(text);
}

struct Sample {
  ExtentIdentity identity;
  std::vector<int32_t> tokens;
  std::vector<Bytes> rows;
  std::vector<ExtentPartSource> parts;  // of `rows`

  Sample() = default;
  Sample(Sample&&) = default;
  Sample& operator=(Sample&&) = default;
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;
};

/// Groups 0, 3, 6 … of kinds 0, 1, 2 … with so many bytes of rows each.
inline Sample sample(const std::string& name, const std::vector<size_t>& rows_bytes, size_t n_tokens = 64) {
  Sample s;
  s.identity = {.key = digest_of("key " + name),
                .parent = digest_of("parent " + name),
                .model = digest_of("model"),
                .layout = digest_of("layout"),
                .namespace_id = "ns-abcdefghijklmnopqrstuvwx",
                .position = static_cast<int64_t>(3 * n_tokens)};
  std::mt19937_64 random(name.size() + n_tokens);
  for (size_t i = 0; i < n_tokens; i++) s.tokens.push_back(static_cast<int32_t>(random() % 150'000));
  for (const size_t n : rows_bytes) {
    Bytes b(n);
    for (size_t i = 0; i < n; i += 8) {
      const uint64_t v = random();
      std::memcpy(b.data() + i, &v, std::min<size_t>(8, n - i));
    }
    s.rows.push_back(std::move(b));
  }
  for (size_t i = 0; i < s.rows.size(); i++)
    s.parts.push_back({static_cast<uint16_t>(3 * i), static_cast<uint8_t>(i), sha256(s.rows[i]), s.rows[i]});
  return s;
}

inline Bytes sealed(const Sample& s, const ExtentKey* key, Env* random, uint64_t sequence = 7, uint32_t generation = 2) {
  const auto e = seal_extent(s.identity, s.tokens, s.parts, key, sequence, generation, random);
  return e ? Bytes(e->span().begin(), e->span().end()) : Bytes();
}

inline ExtentKey key_of(std::string_view text) {
  return ExtentKey(digest_of(text));
}

template <class T>
T get(const Bytes& b, size_t at) {
  T v;
  std::memcpy(&v, b.data() + at, sizeof(T));
  return v;
}
template <class T>
void put(Bytes& b, size_t at, T v) {
  std::memcpy(b.data() + at, &v, sizeof(T));
}

inline size_t n_segments(const Bytes& b) {
  return get<uint16_t>(b, 28);
}
inline size_t segment_at(size_t i) {
  return 280 + 24 * i;
}
inline size_t check_bytes(const Bytes& b) {
  return (get<uint32_t>(b, 12) & 1) != 0 ? 16 : 32;
}
inline size_t check_at(const Bytes& b, size_t i) {
  return segment_at(n_segments(b)) + check_bytes(b) * i;
}
inline size_t checksum_at(const Bytes& b) {
  return check_at(b, n_segments(b));
}

/// Makes the unkeyed checksum and the tail fit again, as who knows the format can. False: there is no room for them.
inline bool repair(Bytes& b) {
  if (b.size() < 4096 || checksum_at(b) + 32 > b.size() || b.size() < 40) return false;
  const Digest sum = sha256(std::span(b).first(checksum_at(b)));
  put(b, checksum_at(b), sum);
  put(b, b.size() - 40, sum);
  put(b, b.size() - 8, get<uint64_t>(b, 16));
  return true;
}

}  // namespace carrel::samples
