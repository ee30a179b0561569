#include "base/seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace carrel {

void wipe(std::span<std::byte> bytes) {
  OPENSSL_cleanse(bytes.data(), bytes.size());
}

void hkdf_sha256(std::span<const std::byte> secret, std::span<const std::byte> salt, std::string_view info, std::span<std::byte> out) {
  if (out.size() > 255 * sizeof(Digest)) std::abort();
  Digest extracted = hmac_sha256(salt, secret);
  Digest block{};
  std::vector<std::byte> message;
  message.reserve(sizeof(Digest) + info.size() + 1);  // never moved: its content is secret
  for (size_t at = 0, i = 1; at < out.size(); at += sizeof(Digest), i++) {
    message.assign(block.begin(), i == 1 ? block.begin() : block.end());
    const auto text = std::as_bytes(std::span(info));
    message.insert(message.end(), text.begin(), text.end());
    message.push_back(static_cast<std::byte>(i));
    block = hmac_sha256(extracted, message);
    std::memcpy(out.data() + at, block.data(), std::min(sizeof(Digest), out.size() - at));
  }
  wipe(message);
  wipe(block);
  wipe(extracted);
}

struct Aes256Gcm::Impl {
  EVP_CIPHER_CTX* ctx = EVP_CIPHER_CTX_new();
  ~Impl() { EVP_CIPHER_CTX_free(ctx); }

  bool start(const GcmNonce& nonce, std::span<const std::byte> associated, bool encrypt) {
    int n = 0;
    return EVP_CipherInit_ex(ctx, nullptr, nullptr, nullptr, bytes(nonce), encrypt ? 1 : 0) == 1 &&
           EVP_CipherUpdate(ctx, nullptr, &n, bytes(associated), static_cast<int>(associated.size())) == 1;
  }
  bool update(std::span<const std::byte> in, std::byte* out) {
    int n = 0;
    return in.empty() || EVP_CipherUpdate(ctx, reinterpret_cast<unsigned char*>(out), &n, bytes(in), static_cast<int>(in.size())) == 1;
  }
  bool finish() {
    unsigned char rest[16];
    int n = 0;
    return EVP_CipherFinal_ex(ctx, rest, &n) == 1;
  }
  bool tag(int what, GcmTag& t) { return EVP_CIPHER_CTX_ctrl(ctx, what, static_cast<int>(t.size()), t.data()) == 1; }

  static const unsigned char* bytes(std::span<const std::byte> b) { return reinterpret_cast<const unsigned char*>(b.data()); }
};

Aes256Gcm::Aes256Gcm(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Aes256Gcm::~Aes256Gcm() = default;
Aes256Gcm::Aes256Gcm(Aes256Gcm&&) noexcept = default;
Aes256Gcm& Aes256Gcm::operator=(Aes256Gcm&&) noexcept = default;

Result<Aes256Gcm> Aes256Gcm::create(const SecretKey& key) {
  auto impl = std::make_unique<Impl>();
  if (impl->ctx == nullptr || EVP_CipherInit_ex(impl->ctx, EVP_aes_256_gcm(), nullptr, Impl::bytes(key.bytes()), nullptr, 1) != 1)
    return fail(Code::kInternal, "the cryptographic library has no AES-256-GCM; set encrypt: false or repair the installation");
  return Aes256Gcm(std::move(impl));
}

Result<GcmTag> Aes256Gcm::seal(const GcmNonce& nonce, std::span<const std::byte> associated,
                               std::span<const std::span<const std::byte>> pieces, std::span<std::byte> out) {
  bool good = impl_->start(nonce, associated, true);
  std::byte* at = out.data();
  for (const auto& piece : pieces) {
    good = good && impl_->update(piece, at);
    at += piece.size();
  }
  GcmTag tag;
  if (good && impl_->finish() && impl_->tag(EVP_CTRL_AEAD_GET_TAG, tag)) return tag;
  return fail(Code::kInternal, "the cryptographic library refused to encrypt " + std::to_string(out.size()) + " bytes");
}

Status Aes256Gcm::open(const GcmNonce& nonce, std::span<const std::byte> associated, std::span<const std::byte> sealed, const GcmTag& tag,
                       std::span<const std::span<std::byte>> pieces) {
  bool good = impl_->start(nonce, associated, false);
  size_t at = 0;
  for (const auto& piece : pieces) {
    good = good && impl_->update(sealed.subspan(at, piece.size()), piece.data());
    at += piece.size();
  }
  GcmTag expected = tag;
  if (good && impl_->tag(EVP_CTRL_AEAD_SET_TAG, expected) && impl_->finish()) return {};
  for (const auto& piece : pieces) wipe(piece);
  return fail(Code::kCorrupt, "was changed, or was sealed with another key");
}

}  // namespace carrel
