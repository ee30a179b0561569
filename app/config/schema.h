// The one table of settings: code, `carrel config schema`, docs/configuration.md and (later) the console are made from it or checked against it.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace carrel {

enum class SettingType { kFlag, kInteger, kNumber, kText, kChoice, kSize, kList, kSection };
enum class Takes { kRestart, kNextRequest, kNow };

struct Setting {
  std::string_view key;  // "cache.offload.threshold"; of a kSection, the keys below it are its own affair
  SettingType type;
  std::string_view fallback;  // default, as it would be written
  std::string_view range;     // integer and number: "min..max"; choice and list: "a|b|c", empty = any
  bool allows_auto;           // the word `auto` is a value too
  Takes takes;
  bool active;  // false: accepted and reported as "not active in this version"
  std::string_view consequence;
};

std::span<const Setting> settings();
/// Also the kSection that a key lies in.
const Setting* find_setting(std::string_view key);
/// "mode, cert, key" for "server.tls"; empty for what is no section.
std::string members_of(std::string_view section);
std::string_view to_string(SettingType type);
std::string_view to_string(Takes takes);

/// Spellings of other documents for the same settings.
struct Alias {
  std::string_view key;        // as found
  std::string_view canonical;  // as meant
};
std::span<const Alias> aliases();

/// The word nearest to a misspelt one, or empty when none is near.
std::string nearest_word(std::string_view word, std::span<const std::string> known);
/// The known key nearest to a misspelt one, or empty.
std::string nearest_key(std::string_view key);

}  // namespace carrel
