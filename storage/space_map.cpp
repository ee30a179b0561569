#include "storage/space_map.h"

#include <algorithm>

namespace carrel {

void SpaceMap::insert(Segment& s, const Place& run) {
  s.runs[run.unit] = run.n_units;
  by_size_.emplace(run.n_units, run.segment, run.unit);
  free_units_ += run.n_units;
}

void SpaceMap::remove(Segment& s, const Place& run) {
  s.runs.erase(run.unit);
  by_size_.erase({run.n_units, run.segment, run.unit});
  free_units_ -= run.n_units;
}

void SpaceMap::give_locked(const Place& place) {
  Segment& s = segments_.at(place.segment);
  Place merged = place;
  const auto next = s.runs.lower_bound(place.unit);
  if (next != s.runs.begin()) {
    const auto& [unit, n] = *std::prev(next);
    if (unit + n == place.unit) {
      merged.unit = unit;
      merged.n_units += n;
    }
  }
  if (next != s.runs.end() && next->first == place.unit + place.n_units) {
    merged.n_units += next->second;
    remove(s, {place.segment, next->first, next->second});
  }
  if (merged.unit != place.unit) remove(s, {place.segment, merged.unit, place.unit - merged.unit});
  insert(s, merged);
}

void SpaceMap::extend(uint32_t segment, uint32_t n_units) {
  MutexLock lock(mutex_);
  Segment& s = segments_[segment];
  if (n_units <= s.n_units) return;
  const Place more{segment, s.n_units, n_units - s.n_units};
  s.n_units = n_units;
  give_locked(more);
}

// Out of a free run.
void SpaceMap::take_part(Segment& s, const Place& run, const Place& part) {
  remove(s, run);
  const uint32_t end = part.unit + part.n_units, run_end = run.unit + run.n_units;
  if (part.unit > run.unit) insert(s, {run.segment, run.unit, part.unit - run.unit});
  if (run_end > end) insert(s, {run.segment, end, run_end - end});
}

std::optional<Place> SpaceMap::take(uint32_t n_units) {
  MutexLock lock(mutex_);
  const auto it = by_size_.lower_bound({n_units, 0, 0});
  if (it == by_size_.end()) return std::nullopt;
  const auto [n, segment, unit] = *it;
  const Place part{segment, unit, n_units};
  take_part(segments_.at(segment), {segment, unit, n}, part);
  return part;
}

bool SpaceMap::take_at(const Place& place) {
  MutexLock lock(mutex_);
  const auto known = segments_.find(place.segment);
  if (known == segments_.end() || place.n_units == 0) return false;
  auto it = known->second.runs.upper_bound(place.unit);
  if (it == known->second.runs.begin()) return false;
  const auto [unit, n] = *--it;
  if (uint64_t{place.unit} + place.n_units > uint64_t{unit} + n) return false;
  take_part(known->second, {place.segment, unit, n}, place);
  return true;
}

std::optional<Place> SpaceMap::take_next(uint32_t segment, uint32_t from, uint32_t most) {
  MutexLock lock(mutex_);
  const auto known = segments_.find(segment);
  if (known == segments_.end()) return std::nullopt;
  auto& runs = known->second.runs;
  auto it = runs.upper_bound(from);
  if (it != runs.begin() && std::prev(it)->first + std::prev(it)->second > from) --it;
  if (it == runs.end()) return std::nullopt;
  const Place run{segment, it->first, it->second};
  const uint32_t unit = std::max(from, run.unit);
  const Place part{segment, unit, std::min(most, run.unit + run.n_units - unit)};
  take_part(known->second, run, part);
  return part;
}

void SpaceMap::give(const Place& place) {
  MutexLock lock(mutex_);
  give_locked(place);
}

uint32_t SpaceMap::tail(uint32_t segment) {
  MutexLock lock(mutex_);
  const auto known = segments_.find(segment);
  if (known == segments_.end() || known->second.runs.empty()) return 0;
  const auto& [unit, n] = *known->second.runs.rbegin();
  return unit + n == known->second.n_units ? n : 0;
}

uint32_t SpaceMap::cut_tail(uint32_t segment) {
  MutexLock lock(mutex_);
  Segment& s = segments_.at(segment);
  if (!s.runs.empty()) {
    const auto [unit, n] = *s.runs.rbegin();
    if (unit + n == s.n_units) {
      remove(s, {segment, unit, n});
      s.n_units = unit;
    }
  }
  return s.n_units;
}

bool SpaceMap::drop_if_empty(uint32_t segment) {
  MutexLock lock(mutex_);
  const auto known = segments_.find(segment);
  if (known == segments_.end()) return false;
  Segment& s = known->second;
  const bool empty = s.n_units == 1 || (s.runs.size() == 1 && s.runs.begin()->second == s.n_units - 1);
  if (!empty) return false;
  if (!s.runs.empty()) remove(s, {segment, s.runs.begin()->first, s.runs.begin()->second});
  segments_.erase(known);
  return true;
}

uint64_t SpaceMap::free_units() {
  MutexLock lock(mutex_);
  return free_units_;
}

}  // namespace carrel
