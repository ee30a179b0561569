// Anonymous mappings aligned to 2 MiB. Owns the mapping only.
#include "kernels/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

namespace carrel {
namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kPage = 4096;

}  // namespace

Result<HugeBuffer> HugeBuffer::allocate(size_t n_bytes, bool touch) {
  const auto refused = [&] {
    return fail(Code::kExhausted,
                "the system gives no " + std::to_string(n_bytes) + " bytes of memory; use a smaller model or a larger machine");
  };
  HugeBuffer b;
  if (n_bytes == 0) return b;
  if (n_bytes > SIZE_MAX / 2) return refused();
  const size_t want = (n_bytes + kHuge - 1) / kHuge * kHuge;
  void* raw = mmap(nullptr, want + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return refused();
  const auto at = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t begin = (at + kHuge - 1) / kHuge * kHuge;
  if (begin > at) munmap(raw, begin - at);
  if (begin + want < at + want + kHuge) munmap(reinterpret_cast<void*>(begin + want), at + kHuge - begin);
  b.data_ = reinterpret_cast<std::byte*>(begin);
  b.size_ = n_bytes;
  b.mapped_bytes_ = want;
  madvise(b.data_, want, MADV_HUGEPAGE);  // advice: without it the memory is the same, on small pages
  if (touch && madvise(b.data_, want, MADV_POPULATE_WRITE) != 0) {
    if (errno == ENOMEM) return refused();
    for (size_t i = 0; i < n_bytes; i += kPage) const_cast<volatile std::byte&>(b.data_[i]) = std::byte{0};  // kernels before 5.14
  }
  return b;
}

HugeBuffer::HugeBuffer(HugeBuffer&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)), mapped_bytes_(std::exchange(o.mapped_bytes_, 0)) {}

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& o) noexcept {
  if (this != &o) {
    release();
    data_ = std::exchange(o.data_, nullptr);
    size_ = std::exchange(o.size_, 0);
    mapped_bytes_ = std::exchange(o.mapped_bytes_, 0);
  }
  return *this;
}

void HugeBuffer::release() {
  if (data_ != nullptr) munmap(data_, mapped_bytes_);
  data_ = nullptr;
}

}  // namespace carrel
