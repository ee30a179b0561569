#include "storage/env_vfs.h"

#include <sqlite3.h>

#include <array>
#include <cstring>
#include <map>
#include <string>

#include "base/mutex.h"

namespace carrel {
namespace {

struct OpenFile;

// What all connections to one file share: the file's locks, and WAL's memory with its eight slots.
struct Shared {
  Mutex mutex;
  int n_shared CARREL_GUARDED_BY(mutex) = 0;
  const OpenFile* reserved CARREL_GUARDED_BY(mutex) = nullptr;
  const OpenFile* pending CARREL_GUARDED_BY(mutex) = nullptr;
  const OpenFile* exclusive CARREL_GUARDED_BY(mutex) = nullptr;
  std::vector<std::unique_ptr<char[]>> regions CARREL_GUARDED_BY(mutex);
  int n_attached CARREL_GUARDED_BY(mutex) = 0;
  std::array<int, SQLITE_SHM_NLOCK> slot_shared CARREL_GUARDED_BY(mutex) = {};
  std::array<const OpenFile*, SQLITE_SHM_NLOCK> slot_exclusive CARREL_GUARDED_BY(mutex) = {};
};

struct OpenFile {
  Env* env;
  std::unique_ptr<File> file;
  std::string path;
  std::shared_ptr<Shared> shared;
  bool name_unsynced = false;  // made by us; the folder is synced with the first sync of the file
  bool delete_on_close = false;
  int level = SQLITE_LOCK_NONE;
  bool attached = false;
  unsigned held_shared = 0, held_exclusive = 0;  // bits of WAL slots
};

// The layout that SQLite allocates: its own base first.
struct SqliteFile {
  sqlite3_file base;
  OpenFile* open;
};

OpenFile& of(sqlite3_file* f) {
  return *reinterpret_cast<SqliteFile*>(f)->open;
}

int code_of(const Error& e, int otherwise) {
  return e.code == Code::kExhausted ? SQLITE_FULL : otherwise;
}

int x_read(sqlite3_file* f, void* out, int n, sqlite3_int64 offset) {
  OpenFile& o = of(f);
  auto* bytes = static_cast<std::byte*>(out);
  const auto got = o.file->read_at(static_cast<uint64_t>(offset), {bytes, static_cast<size_t>(n)});
  if (!got) return SQLITE_IOERR_READ;
  if (*got == static_cast<size_t>(n)) return SQLITE_OK;
  // Fewer bytes must mean the end of the file. Anything else would look like zeros, that is, like lost data.
  const auto size = o.file->size();
  if (!size || static_cast<uint64_t>(offset) + *got < *size) return SQLITE_IOERR_READ;
  std::memset(bytes + *got, 0, static_cast<size_t>(n) - *got);
  return SQLITE_IOERR_SHORT_READ;
}

int x_write(sqlite3_file* f, const void* in, int n, sqlite3_int64 offset) {
  const Status s = of(f).file->write_at(static_cast<uint64_t>(offset), {static_cast<const std::byte*>(in), static_cast<size_t>(n)});
  return s ? SQLITE_OK : code_of(s.error(), SQLITE_IOERR_WRITE);
}

int x_truncate(sqlite3_file* f, sqlite3_int64 size) {
  return of(f).file->truncate(static_cast<uint64_t>(size)) ? SQLITE_OK : SQLITE_IOERR_TRUNCATE;
}

int x_sync(sqlite3_file* f, int) {
  OpenFile& o = of(f);
  if (!o.file->sync()) return SQLITE_IOERR_FSYNC;
  if (!o.name_unsynced) return SQLITE_OK;
  if (!o.env->sync_dir(folder_of(o.path))) return SQLITE_IOERR_DIR_FSYNC;
  o.name_unsynced = false;
  return SQLITE_OK;
}

int x_size(sqlite3_file* f, sqlite3_int64* out) {
  const auto size = of(f).file->size();
  if (!size) return SQLITE_IOERR_FSTAT;
  *out = static_cast<sqlite3_int64>(*size);
  return SQLITE_OK;
}

int x_lock(sqlite3_file* f, int level) {
  OpenFile& o = of(f);
  if (level <= o.level) return SQLITE_OK;
  Shared& s = *o.shared;
  MutexLock lock(s.mutex);
  if (level == SQLITE_LOCK_SHARED) {
    if (s.pending != nullptr || s.exclusive != nullptr) return SQLITE_BUSY;
    s.n_shared++;
  } else if (level == SQLITE_LOCK_RESERVED) {
    if (s.reserved != nullptr) return SQLITE_BUSY;
    s.reserved = &o;
  } else {
    if ((s.reserved != nullptr && s.reserved != &o) || (s.pending != nullptr && s.pending != &o)) return SQLITE_BUSY;
    s.reserved = s.pending = &o;
    if (s.n_shared > 1) {
      o.level = SQLITE_LOCK_PENDING;
      return SQLITE_BUSY;
    }
    s.exclusive = &o;
  }
  o.level = level;
  return SQLITE_OK;
}

int x_unlock(sqlite3_file* f, int level) {
  OpenFile& o = of(f);
  if (level >= o.level) return SQLITE_OK;
  Shared& s = *o.shared;
  MutexLock lock(s.mutex);
  if (s.reserved == &o) s.reserved = nullptr;
  if (s.pending == &o) s.pending = nullptr;
  if (s.exclusive == &o) s.exclusive = nullptr;
  if (level == SQLITE_LOCK_NONE) s.n_shared--;
  o.level = level;
  return SQLITE_OK;
}

int x_check_reserved(sqlite3_file* f, int* out) {
  Shared& s = *of(f).shared;
  MutexLock lock(s.mutex);
  *out = s.reserved != nullptr;
  return SQLITE_OK;
}

// An Env has no identity of files: a removal is seen, a replacement is not.
int x_control(sqlite3_file* f, int op, void* out) {
  if (op != SQLITE_FCNTL_HAS_MOVED) return SQLITE_NOTFOUND;
  OpenFile& o = of(f);
  *static_cast<int*>(out) = o.env->exists(o.path) ? 0 : 1;
  return SQLITE_OK;
}
int x_sector(sqlite3_file*) {
  return 4096;
}
int x_device(sqlite3_file*) {
  return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

int x_shm_map(sqlite3_file* f, int region, int size, int extend, void volatile** out) {
  OpenFile& o = of(f);
  Shared& s = *o.shared;
  MutexLock lock(s.mutex);
  if (!o.attached) s.n_attached++;
  o.attached = true;
  const auto index = static_cast<size_t>(region);
  *out = nullptr;
  if (index >= s.regions.size() && extend == 0) return SQLITE_OK;
  while (s.regions.size() <= index) s.regions.push_back(std::make_unique<char[]>(static_cast<size_t>(size)));
  *out = s.regions[index].get();
  return SQLITE_OK;
}

bool can_take(const Shared& s, const OpenFile& o, int first, int end, bool shared) CARREL_REQUIRES(s.mutex) {
  for (int i = first; i < end; i++) {
    const auto slot = static_cast<size_t>(i);
    const int mine = (o.held_shared >> i) & 1 ? 1 : 0;
    if (s.slot_exclusive[slot] != nullptr && s.slot_exclusive[slot] != &o) return false;
    if (!shared && s.slot_shared[slot] > mine) return false;
  }
  return true;
}

int x_shm_lock(sqlite3_file* f, int first, int n, int flags) {
  OpenFile& o = of(f);
  Shared& s = *o.shared;
  MutexLock lock(s.mutex);
  const bool unlock = (flags & SQLITE_SHM_UNLOCK) != 0, shared = (flags & SQLITE_SHM_SHARED) != 0;
  if (!unlock && !can_take(s, o, first, first + n, shared)) return SQLITE_BUSY;
  for (int i = first; i < first + n; i++) {
    const auto slot = static_cast<size_t>(i);
    const unsigned bit = 1u << i;
    if (unlock) {
      if ((o.held_shared & bit) != 0) s.slot_shared[slot]--;
      if ((o.held_exclusive & bit) != 0) s.slot_exclusive[slot] = nullptr;
      o.held_shared &= ~bit;
      o.held_exclusive &= ~bit;
    } else if (shared) {
      if ((o.held_shared & bit) == 0) s.slot_shared[slot]++;
      o.held_shared |= bit;
    } else {
      s.slot_exclusive[slot] = &o;
      o.held_exclusive |= bit;
    }
  }
  return SQLITE_OK;
}

void x_shm_barrier(sqlite3_file* f) {
  MutexLock lock(of(f).shared->mutex);
}

int x_shm_unmap(sqlite3_file* f, int) {
  OpenFile& o = of(f);
  if (!o.attached) return SQLITE_OK;
  x_shm_lock(f, 0, SQLITE_SHM_NLOCK, SQLITE_SHM_UNLOCK);
  Shared& s = *o.shared;
  MutexLock lock(s.mutex);
  o.attached = false;
  if (--s.n_attached == 0) s.regions.clear();
  return SQLITE_OK;
}

int x_close(sqlite3_file* f) {
  x_shm_unmap(f, 0);
  x_unlock(f, SQLITE_LOCK_NONE);
  auto* file = reinterpret_cast<SqliteFile*>(f);
  if (file->open->delete_on_close) (void)file->open->env->remove(file->open->path);
  delete file->open;
  file->open = nullptr;
  return SQLITE_OK;
}

constexpr sqlite3_io_methods kMethods = {.iVersion = 2,
                                         .xClose = x_close,
                                         .xRead = x_read,
                                         .xWrite = x_write,
                                         .xTruncate = x_truncate,
                                         .xSync = x_sync,
                                         .xFileSize = x_size,
                                         .xLock = x_lock,
                                         .xUnlock = x_unlock,
                                         .xCheckReservedLock = x_check_reserved,
                                         .xFileControl = x_control,
                                         .xSectorSize = x_sector,
                                         .xDeviceCharacteristics = x_device,
                                         .xShmMap = x_shm_map,
                                         .xShmLock = x_shm_lock,
                                         .xShmBarrier = x_shm_barrier,
                                         .xShmUnmap = x_shm_unmap,
                                         .xFetch = nullptr,
                                         .xUnfetch = nullptr};

}  // namespace

struct EnvVfs::Impl {
  Env* env;
  std::string name;
  sqlite3_vfs vfs = {};
  Mutex mutex;
  std::map<std::string, std::weak_ptr<Shared>> files CARREL_GUARDED_BY(mutex);
  std::weak_ptr<EnvVfs> self;

  std::shared_ptr<Shared> shared_of(const std::string& path) {
    MutexLock lock(mutex);
    auto known = files[path].lock();
    if (!known) files[path] = known = std::make_shared<Shared>();
    return known;
  }
};

namespace {

EnvVfs::Impl& of(sqlite3_vfs* v) {
  return *static_cast<EnvVfs::Impl*>(v->pAppData);
}

int x_open(sqlite3_vfs* v, const char* name, sqlite3_file* f, int flags, int* out_flags) {
  EnvVfs::Impl& impl = of(v);
  f->pMethods = nullptr;
  if (name == nullptr) return SQLITE_CANTOPEN;  // temporary files: connections keep those in memory
  const bool create = (flags & SQLITE_OPEN_CREATE) != 0;
  const bool fresh = create && !impl.env->exists(name);
  auto file = impl.env->open(name, create ? Open::kCreate : (flags & SQLITE_OPEN_READONLY) != 0 ? Open::kRead : Open::kReadWrite);
  if (!file) return code_of(file.error(), SQLITE_CANTOPEN);
  auto* o = new OpenFile{.env = impl.env, .file = *std::move(file), .path = name, .shared = impl.shared_of(name)};
  o->name_unsynced = fresh;
  o->delete_on_close = (flags & SQLITE_OPEN_DELETEONCLOSE) != 0;
  reinterpret_cast<SqliteFile*>(f)->open = o;
  f->pMethods = &kMethods;
  if (out_flags != nullptr) *out_flags = flags;
  return SQLITE_OK;
}

int x_delete(sqlite3_vfs* v, const char* name, int sync_dir) {
  Env* env = of(v).env;
  if (const Status s = env->remove(name); !s) return s.error().code == Code::kNotFound ? SQLITE_IOERR_DELETE_NOENT : SQLITE_IOERR_DELETE;
  if (sync_dir != 0 && !env->sync_dir(folder_of(name))) return SQLITE_IOERR_DIR_FSYNC;
  return SQLITE_OK;
}

int x_access(sqlite3_vfs* v, const char* name, int, int* out) {
  *out = of(v).env->exists(name) ? 1 : 0;
  return SQLITE_OK;
}

int x_full_path(sqlite3_vfs*, const char* name, int n, char* out) {
  sqlite3_snprintf(n, out, "%s", name);
  return SQLITE_OK;
}

int x_randomness(sqlite3_vfs* v, int n, char* out) {
  of(v).env->random(std::as_writable_bytes(std::span(out, static_cast<size_t>(n))));
  return n;
}

int x_sleep(sqlite3_vfs* v, int microseconds) {
  of(v).env->sleep_ms((microseconds + 999) / 1000);
  return microseconds;
}

int x_time_ms(sqlite3_vfs* v, sqlite3_int64* out) {
  constexpr sqlite3_int64 kJulianDayOf1970Ms = 210866760000000;
  *out = kJulianDayOf1970Ms + of(v).env->wall_ms();
  return SQLITE_OK;
}

int x_time(sqlite3_vfs* v, double* out) {
  sqlite3_int64 ms = 0;
  x_time_ms(v, &ms);
  *out = static_cast<double>(ms) / 86400000.0;
  return SQLITE_OK;
}

int x_last_error(sqlite3_vfs*, int, char*) {
  return 0;
}

// SQLite's own mutex for applications guards look-up, registration and removal together.
class RegistryLock {
 public:
  RegistryLock() : mutex_(sqlite3_mutex_alloc(SQLITE_MUTEX_STATIC_APP1)) { sqlite3_mutex_enter(mutex_); }
  ~RegistryLock() { sqlite3_mutex_leave(mutex_); }
  RegistryLock(const RegistryLock&) = delete;
  RegistryLock& operator=(const RegistryLock&) = delete;

 private:
  sqlite3_mutex* mutex_;
};

std::string name_of(const Env* env) {
  return "carrel-env-" + std::to_string(reinterpret_cast<uintptr_t>(env));
}

}  // namespace

std::shared_ptr<EnvVfs> EnvVfs::acquire(Env* env) {
  sqlite3_initialize();
  RegistryLock lock;
  if (sqlite3_vfs* known = sqlite3_vfs_find(name_of(env).c_str())) {
    if (auto alive = of(known).self.lock()) return alive;
  }
  std::shared_ptr<EnvVfs> made(new EnvVfs(env));
  made->impl_->self = made;
  sqlite3_vfs_register(&made->impl_->vfs, 0);
  return made;
}

EnvVfs::EnvVfs(Env* env) : impl_(std::make_unique<Impl>()) {
  impl_->env = env;
  impl_->name = name_of(env);
  sqlite3_vfs& v = impl_->vfs;
  v.iVersion = 2;
  v.szOsFile = sizeof(SqliteFile);
  v.mxPathname = 512;
  v.zName = impl_->name.c_str();
  v.pAppData = impl_.get();
  v.xOpen = x_open;
  v.xDelete = x_delete;
  v.xAccess = x_access;
  v.xFullPathname = x_full_path;
  v.xRandomness = x_randomness;
  v.xSleep = x_sleep;
  v.xCurrentTime = x_time;
  v.xCurrentTimeInt64 = x_time_ms;
  v.xGetLastError = x_last_error;
}

EnvVfs::~EnvVfs() {
  RegistryLock lock;
  sqlite3_vfs_unregister(&impl_->vfs);
}

const char* EnvVfs::name() const {
  return impl_->name.c_str();
}

}  // namespace carrel
