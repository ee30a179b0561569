// The segment files of the disk tier: found, made, grown, cut and removed; never more bytes than the budget, and the reserve stays free.
//
// A segment is "segment-000001.ext": unit 0 names its store and its number, everything after that is extents. A file of such a name that is
// not this store's (a link, a folder, other content, another number) is reported and left alone. A new segment gets its name only when its
// header is durable.
//
// Threads: file, at, space, bytes: any. open, allocate, shrink change the set: one thread at a time. Errors of allocate: kExhausted,
// `where` says of what: kBudget, or the folder when the file system is full; kIo.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/hash.h"
#include "storage/block_io.h"
#include "storage/space_map.h"

namespace carrel {

struct SegmentConfig {
  std::string dir;
  uint64_t max_bytes = 0;      // of all segment files
  uint64_t reserve_bytes = 0;  // of the file system, kept free
  uint64_t segment_bytes = uint64_t{256} << 20;
  uint64_t growth_bytes = uint64_t{16} << 20;
  int64_t deadline_ms = 30'000;  // of one header
};

class SegmentFiles {
 public:
  static constexpr const char* kBudget = "max_bytes";

  SegmentFiles(Env* env, BlockIo* io, SegmentConfig config);

  /// Finds what is there. The folder exists. More than the budget (it was lowered): whole segments go, the last ones first.
  Status open();
  /// A run of that many units, where there is space or where space can be made.
  Result<std::shared_ptr<Region>> allocate(uint32_t n_units);
  /// Several, one behind the other where that is possible.
  std::vector<Result<std::shared_ptr<Region>>> allocate(std::span<const uint32_t> n_units);
  /// Exactly these units; null when they are not free or do not exist.
  std::shared_ptr<Region> at(const Place& place);
  /// Units that were taken from space().
  std::shared_ptr<Region> hold(const Place& taken) { return std::make_shared<Region>(space_, taken); }
  /// Null when there is no such segment.
  std::shared_ptr<File> file(uint32_t segment);
  /// Removes segments without content; below the reserve also cuts free tails.
  Status shrink();

  SpaceMap& space() { return *space_; }
  /// Number → units of the file.
  std::map<uint32_t, uint32_t> segments();
  uint64_t bytes();  // of all files
  bool direct();
  /// What was found in the folder and is not ours, with the reason.
  const std::vector<std::string>& foreign() const { return foreign_; }
  /// Of these, files with the name of a segment: put right, they are segments again, with whatever lies in them.
  size_t n_refused() const { return n_refused_; }
  uint32_t most_units() const { return segment_units_ - 1; }  // of one extent
  /// Of the file system.
  Result<uint64_t> disk_free() { return env_->free_bytes(config_.dir); }

  /// Opens a segment by its name again: kDenied (link), kInvalidArgument (no plain file), kCorrupt (not this store's, or not this number).
  Result<std::shared_ptr<File>> open_segment(uint32_t number);
  std::string path_of(uint32_t number) const;

 private:
  struct Segment {
    std::shared_ptr<File> file;
    uint32_t n_units = 0;
  };
  Status load_id(const std::vector<uint32_t>& numbers);
  Result<Digest> read_header(const std::shared_ptr<File>& file, uint32_t number);
  Status remove_segment(uint32_t number);
  Status check_room(uint64_t more_bytes);
  Status grow(uint32_t n_units);
  Status grow_segment(uint32_t number, uint32_t n_units);
  Status make_segment(uint32_t n_units);

  Env* env_;
  BlockIo* io_;
  const SegmentConfig config_;
  const uint32_t segment_units_;
  Digest store_id_{};
  uint32_t last_number_ = 0;
  std::vector<std::string> foreign_;
  size_t n_refused_ = 0;
  const std::shared_ptr<SpaceMap> space_ = std::make_shared<SpaceMap>();
  Mutex mutex_;
  std::map<uint32_t, Segment> segments_ CARREL_GUARDED_BY(mutex_);
};

}  // namespace carrel
