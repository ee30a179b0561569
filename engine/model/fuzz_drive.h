// What a fuzzer does with bytes, and what must hold then. Shared by the *_fuzz.cpp programs and the test that runs their corpus; linked
// into neither the product nor its libraries.
#pragma once
#include <set>
#include <span>
#include <string>

#include "engine/model/config_reader.h"
#include "engine/model/gguf.h"
#include "engine/model/safetensors.h"
#include "engine/model/store_manifest.h"

namespace carrel::fuzz {

/// Tensors lie inside of the file, under distinct names, and those that are read have the bytes that shape and type ask for.
inline bool tensors_hold(const std::vector<TensorInfo>& tensors, std::span<const std::byte> file) {
  std::set<std::string> names;
  unsigned sum = 0;
  for (const TensorInfo& t : tensors) {
    if (!names.insert(t.name).second) return false;
    if (!t.bytes.empty() && (t.bytes.data() < file.data() || t.bytes.data() + t.bytes.size() > file.data() + file.size())) return false;
    if (t.unsupported_type.empty() && t.bytes.size() != bytes_of(t.dtype, static_cast<size_t>(t.n_elements()))) return false;
    if (!t.bytes.empty()) sum += static_cast<unsigned>(t.bytes.front()) + static_cast<unsigned>(t.bytes.back());
  }
  return sum <= 510u * tensors.size();
}

inline bool typed(const Error& e) {
  return (e.code == Code::kCorrupt || e.code == Code::kUnsupported) && !e.message.empty();
}

inline bool safetensors(std::span<const std::byte> file) {
  const auto r = read_safetensors(file, "f");
  return r ? tensors_hold(r->tensors, file) : typed(r.error());
}

inline bool gguf(std::span<const std::byte> file) {
  const auto r = read_gguf(file, "f");
  if (!r) return typed(r.error());
  if (r->tokenizer) {
    const Bytes stored = encode_gguf_tokenizer(*r->tokenizer);
    const auto back = decode_gguf_tokenizer(stored);
    if (!back || encode_gguf_tokenizer(*back) != stored) return false;
  }
  return ConfigReader::parse(r->metadata_json).has_value() && tensors_hold(r->tensors, file);
}

/// First byte 'T': a stored tokenizer; else a manifest. What is accepted reads back the same.
inline bool store(std::span<const std::byte> bytes) {
  if (!bytes.empty() && bytes[0] == std::byte{'T'}) {
    const auto r = decode_gguf_tokenizer(bytes.subspan(1));
    return r ? std::ranges::equal(encode_gguf_tokenizer(*r), bytes.subspan(1)) : typed(r.error());
  }
  const auto r = decode_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "m");
  if (!r) return typed(r.error());
  const std::string again = encode_manifest(*r);
  const auto back = decode_manifest(again, "m");
  return back && encode_manifest(*back) == again;
}

}  // namespace carrel::fuzz
