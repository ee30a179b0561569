// See the header.
#include "engine/model/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <set>

#include "engine/model/json_text.h"

namespace carrel {
namespace {

constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4},        {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},    {3, "Q4_1", 32, 20},    {6, "Q5_0", 32, 22},
    {7, "Q5_1", 32, 24},     {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},    {10, "Q2_K", 256, 84},  {11, "Q3_K", 256, 110},
    {12, "Q4_K", 256, 144},  {13, "Q5_K", 256, 176},   {14, "Q6_K", 256, 210}, {15, "Q8_K", 256, 292}, {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74}, {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50}, {20, "IQ4_NL", 32, 18}, {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},  {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},       {25, "I16", 1, 2},      {26, "I32", 1, 4},
    {27, "I64", 1, 8},       {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56}, {30, "BF16", 1, 2},     {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},  {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},
};

constexpr uint64_t kMaxNameBytes = 1024;
constexpr uint64_t kMaxElements = uint64_t{1} << 44;
constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kMaxAlignment = 1 << 20;

enum ValueType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64, kNumTypes };
constexpr std::array<uint64_t, kNumTypes> kMinBytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

/// A scalar as read; the type says which member counts.
struct Scalar {
  uint32_t type = kU8;
  int64_t i = 0;
  uint64_t u = 0;
  double d = 0;
  std::string_view s;
  std::string json() const;
  std::optional<int64_t> integer() const;
};

/// Shortest text that reads back as the same number of the same width.
template <class T>
std::string number_text(T v) {
  if constexpr (std::is_floating_point_v<T>)
    if (!std::isfinite(v)) return "null";
  std::array<char, 40> text;
  const auto r = std::to_chars(text.data(), text.data() + text.size(), v);
  return std::string(text.data(), r.ptr);
}

std::string Scalar::json() const {
  switch (type) {
    case kString:
      return json_quote(s);
    case kBool:
      return u != 0 ? "true" : "false";
    case kF32:
      return number_text(static_cast<float>(d));
    case kF64:
      return number_text(d);
    case kU8:
    case kU16:
    case kU32:
    case kU64:
      return number_text(u);
    default:
      return number_text(i);
  }
}

std::optional<int64_t> Scalar::integer() const {
  if (type == kString || type == kF32 || type == kF64 || type == kBool) return std::nullopt;
  if (type == kU64 && u > INT64_MAX) return std::nullopt;
  return i;
}

class Reader {
 public:
  Reader(std::span<const std::byte> file, std::string where) : file_(file), where_(std::move(where)) {}
  Result<GgufFile> read();

 private:
  std::unexpected<Error> bad(const std::string& why, size_t at) const {
    return fail(Code::kCorrupt, (object_.empty() ? "" : object_ + ": ") + why + " at byte " + std::to_string(at) + "; fetch the file again",
                where_);
  }
  uint64_t left() const { return file_.size() - at_; }
  template <class T>
  Result<T> take();
  Result<std::string_view> text(uint64_t max_bytes);
  Result<Scalar> scalar(uint32_t type);
  Result<uint64_t> array_head(uint32_t* type);
  Result<std::string> array_json(int depth);
  Status head();
  Status pair();
  Status value(const std::string& key);
  Result<bool> token_list(const std::string& key);
  template <class F>
  Status list(uint32_t wanted, F&& add);
  void note(const std::string& key, const Scalar& s);
  void add_json(const std::string& key, const std::string& json) {
    out_.metadata_json += (out_.metadata_json.size() > 1 ? "," : "") + json_quote(key) + ":" + json;
  }
  Status tensor();
  Status place_tensors();
  Status finish();

  std::span<const std::byte> file_;
  std::string where_;
  size_t at_ = 0;
  std::string object_;  // what is being read, for messages
  uint64_t n_tensors_ = 0, n_pairs_ = 0;
  uint64_t alignment_ = 32;
  std::set<std::string> keys_, names_;
  std::vector<uint64_t> offsets_;  // of tensors, from the start of the data
  std::vector<const GgufType*> types_;
  GgufTokenizer tokenizer_;
  GgufFile out_;
  int64_t n_splits_ = 1;
};

template <class T>
Result<T> Reader::take() {
  if (left() < sizeof(T)) return bad("the file ends in the middle of its head", file_.size());
  T v;
  std::memcpy(&v, file_.data() + at_, sizeof(T));
  at_ += sizeof(T);
  return v;
}

Result<std::string_view> Reader::text(uint64_t max_bytes) {
  const size_t begin = at_;
  CARREL_ASSIGN(const uint64_t n, take<uint64_t>());
  if (n > left() || n > max_bytes) return bad("impossible length of a text (" + std::to_string(n) + ")", begin);
  const std::string_view s(reinterpret_cast<const char*>(file_.data()) + at_, n);
  at_ += n;
  return s;
}

Result<Scalar> Reader::scalar(uint32_t type) {
  Scalar s{.type = type, .i = 0, .u = 0, .d = 0, .s = {}};
  const auto unsigned_value = [&](auto v) {
    s.u = v;
    s.i = static_cast<int64_t>(s.u);
  };
  switch (type) {
#define CARREL_GGUF_CASE(tag, T, set)    \
  case tag: {                            \
    CARREL_ASSIGN(const T v, take<T>()); \
    set;                                 \
    break;                               \
  }
    CARREL_GGUF_CASE(kU8, uint8_t, unsigned_value(v))
    CARREL_GGUF_CASE(kU16, uint16_t, unsigned_value(v))
    CARREL_GGUF_CASE(kU32, uint32_t, unsigned_value(v))
    CARREL_GGUF_CASE(kU64, uint64_t, unsigned_value(v))
    CARREL_GGUF_CASE(kBool, uint8_t, unsigned_value(v))
    CARREL_GGUF_CASE(kI8, int8_t, s.i = v)
    CARREL_GGUF_CASE(kI16, int16_t, s.i = v)
    CARREL_GGUF_CASE(kI32, int32_t, s.i = v)
    CARREL_GGUF_CASE(kI64, int64_t, s.i = v)
    CARREL_GGUF_CASE(kF32, float, s.d = static_cast<double>(v))
    CARREL_GGUF_CASE(kF64, double, s.d = v)
#undef CARREL_GGUF_CASE
    case kString: {
      CARREL_ASSIGN(s.s, text(UINT64_MAX));
      break;
    }
    default:
      return bad("unknown value type " + std::to_string(type), at_);
  }
  return s;
}

Result<uint64_t> Reader::array_head(uint32_t* type) {
  const size_t begin = at_;
  CARREL_ASSIGN(*type, take<uint32_t>());
  CARREL_ASSIGN(const uint64_t n, take<uint64_t>());
  if (*type >= kNumTypes) return bad("unknown value type " + std::to_string(*type), begin);
  if (n > left() / kMinBytes[*type]) return bad("impossible length of a list (" + std::to_string(n) + ")", begin);
  return n;
}

Result<std::string> Reader::array_json(int depth) {
  if (depth > kMaxArrayDepth) return bad("lists nest deeper than " + std::to_string(kMaxArrayDepth) + " levels", at_);
  uint32_t type = 0;
  CARREL_ASSIGN(const uint64_t n, array_head(&type));
  std::string out = "[";
  for (uint64_t i = 0; i < n; i++) {
    if (i > 0) out += ',';
    if (type == kArray) {
      CARREL_ASSIGN(const std::string inner, array_json(depth + 1));
      out += inner;
    } else {
      CARREL_ASSIGN(const Scalar s, scalar(type));
      out += s.json();
    }
  }
  return out + "]";
}

template <class F>
Status Reader::list(uint32_t wanted, F&& add) {
  const size_t begin = at_;
  uint32_t type = 0;
  CARREL_ASSIGN(const uint64_t n, array_head(&type));
  const bool int_for_int = wanted == kI32 && (type == kU32 || type == kI32);
  if (type != wanted && !int_for_int) return bad("a list of another type than expected", begin);
  for (uint64_t i = 0; i < n; i++) {
    CARREL_ASSIGN(const Scalar s, scalar(type));
    add(s);
  }
  return {};
}

/// The lists of a tokenizer are kept as they are, not as JSON. False: another key.
Result<bool> Reader::token_list(const std::string& key) {
  const auto add_text = [](std::vector<std::string>& to) { return [&to](const Scalar& s) { to.emplace_back(s.s); }; };
  if (key == "tokenizer.ggml.tokens") {
    CARREL_TRY(list(kString, add_text(tokenizer_.tokens)));
  } else if (key == "tokenizer.ggml.merges") {
    CARREL_TRY(list(kString, add_text(tokenizer_.merges)));
  } else if (key == "tokenizer.ggml.scores") {
    CARREL_TRY(list(kF32, [&](const Scalar& s) { tokenizer_.scores.push_back(static_cast<float>(s.d)); }));
  } else if (key == "tokenizer.ggml.token_type") {
    CARREL_TRY(list(kI32, [&](const Scalar& s) { tokenizer_.types.push_back(static_cast<int32_t>(s.i)); }));
  } else {
    return false;
  }
  return true;
}

/// Keeps the scalars that have a place of their own.
void Reader::note(const std::string& key, const Scalar& s) {
  GgufTokenizer& t = tokenizer_;
  const std::pair<std::string_view, int64_t*> ids[] = {
      {"tokenizer.ggml.bos_token_id", &t.bos},
      {"tokenizer.ggml.eos_token_id", &t.eos},
      {"tokenizer.ggml.eot_token_id", &t.eot},
      {"tokenizer.ggml.eom_token_id", &t.eom},
      {"tokenizer.ggml.unknown_token_id", &t.unk},
      {"tokenizer.ggml.padding_token_id", &t.pad},
      {"split.count", &n_splits_},
  };
  const std::pair<std::string_view, std::optional<bool>*> flags[] = {{"tokenizer.ggml.add_bos_token", &t.add_bos},
                                                                     {"tokenizer.ggml.add_eos_token", &t.add_eos},
                                                                     {"tokenizer.ggml.add_space_prefix", &t.add_space_prefix}};
  const std::pair<std::string_view, std::string*> texts[] = {{"tokenizer.ggml.model", &t.model},
                                                             {"tokenizer.ggml.pre", &t.pre},
                                                             {"tokenizer.chat_template", &out_.chat_template},
                                                             {"general.architecture", &out_.architecture}};
  for (const auto& [name, to] : ids)
    if (name == key && s.integer()) *to = s.type == kU32 && s.u == UINT32_MAX ? -1 : *s.integer();  // converters write -1 as unsigned
  for (const auto& [name, to] : flags)
    if (name == key && s.type == kBool) *to = s.u != 0;
  for (const auto& [name, to] : texts)
    if (name == key && s.type == kString) *to = s.s;
}

Status Reader::value(const std::string& key) {
  const size_t begin = at_;
  CARREL_ASSIGN(const uint32_t type, take<uint32_t>());
  if (type == kArray) {
    CARREL_ASSIGN(const bool kept, token_list(key));
    if (kept) return {};
    CARREL_ASSIGN(const std::string json, array_json(1));
    add_json(key, json);
    return {};
  }
  CARREL_ASSIGN(const Scalar s, scalar(type));
  if (key == "general.alignment") {
    if (s.type != kU32 || !std::has_single_bit(s.u) || s.u > kMaxAlignment) return bad("impossible alignment", begin);
    alignment_ = s.u;
  }
  note(key, s);
  add_json(key, s.json());
  return {};
}

Status Reader::pair() {
  const size_t begin = at_;
  object_ = "metadata";
  CARREL_ASSIGN(const std::string_view name, text(kMaxNameBytes));
  const std::string key(name);
  if (key.empty() || key.find('\0') != std::string::npos || !is_utf8(key)) return bad("impossible key", begin);
  object_ = "key '" + key + "'";
  if (!keys_.insert(key).second) return bad("stands twice", begin);
  return value(key);
}

Status Reader::tensor() {
  const size_t begin = at_;
  object_ = "list of tensors";
  CARREL_ASSIGN(const std::string_view name, text(kMaxNameBytes));
  TensorInfo t;
  t.name = name;
  if (t.name.empty() || t.name.find('\0') != std::string::npos || !is_utf8(t.name)) return bad("impossible name", begin);
  object_ = "tensor '" + t.name + "'";
  if (!names_.insert(t.name).second) return bad("stands twice", begin);
  CARREL_ASSIGN(const uint32_t n_dims, take<uint32_t>());
  if (n_dims < 1 || n_dims > 4) return bad("has " + std::to_string(n_dims) + " dimensions", begin);
  uint64_t n = 1;
  for (uint32_t i = 0; i < n_dims; i++) {
    CARREL_ASSIGN(const uint64_t d, take<uint64_t>());
    if (d == 0 || d > kMaxElements / n) return bad("has an impossible shape", begin);
    n *= d;
    t.shape.insert(t.shape.begin(), static_cast<int64_t>(d));  // the file has the contiguous dimension first
  }
  CARREL_ASSIGN(const uint32_t id, take<uint32_t>());
  CARREL_ASSIGN(const uint64_t offset, take<uint64_t>());
  if (offset % alignment_ != 0) return bad("is not aligned to " + std::to_string(alignment_) + " bytes", begin);
  const auto* type = std::ranges::find(kTypes, id, &GgufType::id);
  const bool known = type != std::end(kTypes);
  if (known && t.shape.back() % type->n_values != 0) return bad("rows are no multiple of a block of " + std::string(type->name), begin);
  const auto dtype = known ? dtype_from_string(type->name) : std::nullopt;
  if (dtype) {
    t.dtype = *dtype;
  } else {
    t.unsupported_type = known ? std::string(type->name) : "type " + std::to_string(id);
  }
  offsets_.push_back(offset);
  types_.push_back(known ? &*type : nullptr);
  out_.tensors.push_back(std::move(t));
  return {};
}

/// Gives each tensor its bytes. Order in the file is free, sharing bytes is not.
Status Reader::place_tensors() {
  const uint64_t data_at = (at_ + alignment_ - 1) / alignment_ * alignment_;
  const uint64_t n_data = data_at > file_.size() ? 0 : file_.size() - data_at;
  std::vector<size_t> order(out_.tensors.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = i;
  std::ranges::sort(order, {}, [&](size_t i) { return offsets_[i]; });
  uint64_t end = 0;
  for (const size_t i : order) {
    TensorInfo& t = out_.tensors[i];
    object_ = "tensor '" + t.name + "'";
    const uint64_t offset = offsets_[i];
    if (offset < end) return bad("begins inside of another tensor", data_at + offset);
    if (offset > n_data) return bad("begins behind the end of the file (" + std::to_string(file_.size()) + ")", data_at + offset);
    const uint64_t n_bytes = types_[i] == nullptr ? 0
                                                  : static_cast<uint64_t>(t.n_elements()) / static_cast<uint64_t>(types_[i]->n_values) *
                                                        static_cast<uint64_t>(types_[i]->n_bytes);
    if (n_bytes > n_data - offset)
      return bad("ends behind the end of the file (" + std::to_string(file_.size()) + ")", data_at + offset + n_bytes);
    t.bytes = n_bytes == 0 ? std::span<const std::byte>() : file_.subspan(data_at + offset, n_bytes);
    end = offset + n_bytes;
  }
  return {};
}

Status Reader::head() {
  if (file_.size() < 4 || std::memcmp(file_.data(), "GGUF", 4) != 0)
    return fail(Code::kCorrupt, "does not begin with GGUF at byte 0; this is no GGUF file", where_);
  at_ = 4;
  CARREL_ASSIGN(const uint32_t version, take<uint32_t>());
  if (version == 0x02000000u || version == 0x03000000u)
    return fail(Code::kUnsupported, "is a big-endian GGUF file; convert it to little endian", where_);
  if (version != 2 && version != 3)
    return fail(Code::kUnsupported, "is GGUF version " + std::to_string(version) + "; versions 2 and 3 are read, convert it again", where_);
  CARREL_ASSIGN(n_tensors_, take<uint64_t>());
  CARREL_ASSIGN(n_pairs_, take<uint64_t>());
  constexpr uint64_t kMinPair = 8 + 1 + 4 + 1, kMinTensor = 8 + 1 + 4 + 8 + 4 + 8;
  if (n_pairs_ > left() / kMinPair) return bad("impossible number of keys (" + std::to_string(n_pairs_) + ")", 16);
  if (n_tensors_ > left() / kMinTensor) return bad("impossible number of tensors (" + std::to_string(n_tensors_) + ")", 8);
  return {};
}

Status Reader::finish() {
  object_.clear();
  if (out_.architecture.empty()) return fail(Code::kCorrupt, "has no general.architecture; it does not say which model it is", where_);
  if (n_splits_ > 1)
    return fail(Code::kUnsupported, "is one of " + std::to_string(n_splits_) + " parts of a split model; merge them into one file first",
                where_);
  const auto& t = tokenizer_;
  if (t.tokens.empty()) return {};
  if ((!t.scores.empty() && t.scores.size() != t.tokens.size()) || (!t.types.empty() && t.types.size() != t.tokens.size()))
    return fail(Code::kCorrupt, "tokenizer.ggml: scores or token_type have another length than tokens", where_);
  const auto n = static_cast<int64_t>(t.tokens.size());
  for (const int64_t id : {t.bos, t.eos, t.eot, t.eom, t.unk, t.pad})
    if (id < -1 || id >= n)
      return fail(Code::kCorrupt,
                  "tokenizer.ggml: a special token has the id " + std::to_string(id) + ", there are " + std::to_string(n) + " tokens",
                  where_);
  out_.tokenizer = std::move(tokenizer_);
  return {};
}

Result<GgufFile> Reader::read() {
  CARREL_TRY(head());
  out_.metadata_json = "{";
  for (uint64_t i = 0; i < n_pairs_; i++) CARREL_TRY(pair());
  out_.metadata_json += "}";
  for (uint64_t i = 0; i < n_tensors_; i++) CARREL_TRY(tensor());
  CARREL_TRY(place_tensors());
  CARREL_TRY(finish());
  return std::move(out_);
}

}  // namespace

Result<GgufFile> read_gguf(std::span<const std::byte> file, const std::string& where) {
  return Reader(file, where).read();
}

std::span<const GgufType> gguf_types() {
  return kTypes;
}

}  // namespace carrel
