// Bytes that reach disk, wire or a hash: little-endian, explicit widths, lengths before content. Values only; no threads.
//
// ByteWriter appends to its own buffer and cannot fail. ByteReader borrows its input, never reads beyond it and answers
// kCorrupt where the input ends too early or states a length that it does not have.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/env.h"
#include "base/error.h"

namespace carrel {

class ByteWriter {
 public:
  void u8(uint8_t v) { put(v, 1); }
  void u16(uint16_t v) { put(v, 2); }
  void u32(uint32_t v) { put(v, 4); }
  void u64(uint64_t v) { put(v, 8); }
  void i64(int64_t v) { put(static_cast<uint64_t>(v), 8); }
  void raw(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  /// u64 length, then the bytes: no two field lists give the same output.
  void field(std::span<const std::byte> bytes) {
    u64(bytes.size());
    raw(bytes);
  }
  void field(std::string_view text) { field(std::as_bytes(std::span(text))); }

  const Bytes& bytes() const { return bytes_; }
  Bytes take() { return std::move(bytes_); }

 private:
  void put(uint64_t v, int n) {
    for (int i = 0; i < n; i++) bytes_.push_back(static_cast<std::byte>(v >> (8 * i)));
  }
  Bytes bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> in) : in_(in) {}

  Result<uint8_t> u8() { return get<uint8_t>(); }
  Result<uint16_t> u16() { return get<uint16_t>(); }
  Result<uint32_t> u32() { return get<uint32_t>(); }
  Result<uint64_t> u64() { return get<uint64_t>(); }
  Result<int64_t> i64() { return get<int64_t>(); }
  /// Borrowed from the input.
  Result<std::span<const std::byte>> raw(uint64_t n) {
    if (n > left()) return fail(Code::kCorrupt, "ends " + std::to_string(n - left()) + " bytes too early");
    const auto out = in_.subspan(at_, n);
    at_ += n;
    return out;
  }
  Result<std::span<const std::byte>> field() {
    CARREL_ASSIGN(const uint64_t n, u64());
    return raw(n);
  }
  Result<std::string_view> text_field() {
    CARREL_ASSIGN(const auto bytes, field());
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  size_t at() const { return at_; }
  size_t left() const { return in_.size() - at_; }

 private:
  template <class T>
  Result<T> get() {
    CARREL_ASSIGN(const auto bytes, raw(sizeof(T)));
    uint64_t v = 0;
    for (size_t i = 0; i < sizeof(T); i++) v |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    return static_cast<T>(v);
  }
  std::span<const std::byte> in_;
  size_t at_ = 0;
};

}  // namespace carrel
