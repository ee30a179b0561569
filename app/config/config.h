// The configuration in force: defaults, then the YAML file, then CARREL_<SECTION>_<KEY> variables, then flags; each checked against the table.
//
// Immutable after load. Errors name file, line and key, and the nearest known key for an unknown one. Nothing is ignored in silence: aliases and settings
// that are not active in this version are listed in notes().
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "app/config/schema.h"
#include "base/env.h"
#include "base/error.h"

namespace carrel {

class Config {
 public:
  /// text: YAML, may be empty. environment: NAME → value. flags: canonical key → value.
  static Result<Config> load(std::string_view text, const std::string& file_name, const std::map<std::string, std::string>& environment,
                             const std::map<std::string, std::string>& flags);

  // The key must be in the table and of that type (a wrong key is a fault of the program and aborts).
  bool flag(std::string_view key) const;
  int64_t integer(std::string_view key) const;  // not for `auto`
  double number(std::string_view key) const;    // not for `auto`
  const std::string& text(std::string_view key) const;
  std::vector<std::string> list(std::string_view key) const;
  uint64_t size_bytes(std::string_view key) const;
  bool is_auto(std::string_view key) const;
  bool is_set(std::string_view key) const;  // by file, variable or flag

  /// One line each, for the log and `config check`.
  const std::vector<std::string>& notes() const { return notes_; }
  /// The settings that were given, in canonical form.
  std::string canonical_yaml() const;

 private:
  struct Given {
    std::string value;
    std::string origin;  // "carrel.yaml:12", "CARREL_SERVER_PORT", "--listen"
  };
  Status set(std::string_view key, const std::string& value, const std::string& origin);
  Status set_alias(const Alias& alias, const std::string& value, const std::string& origin);
  Status read_yaml(std::string_view text, const std::string& file_name);
  Status check_whole() const;

  const std::string& value(std::string_view key, SettingType type) const;
  std::map<std::string, Given, std::less<>> given_;
  std::vector<std::string> notes_;
};

/// The process environment as Config::load wants it.
std::map<std::string, std::string> environment();

/// "32GB" (10^9), "16GiB" (2^30), "512MB", plain bytes.
Result<uint64_t> parse_size(std::string_view text);

/// The table as text or JSON for `carrel config schema`; the same as a Markdown page for docs/configuration.md.
std::string schema_json();
std::string schema_markdown();

}  // namespace carrel
