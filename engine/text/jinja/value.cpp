// Construction, truth, equality and the ordered dict. No interpreter state; limits are the caller's.
#include "engine/text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace carrel::jinja {
namespace {

constexpr size_t kIndexFrom = 12;           // a dict below this size is searched in order
constexpr uint64_t kKeyWork = 10'000;       // comparisons spent on one non-string key

uint32_t deepest(const std::vector<Value>& items) {
  uint32_t d = 0;
  for (const Value& v : items) d = std::max(d, v.depth());
  return d;
}

Value make_seq(Kind kind, std::vector<Value> items) {
  auto seq = std::make_shared<Seq>();
  seq->depth = deepest(items) + 1;
  seq->items = std::move(items);
  return Value::object(kind, std::move(seq));
}

}  // namespace

Value Value::boolean(bool b) {
  Value v(Kind::kBool);
  v.bool_ = b;
  return v;
}

Value Value::integer(int64_t i) {
  Value v(Kind::kInt);
  v.int_ = i;
  return v;
}

Value Value::real(double d) {
  Value v(Kind::kFloat);
  v.float_ = d;
  return v;
}

Value Value::string(std::string_view s, Origin origin) {
  TextBuilder b;
  b.append(s, origin);
  return string(b.take());
}

Value Value::string(TextBody body, bool safe) {
  auto s = std::make_shared<Str>();
  s->text = std::move(body);
  s->safe = safe;
  return object(Kind::kString, std::move(s));
}

Value Value::big_int(std::string digits) {
  Value v = string(digits, Origin::kInput);
  v.kind_ = Kind::kBigInt;
  return v;
}

Value Value::undefined(std::string what) {
  Value v = string(what, Origin::kInput);
  v.kind_ = Kind::kUndefined;
  return v;
}

Value Value::list(std::vector<Value> items) { return make_seq(Kind::kList, std::move(items)); }
Value Value::tuple(std::vector<Value> items) { return make_seq(Kind::kTuple, std::move(items)); }

Value Value::object(Kind kind, std::shared_ptr<Object> body) {
  Value v(kind);
  v.body_ = std::move(body);
  return v;
}

const Str& Value::str() const { return static_cast<const Str&>(*body_); }
const std::string& Value::bytes() const { return str().text.bytes; }
const Seq& Value::seq() const { return static_cast<const Seq&>(*body_); }
const Dict& Value::dict() const { return static_cast<const Dict&>(*body_); }

bool Value::truthy() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return bool_;
    case Kind::kInt:
      return int_ != 0;
    case Kind::kFloat:
      return float_ != 0;
    case Kind::kString:
      return !bytes().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
    case Kind::kRange:
      return !seq().items.empty();
    case Kind::kDict:
      return !dict().items.empty();
    default:
      return true;
  }
}

const Value* Dict::find(std::string_view key) const {
  if (!index_.empty()) {
    const auto it = index_.find(std::string(key));
    return it == index_.end() ? nullptr : &items[it->second].second;
  }
  for (const auto& [k, v] : items) {
    if (k.is_string() && k.bytes() == key) return &v;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string()) return find(key.bytes());
  for (const auto& [k, v] : items) {
    uint64_t work = kKeyWork;
    if (!k.is_string() && equal(k, key, work)) return &v;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  depth = std::max({depth, key.depth() + 1, value.depth() + 1});
  if (const Value* old = find(key)) {
    *const_cast<Value*>(old) = std::move(value);  // the entry is ours
    return;
  }
  items.emplace_back(std::move(key), std::move(value));
  if (items.size() < kIndexFrom) return;
  const size_t first = index_.empty() ? 0 : items.size() - 1;
  for (size_t i = first; i < items.size(); ++i) {
    if (items[i].first.is_string()) index_.emplace(items[i].first.bytes(), i);
  }
}

Value make_dict(std::vector<std::pair<Value, Value>> items) {
  auto d = std::make_shared<Dict>();
  d->depth = 1;
  for (auto& [k, v] : items) d->set(std::move(k), std::move(v));
  return Value::object(Kind::kDict, std::move(d));
}

namespace {

bool equal_seq(const Seq& a, const Seq& b, uint64_t& work) {
  if (a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(a.items[i], b.items[i], work)) return false;
  }
  return true;
}

bool equal_dict(const Dict& a, const Dict& b, uint64_t& work) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [k, v] : a.items) {
    const Value* other = b.find(k);
    if (other == nullptr || !equal(v, *other, work)) return false;
  }
  return true;
}

}  // namespace

bool equal(const Value& a, const Value& b, uint64_t& work) {
  if (work == 0) return false;
  --work;
  if (a.is_intlike() && b.is_intlike()) return a.as_int() == b.as_int();
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
    case Kind::kBigInt:
      if (a.bytes().size() != b.bytes().size()) return false;
      work -= std::min(work, uint64_t{a.bytes().size() / 64});
      return a.bytes() == b.bytes();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
      return a.body() == b.body() || equal_seq(a.seq(), b.seq(), work);
    case Kind::kDict:
      return a.body() == b.body() || equal_dict(a.dict(), b.dict(), work);
    default:
      return a.body() == b.body();
  }
}

std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buf[40];
  auto res = std::to_chars(buf, buf + sizeof buf, d, std::chars_format::scientific);
  std::string_view s(buf, static_cast<size_t>(res.ptr - buf));
  const size_t e = s.find('e');
  int exponent = 0;
  std::from_chars(s.data() + e + (s[e + 1] == '+' ? 2 : 1), s.data() + s.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    return std::string(s);  // to_chars writes at least two digits of exponent, as Python does
  }
  res = std::to_chars(buf, buf + sizeof buf, d, std::chars_format::fixed);
  std::string out(buf, res.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

const char* type_name(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt:
    case Kind::kBigInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kView: return "dict view";
    case Kind::kRange: return "range";
    case Kind::kDict: return "dict";
    case Kind::kNamespace: return "Namespace";
    case Kind::kGenerator: return "generator";
    case Kind::kCallable: return "function";
    case Kind::kLoop: return "LoopContext";
  }
  return "?";
}

}  // namespace carrel::jinja
