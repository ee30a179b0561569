// Reads a model's configuration (config.json, or GGUF metadata as one object) with every value checked for type and range.
//
// The first error sticks and is shared by a reader and its sections: a family reads everything, then asks status() once. A section that is
// absent reads as empty. JSON stays inside the .cpp. Threads: a reader belongs to one thread.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace carrel {

class ConfigReader {
 public:
  static Result<ConfigReader> parse(const std::string& json);
  ~ConfigReader();
  ConfigReader(const ConfigReader&);
  ConfigReader(ConfigReader&&) noexcept;

  /// Present and not null.
  bool has(const std::string& key) const;
  bool is_object(const std::string& key) const;
  bool is_array(const std::string& key) const;
  bool is_text(const std::string& key) const;
  ConfigReader section(const std::string& key) const;

  /// Required; kCorrupt when absent, of another type or out of range. Range messages name the key.
  int64_t integer(const std::string& key, int64_t min, int64_t max) const;
  int64_t integer_or(const std::string& key, int64_t fallback, int64_t min, int64_t max) const;
  double number(const std::string& key) const;
  double number_or(const std::string& key, double fallback) const;
  double number_in(const std::string& key, double min, double max) const;
  bool flag_or(const std::string& key, bool fallback) const;
  std::string text(const std::string& key) const;
  std::string text_or(const std::string& key, const std::string& fallback) const;
  std::vector<int64_t> integers(const std::string& key) const;  // empty when absent
  /// unbounded: what a null in the list means, as which infinity reads; without it a null is an error.
  std::vector<double> numbers(const std::string& key, std::optional<double> unbounded = {}) const;
  std::vector<bool> flags(const std::string& key) const;
  std::vector<std::string> texts(const std::string& key) const;

  Status status() const;
  void error(Code code, const std::string& message, const std::string& key) const;

 private:
  struct Impl;
  explicit ConfigReader(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace carrel
