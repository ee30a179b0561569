// Damaged and hostile model files: a typed error that names file and place, never a crash or a large allocation.
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "engine/model/gguf.h"
#include "engine/model/safetensors.h"
#include "engine/model/test_files.h"

namespace carrel {
namespace {

using testing_files::bytes_of;
using testing_files::GgufBuilder;
using testing_files::safetensors;

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string st_error(const std::string& header, const std::string& data = {}) {
  const auto r = read_safetensors(bytes_of(safetensors(header, data)), "f.safetensors");
  return r ? std::string("no error") : r.error().text();
}

std::string gguf_error(const GgufBuilder& b, Code* code = nullptr) {
  const auto r = read_gguf(bytes_of(b.str()), "f.gguf");
  if (code != nullptr && !r) *code = r.error().code;
  return r ? std::string("no error") : r.error().text();
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

/// Opening `text` cut at n points and with bits flipped. Cuts must be refused with the file's name; a flip may pass (data has no checksum
/// before import) but must never do anything else than pass or give such an error.
template <class Read>
void damage(const std::string& text, size_t head_bytes, Read read) {
  for (int i = 0; i < 100; i++) {
    const size_t n = text.size() * static_cast<size_t>(i) / 100;
    const std::string cut = text.substr(0, n);
    const auto r = read(bytes_of(cut));
    ASSERT_FALSE(r) << "cut at " << n;
    EXPECT_TRUE(r.error().code == Code::kCorrupt) << r.error().text();
    EXPECT_EQ(r.error().where, "file");
    EXPECT_SAYS(r.error().message, "byte");
  }
  std::mt19937_64 rng(7);
  std::string work = text;
  int n_refused = 0;
  for (int i = 0; i < 4000; i++) {
    const size_t at = rng() % head_bytes;
    const char bit = static_cast<char>(1 << (rng() % 8));
    work[at] = static_cast<char>(work[at] ^ bit);
    if (const auto r = read(bytes_of(work)); !r) {
      n_refused++;
      EXPECT_TRUE(r.error().code == Code::kCorrupt || r.error().code == Code::kUnsupported) << r.error().text();
      EXPECT_EQ(r.error().where, "file");
    }
    work[at] = text[at];
  }
  EXPECT_GT(n_refused, 100);
}

TEST(Cases, case_appliance_b24) {
  const std::string st = slurp("tests/golden/models/deepseek_v4/tiny_b/model.safetensors");
  ASSERT_GT(st.size(), 1000u);
  damage(st, 16176, [](auto bytes) { return read_safetensors(bytes, "file"); });
  const std::string gguf = slurp("tests/golden/gguf/gemma3_text-mix.gguf");
  ASSERT_GT(gguf.size(), 1000u);
  damage(gguf, 30000, [](auto bytes) { return read_gguf(bytes, "file"); });
}

TEST(Cases, case_appliance_b25) {  // crafted heads: lengths and counts that would make a naive reader allocate or overflow
  for (const uint64_t n : {uint64_t{0}, uint64_t{1} << 20, uint64_t{1} << 62, UINT64_MAX, UINT64_MAX - 7}) {
    std::string st(16, '{');
    std::memcpy(st.data(), &n, 8);
    EXPECT_FALSE(read_safetensors(bytes_of(st), "f"));
    EXPECT_SAYS(gguf_error(GgufBuilder().head(n, 1).architecture("x")), n == 0 ? "no error" : "number of tensors");
    EXPECT_FALSE(gguf_error(GgufBuilder().head(0, n)).empty());
    EXPECT_SAYS(gguf_error(GgufBuilder().head(0, 1).key("k", 9).number<uint32_t>(8).number(n)), n == 0 ? "architecture" : "list");
    EXPECT_SAYS(gguf_error(GgufBuilder().head(0, 1).key("k", 8).number(n)), n == 0 ? "architecture" : "length of a text");
  }
  GgufBuilder deep;
  deep.head(0, 1).key("k", 9);
  for (int i = 0; i < 10000; i++) deep.number<uint32_t>(9).number<uint64_t>(1);
  EXPECT_SAYS(gguf_error(deep), "nest deeper");
  EXPECT_SAYS(st_error(std::string(1 << 20, '{')), "JSON");
  EXPECT_SAYS(st_error("{\"a\":" + std::string(1 << 20, '[')), "list where none belongs");
}

GgufBuilder one_tensor(std::vector<uint64_t> dims, uint64_t offset = 0) {
  return GgufBuilder().head(1, 1).architecture("x").tensor("a", std::move(dims), 0, offset).data(std::string(64, 'x'));
}

TEST(Cases, case_state_g1) {  // products and paddings that wrap
  EXPECT_SAYS(gguf_error(one_tensor({4})), "no error");
  EXPECT_SAYS(gguf_error(one_tensor({(uint64_t{1} << 42) + 1})), "ends behind the end of the file");
  EXPECT_SAYS(gguf_error(one_tensor({(uint64_t{1} << 42) + 1, 1 << 20})), "impossible shape");
  EXPECT_SAYS(gguf_error(one_tensor({uint64_t{1} << 62})), "impossible shape");                   // times four bytes it wraps to 0
  EXPECT_SAYS(gguf_error(one_tensor({1 << 16, 1 << 16, 1 << 16, 1 << 16})), "impossible shape");  // the product wraps to 0
  EXPECT_SAYS(gguf_error(one_tensor({UINT64_MAX})), "impossible shape");
  EXPECT_SAYS(gguf_error(one_tensor({1, 1, 1, 1, 1})), "5 dimensions");
  EXPECT_SAYS(gguf_error(one_tensor({4}, uint64_t{1} << 40)), "begins behind the end");
  for (const uint32_t alignment : {0u, 3u, 1u << 31, UINT32_MAX})
    EXPECT_SAYS(gguf_error(GgufBuilder().head(0, 2).architecture("x").key("general.alignment", 4).number(alignment)), "alignment");
  EXPECT_SAYS(gguf_error(GgufBuilder().head(0, uint64_t{1} << 63).architecture("x")), "number of keys");
}

TEST(Cases, case_state_g3) {  // more dimensions than any format has, lengths past the map; these tests run in the release build too
  for (const size_t n : {9, 64, 1000}) EXPECT_SAYS(gguf_error(one_tensor(std::vector<uint64_t>(n, 1))), std::to_string(n) + " dimensions");
  EXPECT_SAYS(gguf_error(GgufBuilder().head(0, 1).key("k", 8).number<uint64_t>(1000).data("short")), "length of a text");
  EXPECT_SAYS(gguf_error(GgufBuilder().head(0, 1).number<uint64_t>(UINT64_MAX).data(std::string(64, 'x'))), "length of a text");
}

TEST(Cases, case_state_g4) {  // a dozen heads of safetensors, each refused
  const std::string four(4, 'x');
  const auto one = [](const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":"BF16","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  EXPECT_SAYS(st_error(one("[2]", "[0,4]"), four), "no error");
  for (const std::string& bad :
       {one("[2]", "[4,0]"), one("[2]", "[-4,0]"), one("[2]", "[0,18446744073709551620]"), one("[2]", "[0,2]"), one("[3]", "[0,4]"),
        one("[2]", "[2,6]"), one("[9223372036854775807,2]", "[0,4]"), one("[-2]", "[0,4]"),
        std::string(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"BF16","shape":[1],"data_offsets":[2,4]}})"),
        std::string(R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},"b":{"dtype":"BF16","shape":[0],"data_offsets":[4,4]}})")})
    EXPECT_NE(st_error(bad, four), "no error") << bad;
  for (const uint64_t n : {UINT64_MAX, UINT64_MAX - 7, uint64_t{100 << 20} + 1}) {  // 8 + length wraps; above the cap of 100 MiB
    std::string text(64, ' ');
    std::memcpy(text.data(), &n, 8);
    const auto r = read_safetensors(bytes_of(text), "f");
    ASSERT_FALSE(r);
    EXPECT_SAYS(r.error().text(), "header");
  }
}

TEST(Safetensors, header_is_checked) {
  const std::string two(2, 'x');
  EXPECT_SAYS(st_error(R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})", two), "no error");
  EXPECT_SAYS(
      st_error(R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})", two),
      "'a' in the header is named twice");
  EXPECT_SAYS(
      st_error(R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},"b":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})", two),
      "inside of another");
  EXPECT_SAYS(st_error(R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[2,4]}})", two + two), "hole");
  EXPECT_SAYS(st_error(R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})", two + two), "behind the last tensor");
  EXPECT_SAYS(st_error(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})", two), "'a' ends at byte");
  EXPECT_SAYS(st_error(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,2]}})", two), "ask for 4");
  EXPECT_SAYS(st_error(R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[2,0]}})", two), "data_offsets");
  EXPECT_SAYS(st_error(R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2,2]}})", two), "data_offsets");
  EXPECT_SAYS(st_error(R"({"a":{"dtype":"BF16","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,2]}})", two),
              "impossible shape");
  EXPECT_SAYS(st_error(R"({"a":{"dtype":"BF16","shape":[-1],"data_offsets":[0,2]}})", two), "negative");
  EXPECT_SAYS(st_error(R"({"a":{"dtype":"BF16","shape":[1.5],"data_offsets":[0,2]}})", two), "no integer");
  EXPECT_SAYS(st_error(R"({"a":{"dtype":"BF16","shape":[99999999999999999999],"data_offsets":[0,2]}})", two), "no integer");
  EXPECT_SAYS(st_error(R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,2]}})", two), "number where none");
  EXPECT_SAYS(st_error(R"({"a":{"shape":[1],"data_offsets":[0,2]}})", two), "lacks");
  EXPECT_SAYS(st_error(R"({"a":{"dtype":"BF16","dtype":"F16","shape":[1],"data_offsets":[0,2]}})", two), "text where none");
  EXPECT_SAYS(st_error(R"({"a\u0000":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})", two), "impossible name");
  EXPECT_SAYS(st_error(R"({"a":{"dtype":"BF16","shape":[[1]],"data_offsets":[0,2]}})", two), "list where none");
  EXPECT_SAYS(st_error("[]"), "not a JSON object");
  EXPECT_SAYS(st_error("{} x"), "byte");
}

TEST(Safetensors, unknown_types_are_listed) {
  const auto check = [](const std::string& dtype, const std::string& shape, size_t n) {
    const std::string text = safetensors(
        R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[0,)" + std::to_string(n) + "]}}", std::string(n, 'x'));
    const auto r = read_safetensors(bytes_of(text), "f");
    return r ? r->tensors[0].unsupported_type : r.error().text();
  };
  EXPECT_EQ(check("F8_E5M2", "[3]", 3), "F8_E5M2");
  EXPECT_SAYS(check("F8_E5M2", "[3]", 4), "ask for 3");
  for (const char* read : {"F8_E4M3", "F8_E8M0", "U8", "I8"}) EXPECT_EQ(check(read, "[3]", 3), "") << read;
  EXPECT_EQ(check("F4", "[4]", 2), "F4");
  EXPECT_SAYS(check("F4", "[3]", 2), "has 2 bytes");
  EXPECT_EQ(check("Q8_0", "[32]", 34), "Q8_0");  // of GGUF, nobody's in safetensors
  EXPECT_EQ(check("NEW_TYPE", "[5]", 3), "NEW_TYPE");
}

TEST(Safetensors, written_files_read_back) {
  const std::string a = "12345678", b = "xyzxyz";
  TensorInfo ta{.name = "a\"", .dtype = DType::kI64, .unsupported_type = "", .shape = {1}, .bytes = bytes_of(a)};
  TensorInfo tb{.name = "b", .dtype = {}, .unsupported_type = "U16", .shape = {3, 1}, .bytes = bytes_of(b)};
  const std::string text = write_safetensors({ta, tb});
  const auto r = read_safetensors(bytes_of(text), "f");
  ASSERT_TRUE(r) << r.error().text();
  ASSERT_EQ(r->tensors.size(), 2u);
  EXPECT_EQ(r->tensors[0].name, "a\"");
  EXPECT_EQ(r->tensors[0].dtype, DType::kI64);
  EXPECT_EQ(r->tensors[1].unsupported_type, "U16");
  EXPECT_EQ(r->tensors[1].shape, (std::vector<int64_t>{3, 1}));
  EXPECT_TRUE(std::ranges::equal(r->tensors[1].bytes, bytes_of(b)));
}

GgufBuilder model(uint64_t n_tensors) {
  GgufBuilder b;
  b.head(n_tensors, 1).architecture("x");
  return b;
}

TEST(Gguf, tensors_are_checked) {
  const std::string data(64, 'x');
  EXPECT_SAYS(gguf_error(model(1).tensor("a", {4}, 0, 0).data(data)), "no error");
  EXPECT_SAYS(gguf_error(model(2).tensor("a", {4}, 0, 0).tensor("a", {4}, 0, 32).data(data)), "'a': stands twice");
  EXPECT_SAYS(gguf_error(model(2).tensor("a", {16}, 0, 0).tensor("b", {4}, 0, 32).data(data)), "inside of another");
  EXPECT_SAYS(gguf_error(model(1).tensor("a", {4}, 0, 1).data(data)), "aligned");
  EXPECT_SAYS(gguf_error(model(1).tensor("a", {4}, 0, 96).data(data)), "begins behind the end");
  EXPECT_SAYS(gguf_error(model(1).tensor("a", {4}, 0, UINT64_MAX - 31).data(data)), "begins behind the end");
  EXPECT_SAYS(gguf_error(model(1).tensor("a", {17}, 0, 0).data(data)), "ends behind the end");
  EXPECT_SAYS(gguf_error(model(1).tensor("a", {33}, 8, 0).data(data)), "no multiple of a block of Q8_0");
  EXPECT_SAYS(gguf_error(model(1).tensor("a", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0).data(data)), "impossible shape");
  EXPECT_SAYS(gguf_error(model(1).tensor("a", {0}, 0, 0).data(data)), "impossible shape");
  EXPECT_SAYS(gguf_error(model(1).tensor("a", {1, 1, 1, 1, 1}, 0, 0).data(data)), "5 dimensions");
  EXPECT_SAYS(gguf_error(model(1).tensor(std::string("a\0b", 3), {4}, 0, 0).data(data)), "impossible name");
}

TEST(Gguf, other_types_are_listed_by_name) {
  const std::string text =
      model(3).tensor("a", {256}, 10, 0).tensor("b", {64}, 40, 96).tensor("c", {5}, 77, 160).data(std::string(256, 'x')).str();
  const auto r = read_gguf(bytes_of(text), "f");
  ASSERT_TRUE(r) << r.error().text();
  EXPECT_EQ(r->tensors[0].unsupported_type, "Q2_K");
  EXPECT_EQ(r->tensors[0].bytes.size(), 84u);
  EXPECT_EQ(r->tensors[1].unsupported_type, "NVFP4");
  EXPECT_EQ(r->tensors[2].unsupported_type, "type 77");
}

TEST(Gguf, head_is_checked) {
  Code code = Code::kInternal;
  EXPECT_SAYS(gguf_error(GgufBuilder().head(0, 0, 1), &code), "version 1");
  EXPECT_EQ(code, Code::kUnsupported);
  EXPECT_SAYS(gguf_error(GgufBuilder().head(0, 0, 0x03000000)), "big-endian");
  EXPECT_SAYS(gguf_error(GgufBuilder().head(0, 0)), "general.architecture");
  EXPECT_SAYS(gguf_error(GgufBuilder().head(0, 2).architecture("x").key("split.count", 2).number<uint16_t>(3), &code), "3 parts");
  EXPECT_EQ(code, Code::kUnsupported);
  EXPECT_SAYS(gguf_error(GgufBuilder().head(0, 2).architecture("x").architecture("x")), "stands twice");
  EXPECT_SAYS(gguf_error(GgufBuilder().head(0, 2).architecture("x").key("general.alignment", 4).number<uint32_t>(24)), "alignment");
  EXPECT_SAYS(gguf_error(GgufBuilder().head(0, 2).architecture("x").key("k", 13).number<uint64_t>(0)), "unknown value type 13");
  EXPECT_SAYS(
      gguf_error(GgufBuilder().head(0, 2).architecture("x").key("tokenizer.ggml.tokens", 9).number<uint32_t>(4).number<uint64_t>(0)),
      "another type");
  EXPECT_SAYS(gguf_error(GgufBuilder()
                             .head(0, 3)
                             .architecture("x")
                             .key("tokenizer.ggml.tokens", 9)
                             .number<uint32_t>(8)
                             .number<uint64_t>(1)
                             .text("t")
                             .key("tokenizer.ggml.eos_token_id", 4)
                             .number<uint32_t>(1)),
              "special token");
  EXPECT_SAYS(gguf_error(GgufBuilder()
                             .head(0, 3)
                             .architecture("x")
                             .key("tokenizer.ggml.tokens", 9)
                             .number<uint32_t>(8)
                             .number<uint64_t>(1)
                             .text("t")
                             .key("tokenizer.ggml.scores", 9)
                             .number<uint32_t>(6)
                             .number<uint64_t>(0)),
              "no error");
}

TEST(Gguf, every_value_type_becomes_json) {
  GgufBuilder b;
  b.head(0, 16, 2).architecture("a\"b");
  b.key("u8", 0).number<uint8_t>(255).key("i8", 1).number<int8_t>(-1).key("u16", 2).number<uint16_t>(65535).key("i16", 3).number<int16_t>(
      -2);
  b.key("u32", 4)
      .number<uint32_t>(4000000000u)
      .key("i32", 5)
      .number<int32_t>(-3)
      .key("f32", 6)
      .number<float>(1e-6f)
      .key("bool", 7)
      .number<uint8_t>(1);
  b.key("u64", 10)
      .number<uint64_t>(UINT64_MAX)
      .key("i64", 11)
      .number<int64_t>(INT64_MIN)
      .key("f64", 12)
      .number<double>(0.1)
      .key("inf", 6)
      .number<float>(INFINITY);
  b.key("list", 9).number<uint32_t>(4).number<uint64_t>(2).number<uint32_t>(1).number<uint32_t>(2);
  b.key("lists", 9).number<uint32_t>(9).number<uint64_t>(1).number<uint32_t>(8).number<uint64_t>(1).text("x");
  b.key("tokenizer.ggml.tokens", 9).number<uint32_t>(8).number<uint64_t>(1).text("\xff");
  const auto r = read_gguf(bytes_of(b.str()), "f");
  ASSERT_TRUE(r) << r.error().text();
  EXPECT_EQ(r->metadata_json,
            R"({"general.architecture":"a\"b","u8":255,"i8":-1,"u16":65535,"i16":-2,"u32":4000000000,"i32":-3,"f32":1e-06,"bool":true,)"
            R"("u64":18446744073709551615,"i64":-9223372036854775808,"f64":0.1,"inf":null,"list":[1,2],"lists":[["x"]]})");
  ASSERT_TRUE(r->tokenizer);
  EXPECT_EQ(r->tokenizer->tokens[0], "\xff");
}

}  // namespace
}  // namespace carrel
