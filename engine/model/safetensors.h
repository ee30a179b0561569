// Reads the header of one safetensors file: u64 length, JSON {name: {dtype, shape, data_offsets}}, data. Pure, on borrowed bytes.
//
// Every length, offset, shape and type is checked; tensors must not overlap and must fill the data area without holes. A tensor of a type
// that DType does not have is listed with its type's name (TensorInfo::unsupported_type).
#pragma once
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/model/source.h"

namespace carrel {

struct SafetensorsFile {
  std::vector<TensorInfo> tensors;  // in the order of their data; bytes are views into the file
  std::map<std::string, std::string> metadata;
};

constexpr size_t kMaxSafetensorsHeaderBytes = 100 << 20;

/// kCorrupt with `where` (the file), byte offset and tensor.
Result<SafetensorsFile> read_safetensors(std::span<const std::byte> file, const std::string& where);

/// For tests and tools: the bytes of a file with these tensors.
std::string write_safetensors(const std::vector<TensorInfo>& tensors);

}  // namespace carrel
