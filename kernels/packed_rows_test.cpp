// The packed rows to the byte, as docs/formats/kv_packed.md has them.
#include "kernels/packed_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/reference_ops.h"
#include "kernels/float8.h"

namespace carrel {
namespace {

int at(const std::vector<std::byte>& row, size_t i) {
  return static_cast<int>(row[i]);
}

std::vector<std::byte> packed(DType type, const std::vector<float>& x) {
  std::vector<std::byte> row(row_bytes(type, static_cast<int>(x.size())), std::byte{0xAA});
  pack_row(type, x.data(), static_cast<int>(x.size()), row.data());
  return row;
}
std::vector<float> unpacked(DType type, const std::vector<std::byte>& row, size_t n) {
  std::vector<float> out(n);
  unpack_row(type, row.data(), static_cast<int>(n), out.data());
  return out;
}
std::vector<float> noise(size_t n, unsigned seed, float scale) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng) * scale;
  return v;
}

TEST(PackedRows, a_published_row_to_the_byte) {
  std::vector<float> x(512);
  x[0] = 448, x[1] = 1, x[2] = -2, x[3] = 0.3f, x[4] = -0.0f, x[5] = 0x1p-9f, x[6] = 0x1p-10f;  // group 0: scale 1
  x[64] = 449;                                                                                  // group 1: scale 2
  x[65] = 1;
  x[128] = 1e-5f;  // group 2: below the floor of 1e-4, scale 2^-22
  x[448] = 1, x[449] = -0.15625f, x[511] = 3;
  const auto row = packed(DType::kPackedKv, x);
  ASSERT_EQ(row.size(), 584u);
  for (const auto& [i, code] : {std::pair(0, 0x7E),
                                {1, 0x38},
                                {2, 0xC0},
                                {3, 0x2A},
                                {4, 0x80},
                                {5, 0x01},
                                {6, 0x00},
                                {7, 0x00},
                                {64, 0x76},
                                {65, 0x30},
                                {128, 0x62},
                                {447, 0x00}})
    EXPECT_EQ(at(row, static_cast<size_t>(i)), code) << i;
  // bfloat16, little endian: 1.0, -0.15625 … 3.0
  EXPECT_EQ((std::vector<int>{at(row, 448), at(row, 449), at(row, 450), at(row, 451)}), (std::vector<int>{0x80, 0x3F, 0x20, 0xBE}));
  EXPECT_EQ((std::vector<int>{at(row, 574), at(row, 575)}), (std::vector<int>{0x40, 0x40}));
  EXPECT_EQ((std::vector<int>{at(row, 576), at(row, 577), at(row, 578), at(row, 582), at(row, 583)}),
            (std::vector<int>{127, 128, 105, 105, 0}));
  const auto back = unpacked(DType::kPackedKv, row, 512);
  EXPECT_EQ(back[0], 448);
  EXPECT_EQ(back[3], 0.3125f);
  EXPECT_EQ(back[64], 448);
  EXPECT_EQ(back[128], e4m3_to_f32(0x62) * 0x1p-22f);
  EXPECT_EQ(back[449], -0.15625f);
}

TEST(PackedRows, an_indexer_row_to_the_byte) {
  std::vector<float> ones(128, 1.0f);  // turned: 11.3137 and zeros
  const auto row = packed(DType::kPackedIndex, ones);
  ASSERT_EQ(row.size(), 68u);
  EXPECT_EQ(at(row, 0), 0x07);  // 5.66 of scale 2 becomes 6; the element after it is in the high half
  for (size_t i = 1; i < 64; i++) EXPECT_EQ(at(row, i), 0) << i;
  EXPECT_EQ((std::vector<int>{at(row, 64), at(row, 65), at(row, 66), at(row, 67)}), (std::vector<int>{128, 1, 1, 1}));
  EXPECT_EQ(unpacked(DType::kPackedIndex, row, 128)[0], 12);
  std::vector<float> one(128);
  one[1] = 1;  // turned: ±0.0884, minus where the index is odd; 0.0884 / 2^-6 = 5.66
  const auto alternating = packed(DType::kPackedIndex, one);
  for (size_t i = 0; i < 64; i++) EXPECT_EQ(at(alternating, i), 0xF7) << i;
  for (size_t i = 64; i < 68; i++) EXPECT_EQ(at(alternating, i), 121) << i;
}

TEST(PackedRows, sizes_and_what_fits) {
  EXPECT_EQ(row_bytes(DType::kPackedKv, 512), bytes_of(DType::kPackedKv, 512));
  EXPECT_EQ(row_bytes(DType::kPackedIndex, 128), bytes_of(DType::kPackedIndex, 128));
  EXPECT_EQ(row_bytes(DType::kPackedKv, 128), 64u + 128 + 8);
  EXPECT_EQ(row_bytes(DType::kPackedKv, 64 + 9 * 64), 576u + 128 + 16);
  EXPECT_EQ(row_bytes(DType::kBF16, 10), 20u);
  for (const int n : {128, 192, 512, 1088}) EXPECT_TRUE(packed_fits(DType::kPackedKv, n)) << n;
  for (const int n : {0, 32, 64, 96, 500}) EXPECT_FALSE(packed_fits(DType::kPackedKv, n)) << n;
  for (const int n : {32, 64, 128, 1024}) EXPECT_TRUE(packed_fits(DType::kPackedIndex, n)) << n;
  for (const int n : {0, -32, 16, 96, 2048}) EXPECT_FALSE(packed_fits(DType::kPackedIndex, n)) << n;
}

TEST(PackedRows, the_readable_reference_writes_and_reads_the_same) {
  for (unsigned seed = 0; seed < 40; seed++) {
    const std::vector<float> x = noise(512, seed, std::exp2f(static_cast<float>(seed) - 20)), y = noise(128, seed, 3);
    const auto row = packed(DType::kPackedKv, x);
    std::vector<std::byte> want(584);
    cpu::write_packed_row(want.data(), DType::kPackedKv, 512, x.data());
    ASSERT_EQ(row, want) << seed;
    std::vector<float> read(512);
    cpu::read_packed_row(want.data(), DType::kPackedKv, 512, read.data());
    ASSERT_EQ(std::memcmp(read.data(), unpacked(DType::kPackedKv, row, 512).data(), 512 * 4), 0) << seed;
    // The turned values are sums in two orders: a code in a thousand may be the neighbour.
    const auto index = packed(DType::kPackedIndex, y);
    std::vector<std::byte> index_want(68);
    cpu::write_packed_row(index_want.data(), DType::kPackedIndex, 128, y.data());
    int n_other = 0;
    for (size_t i = 0; i < 68; i++) n_other += index[i] != index_want[i];
    EXPECT_LE(n_other, 1) << seed;
    std::vector<float> index_read(128);
    cpu::read_packed_row(index.data(), DType::kPackedIndex, 128, index_read.data());
    ASSERT_EQ(std::memcmp(index_read.data(), unpacked(DType::kPackedIndex, index, 128).data(), 128 * 4), 0) << seed;
    std::vector<float> query = y;
    round_index_query(query.data(), 128);
    ASSERT_EQ(std::memcmp(query.data(), unpacked(DType::kPackedIndex, index, 128).data(), 128 * 4), 0) << "queries round as keys do";
  }
}

TEST(PackedRows, rounding_is_within_half_a_step_and_keeps_what_fits) {
  const std::vector<float> x = noise(512, 1, 5);
  const auto back = unpacked(DType::kPackedKv, packed(DType::kPackedKv, x), 512);
  for (size_t i = 0; i < 448; i++) EXPECT_NEAR(back[i], x[i], std::max(std::fabs(x[i]) / 16, 0x1p-10f)) << i;
  EXPECT_EQ(unpacked(DType::kPackedKv, packed(DType::kPackedKv, back), 512), back) << "what was stored is stored again without a change";
}

TEST(PackedRows, what_is_not_finite_spoils_its_group_alone) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> x = noise(512, 2, 1), y = noise(128, 2, 1);
    x[70] = bad;
    const auto back = unpacked(DType::kPackedKv, packed(DType::kPackedKv, x), 512);
    for (size_t i = 0; i < 512; i++) EXPECT_EQ(std::isnan(back[i]), i / 64 == 1) << i;
    y[5] = bad;
    for (const float v : unpacked(DType::kPackedIndex, packed(DType::kPackedIndex, y), 128)) EXPECT_TRUE(std::isnan(v));
  }
}

TEST(PackedRows, turning_twice_is_no_turn_and_keeps_dots) {
  for (const int n : {32, 128}) {
    const auto size = static_cast<size_t>(n);
    const std::vector<float> a = noise(size, 3, 1), b = noise(size, 4, 1);
    std::vector<float> ta = a, tb = b;
    hadamard(ta.data(), n);
    hadamard(tb.data(), n);
    double plain = 0, turned = 0;
    for (size_t i = 0; i < size; i++) plain += static_cast<double>(a[i]) * b[i], turned += static_cast<double>(ta[i]) * tb[i];
    EXPECT_NEAR(plain, turned, 1e-4);
    hadamard(ta.data(), n);
    for (size_t i = 0; i < size; i++) EXPECT_NEAR(ta[i], a[i], 1e-5);
  }
}

}  // namespace
}  // namespace carrel
