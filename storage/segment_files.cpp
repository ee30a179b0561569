#include "storage/segment_files.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/aligned.h"
#include "base/codec.h"
#include "base/log.h"

namespace carrel {
namespace {

constexpr std::string_view kMagic = "CARRELSG";
constexpr uint32_t kVersion = 1;
constexpr std::string_view kPrefix = "segment-", kSuffix = ".ext", kUnfinished = ".new";

std::string name_of(uint32_t number) {
  const std::string digits = std::to_string(number);
  return std::string(kPrefix) + std::string(digits.size() < 6 ? 6 - digits.size() : 0, '0') + digits + std::string(kSuffix);
}

std::optional<uint32_t> number_of(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) || name.size() < kPrefix.size() + kSuffix.size() + 6) return std::nullopt;
  uint64_t number = 0;
  for (const char c : name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size())) {
    if (c < '0' || c > '9' || number > UINT32_MAX / 10) return std::nullopt;
    number = number * 10 + static_cast<uint64_t>(c - '0');
  }
  if (number == 0 || number >= UINT32_MAX || name_of(static_cast<uint32_t>(number)) != name) return std::nullopt;
  return static_cast<uint32_t>(number);
}

// Unit 0: magic, version, number, store, SHA-256 of that, zeros.
Bytes header_of(const Digest& store, uint32_t number) {
  ByteWriter w;
  w.raw(std::as_bytes(std::span(kMagic)));
  w.u32(kVersion);
  w.u32(number);
  w.raw(store);
  w.raw(sha256(w.bytes()));
  Bytes unit = w.take();
  unit.resize(kUnitBytes);
  return unit;
}

// Files of the store that are no segments.
bool is_ours(std::string_view name) {
  return name.starts_with("extents.db") || name.starts_with("store.id");
}

}  // namespace

SegmentFiles::SegmentFiles(Env* env, BlockIo* io, SegmentConfig config)
    : env_(env),
      io_(io),
      config_(std::move(config)),
      segment_units_(static_cast<uint32_t>(std::clamp<uint64_t>(config_.segment_bytes / kUnitBytes, 2, uint64_t{1} << 24))) {}

std::string SegmentFiles::path_of(uint32_t number) const {
  return config_.dir + "/" + name_of(number);
}

Result<Digest> SegmentFiles::read_header(const std::shared_ptr<File>& file, uint32_t number) {
  CARREL_ASSIGN(auto unit, AlignedBytes::allocate(kUnitBytes));
  const auto buffer = std::make_shared<AlignedBytes>(std::move(unit));
  CARREL_TRY(io_->run_one({BlockOp::Kind::kRead, file, 0, buffer->span(), buffer}, env_->mono_ns() + config_.deadline_ms * 1'000'000));
  ByteReader r(buffer->span());
  Digest store{};
  const auto found = r.raw(kMagic.size());
  if (!found || std::memcmp(found->data(), kMagic.data(), kMagic.size()) != 0) return fail(Code::kCorrupt, "is no segment file");
  CARREL_TRY(r.raw(8));
  CARREL_ASSIGN(const auto id, r.raw(store.size()));
  std::copy(id.begin(), id.end(), store.begin());
  if (std::memcmp(header_of(store, number).data(), buffer->data(), kUnitBytes) != 0)
    return fail(Code::kCorrupt, "its header is damaged or of another segment");
  return store;
}

Result<std::shared_ptr<File>> SegmentFiles::open_segment(uint32_t number) {
  CARREL_ASSIGN(std::shared_ptr<File> file, env_->open_blocks(path_of(number), Open::kReadWrite));
  CARREL_ASSIGN(const Digest store, read_header(file, number));
  if (store != store_id_) return fail(Code::kCorrupt, "belongs to another store", path_of(number));
  return file;
}

// The name of the store lies in a file of its own; lost, it is what the first segment says.
Status SegmentFiles::load_id(const std::vector<uint32_t>& numbers) {
  const std::string path = config_.dir + "/store.id";
  const auto stored = read_file(env_, path, 4096);
  if (stored && stored->size() == store_id_.size()) {
    std::memcpy(store_id_.data(), stored->data(), store_id_.size());
    return {};
  }
  if (!stored && stored.error().code != Code::kNotFound && stored.error().code != Code::kInvalidArgument)
    return std::unexpected(stored.error());
  env_->random(store_id_);
  for (const uint32_t number : numbers) {
    auto file = env_->open_blocks(path_of(number), Open::kRead);
    const auto store = file ? read_header(*std::move(file), number) : std::unexpected(file.error());
    if (!store) continue;
    store_id_ = *store;
    break;
  }
  return write_file_atomic(env_, path, {reinterpret_cast<const char*>(store_id_.data()), store_id_.size()});
}

Status SegmentFiles::open() {
  CARREL_ASSIGN(const auto names, env_->list(config_.dir));
  std::vector<uint32_t> numbers;
  for (const std::string& name : names) {
    const auto number = number_of(name);
    if (number) numbers.push_back(*number);
    if (number || is_ours(name)) continue;
    if (name.starts_with(kPrefix) && name.ends_with(kUnfinished)) {
      CARREL_TRY(env_->remove(config_.dir + "/" + name));
    } else {
      foreign_.push_back(config_.dir + "/" + name + ": is no file of the offload store");
    }
  }
  CARREL_TRY(load_id(numbers));
  for (const uint32_t number : numbers) {
    last_number_ = std::max(last_number_, number);
    auto file = open_segment(number);
    if (!file) {
      n_refused_++;
      foreign_.push_back(path_of(number) + ": " + file.error().message);
      spdlog::warn("offload store: {} is left alone: {}", path_of(number), file.error().message);
      continue;
    }
    CARREL_ASSIGN(const uint64_t size, (*file)->size());
    const auto n_units = static_cast<uint32_t>(std::min<uint64_t>(size / kUnitBytes, UINT32_MAX - 1));
    space_->extend(number, n_units);
    MutexLock lock(mutex_);
    segments_[number] = {*std::move(file), n_units};
  }
  for (auto all = segments(); bytes() > config_.max_bytes && !all.empty(); all = segments()) {
    const uint32_t last = all.rbegin()->first;
    spdlog::info("offload store: {} goes, the budget is smaller than what is there", path_of(last));
    (void)space_->drop_if_empty(last);
    CARREL_TRY(remove_segment(last));
  }
  return {};
}

Status SegmentFiles::remove_segment(uint32_t number) {
  std::shared_ptr<File> last;
  {
    MutexLock lock(mutex_);
    last = std::move(segments_[number].file);
    segments_.erase(number);
  }
  return env_->remove(path_of(number));
}

std::shared_ptr<Region> SegmentFiles::at(const Place& place) {
  return space_->take_at(place) ? std::make_shared<Region>(space_, place) : nullptr;
}

std::shared_ptr<File> SegmentFiles::file(uint32_t segment) {
  MutexLock lock(mutex_);
  const auto it = segments_.find(segment);
  return it == segments_.end() ? nullptr : it->second.file;
}

std::map<uint32_t, uint32_t> SegmentFiles::segments() {
  MutexLock lock(mutex_);
  std::map<uint32_t, uint32_t> all;
  for (const auto& [number, s] : segments_) all[number] = s.n_units;
  return all;
}

uint64_t SegmentFiles::bytes() {
  MutexLock lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [number, s] : segments_) sum += s.n_units * kUnitBytes;
  return sum;
}

bool SegmentFiles::direct() {
  MutexLock lock(mutex_);
  return !segments_.empty() && segments_.begin()->second.file->direct();
}

Result<std::shared_ptr<Region>> SegmentFiles::allocate(uint32_t n_units) {
  if (n_units == 0 || n_units > most_units())
    return fail(Code::kInvalidArgument, "an extent of " + std::to_string(n_units * kUnitBytes) + " bytes does not fit into a segment file");
  auto place = space_->take(n_units);
  if (!place) {
    CARREL_TRY(grow(n_units));
    place = space_->take(n_units);
  }
  if (!place) return fail(Code::kInternal, "space was made and is not there", config_.dir);
  return std::make_shared<Region>(space_, *place);
}

std::vector<Result<std::shared_ptr<Region>>> SegmentFiles::allocate(std::span<const uint32_t> n_units) {
  std::vector<Result<std::shared_ptr<Region>>> out;
  uint64_t total = 0;
  for (const uint32_t n : n_units) total += n;
  if (n_units.size() > 1 && total <= most_units()) {
    auto run = space_->take(static_cast<uint32_t>(total));
    if (!run && grow(static_cast<uint32_t>(total))) run = space_->take(static_cast<uint32_t>(total));
    if (run) {
      for (const uint32_t n : n_units) {
        out.push_back(std::make_shared<Region>(space_, Place{run->segment, run->unit, n}));
        run->unit += n;
      }
      return out;
    }
  }
  for (const uint32_t n : n_units) out.push_back(allocate(n));
  return out;
}

Status SegmentFiles::check_room(uint64_t more_bytes) {
  if (bytes() + more_bytes > config_.max_bytes) return fail(Code::kExhausted, "the budget of the disk tier is used up", kBudget);
  if (config_.reserve_bytes == 0) return {};
  CARREL_ASSIGN(const uint64_t left, env_->free_bytes(config_.dir));
  if (left < more_bytes || left - more_bytes < config_.reserve_bytes)
    return fail(Code::kExhausted, "the file system has only " + std::to_string(left) + " bytes left and the reserve must stay free",
                config_.dir);
  return {};
}

// In a segment that has room at its end, or in a new one; by a whole step, or where that fails by just what is needed.
Status SegmentFiles::grow(uint32_t n_units) {
  const auto step = static_cast<uint32_t>(std::min<uint64_t>(config_.growth_bytes / kUnitBytes, segment_units_));
  for (const auto& [number, now] : segments()) {
    const uint32_t tail = space_->tail(number);
    const uint64_t needed = uint64_t{now} + n_units - tail;
    if (needed > segment_units_) continue;
    const auto wished = static_cast<uint32_t>(std::min<uint64_t>(std::max<uint64_t>(needed, now + step), segment_units_));
    if (grow_segment(number, wished)) return {};
    return grow_segment(number, static_cast<uint32_t>(needed));
  }
  if (make_segment(std::max(n_units + 1, step))) return {};
  return make_segment(n_units + 1);
}

Status SegmentFiles::grow_segment(uint32_t number, uint32_t n_units) {
  const std::shared_ptr<File> file = this->file(number);
  CARREL_ASSIGN(const uint64_t now, file->size());
  if (now < n_units * kUnitBytes) CARREL_TRY(check_room(n_units * kUnitBytes - now));
  CARREL_TRY(file->reserve(n_units * kUnitBytes));
  {
    MutexLock lock(mutex_);
    segments_[number].n_units = n_units;
  }
  space_->extend(number, n_units);
  return {};
}

Status SegmentFiles::make_segment(uint32_t n_units) {
  CARREL_TRY(check_room(n_units * kUnitBytes));
  const uint32_t number = last_number_ + 1;
  const std::string path = path_of(number), unfinished = path + std::string(kUnfinished);
  if (env_->exists(path)) {
    last_number_ = number;
    return fail(Code::kAlreadyExists, "a file appeared under the name of the next segment; it is left alone", path);
  }
  CARREL_ASSIGN(std::shared_ptr<File> file, env_->open_blocks(unfinished, Open::kCreate));
  const auto fill = [&]() -> Status {
    CARREL_TRY(file->truncate(0));
    CARREL_TRY(file->reserve(n_units * kUnitBytes));
    CARREL_ASSIGN(auto unit, AlignedBytes::allocate(kUnitBytes));
    const auto buffer = std::make_shared<AlignedBytes>(std::move(unit));
    const Bytes header = header_of(store_id_, number);
    std::copy(header.begin(), header.end(), buffer->data());
    const int64_t deadline = env_->mono_ns() + config_.deadline_ms * 1'000'000;
    CARREL_TRY(io_->run_one({BlockOp::Kind::kWrite, file, 0, buffer->span(), buffer}, deadline));
    CARREL_TRY(io_->run_one({BlockOp::Kind::kSync, file, 0, {}, nullptr}, deadline));
    return env_->rename(unfinished, path);
  };
  if (Status s = fill(); !s) {
    (void)env_->remove(unfinished);
    return s;
  }
  last_number_ = number;
  if (Status s = env_->sync_dir(config_.dir); !s) {  // perhaps durable, perhaps not: not ours then
    (void)env_->remove(path);
    return s;
  }
  {
    MutexLock lock(mutex_);
    segments_[number] = {std::move(file), n_units};
  }
  space_->extend(number, n_units);
  return {};
}

Status SegmentFiles::shrink() {
  bool cut = false;
  if (config_.reserve_bytes != 0) {
    CARREL_ASSIGN(const uint64_t left, env_->free_bytes(config_.dir));
    cut = left < config_.reserve_bytes;
  }
  for (const auto& [number, n_units] : segments()) {
    if (space_->drop_if_empty(number)) {
      CARREL_TRY(remove_segment(number));
    } else if (cut && space_->tail(number) != 0) {
      const uint32_t left = space_->cut_tail(number);
      {
        MutexLock lock(mutex_);
        segments_[number].n_units = left;
      }
      CARREL_TRY(file(number)->truncate(left * kUnitBytes));
    }
  }
  return {};
}

}  // namespace carrel
