// Owned memory that begins on a 4 KiB border: what direct I/O asks for. One owner, move-only; freed with it. Threads: none of its own.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"

namespace carrel {

class AlignedBytes {
 public:
  static constexpr size_t kAlignment = 4096;

  AlignedBytes() = default;
  AlignedBytes(AlignedBytes&& o) noexcept : data_(std::move(o.data_)), size_(std::exchange(o.size_, 0)) {}
  AlignedBytes& operator=(AlignedBytes&& o) noexcept {
    data_ = std::move(o.data_);
    size_ = std::exchange(o.size_, 0);
    return *this;
  }

  /// The content is undefined: who hands it to a disk has filled all of it. The memory behind it is whole units of 4 KiB.
  /// Errors: kExhausted with the size.
  static Result<AlignedBytes> allocate(size_t n_bytes) {
    AlignedBytes b;
    if (n_bytes == 0) return b;
    void* p =
        n_bytes > SIZE_MAX - kAlignment ? nullptr : std::aligned_alloc(kAlignment, (n_bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (p == nullptr) return fail(Code::kExhausted, "the system gives no " + std::to_string(n_bytes) + " bytes of memory");
    b.data_.reset(static_cast<std::byte*>(p));
    b.size_ = n_bytes;
    return b;
  }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::span<std::byte> span() { return {data_.get(), size_}; }
  std::span<const std::byte> span() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

}  // namespace carrel
