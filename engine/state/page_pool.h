// Device memory of the state manager: pages per group and slots, under one ledger with a hard budget.
//
// Owns every byte of state. A page or slot in use belongs to one PageHandle; dropping the handle puts it on the free list of its kind. Free
// memory of one kind is given back to the machine when another needs the budget. Padding is zero; with `poison` free rows are NaN.
// Threads: none of its own; every call, dropping a handle included, needs the state manager's lock.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/state/spec.h"

namespace carrel {

class PagePool;

/// Move-only owner of one page or slot.
class PageHandle {
 public:
  PageHandle() = default;
  PageHandle(PageHandle&& other) noexcept { swap(other); }
  PageHandle& operator=(PageHandle&& other) noexcept {
    PageHandle taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~PageHandle();
  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }

 private:
  friend class PagePool;
  PageHandle(PagePool* pool, int kind, std::byte* data) : pool_(pool), kind_(kind), data_(data) {}
  void swap(PageHandle& other) noexcept;
  PagePool* pool_ = nullptr;
  int kind_ = 0;
  std::byte* data_ = nullptr;
};

class PagePool {
 public:
  static constexpr size_t kAlignment = 64;

  PagePool(const ModelState& model, size_t budget_bytes, bool poison);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  /// A page of the group; empty when the budget has no room for it.
  PageHandle take(int group);
  /// A zeroed slot; empty when there is no room. Only for models that have slots.
  PageHandle take_slot();

  int slot_kind() const { return static_cast<int>(kinds_.size()) - 1; }
  size_t bytes_of_kind(int kind) const { return kinds_[static_cast<size_t>(kind)].bytes; }
  size_t budget_bytes() const { return budget_bytes_; }
  size_t used_bytes() const { return used_bytes_; }            // in handles
  size_t allocated_bytes() const { return allocated_bytes_; }  // in handles and on free lists
  int64_t n_used(int kind) const { return kinds_[static_cast<size_t>(kind)].n_used; }
  int64_t n_free(int kind) const { return static_cast<int64_t>(kinds_[static_cast<size_t>(kind)].free.size()); }
  /// Free list of a kind and every block of memory there is, with its kind: for the audit.
  const std::vector<std::byte*>& free_list(int kind) const { return kinds_[static_cast<size_t>(kind)].free; }
  const std::unordered_map<const std::byte*, int>& all() const { return all_; }

 private:
  friend class PageHandle;
  struct Kind {
    size_t bytes = 0;
    int n_layers = 0;
    size_t row_bytes = 0, layer_stride = 0;  // per layer: bytes of rows, then padding
    std::vector<std::byte*> free;
    int64_t n_used = 0;
  };
  PageHandle take_kind(int kind);
  bool make_room(int kind);
  void put(int kind, std::byte* data);
  void poison_rows(const Kind& kind, std::byte* data) const;

  std::vector<Kind> kinds_;  // one per group, then slots
  std::unordered_map<const std::byte*, int> all_;
  const size_t budget_bytes_;
  const bool poison_;
  size_t used_bytes_ = 0, allocated_bytes_ = 0;
};

}  // namespace carrel
