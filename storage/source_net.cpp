#include "storage/source_net.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

namespace carrel {
namespace {

struct Address {
  std::array<uint8_t, 16> bytes = {};
  bool v4 = false;
};

std::optional<Address> parse_address(const std::string& text) {
  Address a;
  if (inet_pton(AF_INET, text.c_str(), a.bytes.data() + 12) == 1) {
    a.bytes[10] = a.bytes[11] = 0xff;
    a.v4 = true;
    return a;
  }
  if (inet_pton(AF_INET6, text.c_str(), a.bytes.data()) == 1) return a;
  return std::nullopt;
}

}  // namespace

Result<SourceNet> SourceNet::parse(const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    return fail(Code::kInvalidArgument, why + "; write a network as 10.0.0.0/8, fd00::/8 or one address", text);
  };
  const size_t slash = text.find('/');
  const auto address = parse_address(text.substr(0, slash));
  if (!address) return refuse("is not an IP address");
  const int most = address->v4 ? 32 : 128;
  int bits = most;
  if (slash != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto [p, ec] = std::from_chars(text.data() + slash + 1, end, bits);
    if (ec != std::errc{} || p != end || bits < 0 || bits > most) return refuse("the prefix length must be 0 to " + std::to_string(most));
  }
  return SourceNet{address->bytes, bits + (128 - most)};
}

bool SourceNet::contains(const std::string& text) const {
  const auto other = parse_address(text);
  if (!other) return false;
  const auto whole = static_cast<size_t>(n_bits / 8);
  if (!std::equal(address.begin(), address.begin() + static_cast<std::ptrdiff_t>(whole), other->bytes.begin())) return false;
  const int rest = n_bits % 8;
  return rest == 0 || ((address[whole] ^ other->bytes[whole]) >> (8 - rest)) == 0;
}

}  // namespace carrel
