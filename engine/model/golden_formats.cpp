// tests/golden/quant: number formats, decoded bit for bit by to_f32.
#include <cstring>

#include "engine/model/golden_run.h"

namespace carrel {

namespace {

/// Index of the first value that differs (zeros of either sign are equal, NaN equals NaN), or -1.
int64_t first_difference(std::span<const float> got, std::span<const float> want) {
  for (size_t i = 0; i < want.size(); ++i) {
    const bool both_nan = got[i] != got[i] && want[i] != want[i];
    if (!both_nan && got[i] != want[i]) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace

Status check_formats(Env* env, const std::string& dir, GoldenReport& report) {
  const std::string path = dir + "/gguf.safetensors";
  CARREL_ASSIGN(const auto file, VectorFile::open(env, path));
  for (const std::string& name : file->names()) {
    if (!name.ends_with(".bytes")) continue;
    const std::string type_name = name.substr(0, name.size() - 6);
    GoldenFile out;
    out.name = path + " " + type_name;
    const std::optional<DType> type = dtype_from_string(type_name);
    const std::vector<float> want = file->floats(type_name + ".values");
    const auto bytes = file->find(name)->bytes;
    if (!type) {
      out.skipped = "type " + type_name + " is not read by this version";
    } else if (bytes.size() != bytes_of(*type, want.size())) {
      out.failures.push_back("values and bytes do not belong together");
    } else {
      std::vector<float> got(want.size());
      to_f32(*type, bytes, got);
      const int64_t at = first_difference(got, want);
      if (at >= 0) out.failures.push_back("value " + std::to_string(at) + " differs");
    }
    report.files.push_back(std::move(out));
  }
  return {};
}

}  // namespace carrel
