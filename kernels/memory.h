// Large anonymous memory on huge pages: weights and state. Huge pages are worth 10-65 % of read bandwidth under virtualisation.
// Threads: none; a buffer has one owner. Freed with its owner.
#pragma once
#include <cstddef>
#include <span>

#include "base/error.h"

namespace carrel {

class HugeBuffer {
 public:
  /// Zeroed memory, 2 MiB aligned; huge pages where the system grants them. touch: every page is made present now, so that later
  /// writes cannot fail or stall. Errors: kExhausted with the size.
  static Result<HugeBuffer> allocate(size_t n_bytes, bool touch = true);

  HugeBuffer() = default;
  ~HugeBuffer() { release(); }
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data_, size_}; }

 private:
  void release();

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_bytes_ = 0;  // size_ rounded up to whole huge pages
};

}  // namespace carrel
