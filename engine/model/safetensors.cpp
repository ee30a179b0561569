// See the header. The JSON is streamed, not kept: a DOM would hide duplicate names and cost memory a hostile file chooses.
#include "engine/model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "engine/model/json_text.h"

namespace carrel {
namespace {

constexpr uint64_t kMaxOffset = uint64_t{1} << 50;
constexpr size_t kMaxNameBytes = 1024;
constexpr size_t kMaxDims = 8;

struct Entry {
  std::string name, dtype;
  std::vector<uint64_t> shape, offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool start_object(size_t) override {
    if (depth_ == 0) return ++depth_;
    if (depth_ == 1) {
      in_metadata_ = key_ == "__metadata__";
      entry_ = Entry{.name = key_, .dtype = {}, .shape = {}, .offsets = {}};
      return ++depth_;
    }
    return refuse("has an object where none belongs");
  }
  bool end_object() override {
    depth_--;
    if (depth_ != 1) return true;
    if (std::exchange(in_metadata_, false)) return true;
    if (!entry_.has_dtype || !entry_.has_shape || !entry_.has_offsets) return refuse("lacks dtype, shape or data_offsets");
    entries.push_back(std::move(entry_));
    return true;
  }
  bool key(string_t& k) override {
    if (depth_ == 1) {
      entry_.name = k;
      if (k.empty() || k.size() > kMaxNameBytes || k.find('\0') != std::string::npos) return refuse("has an impossible name");
      if (!names_.insert(k).second) return refuse("is named twice");
    } else if (in_metadata_ && (k.size() > kMaxNameBytes || metadata.size() > 4096)) {
      return refuse("has too much metadata");
    }
    key_ = k;
    return true;
  }
  bool string(string_t& v) override {
    if (in_metadata_) {
      metadata[key_] = v;
      return true;
    }
    if (depth_ != 2 || in_array_ || key_ != "dtype" || entry_.has_dtype) return refuse("has a text where none belongs");
    const auto printable = [](unsigned char c) { return c > 0x20 && c < 0x7F; };
    if (v.empty() || v.size() > 32 || !std::ranges::all_of(v, printable)) return refuse("has an impossible dtype");
    entry_.dtype = v;
    entry_.has_dtype = true;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_array_ || in_metadata_) return refuse("has a list where none belongs");
    bool& seen = key_ == "shape" ? entry_.has_shape : entry_.has_offsets;
    if ((key_ != "shape" && key_ != "data_offsets") || seen) return refuse("has a list where none belongs");
    list_ = key_ == "shape" ? &entry_.shape : &entry_.offsets;
    seen = in_array_ = true;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool number_unsigned(number_unsigned_t v) override {
    if (!in_array_) return refuse("has a number where none belongs");
    if (v > kMaxOffset || list_->size() >= kMaxDims) return refuse("has an impossible shape or offset");
    list_->push_back(v);
    return true;
  }
  bool number_integer(number_integer_t) override { return refuse("has a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("has a number that is no integer"); }
  bool null() override { return refuse("has a null"); }
  bool boolean(bool) override { return refuse("has a boolean"); }
  bool binary(binary_t&) override { return refuse("has binary data"); }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    if (error.empty()) error = "header is not JSON at byte " + std::to_string(8 + at);
    return false;
  }

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  std::string error;

 private:
  bool refuse(const std::string& why) {
    const std::string quoted = json_quote(entry_.name.substr(0, 200));
    if (error.empty()) error = (depth_ == 0 ? "header " : "tensor '" + quoted.substr(1, quoted.size() - 2) + "' in the header ") + why;
    return false;
  }
  std::set<std::string> names_;
  std::string key_;
  Entry entry_;
  std::vector<uint64_t>* list_ = nullptr;
  int depth_ = 0;
  bool in_metadata_ = false, in_array_ = false;
};

/// Bits per element of types that are listed but not read; 0: of a type nobody here knows.
int unsupported_bits(const std::string& dtype) {
  static constexpr std::pair<std::string_view, int> kBits[] = {
      {"BOOL", 8}, {"F8_E5M2", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"U16", 16}, {"I16", 16},    {"U32", 32},    {"U64", 64},
      {"F64", 64},        {"C64", 64},        {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
  };
  for (const auto& [name, bits] : kBits)
    if (name == dtype) return bits;
  return 0;
}

/// Safetensors has the plain types only; "Q8_0" there would be somebody else's invention.
std::optional<DType> plain_dtype(const std::string& name) {
  const auto t = dtype_from_string(name);
  return t && block_shape(*t).n_values == 1 ? t : std::nullopt;
}

Result<TensorInfo> to_tensor(Entry& e, std::span<const std::byte> data, size_t data_at, const std::string& where) {
  const auto bad = [&](const std::string& why) {
    return fail(Code::kCorrupt, "tensor '" + e.name + "' " + why + "; fetch the file again", where);
  };
  if (e.offsets.size() != 2 || e.offsets[0] > e.offsets[1]) return bad("has no valid data_offsets");
  if (e.offsets[1] > data.size())
    return bad("ends at byte " + std::to_string(data_at + e.offsets[1]) + ", the file at " + std::to_string(data_at + data.size()));
  TensorInfo t;
  uint64_t n = 1;
  for (const uint64_t d : e.shape) {
    if (d != 0 && n > kMaxOffset / d) return bad("has an impossible shape");
    n *= d;
    t.shape.push_back(static_cast<int64_t>(d));
  }
  const uint64_t n_bytes = e.offsets[1] - e.offsets[0];
  uint64_t bits = 0;
  if (const auto type = plain_dtype(e.dtype)) {
    t.dtype = *type;
    bits = static_cast<uint64_t>(block_shape(*type).n_bytes) * 8;
  } else {
    t.unsupported_type = e.dtype;
    bits = static_cast<uint64_t>(unsupported_bits(e.dtype));
  }
  if (bits > 0 && (n * bits % 8 != 0 || n * bits / 8 != n_bytes))
    return bad("has " + std::to_string(n_bytes) + " bytes at byte " + std::to_string(data_at + e.offsets[0]) + ", its shape and type " +
               e.dtype + " ask for " + std::to_string((n * bits + 7) / 8));
  t.name = std::move(e.name);
  t.bytes = data.subspan(e.offsets[0], n_bytes);
  return t;
}

/// The format allows neither holes nor sharing: both are ways to hide bytes.
Status check_tiling(const std::vector<TensorInfo>& tensors, std::span<const std::byte> data, size_t data_at, const std::string& where) {
  size_t at = 0;
  for (const TensorInfo& t : tensors) {
    const auto begin = static_cast<size_t>(t.bytes.data() - data.data());
    if (begin != at)
      return fail(Code::kCorrupt,
                  "tensor '" + t.name + "' begins at byte " + std::to_string(data_at + begin) +
                      (begin < at ? ", inside of another tensor" : ", after a hole") + "; fetch the file again",
                  where);
    at = begin + t.bytes.size();
  }
  if (at != data.size())
    return fail(Code::kCorrupt,
                "has " + std::to_string(data.size() - at) + " bytes behind the last tensor at byte " + std::to_string(data_at + at) +
                    "; fetch the file again",
                where);
  return {};
}

}  // namespace

Result<SafetensorsFile> read_safetensors(std::span<const std::byte> file, const std::string& where) {
  uint64_t n = 0;
  if (file.size() < 8)
    return fail(Code::kCorrupt, "is " + std::to_string(file.size()) + " bytes long, too short for a safetensors file", where);
  for (int i = 0; i < 8; i++) n |= static_cast<uint64_t>(file[static_cast<size_t>(i)]) << (8 * i);
  if (n > kMaxSafetensorsHeaderBytes || n > file.size() - 8)
    return fail(Code::kCorrupt,
                "states a header of " + std::to_string(n) + " bytes at byte 0 and is " + std::to_string(file.size()) +
                    " bytes long; it is cut or no safetensors file",
                where);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, n);
  if (!text.starts_with('{')) return fail(Code::kCorrupt, "header at byte 8 is not a JSON object; this is no safetensors file", where);
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text, &reader))
    return fail(Code::kCorrupt, (reader.error.empty() ? "header is not JSON" : reader.error) + "; fetch the file again", where);
  const size_t data_at = 8 + static_cast<size_t>(n);
  const auto data = file.subspan(data_at);
  SafetensorsFile out;
  out.metadata = std::move(reader.metadata);
  out.tensors.reserve(reader.entries.size());
  for (Entry& e : reader.entries) {
    CARREL_ASSIGN(TensorInfo t, to_tensor(e, data, data_at, where));
    out.tensors.push_back(std::move(t));
  }
  std::ranges::sort(out.tensors, {},
                    [](const TensorInfo& t) { return std::tuple(t.bytes.data(), t.bytes.size(), std::string_view(t.name)); });
  CARREL_TRY(check_tiling(out.tensors, data, data_at, where));
  return out;
}

std::string write_safetensors(const std::vector<TensorInfo>& tensors) {
  std::string header = "{", data;
  for (const TensorInfo& t : tensors) {
    if (header.size() > 1) header += ',';
    header += json_quote(t.name) + ":{\"dtype\":" + json_quote(t.unsupported_type.empty() ? to_string(t.dtype) : t.unsupported_type) +
              ",\"shape\":[";
    for (size_t i = 0; i < t.shape.size(); i++) header += (i > 0 ? "," : "") + std::to_string(t.shape[i]);
    header += "],\"data_offsets\":[" + std::to_string(data.size()) + ",";
    data.append(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
    header += std::to_string(data.size()) + "]}";
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string out(8, '\0');
  const uint64_t n = header.size();
  for (int i = 0; i < 8; i++) out[static_cast<size_t>(i)] = static_cast<char>(n >> (8 * i));
  return out + header + data;
}

}  // namespace carrel
