// A whole file as bytes: mapped where the system can, read into memory where it cannot. Huge files are therefore not copied.
//
// Threads: bytes() from any. The file must not be cut while it is open (a mapping would fault), so use it for files that only an
// administrator replaces, and only while loading.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "base/env.h"

namespace carrel {

class MappedFile {
 public:
  static Result<std::unique_ptr<MappedFile>> open(Env* env, const std::string& path);
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  MappedFile() = default;
  std::unique_ptr<File> file_;
  Bytes copy_;
  std::span<const std::byte> bytes_;
};

}  // namespace carrel
