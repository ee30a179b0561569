#include "base/fault_env.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>

#include "base/block_queue.h"

namespace carrel {

struct FaultEnv::Change {
  bool resize;
  uint64_t offset;  // of a resize: the new size
  Bytes bytes;

  void apply(Bytes& to) const { apply(to, 0, bytes.size()); }
  void apply(Bytes& to, size_t from, size_t n) const {
    if (resize) {
      to.resize(offset);
    } else {
      if (to.size() < offset + from + n) to.resize(offset + from + n);
      if (n != 0) std::memcpy(to.data() + offset + from, bytes.data() + from, n);
    }
  }
};

struct FaultEnv::Node {
  Bytes live, durable;
  std::vector<Change> changes;
};

struct FaultEnv::NameOp {
  enum class Kind { kLink, kUnlink, kRename, kMakeDir, kRemoveDir, kMoveDir } kind;
  std::string path, to;
  std::shared_ptr<Node> node;
  std::string dir;  // whose sync makes it durable
};

struct FaultEnv::Names {
  std::map<std::string, std::shared_ptr<Node>> files;
  std::set<std::string> dirs;

  void apply(const NameOp& op) {
    switch (op.kind) {
      case NameOp::Kind::kLink:
        files[op.path] = op.node;
        break;
      case NameOp::Kind::kUnlink:
        files.erase(op.path);
        break;
      case NameOp::Kind::kMakeDir:
        dirs.insert(op.path);
        break;
      case NameOp::Kind::kRemoveDir:
        dirs.erase(op.path);
        break;
      case NameOp::Kind::kRename:
        files.erase(op.path);
        files[op.to] = op.node;
        break;
      case NameOp::Kind::kMoveDir:
        move_dir(op.path, op.to);
        break;
    }
  }

  void move_dir(const std::string& from, const std::string& to) {
    const auto below = [&](const std::string& p) { return p == from || p.starts_with(from + "/"); };
    std::map<std::string, std::shared_ptr<Node>> moved_files;
    std::set<std::string> moved_dirs;
    for (const auto& [path, node] : files) moved_files[below(path) ? to + path.substr(from.size()) : path] = node;
    for (const std::string& path : dirs) moved_dirs.insert(below(path) ? to + path.substr(from.size()) : path);
    files = std::move(moved_files);
    dirs = std::move(moved_dirs);
  }
};

namespace {

bool is_root(const std::string& dir) {
  return dir == "." || dir == "/" || dir.empty();
}

}  // namespace

class FaultEnv::Handle final : public File {
 public:
  Handle(FaultEnv* env, std::shared_ptr<Node> node, std::string path, uint64_t epoch, bool writable)
      : env_(env), node_(std::move(node)), path_(std::move(path)), epoch_(epoch), writable_(writable) {}

  Result<size_t> read_at(uint64_t offset, std::span<std::byte> out) override {
    MutexLock lock(env_->mutex_);
    Fault soft = Fault::kIo;
    CARREL_TRY(enter(Call::kLook, &soft));
    if (offset >= node_->live.size()) return size_t{0};
    size_t n = std::min<uint64_t>(out.size(), node_->live.size() - offset);
    if (soft == Fault::kShortRead) n /= 2;
    if (n != 0) std::memcpy(out.data(), node_->live.data() + offset, n);
    return n;
  }
  Status write_at(uint64_t offset, std::span<const std::byte> bytes) override {
    MutexLock lock(env_->mutex_);
    return change({false, offset, Bytes(bytes.begin(), bytes.end())});
  }
  Status truncate(uint64_t size) override {
    MutexLock lock(env_->mutex_);
    return change({true, size, {}});
  }
  Status sync() override {
    MutexLock lock(env_->mutex_);
    CARREL_TRY(enter(Call::kChange));
    for (const Change& c : node_->changes) c.apply(node_->durable);
    node_->changes.clear();
    return {};
  }
  Result<uint64_t> size() override {
    MutexLock lock(env_->mutex_);
    CARREL_TRY(enter(Call::kLook));
    return node_->live.size();
  }

 private:
  Status enter(Call call, Fault* soft = nullptr) CARREL_REQUIRES(env_->mutex_) {
    if (epoch_ != env_->epoch_) return fail(Code::kIo, "the handle is from before a power loss", path_);
    return env_->enter(call, path_, soft);
  }
  Status change(Change c) CARREL_REQUIRES(env_->mutex_) {
    if (!writable_) return fail(Code::kIo, "is open for reading only", path_);
    const bool was_crashed = env_->crashed_;
    const uint64_t end = c.offset + c.bytes.size(), now = node_->live.size();
    Status s = enter(Call::kGrow);
    if (s && end > now && env_->space_bytes_ != UINT64_MAX && env_->used_bytes() + (end - now) > env_->space_bytes_)
      s = fail(Code::kExhausted, "no space left on the limited device", path_);
    if (s || (env_->crashed_ && !was_crashed)) {  // the write that the crash interrupts may be on its way
      c.apply(node_->live);
      node_->changes.push_back(std::move(c));
    }
    return s;
  }

  FaultEnv* env_;
  std::shared_ptr<Node> node_;
  std::string path_;
  uint64_t epoch_;
  bool writable_;
};

FaultEnv::FaultEnv(uint64_t seed) : live_(std::make_unique<Names>()), durable_(std::make_unique<Names>()), rng_(seed) {}
FaultEnv::~FaultEnv() = default;

Status FaultEnv::enter(Call call, const std::string& path, Fault* soft) {
  const bool mutation = call != Call::kLook;
  calls_++;
  if (mutation && !crashed_) mutations_++;
  if (crashed_) return fail(Code::kIo, "the machine has crashed", path);
  if (mutation && crash_mutation_ != 0 && mutations_ == crash_mutation_) {
    crashed_ = true;
    return fail(Code::kIo, "the machine crashes", path);
  }
  if (fail_call_ == 0 || calls_ != fail_call_) return {};
  fail_call_ = 0;
  if (fault_ == Fault::kIo) return fail(Code::kIo, "injected I/O error", path);
  if (fault_ == Fault::kNoSpace && call == Call::kGrow) return fail(Code::kExhausted, "injected: no space left on device", path);
  if (soft != nullptr) *soft = fault_;
  return {};
}

void FaultEnv::record(NameOp op) {
  live_->apply(op);
  ops_.push_back(std::move(op));
}

bool FaultEnv::hangs_next() const {
  return fail_call_ == calls_ + 1 && fault_ == Fault::kHang;
}

uint64_t FaultEnv::used_bytes() const {
  uint64_t sum = 0;
  for (const auto& [path, node] : live_->files) sum += node->live.size();
  return sum;
}

void FaultEnv::set_hang_ms(int64_t ms) {
  MutexLock lock(mutex_);
  hang_ms_ = ms;
}

void FaultEnv::limit_space(uint64_t total_bytes) {
  MutexLock lock(mutex_);
  space_bytes_ = total_bytes;
}

Result<uint64_t> FaultEnv::free_bytes(const std::string& dir) {
  MutexLock lock(mutex_);
  CARREL_TRY(enter(Call::kLook, dir));
  if (space_bytes_ == UINT64_MAX) return uint64_t{1} << 63;
  const uint64_t used = used_bytes();
  return used >= space_bytes_ ? 0 : space_bytes_ - used;
}

class FaultEnv::Queue final : public BlockQueue {
 public:
  Queue(FaultEnv* env, size_t depth) : env_(env), depth_(depth) {}

  Status submit(uint64_t id, BlockOp op) override {
    if (pending_.size() >= depth_) return fail(Code::kUnavailable, "too many operations are under way");
    MutexLock lock(env_->mutex_);
    const bool hangs = env_->hangs_next();
    CARREL_TRY(env_->enter(Call::kLook, "a submission"));
    pending_.push_back({id, std::move(op), hangs ? release_ns() : 0, {}});
    return {};
  }

  Result<std::vector<BlockDone>> wait(int64_t deadline_ns) override {
    std::vector<BlockDone> done;
    for (;;) {
      const int64_t now = env_->mono_ns();
      for (size_t i = pending_.size(); i-- > 0;) {
        Pending& p = pending_[i];
        if (p.release_ns > now || !complete(p)) continue;
        done.push_back({p.id, *std::move(p.result)});
        pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (!done.empty() || pending_.empty() || now >= deadline_ns) return done;
      int64_t next = deadline_ns;
      for (const Pending& p : pending_) next = std::min(next, p.release_ns);
      env_->advance_ms((next - now + 999'999) / 1'000'000);
    }
  }

  size_t n_under_way() const override { return pending_.size(); }
  const char* name() const override { return "faulty"; }

 private:
  struct Pending {
    uint64_t id;
    BlockOp op;
    int64_t release_ns;  // hangs until then
    std::optional<Result<size_t>> result;
  };

  int64_t release_ns() const CARREL_REQUIRES(env_->mutex_) {
    return env_->hang_ms_ > (INT64_MAX - env_->mono_ns_) / 1'000'000 ? INT64_MAX : env_->mono_ns_ + env_->hang_ms_ * 1'000'000;
  }

  // False: it has happened, and nobody is told yet.
  bool complete(Pending& p) {
    if (p.result) return true;
    {
      MutexLock lock(env_->mutex_);
      if (env_->hangs_next()) p.release_ns = release_ns();
    }
    p.result = execute(p.op);
    return p.release_ns <= env_->mono_ns();
  }

  FaultEnv* env_;
  const size_t depth_;
  std::vector<Pending> pending_;
};

std::unique_ptr<BlockQueue> FaultEnv::block_queue(size_t depth, bool /*plain*/) {
  return std::make_unique<Queue>(this, depth);
}

void FaultEnv::fail_at(uint64_t nth_call, Fault fault) {
  MutexLock lock(mutex_);
  fail_call_ = calls_ + nth_call;
  fault_ = fault;
}

void FaultEnv::crash_at(uint64_t nth_mutation) {
  MutexLock lock(mutex_);
  crash_mutation_ = mutations_ + nth_mutation;
}

void FaultEnv::lose(Node& node, Loss loss) {
  if (loss == Loss::kNone) node.durable = node.live;
  if (loss == Loss::kRandom) {
    for (const Change& c : node.changes) {
      const uint64_t dice = rng_();
      if (dice % 4 < 2) c.apply(node.durable);
      if (dice % 4 != 2 || c.resize) continue;
      for (size_t at = 0; at < c.bytes.size(); at += 512) {
        if (rng_() % 2 == 0) c.apply(node.durable, at, std::min<size_t>(512, c.bytes.size() - at));
      }
    }
  }
  node.live = node.durable;
  node.changes.clear();
}

void FaultEnv::power_loss(Loss loss) {
  MutexLock lock(mutex_);
  std::map<std::string, bool> stopped;  // folder → its later changes are lost
  for (const NameOp& op : ops_) {
    if (loss == Loss::kUnsynced) break;
    bool& stop = stopped[op.dir];
    if (loss == Loss::kRandom && rng_() % 3 == 0) stop = true;
    if (!stop) durable_->apply(op);
  }
  ops_.clear();
  Names& durable = *durable_;
  const auto reachable = [&](const std::string& path) {
    std::string dir = folder_of(path);
    while (!is_root(dir)) {
      if (!durable.dirs.contains(dir)) return false;
      dir = folder_of(dir);
    }
    return true;
  };
  std::erase_if(durable_->dirs, [&](const std::string& d) { return !reachable(d); });
  std::erase_if(durable_->files, [&](const auto& f) { return !reachable(f.first); });
  for (auto& [path, node] : durable_->files) lose(*node, loss);
  *live_ = *durable_;
  epoch_++;
  crashed_ = false;
  fail_call_ = crash_mutation_ = 0;
}

bool FaultEnv::crashed() const {
  MutexLock lock(mutex_);
  return crashed_;
}

uint64_t FaultEnv::n_calls() const {
  MutexLock lock(mutex_);
  return calls_;
}

uint64_t FaultEnv::n_mutations() const {
  MutexLock lock(mutex_);
  return mutations_;
}

Status FaultEnv::flip_bit(const std::string& path, uint64_t bit) {
  MutexLock lock(mutex_);
  const auto it = live_->files.find(path);
  if (it == live_->files.end()) return fail(Code::kNotFound, "no such file", path);
  for (Bytes* content : {&it->second->live, &it->second->durable}) {
    if (bit / 8 < content->size()) (*content)[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
  return {};
}

Result<std::unique_ptr<File>> FaultEnv::open(const std::string& path, Open mode) {
  MutexLock lock(mutex_);
  const auto it = live_->files.find(path);
  const bool present = it != live_->files.end();
  const bool creates = !present && (mode == Open::kCreate || mode == Open::kCreateNew);
  CARREL_TRY(enter(creates ? Call::kGrow : Call::kLook, path));
  if (live_->dirs.contains(path)) return fail(Code::kInvalidArgument, "is a folder, not a file", path);
  if (present && mode == Open::kCreateNew) return fail(Code::kAlreadyExists, "exists already", path);
  if (!present && !creates) return fail(Code::kNotFound, "no such file", path);
  std::shared_ptr<Node> node = present ? it->second : std::make_shared<Node>();
  if (creates) {
    const std::string dir = folder_of(path);
    if (!is_root(dir) && !live_->dirs.contains(dir)) return fail(Code::kNotFound, "its folder does not exist", path);
    record({NameOp::Kind::kLink, path, {}, node, dir});
  }
  return std::make_unique<Handle>(this, std::move(node), path, epoch_, mode != Open::kRead);
}

Status FaultEnv::rename(const std::string& from, const std::string& to) {
  MutexLock lock(mutex_);
  CARREL_TRY(enter(Call::kChange, from));
  if (live_->dirs.contains(from)) {
    const auto next = live_->files.lower_bound(to + "/");
    const bool holds_files = next != live_->files.end() && next->first.starts_with(to + "/");
    if (live_->files.contains(to) || holds_files) return fail(Code::kIo, "the new name is taken", to);
    record({NameOp::Kind::kMoveDir, from, to, nullptr, folder_of(to)});
    return {};
  }
  const auto it = live_->files.find(from);
  if (it == live_->files.end()) return fail(Code::kNotFound, "no such file", from);
  const auto node = it->second;
  record({NameOp::Kind::kRename, from, to, node, folder_of(to)});
  return {};
}

Status FaultEnv::remove(const std::string& path) {
  MutexLock lock(mutex_);
  CARREL_TRY(enter(Call::kChange, path));
  if (!live_->files.contains(path)) return fail(Code::kNotFound, "no such file", path);
  record({NameOp::Kind::kUnlink, path, {}, nullptr, folder_of(path)});
  return {};
}

Status FaultEnv::remove_all(const std::string& path) {
  MutexLock lock(mutex_);
  CARREL_TRY(enter(Call::kChange, path));
  std::vector<NameOp> gone;
  const auto below = [&](const std::string& p) { return p == path || p.starts_with(path + "/"); };
  for (const auto& [name, node] : live_->files) {
    if (below(name)) gone.push_back({NameOp::Kind::kUnlink, name, {}, nullptr, folder_of(name)});
  }
  for (auto it = live_->dirs.rbegin(); it != live_->dirs.rend(); ++it) {
    if (below(*it)) gone.push_back({NameOp::Kind::kRemoveDir, *it, {}, nullptr, folder_of(*it)});
  }
  for (NameOp& op : gone) record(std::move(op));
  return {};
}

Status FaultEnv::make_dirs(const std::string& path) {
  MutexLock lock(mutex_);
  CARREL_TRY(enter(live_->dirs.contains(path) ? Call::kLook : Call::kGrow, path));
  std::vector<std::string> missing;
  for (std::string d = path; !is_root(d) && !live_->dirs.contains(d); d = folder_of(d)) missing.push_back(d);
  for (auto it = missing.rbegin(); it != missing.rend(); ++it) {
    if (live_->files.contains(*it)) return fail(Code::kIo, "is a file, not a folder", *it);
    record({NameOp::Kind::kMakeDir, *it, {}, nullptr, folder_of(*it)});
  }
  return {};
}

Status FaultEnv::sync_dir(const std::string& path) {
  MutexLock lock(mutex_);
  CARREL_TRY(enter(Call::kChange, path));
  if (!is_root(path) && !live_->dirs.contains(path)) return fail(Code::kNotFound, "no such folder", path);
  Names& durable = *durable_;
  std::erase_if(ops_, [&](const NameOp& op) {
    if (op.dir != path) return false;
    durable.apply(op);
    return true;
  });
  return {};
}

Result<std::vector<std::string>> FaultEnv::list(const std::string& dir) {
  MutexLock lock(mutex_);
  CARREL_TRY(enter(Call::kLook, dir));
  if (!is_root(dir) && !live_->dirs.contains(dir)) return fail(Code::kNotFound, "no such folder", dir);
  std::vector<std::string> names;
  const auto add = [&](const std::string& p) {
    if (folder_of(p) == dir) names.push_back(p.substr(p.rfind('/') + 1));
  };
  for (const auto& [path, node] : live_->files) add(path);
  for (const std::string& d : live_->dirs) add(d);
  std::sort(names.begin(), names.end());
  return names;
}

bool FaultEnv::exists(const std::string& path) {
  MutexLock lock(mutex_);
  if (!enter(Call::kLook, path) && crashed_) return false;
  return live_->files.contains(path) || live_->dirs.contains(path);
}

bool FaultEnv::is_dir(const std::string& path) {
  MutexLock lock(mutex_);
  if (!enter(Call::kLook, path) && crashed_) return false;
  return live_->dirs.contains(path);
}

void FaultEnv::advance_ms(int64_t ms) {
  MutexLock lock(mutex_);
  wall_ms_ += ms;
  mono_ns_ += ms * 1'000'000;
}

void FaultEnv::jump_wall_ms(int64_t ms) {
  MutexLock lock(mutex_);
  wall_ms_ += ms;
}

int64_t FaultEnv::wall_ms() {
  MutexLock lock(mutex_);
  return wall_ms_;
}

int64_t FaultEnv::mono_ns() {
  MutexLock lock(mutex_);
  return mono_ns_;
}

void FaultEnv::sleep_ms(int64_t ms) {
  advance_ms(ms);
  std::this_thread::yield();
}

void FaultEnv::random(std::span<std::byte> out) {
  MutexLock lock(mutex_);
  for (std::byte& b : out) b = static_cast<std::byte>(rng_());
}

}  // namespace carrel
