#include "engine/schedule/fair_queue.h"

#include <algorithm>

namespace carrel {

FairQueue::Tenant& FairQueue::arrive(const std::string& tenant) {
  Tenant& t = tenants_[tenant];
  if (t.waiting[0].empty() && t.waiting[1].empty()) t.served = std::max(t.served, level_);
  return t;
}

bool FairQueue::push(uint64_t id, const std::string& tenant, Priority priority) {
  if (size_ >= max_depth_) return false;
  arrive(tenant).waiting[static_cast<size_t>(priority)].push_back(id);
  size_++;
  return true;
}

void FairQueue::push_front(uint64_t id, const std::string& tenant, Priority priority) {
  arrive(tenant).waiting[static_cast<size_t>(priority)].push_front(id);
  size_++;
}

bool FairQueue::remove(uint64_t id) {
  for (auto& [name, t] : tenants_)
    for (auto& line : t.waiting) {
      const auto at = std::find(line.begin(), line.end(), id);
      if (at == line.end()) continue;
      line.erase(at);
      size_--;
      return true;
    }
  return false;
}

std::vector<uint64_t> FairQueue::order() const {
  std::vector<const Tenant*> by_service;
  for (const auto& [name, t] : tenants_) by_service.push_back(&t);
  std::stable_sort(by_service.begin(), by_service.end(), [](const Tenant* a, const Tenant* b) { return a->served < b->served; });
  std::vector<uint64_t> out;
  for (const size_t priority : {size_t{0}, size_t{1}}) {
    // One of each tenant in turn: a long line of one tenant must not stand before the second of another.
    for (size_t depth = 0, more = 1; more != 0; depth++) {
      more = 0;
      for (const Tenant* t : by_service)
        if (depth < t->waiting[priority].size()) out.push_back(t->waiting[priority][depth]), more = 1;
    }
  }
  return out;
}

void FairQueue::charge(const std::string& tenant, int64_t tokens) {
  Tenant& t = tenants_[tenant];
  t.served += static_cast<double>(tokens);
  double least = t.served;  // of those who wait: the present level
  for (const auto& [name, other] : tenants_)
    if (!other.waiting[0].empty() || !other.waiting[1].empty()) least = std::min(least, other.served);
  level_ = std::max(level_, least);
}

}  // namespace carrel
