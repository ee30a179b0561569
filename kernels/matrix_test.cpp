#include "kernels/matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "kernels/float8.h"

namespace carrel {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr DType kBlocks[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                             DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kMXFP4};

/// Data of one named tensor of a safetensors file whose header has no escapes.
std::string tensor_bytes(const std::string& file, const std::string& name) {
  uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  const std::string json = file.substr(8, header);
  const size_t at = json.find("\"" + name + "\"");
  EXPECT_NE(at, std::string::npos) << name;
  const std::string key = "\"data_offsets\":[";
  const size_t from = json.find(key, at) + key.size();
  const uint64_t begin = std::stoull(json.substr(from));
  const uint64_t end = std::stoull(json.substr(json.find(',', from) + 1));
  return file.substr(8 + header + begin, end - begin);
}

std::span<const std::byte> as_bytes(const std::string& s) {
  return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}

uint32_t bits(float f) {
  return std::bit_cast<uint32_t>(f);
}

/// Random blocks; 16-bit scales are random finite halves, or one of the extremes.
std::vector<std::byte> random_rows(DType type, size_t n_values, std::mt19937& rng) {
  std::vector<std::byte> out(bytes_of(type, n_values));
  for (std::byte& b : out) b = static_cast<std::byte>(rng());
  const auto half = [&] {
    constexpr uint16_t kExtremes[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00};
    return rng() % 3 == 0 ? kExtremes[rng() % std::size(kExtremes)] : static_cast<uint16_t>((rng() % 0x7C00) | (rng() % 2 << 15));
  };
  const auto size = static_cast<size_t>(block_shape(type).n_bytes);
  for (size_t b = 0; b < out.size(); b += size) {
    const bool two = type == DType::kQ4_1 || type == DType::kQ5_1 || type == DType::kQ4_K || type == DType::kQ5_K;
    const uint16_t d = half(), m = half();
    if (type == DType::kF16 || type == DType::kBF16 || type == DType::kF32) {
      const uint16_t plain = type == DType::kF16 ? d : f32_to_bf16(static_cast<float>(rng() % 1000) * 0.37f - 100);
      std::memcpy(&out[b + size - 2], &plain, 2);
    } else if (type == DType::kMXFP4) {
      out[b] = static_cast<std::byte>(rng() % 255);
    } else {
      std::memcpy(&out[b + (type == DType::kQ6_K ? 208 : 0)], &d, 2);
      if (two) std::memcpy(&out[b + 2], &m, 2);
    }
  }
  return out;
}

TEST(DType, golden_blocks_bit_for_bit) {
  std::ifstream in("tests/golden/quant/gguf.safetensors", std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(in)), {});
  ASSERT_GT(file.size(), 8u) << "run from the repository root";
  for (const char* name : {"F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"}) {
    const DType type = dtype_from_string(name).value();
    const std::string raw = tensor_bytes(file, std::string(name) + ".bytes"), values = tensor_bytes(file, std::string(name) + ".values");
    std::vector<float> got(values.size() / 4), want(values.size() / 4);
    std::memcpy(want.data(), values.data(), values.size());
    ASSERT_EQ(raw.size(), bytes_of(type, got.size()));
    to_f32(type, as_bytes(raw), got);
    for (size_t i = 0; i < got.size(); i++) {
      if (want[i] == 0 && got[i] == 0) continue;  // signs of zero may differ
      ASSERT_EQ(bits(got[i]), bits(want[i])) << name << " value " << i;
    }
  }
}

std::vector<float> floats(const std::string& file, const std::string& name) {
  const std::string raw = tensor_bytes(file, name);
  std::vector<float> out(raw.size() / 4);
  std::memcpy(out.data(), raw.data(), raw.size());
  return out;
}

TEST(DType, golden_small_floats_bit_for_bit) {
  std::ifstream in("tests/golden/quant/float8.safetensors", std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(in)), {});
  ASSERT_GT(file.size(), 8u) << "run from the repository root";
  const std::string codes = tensor_bytes(file, "codes");
  ASSERT_EQ(codes.size(), 256u);
  for (const auto& [name, type] : {std::pair("e4m3fn", DType::kF8E4M3), std::pair("e8m0", DType::kF8E8M0)}) {
    std::vector<float> got(256), want = floats(file, name);
    to_f32(type, as_bytes(codes), got);
    for (size_t i = 0; i < 256; i++)
      ASSERT_TRUE(std::isnan(want[i]) ? std::isnan(got[i]) : bits(got[i]) == bits(want[i])) << name << " code " << i;
  }
  const std::vector<float> e2m1 = floats(file, "e2m1");
  for (uint8_t c = 0; c < 16; c++) ASSERT_EQ(bits(e2m1_to_f32(c)), bits(e2m1[c])) << int{c};
  const std::vector<float> x = floats(file, "round.input"), y = floats(file, "round.e2m1_input");
  const std::string e4m3_codes = tensor_bytes(file, "round.e4m3fn_clamped"), e2m1_codes = tensor_bytes(file, "round.e2m1_code");
  ASSERT_EQ(x.size(), e4m3_codes.size());
  ASSERT_EQ(y.size(), e2m1_codes.size());
  for (size_t i = 0; i < x.size(); i++) ASSERT_EQ(f32_to_e4m3(x[i]), static_cast<uint8_t>(e4m3_codes[i])) << x[i];
  for (size_t i = 0; i < y.size(); i++) ASSERT_EQ(f32_to_e2m1(y[i]), static_cast<uint8_t>(e2m1_codes[i])) << y[i];
}

TEST(Matrix, golden_fp8_blocks_bit_for_bit) {
  std::ifstream in("tests/golden/quant/mxfp4.safetensors", std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(in)), {});
  ASSERT_GT(file.size(), 8u) << "run from the repository root";
  std::string codes = tensor_bytes(file, "fp8_block.weight");
  const std::vector<float> tiles = floats(file, "fp8_block.weight_scale_inv"), want = floats(file, "fp8_block.values");
  constexpr int64_t kRows = 150, kCols = 140;
  ASSERT_EQ(want.size(), static_cast<size_t>(kRows * kCols));
  std::vector<float> scales;
  for (int64_t r = 0; r < kRows; r++) scales.insert(scales.end(), {tiles[r < 128 ? 0 : 2], tiles[r < 128 ? 1 : 3]});
  for (const Form form : {Form::kF8, Form::kF32, Form::kRows}) {
    std::vector<std::byte> blob(packed_bytes(form, kRows, kCols));
    ASSERT_TRUE(pack_f8(as_bytes(codes), scales, kRows, kCols, form, blob));
    std::vector<float> row(kCols);
    for (int64_t r = 0; r < kRows; r++) {
      dequantize_row({form, kRows, kCols, blob.data()}, r, row);
      for (int64_t k = 0; k < kCols; k++)
        ASSERT_EQ(bits(row[static_cast<size_t>(k)]), bits(want[static_cast<size_t>(r * kCols + k)]))
            << to_string(form) << " " << r << " " << k;
    }
    const auto says = [&](const std::string& place) {
      const Status s = pack_f8(as_bytes(codes), scales, kRows, kCols, form, blob);
      ASSERT_FALSE(s);
      EXPECT_EQ(s.error().code, Code::kCorrupt);
      EXPECT_NE(s.error().message.find(place), std::string::npos) << s.error().message;
    };
    scales[0] = INFINITY;
    says("row 0, column 0 has a scale");
    scales[0] = tiles[0], scales[2 * 131 + 1] = NAN;
    says("row 131, column 128 has a scale");
    scales[2 * 131 + 1] = tiles[3];
    const char was = std::exchange(codes[140 * 7 + 133], static_cast<char>(0xFF));
    says("row 7, column 133 has the value NaN");
    codes[140 * 7 + 133] = was;
  }
  EXPECT_EQ(packed_bytes(Form::kF8, 150, 140), 10u * (2 * 64 + 16 * 140));
}

TEST(Matrix, fp4_scales_that_no_weight_has_are_refused) {
  std::vector<std::byte> rows(size_t{3} * 2 * 17), out(packed_bytes(Form::kRows, 3, 64));
  rows[17 * 5] = std::byte{254};
  EXPECT_TRUE(pack_matrix(DType::kMXFP4, rows, 3, 64, Form::kRows, out));
  rows[17 * 5] = std::byte{255};
  const Status s = pack_matrix(DType::kMXFP4, rows, 3, 64, Form::kRows, out);
  ASSERT_FALSE(s);
  EXPECT_EQ(s.error().code, Code::kCorrupt);
  EXPECT_NE(s.error().message.find("row 2, column 32 has the scale NaN"), std::string::npos) << s.error().message;
}

TEST(DType, names_round_trip_and_unknown_names_are_refused) {
  for (const DType t : {DType::kF32, DType::kI32, DType::kI64, DType::kBF16, DType::kQ6_K}) EXPECT_EQ(dtype_from_string(to_string(t)), t);
  EXPECT_EQ(dtype_from_string("IQ1_S"), std::nullopt);
  EXPECT_EQ(bytes_of(DType::kQ4_K, 512), 288u);
}

TEST(DType, halves_round_trip) {
  for (uint32_t h = 0; h < 65536; h++) {
    const float f = f16_to_f32(static_cast<uint16_t>(h));
    const float b = bf16_to_f32(static_cast<uint16_t>(h));
    ASSERT_TRUE(std::isnan(f) || f32_to_f16(f) == h) << h;
    ASSERT_TRUE(std::isnan(b) || f32_to_bf16(b) == h) << h;
  }
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(NAN))));
  EXPECT_EQ(f32_to_f16(1e6f), 0x7C00);
}

TEST(DType, integers_widen) {
  const int32_t a[2] = {-7, 1 << 20};
  const int64_t b[2] = {-9, 3};
  float out[2];
  to_f32(DType::kI32, std::as_bytes(std::span(a)), out);
  EXPECT_EQ(out[1], 1048576.0f);
  to_f32(DType::kI64, std::as_bytes(std::span(b)), out);
  EXPECT_EQ(out[0], -9.0f);
}

void expect_same_values(DType type, const std::vector<std::byte>& rows, const Matrix& m) {
  std::vector<float> want(static_cast<size_t>(m.n_cols)), got(want.size());
  const size_t row_bytes = bytes_of(type, want.size());
  for (int64_t r = 0; r < m.n_rows; r++) {
    to_f32(type, std::span(rows).subspan(static_cast<size_t>(r) * row_bytes, row_bytes), want);
    dequantize_row(m, r, got);
    ASSERT_EQ(std::memcmp(want.data(), got.data(), want.size() * 4), 0)
        << to_string(type) << " as " << to_string(m.form) << " [" << m.n_rows << ", " << m.n_cols << "] row " << r;
  }
}

TEST(Matrix, every_type_keeps_every_bit_in_every_lossless_form) {
  std::mt19937 rng(7);
  const auto check = [&](DType type, int64_t n_rows, int64_t n_cols) {
    const std::vector<std::byte> rows = random_rows(type, static_cast<size_t>(n_rows * n_cols), rng);
    std::vector<std::byte> own(packed_bytes(form_of(type), n_rows, n_cols));
    ASSERT_TRUE(pack_matrix(type, rows, n_rows, n_cols, form_of(type), own));
    const Matrix m{form_of(type), n_rows, n_cols, own.data()};
    expect_same_values(type, rows, m);
    for (const Form form : {Form::kF32, Form::kRows}) {
      std::vector<std::byte> direct(packed_bytes(form, n_rows, n_cols)), again(direct.size());
      ASSERT_TRUE(pack_matrix(type, rows, n_rows, n_cols, form, direct));
      expect_same_values(type, rows, {form, n_rows, n_cols, direct.data()});
      ASSERT_TRUE(repack_matrix(m, form, again));
      EXPECT_EQ(std::memcmp(direct.data(), again.data(), direct.size()), 0);
    }
  };
  for (const DType type : kFloats)
    for (const int64_t cols : {1, 24, 112, 150}) check(type, cols == 24 ? 32 : 19, cols);
  for (const DType type : kBlocks)
    for (const int64_t rows : {1, 16, 35}) check(type, rows, block_shape(type).n_values * (1 + rows % 3));
}

TEST(Matrix, packed_size_is_within_five_percent_of_the_file) {
  for (const DType type : kBlocks) {
    const double file = static_cast<double>(bytes_of(type, 48 * 1024));
    EXPECT_LE(static_cast<double>(packed_bytes(form_of(type), 48, 1024)), 1.05 * file) << to_string(type);
  }
  EXPECT_EQ(packed_bytes(Form::kI4M, 16, 64), bytes_of(DType::kQ4_1, 16 * 64));
  EXPECT_EQ(packed_bytes(Form::kI4M, 17, 64), packed_bytes(Form::kI4M, 32, 64));  // rows are padded to 16
  EXPECT_EQ(packed_bytes(Form::kRows, 17, 5), 17u * 5 * 4);
}

TEST(Matrix, quantizing_to_int8_is_within_half_a_step) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(5 * 64), got(64);
  for (float& v : x) v = normal(rng);
  std::vector<std::byte> out(packed_bytes(Form::kI8, 5, 64));
  ASSERT_TRUE(pack_matrix(DType::kF32, std::as_bytes(std::span(x)), 5, 64, Form::kI8, out));
  for (int64_t r = 0; r < 5; r++) {
    dequantize_row({Form::kI8, 5, 64, out.data()}, r, got);
    for (size_t g = 0; g < 2; g++) {
      float top = 0;
      for (size_t i = 0; i < 32; i++) top = std::max(top, std::fabs(x[static_cast<size_t>(r) * 64 + g * 32 + i]));
      for (size_t i = g * 32; i < g * 32 + 32; i++) EXPECT_NEAR(got[i], x[static_cast<size_t>(r) * 64 + i], top / 127 * 0.57f);
    }
  }
  x[70] = INFINITY;
  EXPECT_EQ(pack_matrix(DType::kF32, std::as_bytes(std::span(x)), 5, 64, Form::kI8, out).error().code, Code::kInvalidArgument);
}

TEST(Matrix, impossible_shapes_are_errors) {
  std::vector<std::byte> rows(144), out(4096);
  const auto code = [&](DType t, int64_t r, int64_t c, Form f) { return pack_matrix(t, rows, r, c, f, out).error().code; };
  EXPECT_EQ(code(DType::kQ4_K, 1, 128, Form::kI4K), Code::kInvalidArgument);
  EXPECT_EQ(code(DType::kQ8_0, 0, 32, Form::kI8), Code::kInvalidArgument);
  EXPECT_EQ(code(DType::kF32, int64_t{1} << 31, int64_t{1} << 31, Form::kF32), Code::kInvalidArgument);
  EXPECT_EQ(code(DType::kF32, -1, 8, Form::kF32), Code::kInvalidArgument);
  EXPECT_EQ(code(DType::kQ4_K, 2, 256, Form::kI4K), Code::kCorrupt);
  for (const DType t : {DType::kI32, DType::kU8, DType::kI8, DType::kF8E4M3, DType::kF8E8M0})
    EXPECT_EQ(code(t, 4, 9, Form::kF32), Code::kUnsupported) << to_string(t);
  EXPECT_EQ(code(DType::kQ4_K, 1, 256, Form::kI4), Code::kInvalidArgument);
  EXPECT_EQ(code(DType::kF32, 4, 9, Form::kI8), Code::kInvalidArgument);
  EXPECT_EQ(code(DType::kQ4_K, 1, 256, Form::kI4K), Code::kInternal);  // buffer size
}

}  // namespace
}  // namespace carrel
