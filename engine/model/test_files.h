// Small model files made in memory, for the tests of this folder.
#pragma once
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "engine/model/gguf.h"
#include "engine/model/safetensors.h"

namespace carrel::testing_files {

inline std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s));
}

/// Writes the head of a GGUF file piece by piece.
class GgufBuilder {
 public:
  template <class T>
  GgufBuilder& number(T v) {
    out_.append(reinterpret_cast<const char*>(&v), sizeof(v));
    return *this;
  }
  GgufBuilder& text(const std::string& s) {
    number<uint64_t>(s.size());
    out_ += s;
    return *this;
  }
  GgufBuilder& head(uint64_t n_tensors, uint64_t n_pairs, uint32_t version = 3) {
    out_ += "GGUF";
    return number(version).number(n_tensors).number(n_pairs);
  }
  GgufBuilder& key(const std::string& name, uint32_t type) { return text(name).number(type); }
  GgufBuilder& architecture(const std::string& name) { return key("general.architecture", 8).text(name); }
  GgufBuilder& tensor(const std::string& name, const std::vector<uint64_t>& ne, uint32_t type, uint64_t offset) {
    text(name).number(static_cast<uint32_t>(ne.size()));
    for (const uint64_t d : ne) number(d);
    return number(type).number(offset);
  }
  GgufBuilder& data(const std::string& bytes) {
    out_.resize((out_.size() + 31) / 32 * 32);
    out_ += bytes;
    return *this;
  }
  const std::string& str() const { return out_; }

 private:
  std::string out_;
};

/// A safetensors file from a header as written and data.
inline std::string safetensors(const std::string& header, const std::string& data) {
  std::string out(8, '\0');
  const uint64_t n = header.size();
  std::memcpy(out.data(), &n, 8);
  return out + header + data;
}

}  // namespace carrel::testing_files
