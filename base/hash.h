// SHA-256, HMAC-SHA-256, CRC-32 and hexadecimal. All identity in Carrel is SHA-256; CRC is for typing errors only.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace carrel {

using Digest = std::array<std::byte, 32>;

/// Incremental SHA-256. One thread at a time.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  Digest finish();  // the object is spent afterwards

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

Digest sha256(std::span<const std::byte> bytes);
inline Digest sha256(std::string_view text) { return sha256(std::as_bytes(std::span(text))); }
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> bytes);

uint32_t crc32(std::span<const std::byte> bytes);

std::string to_hex(std::span<const std::byte> bytes);
std::optional<std::string> from_hex(std::string_view hex);

/// Takes the same time wherever the difference is; lengths are not secret.
bool equal_constant_time(std::string_view a, std::string_view b);

}  // namespace carrel
