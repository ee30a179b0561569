// What the configuration fuzzer does with bytes, and what must hold then. Bytes up to the first 0xFF are the file, the rest are lines NAME=VALUE of
// the environment. Shared by config_fuzz.cpp and the test that runs its corpus; linked into neither the product nor its libraries.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "app/config/config.h"

namespace carrel::fuzz {

/// Every getter answers, within the range of its setting.
inline bool readable(const Config& c) {
  for (const Setting& s : settings()) {
    if (c.is_auto(s.key)) continue;
    switch (s.type) {
      case SettingType::kFlag: c.flag(s.key); break;
      case SettingType::kInteger: c.integer(s.key); break;
      case SettingType::kNumber:
        if (!(c.number(s.key) >= -1e300 && c.number(s.key) <= 1e300)) return false;
        break;
      case SettingType::kSize: c.size_bytes(s.key); break;
      case SettingType::kList: c.list(s.key); break;
      case SettingType::kSection: break;
      case SettingType::kText:
      case SettingType::kChoice: c.text(s.key); break;
    }
  }
  return true;
}

inline bool config(std::string_view input) {
  const size_t border = std::min(input.find('\xFF'), input.size());
  std::map<std::string, std::string> environment;
  for (std::string_view rest = input.substr(std::min(border + 1, input.size())); !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    if (const size_t equals = line.find('='); equals != std::string_view::npos) environment.emplace(line.substr(0, equals), line.substr(equals + 1));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const auto c = Config::load(input.substr(0, border), "f.yaml", environment, {});
  if (!c) return (c.error().code == Code::kInvalidArgument || c.error().code == Code::kUnsupported) && !c.error().message.empty();
  // What was understood, written down, is understood the same.
  const auto again = Config::load(c->canonical_yaml(), "c.yaml", {}, {});
  return readable(*c) && again && again->canonical_yaml() == c->canonical_yaml();
}

}  // namespace carrel::fuzz
