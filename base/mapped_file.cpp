#include "base/mapped_file.h"

namespace carrel {

Result<std::unique_ptr<MappedFile>> MappedFile::open(Env* env, const std::string& path) {
  std::unique_ptr<MappedFile> m(new MappedFile());
  CARREL_ASSIGN(m->file_, env->open(path, Open::kRead));
  CARREL_ASSIGN(const uint64_t size, m->file_->size());
  m->bytes_ = m->file_->map(size);
  if (m->bytes_.size() == size) return m;
  m->copy_.resize(size);
  CARREL_ASSIGN(const size_t n, m->file_->read_at(0, m->copy_));
  if (n != size) return fail(Code::kIo, "ends after " + std::to_string(n) + " of " + std::to_string(size) + " bytes", path);
  m->bytes_ = m->copy_;
  return m;
}

}  // namespace carrel
