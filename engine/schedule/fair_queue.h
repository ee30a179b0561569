// The waiting room: bounded, fair between tenants, online work before batch work.
//
// Fairness is start-time fair queueing: each tenant carries the tokens it was served (uncached prefill + decode); the tenant with the least goes first,
// first come first served inside a tenant. A tenant that was away starts at the present level, so absence earns no credit.
// Threads: the caller locks. Items are owned by the caller; ids are unique.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace carrel {

enum class Priority : uint8_t { kOnline, kBatch };

class FairQueue {
 public:
  explicit FairQueue(size_t max_depth) : max_depth_(max_depth) {}

  /// False: full.
  bool push(uint64_t id, const std::string& tenant, Priority priority);
  /// Back at the head of its tenant's line (preempted work): always taken, it was admitted once.
  void push_front(uint64_t id, const std::string& tenant, Priority priority);
  bool remove(uint64_t id);
  /// Ids in the order in which they should be tried now.
  std::vector<uint64_t> order() const;
  /// Tokens computed for a tenant, waiting or running.
  void charge(const std::string& tenant, int64_t tokens);

  size_t size() const { return size_; }
  size_t max_depth() const { return max_depth_; }

 private:
  struct Tenant {
    double served = 0;
    std::deque<uint64_t> waiting[2];
  };
  Tenant& arrive(const std::string& tenant);

  size_t max_depth_;
  size_t size_ = 0;
  double level_ = 0;  // served tokens of the tenant that was served last: where a newcomer starts
  std::map<std::string, Tenant> tenants_;
};

}  // namespace carrel
