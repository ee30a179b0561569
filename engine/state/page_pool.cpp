#include "engine/state/page_pool.h"

#include <cstdlib>
#include <cstring>
#include <utility>

namespace carrel {

namespace {
constexpr int kPoisonByte = 0xFF;  // all ones is a NaN in float32 and in bfloat16
}

PageHandle::~PageHandle() {
  if (data_ != nullptr) pool_->put(kind_, data_);
}

void PageHandle::swap(PageHandle& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(kind_, other.kind_);
  std::swap(data_, other.data_);
}

PagePool::PagePool(const ModelState& model, size_t budget_bytes, bool poison) : budget_bytes_(budget_bytes), poison_(poison) {
  for (const StateSpec& spec : model.groups) {
    const RowLayout l = layout_of(spec, model.block_size);
    Kind k;
    k.bytes = page_bytes(spec, model.block_size);
    k.n_layers = spec.n_layers;
    k.row_bytes = l.row_stride_bytes * static_cast<size_t>(l.rows_per_page);
    k.layer_stride = l.layer_stride_bytes;
    kinds_.push_back(std::move(k));
  }
  Kind slots;
  slots.bytes = (model.slot_bytes + kAlignment - 1) / kAlignment * kAlignment;
  slots.n_layers = 1;
  slots.row_bytes = slots.layer_stride = slots.bytes;
  kinds_.push_back(std::move(slots));
}

PagePool::~PagePool() {
  for (Kind& k : kinds_)
    for (std::byte* p : k.free) std::free(p);
}

PageHandle PagePool::take(int group) {
  return take_kind(group);
}

PageHandle PagePool::take_slot() {
  PageHandle h = take_kind(slot_kind());
  if (h) std::memset(h.data(), 0, bytes_of_kind(slot_kind()));
  return h;
}

PageHandle PagePool::take_kind(int kind) {
  Kind& k = kinds_[static_cast<size_t>(kind)];
  std::byte* data = nullptr;
  if (!k.free.empty()) {
    data = k.free.back();
    k.free.pop_back();
  } else {
    if (!make_room(kind)) return {};
    data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, k.bytes));
    if (data == nullptr) return {};
    std::memset(data, 0, k.bytes);
    if (poison_) poison_rows(k, data);
    all_.emplace(data, kind);
    allocated_bytes_ += k.bytes;
  }
  k.n_used++;
  used_bytes_ += k.bytes;
  return PageHandle(this, kind, data);
}

bool PagePool::make_room(int kind) {
  const size_t wanted = kinds_[static_cast<size_t>(kind)].bytes;
  if (used_bytes_ + wanted > budget_bytes_) return false;
  for (Kind& other : kinds_) {
    while (allocated_bytes_ + wanted > budget_bytes_ && !other.free.empty()) {
      all_.erase(other.free.back());
      std::free(other.free.back());
      other.free.pop_back();
      allocated_bytes_ -= other.bytes;
    }
  }
  return true;
}

void PagePool::put(int kind, std::byte* data) {
  Kind& k = kinds_[static_cast<size_t>(kind)];
  if (poison_) poison_rows(k, data);
  k.free.push_back(data);
  k.n_used--;
  used_bytes_ -= k.bytes;
}

void PagePool::poison_rows(const Kind& kind, std::byte* data) const {
  for (int l = 0; l < kind.n_layers; l++) std::memset(data + static_cast<size_t>(l) * kind.layer_stride, kPoisonByte, kind.row_bytes);
}

}  // namespace carrel
