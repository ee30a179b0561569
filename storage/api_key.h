// The text of an API key: crl_<id>_<secret><crc>. Pure functions; any thread.
//
// id: 12 characters of a-z2-7 (60 bit), public, names the key in lists and logs. secret: 43 characters of 0-9A-Za-z (256 bit).
// crc: CRC-32 of everything before it as 6 characters of the same alphabet; it finds typing errors and proves nothing.
// Stored is only HMAC-SHA-256(pepper, id and secret).
#pragma once
#include <string>
#include <string_view>

#include "base/env.h"
#include "base/hash.h"

namespace carrel {

struct ApiKey {
  std::string id, secret;

  static ApiKey make(Env* env);
  /// kInvalidArgument: not a key, or mistyped. The message never repeats the text.
  static Result<ApiKey> parse(std::string_view text);
  std::string text() const;
  Digest digest(const Digest& pepper) const;
};

/// n characters of a-z2-7, 5 random bits each.
std::string random_name(Env* env, int n);

}  // namespace carrel
