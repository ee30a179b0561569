// tests/golden/quant: number formats, decoded bit for bit: blocks of GGUF, floats of 8 and 4 bits, and tensors with their scales beside.
#include <algorithm>
#include <cmath>

#include "base/codec.h"
#include "engine/model/golden_run.h"
#include "engine/model/packing.h"
#include "kernels/float8.h"

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

void compare(std::span<const float> got, std::span<const float> want, GoldenFile& out) {
  if (got.size() != want.size() || want.empty()) {
    out.failures.emplace_back("values and bytes do not belong together");
    return;
  }
  const int64_t at = first_difference(got, want);
  if (at >= 0) out.failures.push_back("value " + std::to_string(at) + " differs");
}

/// <TYPE>.bytes against <TYPE>.values.
void check_blocks(const VectorFile& file, const std::string& path, GoldenReport& report) {
  for (const std::string& name : file.names()) {
    if (!name.ends_with(".bytes")) continue;
    const std::string type_name = name.substr(0, name.size() - 6);
    GoldenFile out;
    out.name = path + " " + type_name;
    const std::optional<DType> type = dtype_from_string(type_name);
    const std::vector<float> want = file.floats(type_name + ".values");
    const auto bytes = file.find(name)->bytes;
    std::vector<float> got(want.size());
    if (!type) {
      out.skipped = "type " + type_name + " is not read by this version";
    } else if (bytes.size() != bytes_of(*type, want.size())) {
      out.failures.emplace_back("values and bytes do not belong together");
    } else {
      to_f32(*type, bytes, got);
      compare(got, want, out);
    }
    report.files.push_back(std::move(out));
  }
}

/// Values of all codes and the rounding of float8.safetensors.
void check_float8(const VectorFile& file, const std::string& path, GoldenReport& report) {
  const auto codes = [&](const std::string& name) { return file.has(name) ? file.find(name)->bytes : std::span<const std::byte>(); };
  const auto add = [&](const std::string& what, auto&& value_of, std::span<const std::byte> in, const std::vector<float>& want) {
    GoldenFile out;
    out.name = path + " " + what;
    std::vector<float> got;
    for (const std::byte b : in) got.push_back(value_of(static_cast<uint8_t>(b)));
    compare(got, want, out);
    report.files.push_back(std::move(out));
  };
  add("e4m3fn", e4m3_to_f32, codes("codes"), file.floats("e4m3fn"));
  add("e8m0", [](uint8_t c) { return c == 0xFF ? NAN : e8m0_to_f32(c); }, codes("codes"), file.floats("e8m0"));
  add("e2m1", e2m1_to_f32, codes("codes").first(std::min<size_t>(16, codes("codes").size())), file.floats("e2m1"));
  const auto round = [&](const std::string& what, auto&& code_of, const std::string& input, const std::string& wanted) {
    std::vector<float> want;
    for (const float x : file.floats(input)) want.push_back(code_of(x));
    add(what, [](uint8_t c) { return static_cast<float>(c); }, codes(wanted), want);
  };
  round("rounding to e4m3fn", f32_to_e4m3, "round.input", "round.e4m3fn_clamped");
  round("rounding to e2m1", f32_to_e2m1, "round.e2m1_input", "round.e2m1_code");
}

/// One tensor with its scales, read as a model's: through the same packing as weights.
void check_scaled(const std::string& name, TensorInfo tensor, TensorInfo scales, DType type, int64_t n_rows, int64_t n_cols,
                  const std::vector<float>& want, GoldenReport& report) {
  GoldenFile out;
  out.name = name;
  tensor.dtype = type;
  const FoundMatrix found{.tensor = &tensor, .scales = &scales, .form = type == DType::kF8E4M3 ? Form::kF8 : Form::kX4};
  MatrixRequest r;
  r.tensor = tensor.name;
  r.n_rows = n_rows, r.n_cols = n_cols;
  Bytes blob(packed_bytes(found.form, n_rows, n_cols));
  const Status packed = pack_any(found, r, found.form, blob, name);
  std::vector<float> got(static_cast<size_t>(n_rows * n_cols));
  if (!packed) out.failures.push_back(packed.error().message);
  for (int64_t i = 0; packed && i < n_rows; ++i)
    dequantize_row({found.form, n_rows, n_cols, blob.data()}, i,
                   std::span(got).subspan(static_cast<size_t>(i * n_cols), static_cast<size_t>(n_cols)));
  if (packed) compare(got, want, out);
  report.files.push_back(std::move(out));
}

Status check_scaled_file(const VectorFile& file, const std::string& path, GoldenReport& report) {
  for (const char* name : {"mxfp4.blocks", "mxfp4.scales", "fp8_block.weight", "fp8_block.weight_scale_inv"})
    if (!file.has(name)) return fail(Code::kCorrupt, "has no tensor '" + std::string(name) + "'", path);
  const TensorInfo &x = *file.find("mxfp4.blocks"), &xs = *file.find("mxfp4.scales");
  const TensorInfo &f = *file.find("fp8_block.weight"), &fs = *file.find("fp8_block.weight_scale_inv");
  if (x.shape.size() != 4 || x.shape[3] != 16 || xs.n_elements() * 16 != x.n_elements() || f.shape.size() != 2 ||
      fs.n_elements() != (f.shape[0] + 127) / 128 * ((f.shape[1] + 127) / 128))
    return fail(Code::kCorrupt, "holds tensors of impossible shapes", path);
  check_scaled(path + " mxfp4", x, xs, DType::kU8, x.shape[0] * x.shape[1], 32 * x.shape[2], file.floats("mxfp4.values_out_in"), report);
  check_scaled(path + " fp8_block", f, fs, DType::kF8E4M3, f.shape[0], f.shape[1], file.floats("fp8_block.values"), report);
  return {};
}

}  // namespace

Status check_formats(Env* env, const std::string& dir, GoldenReport& report) {
  const std::string path = dir + "/gguf.safetensors", small = dir + "/float8.safetensors", scaled = dir + "/mxfp4.safetensors";
  CARREL_ASSIGN(const auto file, VectorFile::open(env, path));
  check_blocks(*file, path, report);
  if (env->exists(small)) {
    CARREL_ASSIGN(const auto vectors, VectorFile::open(env, small));
    check_float8(*vectors, small, report);
  }
  if (env->exists(scaled)) {
    CARREL_ASSIGN(const auto vectors, VectorFile::open(env, scaled));
    CARREL_TRY(check_scaled_file(*vectors, scaled, report));
  }
  return {};
}

}  // namespace carrel
