#include "storage/api_key.h"

#include <algorithm>

#include "base/codec.h"

namespace carrel {
namespace {

constexpr std::string_view kPrefix = "crl_";
constexpr size_t kIdChars = 12, kSecretChars = 43, kCrcChars = 6;
constexpr size_t kKeyChars = kPrefix.size() + kIdChars + 1 + kSecretChars + kCrcChars;
constexpr std::string_view kBase32 = "abcdefghijklmnopqrstuvwxyz234567";
constexpr std::string_view kBase62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

std::string crc_text(std::string_view text) {
  uint32_t crc = crc32(std::as_bytes(std::span(text)));
  std::string out(kCrcChars, '0');
  for (size_t i = kCrcChars; i-- > 0; crc /= 62) out[i] = kBase62[crc % 62];
  return out;
}

bool made_of(std::string_view text, std::string_view alphabet) {
  return text.find_first_not_of(alphabet) == std::string_view::npos;
}

}  // namespace

std::string random_name(Env* env, int n) {
  Bytes noise(static_cast<size_t>(n));
  env->random(noise);
  std::string out;
  for (const std::byte b : noise) out.push_back(kBase32[static_cast<size_t>(b) % 32]);
  return out;
}

ApiKey ApiKey::make(Env* env) {
  ApiKey key{.id = random_name(env, kIdChars), .secret = {}};
  while (key.secret.size() < kSecretChars) {
    std::byte b;
    env->random({&b, 1});
    if (static_cast<unsigned>(b) < 248) key.secret.push_back(kBase62[static_cast<size_t>(b) % 62]);  // 248 = 4 * 62: no bias
  }
  return key;
}

Result<ApiKey> ApiKey::parse(std::string_view text) {
  const auto refuse = [] {
    return fail(Code::kInvalidArgument, "this is not a Carrel API key, or it is mistyped (crl_<id>_<secret>)", "key");
  };
  if (text.size() != kKeyChars || !text.starts_with(kPrefix)) return refuse();
  const std::string_view id = text.substr(kPrefix.size(), kIdChars);
  const std::string_view secret = text.substr(kPrefix.size() + kIdChars + 1, kSecretChars);
  if (text[kPrefix.size() + kIdChars] != '_' || !made_of(id, kBase32) || !made_of(secret, kBase62)) return refuse();
  const std::string_view body = text.substr(0, kKeyChars - kCrcChars);
  if (crc_text(body) != text.substr(body.size())) return refuse();
  return ApiKey{std::string(id), std::string(secret)};
}

std::string ApiKey::text() const {
  const std::string body = std::string(kPrefix) + id + "_" + secret;
  return body + crc_text(body);
}

Digest ApiKey::digest(const Digest& pepper) const {
  ByteWriter w;
  w.field("carrel api key 1");
  w.field(id);
  w.field(secret);
  return hmac_sha256(pepper, w.bytes());
}

}  // namespace carrel
