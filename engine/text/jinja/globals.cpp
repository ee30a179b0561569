// Global functions of a chat template: range, dict, namespace, raise_exception, strftime_now.
#include <array>
#include <chrono>
#include <cstdio>

#include "engine/text/jinja/interp.h"

namespace carrel::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // MAX_RANGE of Jinja's sandbox

Value range(Interp& in, const Args& a) {
  const size_t n_args = a.positional.size();
  if (n_args < 1 || n_args > 3) in.bad("range takes one to three integers");
  for (const Value& v : a.positional) {
    if (!v.is_intlike()) in.bad(std::string("range needs integers, not '") + type_name(v) + "'");
  }
  const int64_t start = n_args > 1 ? a.positional[0].as_int() : 0, stop = a.positional[n_args > 1].as_int();
  const int64_t stride = n_args > 2 ? a.positional[2].as_int() : 1;
  if (stride == 0) in.bad("the step of a range cannot be zero");
  auto seq = std::make_shared<Seq>();
  seq->depth = 1;
  seq->label = "range(" + std::to_string(start) + ", " + std::to_string(stop) + (stride != 1 ? ", " + std::to_string(stride) : "") + ")";
  int64_t i = start;
  while (stride > 0 ? i < stop : i > stop) {
    if (static_cast<int64_t>(seq->items.size()) == kMaxRange) in.raise(Code::kExhausted, "range has more than 100000 items");
    seq->items.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  in.step(seq->items.size());
  return Value::object(Kind::kRange, std::move(seq));
}

Value make_from(Interp& in, const Args& a, bool name_space) {
  std::vector<std::pair<Value, Value>> items;
  if (a.positional.size() > 1) in.bad("dict and namespace take one mapping and named values");
  if (!a.positional.empty()) {
    if (!a.positional[0].is(Kind::kDict)) in.bad("dict and namespace take a mapping");
    items = a.positional[0].dict().items;
  }
  for (const auto& [k, v] : a.named) items.emplace_back(in.text(k), v);
  if (!name_space) return in.dict(std::move(items));
  std::vector<std::pair<std::string, Value>> attributes;
  for (const auto& [k, v] : items) attributes.emplace_back(k.is_string() ? k.bytes() : in.repr(k), v);
  return in.make_namespace(std::move(attributes));
}

constexpr std::array<const char*, 12> kMonths = {"January", "February", "March",     "April",   "May",      "June",
                                                 "July",    "August",   "September", "October", "November", "December"};
constexpr std::array<const char*, 7> kDays = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};

struct Moment {
  int year, month, day, weekday, yearday, hour, minute, second;
  int64_t micros;
};

Moment moment_of(const Clock& clock) {
  using namespace std::chrono;
  const sys_time<milliseconds> t{milliseconds(clock.unix_ms + int64_t{clock.utc_offset_min} * 60'000)};
  const auto day = floor<days>(t);
  const year_month_day date{day};
  const hh_mm_ss time{t - day};
  const auto first = sys_days{date.year() / January / 1};
  return {int{date.year()},
          static_cast<int>(unsigned{date.month()}),
          static_cast<int>(unsigned{date.day()}),
          static_cast<int>(weekday{day}.c_encoding()),
          static_cast<int>((day - first).count()) + 1,
          static_cast<int>(time.hours().count()),
          static_cast<int>(time.minutes().count()),
          static_cast<int>(time.seconds().count()),
          time.subseconds().count() * 1000};
}

std::string padded(int64_t n, int width) {
  char buf[32];
  std::snprintf(buf, sizeof buf, "%0*lld", width, static_cast<long long>(n));
  return buf;
}

std::string time_field(char c, const Moment& m) {
  const char* month = kMonths[static_cast<size_t>(m.month - 1)];
  const char* day = kDays[static_cast<size_t>(m.weekday)];
  switch (c) {
    case 'Y': return std::to_string(m.year);
    case 'y': return padded(m.year % 100, 2);
    case 'm': return padded(m.month, 2);
    case 'd': return padded(m.day, 2);
    case 'e': return (m.day < 10 ? " " : "") + std::to_string(m.day);
    case 'B': return month;
    case 'b':
    case 'h': return std::string(month).substr(0, 3);
    case 'A': return day;
    case 'a': return std::string(day).substr(0, 3);
    case 'w': return std::to_string(m.weekday);
    case 'u': return std::to_string(m.weekday == 0 ? 7 : m.weekday);
    case 'j': return padded(m.yearday, 3);
    case 'H': return padded(m.hour, 2);
    case 'I': return padded((m.hour + 11) % 12 + 1, 2);
    case 'M': return padded(m.minute, 2);
    case 'S': return padded(m.second, 2);
    case 'f': return padded(m.micros, 6);
    case 'p': return m.hour < 12 ? "AM" : "PM";
    case 'F': return padded(m.year, 4) + "-" + padded(m.month, 2) + "-" + padded(m.day, 2);
    case 'T':
    case 'X': return padded(m.hour, 2) + ":" + padded(m.minute, 2) + ":" + padded(m.second, 2);
    case 'R': return padded(m.hour, 2) + ":" + padded(m.minute, 2);
    case 'D':
    case 'x': return padded(m.month, 2) + "/" + padded(m.day, 2) + "/" + padded(m.year % 100, 2);
    case 'Z':
    case 'z': return "";  // a time without a zone, as datetime.now() gives
    case 'n': return "\n";
    case 't': return "\t";
    case '%': return "%";
    default: return std::string("%") + c;
  }
}

Value strftime_now(Interp& in, const Args& a) {
  const Value& format = string_arg(in, a.find(0, "format"), "strftime_now");
  const Moment m = moment_of(in.clock());
  const TextBody& t = format.str().text;
  TextBuilder b;
  in.step(t.bytes.size());
  for (size_t i = 0; i < t.bytes.size(); ++i) {
    if (t.bytes[i] != '%' || i + 1 >= t.bytes.size()) {
      b.append(t, i, i + 1);
      continue;
    }
    ++i;
    const bool bare = t.bytes[i] == '-' && i + 1 < t.bytes.size();  // %-d: without leading zeros
    std::string f = time_field(t.bytes[bare ? ++i : i], m);
    if (bare) f.erase(0, std::min(f.find_first_not_of("0 "), f.size() - 1));
    b.append(f, origin_at(t, i));
  }
  return in.make(b);
}

Value raise_exception(Interp& in, const Args& a) {
  const Value* message = a.find(0, "message");
  std::string words = message != nullptr ? in.to_str(*message).bytes() : "";
  in.raise(Code::kInvalidArgument, words.empty() ? "the template refuses this conversation" : std::move(words));
}

}  // namespace

std::vector<std::pair<std::string, Value>> make_globals(Interp& in) {
  return {
      {"range", in.callable("range", range)},
      {"dict", in.callable("dict", [](Interp& i, const Args& a) { return make_from(i, a, false); })},
      {"namespace", in.callable("namespace", [](Interp& i, const Args& a) { return make_from(i, a, true); })},
      {"raise_exception", in.callable("raise_exception", raise_exception)},
      {"strftime_now", in.callable("strftime_now", strftime_now)},
  };
}

}  // namespace carrel::jinja
