// Sealing of bytes: AES-256-GCM and HKDF-SHA-256, and keys that are wiped when they go. OpenSSL does the work and stays in the .cpp file.
//
// Threads: functions any; an Aes256Gcm is used by one thread at a time. Sources: NIST SP 800-38D (GCM), RFC 5869 (HKDF).
#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"

namespace carrel {

/// Overwrites with zeros in a way that no compiler removes.
void wipe(std::span<std::byte> bytes);

/// 32 secret bytes. Copies are made on purpose only; each is wiped with its owner.
class SecretKey {
 public:
  SecretKey() : bytes_{} {}
  explicit SecretKey(const Digest& bytes) : bytes_(bytes) {}
  ~SecretKey() { wipe(bytes_); }
  SecretKey(SecretKey&& o) noexcept : bytes_(o.bytes_) { wipe(o.bytes_); }
  SecretKey& operator=(SecretKey&& o) noexcept {
    if (this != &o) {
      bytes_ = o.bytes_;
      wipe(o.bytes_);
    }
    return *this;
  }
  SecretKey copy() const { return SecretKey(bytes_); }
  std::span<const std::byte, 32> bytes() const { return bytes_; }
  std::span<std::byte, 32> writable() { return bytes_; }

 private:
  Digest bytes_;
};

/// out: at most 255 * 32 bytes (more is a fault of the caller and ends the process). An empty salt counts as 32 zeros.
void hkdf_sha256(std::span<const std::byte> secret, std::span<const std::byte> salt, std::string_view info, std::span<std::byte> out);

using GcmNonce = std::array<std::byte, 12>;
using GcmTag = std::array<std::byte, 16>;

/// One key, prepared once. No nonce may be sealed with twice. A message has at most 2^31 - 1 bytes per piece.
class Aes256Gcm {
 public:
  /// kInternal: the library has no AES-256-GCM.
  static Result<Aes256Gcm> create(const SecretKey& key);
  ~Aes256Gcm();
  Aes256Gcm(Aes256Gcm&&) noexcept;
  Aes256Gcm& operator=(Aes256Gcm&&) noexcept;

  /// The pieces one after the other, encrypted into `out`, which has exactly their bytes.
  Result<GcmTag> seal(const GcmNonce& nonce, std::span<const std::byte> associated, std::span<const std::span<const std::byte>> pieces,
                      std::span<std::byte> out);
  /// Decrypts straight into the pieces, which together have the bytes of `sealed`. kCorrupt: tag, associated data, nonce or key do not fit;
  /// the pieces are then zero.
  Status open(const GcmNonce& nonce, std::span<const std::byte> associated, std::span<const std::byte> sealed, const GcmTag& tag,
              std::span<const std::span<std::byte>> pieces);

 private:
  struct Impl;
  explicit Aes256Gcm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace carrel
