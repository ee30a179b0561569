// See stop.h. One Knuth-Morris-Pratt automaton per stop string; the longest current match of any is what must be held back.
#include "engine/text/stop.h"

#include <algorithm>

namespace carrel {

Result<StopMatcher> StopMatcher::create(std::vector<std::string> stops) {
  if (stops.size() > kMaxStops) return fail(Code::kInvalidArgument, "more than 64 stop strings; send fewer", "stop");
  StopMatcher m;
  for (std::string& s : stops) {
    if (s.empty()) return fail(Code::kInvalidArgument, "a stop string is empty; leave it out", "stop");
    if (s.size() > kMaxStopBytes) return fail(Code::kInvalidArgument, "a stop string is longer than 4096 bytes; shorten it", "stop");
    Pattern p{std::move(s), {}, 0};
    p.fallback.assign(p.text.size() + 1, 0);
    for (size_t i = 1, k = 0; i < p.text.size(); ++i) {
      while (k > 0 && p.text[i] != p.text[k]) k = p.fallback[k];
      if (p.text[i] == p.text[k]) ++k;
      p.fallback[i + 1] = k;
    }
    m.patterns_.push_back(std::move(p));
  }
  return m;
}

StopMatcher::Out StopMatcher::push(std::string_view text) {
  Out out;
  if (stopped_) return out;
  for (char c : text) {
    held_ += c;
    size_t open = 0;
    std::optional<size_t> hit;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& p = patterns_[i];
      while (p.matched > 0 && p.text[p.matched] != c) p.matched = p.fallback[p.matched];
      if (p.text[p.matched] == c) ++p.matched;
      open = std::max(open, p.matched);
      // Of several that are complete here the longest one began first.
      if (p.matched == p.text.size() && (!hit || p.text.size() > patterns_[*hit].text.size())) hit = i;
    }
    if (hit) {
      out.text.append(held_, 0, held_.size() - patterns_[*hit].text.size());
      out.stop = hit;
      stopped_ = true;
      held_.clear();
      return out;
    }
    const size_t safe = held_.size() - open;
    out.text.append(held_, 0, safe);
    held_.erase(0, safe);
  }
  return out;
}

std::string StopMatcher::flush() { return std::exchange(held_, {}); }

}  // namespace carrel
