// Source networks of a key: "10.0.0.0/8", "fd00::/8", or one address. Pure functions; any thread. An IPv4 address that arrives as
// ::ffff:a.b.c.d counts as IPv4.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace carrel {

struct SourceNet {
  std::array<uint8_t, 16> address = {};  // IPv4 in its mapped form
  int n_bits = 128;                      // of the mapped form

  static Result<SourceNet> parse(const std::string& text);
  /// False for text that is no address.
  bool contains(const std::string& address) const;
};

}  // namespace carrel
