#include "app/lifecycle/data_keys.h"

#include "base/log.h"

namespace carrel {

std::shared_ptr<const SecretKey> DataKeys::of(const std::string& namespace_id) {
  {
    std::lock_guard lock(mu_);
    if (const auto at = keys_.find(namespace_id); at != keys_.end()) return at->second;
  }
  auto key = catalog_->data_key(namespace_id);
  if (!key) {
    if (key.error().code != Code::kNotFound)
      spdlog::warn("namespace {} has no data key, and nothing of it is offloaded: {}", namespace_id, key.error().text());
    return nullptr;
  }
  std::lock_guard lock(mu_);
  return keys_.try_emplace(namespace_id, std::make_shared<const SecretKey>(std::move(*key))).first->second;
}

void DataKeys::forget(const std::string& namespace_id) {
  std::lock_guard lock(mu_);
  keys_.erase(namespace_id);
}

}  // namespace carrel
