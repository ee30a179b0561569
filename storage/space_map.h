// Which 4 KiB units of the segment files are free: best fit, neighbours merge. Unit 0 of a segment is its header and never handed out.
//
// Threads: any; one mutex. Knows numbers only, no files. A Region holds its units until it dies, whoever holds it last: a row, a lease, or
// an operation that hangs in the kernel.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>

#include "base/mutex.h"

namespace carrel {

constexpr uint64_t kUnitBytes = 4096;

/// A run of units of one segment file.
struct Place {
  uint32_t segment = 0;
  uint32_t unit = 0;
  uint32_t n_units = 0;

  auto operator<=>(const Place&) const = default;
  uint64_t offset() const { return unit * kUnitBytes; }
  uint64_t bytes() const { return n_units * kUnitBytes; }
};

class SpaceMap {
 public:
  /// A segment of n_units, all free but its header; or more of one that is known.
  void extend(uint32_t segment, uint32_t n_units);
  /// The smallest run that fits.
  std::optional<Place> take(uint32_t n_units);
  /// Exactly these; false when one of them is taken, is a header or does not exist.
  bool take_at(const Place& place);
  /// The first free units at or after `from`, at most `most` of them.
  std::optional<Place> take_next(uint32_t segment, uint32_t from, uint32_t most);
  void give(const Place& place);

  /// Free units at the end of a segment.
  uint32_t tail(uint32_t segment);
  /// Forgets the free tail; answers the units that are left.
  uint32_t cut_tail(uint32_t segment);
  /// Forgets the segment if nothing of it is taken.
  bool drop_if_empty(uint32_t segment);

  uint64_t free_units();

 private:
  struct Segment {
    uint32_t n_units = 1;
    std::map<uint32_t, uint32_t> runs;  // first unit → units
  };
  void insert(Segment& s, const Place& run) CARREL_REQUIRES(mutex_);
  void remove(Segment& s, const Place& run) CARREL_REQUIRES(mutex_);
  void take_part(Segment& s, const Place& run, const Place& part) CARREL_REQUIRES(mutex_);
  void give_locked(const Place& place) CARREL_REQUIRES(mutex_);

  Mutex mutex_;
  std::map<uint32_t, Segment> segments_ CARREL_GUARDED_BY(mutex_);
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> by_size_ CARREL_GUARDED_BY(mutex_);  // units, segment, first unit
  uint64_t free_units_ CARREL_GUARDED_BY(mutex_) = 0;
};

/// Units that are taken; free again when it dies.
class Region {
 public:
  Region(std::shared_ptr<SpaceMap> map, const Place& place) : map_(std::move(map)), place_(place) {}
  ~Region() { map_->give(place_); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  const Place& place() const { return place_; }

 private:
  std::shared_ptr<SpaceMap> map_;
  const Place place_;
};

}  // namespace carrel
