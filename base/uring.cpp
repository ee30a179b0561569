// The io_uring face of BlockQueue. One ring per queue, no thread of its own: submissions go to the kernel with the next wait.
#include <errno.h>
#include <liburing.h>
#include <string.h>

#include "base/block_queue.h"

namespace carrel {
namespace {

constexpr int64_t kGraceMs = 2000;  // as the plain queue

struct Slot {
  uint64_t id = 0;
  BlockOp op;
  bool used = false;
};

class UringQueue final : public BlockQueue {
 public:
  static std::unique_ptr<UringQueue> make(Env* env, size_t depth) {
    auto queue = std::unique_ptr<UringQueue>(new UringQueue(env, depth));
    if (io_uring_queue_init(static_cast<unsigned>(depth), queue->ring_.get(), 0) != 0) return nullptr;
    queue->open_ = true;
    io_uring_probe* probe = io_uring_get_probe_ring(queue->ring_.get());
    if (probe == nullptr) return nullptr;
    bool able = (queue->ring_->features & IORING_FEAT_EXT_ARG) != 0;
    for (const int code : {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_FSYNC}) able = able && io_uring_opcode_supported(probe, code) != 0;
    io_uring_free_probe(probe);
    return able ? std::move(queue) : nullptr;
  }
  ~UringQueue() override {
    const int64_t until = env_->mono_ns() + kGraceMs * 1'000'000;
    while (n_under_way_ != 0 && env_->mono_ns() < until && wait(until)) {
    }
    if (n_under_way_ == 0) {
      if (open_) io_uring_queue_exit(ring_.get());
      return;
    }
    // The device may write to these buffers when it comes back: they, and the ring, stay for the rest of the process.
    (void)ring_.release();
    (void)new std::vector<Slot>(std::move(slots_));
  }

  Status submit(uint64_t id, BlockOp op) override {
    if (free_.empty()) return fail(Code::kUnavailable, "too many operations are under way");
    const size_t at = free_.back();
    free_.pop_back();
    slots_[at] = {id, std::move(op), true};
    n_under_way_++;
    prepare(at);
    return {};
  }

  Result<std::vector<BlockDone>> wait(int64_t deadline_ns) override {
    std::vector<BlockDone> done;
    while (done.empty() && n_under_way_ != 0) {
      const int64_t left_ns = std::max<int64_t>(deadline_ns - env_->mono_ns(), 0);
      __kernel_timespec timeout{.tv_sec = left_ns / 1'000'000'000, .tv_nsec = left_ns % 1'000'000'000};
      io_uring_cqe* cqe = nullptr;
      const int r = io_uring_submit_and_wait_timeout(ring_.get(), &cqe, 1, &timeout, nullptr);
      if (r < 0 && r != -ETIME && r != -EINTR && r != -EAGAIN && r != -EBUSY)
        return fail(Code::kIo, std::string("io_uring refuses to wait: ") + strerror(-r));
      reap(done);
      if (left_ns == 0) break;
    }
    return done;
  }

  size_t n_under_way() const override { return n_under_way_; }
  const char* name() const override { return "io_uring"; }

 private:
  UringQueue(Env* env, size_t depth) : env_(env), ring_(std::make_unique<io_uring>()), slots_(depth) {
    for (size_t i = depth; i-- > 0;) free_.push_back(i);
  }

  void prepare(size_t at) {
    const BlockOp& op = slots_[at].op;
    io_uring_sqe* sqe = io_uring_get_sqe(ring_.get());
    if (sqe == nullptr) {  // the ring holds as many as there are slots; those prepared before may still wait to be handed over
      (void)io_uring_submit(ring_.get());
      sqe = io_uring_get_sqe(ring_.get());
    }
    if (sqe == nullptr) {
      refused_.push_back(at);
      return;
    }
    const int fd = op.file->descriptor();
    const auto n = static_cast<unsigned>(op.bytes.size());
    if (op.kind == BlockOp::Kind::kRead) io_uring_prep_read(sqe, fd, op.bytes.data(), n, op.offset);
    if (op.kind == BlockOp::Kind::kWrite) io_uring_prep_write(sqe, fd, op.bytes.data(), n, op.offset);
    if (op.kind == BlockOp::Kind::kSync) io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
    io_uring_sqe_set_data64(sqe, at);
  }

  void reap(std::vector<BlockDone>& done) {
    for (const size_t at : std::exchange(refused_, {})) finish(at, -EAGAIN, done);
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(ring_.get(), &cqe) == 0 && cqe != nullptr) {
      const auto at = static_cast<size_t>(io_uring_cqe_get_data64(cqe));
      const int result = cqe->res;
      io_uring_cqe_seen(ring_.get(), cqe);
      if (at >= slots_.size() || !slots_[at].used) continue;
      File& file = *slots_[at].op.file;
      if (result == -EINVAL && file.direct()) {
        file.leave_direct();
        if (!file.direct()) {
          prepare(at);
          continue;
        }
      }
      finish(at, result, done);
    }
  }

  void finish(size_t at, int result, std::vector<BlockDone>& done) {
    BlockDone d{.id = slots_[at].id};
    if (result >= 0) d.n = static_cast<size_t>(result);
    if (result < 0) {
      const Code code = result == -ENOSPC || result == -EDQUOT  ? Code::kExhausted
                        : result == -EAGAIN || result == -EINTR ? Code::kUnavailable
                                                                : Code::kIo;
      d.n = fail(code, std::string("the device says: ") + strerror(-result));
    }
    done.push_back(std::move(d));
    slots_[at] = {};
    free_.push_back(at);
    n_under_way_--;
  }

  Env* env_;
  std::unique_ptr<io_uring> ring_;
  bool open_ = false;
  std::vector<Slot> slots_;
  std::vector<size_t> free_;     // slots
  std::vector<size_t> refused_;  // slots that found no room in the ring
  size_t n_under_way_ = 0;
};

}  // namespace

std::unique_ptr<BlockQueue> uring_block_queue(Env* env, size_t depth) {
  return UringQueue::make(env, depth);
}

}  // namespace carrel
