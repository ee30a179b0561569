// JSON behind ConfigReader; see the header.
#include "engine/model/config_reader.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/model/json_text.h"

namespace carrel {

using Json = nlohmann::json;

struct ConfigReader::Impl {
  std::shared_ptr<Json> root;  // keeps `at` alive
  const Json* at = nullptr;    // the object of this section
  std::shared_ptr<Status> status;
  std::string prefix;  // "rope_parameters."
};

namespace {

const Json& empty_object() {
  static const Json kEmpty = Json::object();
  return kEmpty;
}

}  // namespace

ConfigReader::ConfigReader(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
ConfigReader::~ConfigReader() = default;
ConfigReader::ConfigReader(const ConfigReader&) = default;
ConfigReader::ConfigReader(ConfigReader&&) noexcept = default;

Result<ConfigReader> ConfigReader::parse(const std::string& json) {
  CARREL_ASSIGN(const std::string clean, clean_json(json, "config.json"));
  auto root = std::make_shared<Json>(Json::parse(clean, nullptr, /*allow_exceptions=*/false));
  if (!root->is_object()) return fail(Code::kCorrupt, "the model's configuration is not a JSON object", "config.json");
  auto impl = std::make_shared<Impl>();
  impl->at = root.get();
  impl->root = std::move(root);
  impl->status = std::make_shared<Status>();
  return ConfigReader(std::move(impl));
}

bool ConfigReader::has(const std::string& key) const {
  const auto it = impl_->at->find(key);
  return it != impl_->at->end() && !it->is_null();
}

bool ConfigReader::is_object(const std::string& key) const {
  return has(key) && (*impl_->at)[key].is_object();
}
bool ConfigReader::is_array(const std::string& key) const {
  return has(key) && (*impl_->at)[key].is_array();
}
bool ConfigReader::is_text(const std::string& key) const {
  return has(key) && (*impl_->at)[key].is_string();
}

ConfigReader ConfigReader::section(const std::string& key) const {
  auto impl = std::make_shared<Impl>(*impl_);
  impl->prefix += key + ".";
  impl->at = is_object(key) ? &(*impl_->at)[key] : &empty_object();
  if (has(key) && !is_object(key)) error(Code::kCorrupt, "must be an object", key);
  return ConfigReader(std::move(impl));
}

void ConfigReader::error(Code code, const std::string& message, const std::string& key) const {
  if (*impl_->status) *impl_->status = fail(code, message, "config " + impl_->prefix + key);
}

Status ConfigReader::status() const {
  return *impl_->status;
}

int64_t ConfigReader::integer(const std::string& key, int64_t min, int64_t max) const {
  if (!has(key)) {
    error(Code::kCorrupt, "is missing", key);
    return min;
  }
  const Json& v = (*impl_->at)[key];
  const double d = v.is_number() ? v.get<double>() : std::nan("");
  if (!(d >= static_cast<double>(min) && d <= static_cast<double>(max)) || d != std::floor(d)) {
    error(Code::kCorrupt, "must be a whole number from " + std::to_string(min) + " to " + std::to_string(max), key);
    return min;
  }
  return v.is_number_integer() ? v.get<int64_t>() : static_cast<int64_t>(d);
}

int64_t ConfigReader::integer_or(const std::string& key, int64_t fallback, int64_t min, int64_t max) const {
  return has(key) ? integer(key, min, max) : fallback;
}

double ConfigReader::number(const std::string& key) const {
  if (has(key) && (*impl_->at)[key].is_number()) {
    const double d = (*impl_->at)[key].get<double>();
    if (std::isfinite(d)) return d;
  }
  error(Code::kCorrupt, has(key) ? "must be a number" : "is missing", key);
  return 1;
}

double ConfigReader::number_or(const std::string& key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

double ConfigReader::number_in(const std::string& key, double min, double max) const {
  const double d = number(key);
  if (d >= min && d <= max) return d;
  char range[80];
  std::snprintf(range, sizeof(range), "is %g; must be a number from %g to %g", d, min, max);
  error(Code::kCorrupt, range, key);
  return std::clamp(d, min, max);
}

bool ConfigReader::flag_or(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  if ((*impl_->at)[key].is_boolean()) return (*impl_->at)[key].get<bool>();
  error(Code::kCorrupt, "must be true or false", key);
  return fallback;
}

std::string ConfigReader::text(const std::string& key) const {
  if (has(key) && (*impl_->at)[key].is_string()) return (*impl_->at)[key].get<std::string>();
  error(Code::kCorrupt, has(key) ? "must be a string" : "is missing", key);
  return {};
}

std::string ConfigReader::text_or(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

std::vector<int64_t> ConfigReader::integers(const std::string& key) const {
  std::vector<int64_t> out;
  if (!has(key)) return out;
  const Json& v = (*impl_->at)[key];
  if (!v.is_array()) error(Code::kCorrupt, "must be an array", key);
  for (const Json& e : v) {
    if (!e.is_number_integer()) {
      error(Code::kCorrupt, "must be an array of whole numbers", key);
      return {};
    }
    out.push_back(e.get<int64_t>());
  }
  return out;
}

std::vector<double> ConfigReader::numbers(const std::string& key, std::optional<double> unbounded) const {
  std::vector<double> out;
  if (!has(key)) return out;
  const Json& v = (*impl_->at)[key];
  for (const Json& e : v) {
    if (v.is_array() && e.is_null() && unbounded) {
      out.push_back(*unbounded);
      continue;
    }
    if (!v.is_array() || !e.is_number()) {
      error(Code::kCorrupt, "must be an array of numbers", key);
      return {};
    }
    out.push_back(e.get<double>());
  }
  return out;
}

std::vector<bool> ConfigReader::flags(const std::string& key) const {
  std::vector<bool> out;
  if (!has(key)) return out;
  const Json& v = (*impl_->at)[key];
  for (const Json& e : v) {
    if (!v.is_array() || !e.is_boolean()) {
      error(Code::kCorrupt, "must be an array of true and false", key);
      return {};
    }
    out.push_back(e.get<bool>());
  }
  return out;
}

std::vector<std::string> ConfigReader::texts(const std::string& key) const {
  std::vector<std::string> out;
  if (!has(key)) return out;
  const Json& v = (*impl_->at)[key];
  for (const Json& e : v) {
    if (!v.is_array() || !e.is_string()) {
      error(Code::kCorrupt, "must be an array of strings", key);
      return {};
    }
    out.push_back(e.get<std::string>());
  }
  return out;
}

}  // namespace carrel
