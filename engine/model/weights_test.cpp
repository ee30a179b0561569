#include "engine/model/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "engine/model/gguf.h"
#include "engine/model/packing.h"
#include "engine/model/safetensors.h"
#include "engine/model/test_files.h"

namespace carrel {
namespace {

using testing_files::bytes_of;

constexpr auto kSame = [](Form stored) { return stored; };

/// A source of one safetensors file; keeps its bytes.
struct TestModel {
  std::string config = "{}", file;
  std::unique_ptr<ModelSource> source;
};

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

TestModel make_model() {
  std::vector<float> a(6 * 4);
  for (size_t i = 0; i < a.size(); i++) a[i] = static_cast<float>(i) * 0.5f;
  const std::string da = raw(a), di = raw(std::vector<int64_t>{1, -2, 3}), dbig = raw(std::vector<int64_t>{int64_t{1} << 40}),
                    d32 = raw(std::vector<int32_t>{7, 8}), f8 = "12";
  TestModel m;
  m.file = write_safetensors({{.name = "a", .dtype = DType::kF32, .unsupported_type = "", .shape = {2, 3, 4}, .bytes = bytes_of(da)},
                              {.name = "ids", .dtype = DType::kI64, .unsupported_type = "", .shape = {3}, .bytes = bytes_of(di)},
                              {.name = "big", .dtype = DType::kI64, .unsupported_type = "", .shape = {1}, .bytes = bytes_of(dbig)},
                              {.name = "i32", .dtype = DType::kI32, .unsupported_type = "", .shape = {2, 1}, .bytes = bytes_of(d32)},
                              {.name = "f8", .dtype = DType::kF8E4M3, .unsupported_type = "", .shape = {1, 2}, .bytes = bytes_of(f8)}});
  m.source = *open_folder_in_memory({{"config.json", bytes_of(m.config)}, {"model.safetensors", bytes_of(m.file)}});
  return m;
}

std::vector<float> row(const Matrix& m, int64_t r) {
  std::vector<float> out(static_cast<size_t>(m.n_cols));
  dequantize_row(m, r, out);
  return out;
}

MatrixRequest rows_of(const std::string& tensor, int64_t begin, int64_t n, int64_t cols, int64_t unpair = 0) {
  return {.tensor = tensor, .row_begin = begin, .n_rows = n, .n_cols = cols, .unpair_rows = unpair};
}

TEST(Weights, a_matrix_is_part_of_a_tensor_and_is_packed_once) {
  const TestModel m = make_model();
  const auto w = weights_from_source(*m.source, kSame);
  const auto second = w->matrix(rows_of("a", 3, 3, 4));
  ASSERT_TRUE(second) << second.error().text();
  EXPECT_EQ(second->form, Form::kF32);
  EXPECT_EQ(row(*second, 0), (std::vector<float>{6, 6.5, 7, 7.5}));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second->data) % 64, 0u);
  EXPECT_EQ(w->matrix(rows_of("a", 3, 3, 4))->data, second->data);
  EXPECT_NE(w->matrix(rows_of("a", 0, 3, 4))->data, second->data);
  EXPECT_EQ(w->file_bytes(), 96);
  EXPECT_EQ(w->memory_bytes(), static_cast<int64_t>(2 * packed_bytes(Form::kF32, 3, 4)));
}

TEST(Weights, the_form_is_chosen) {
  const TestModel m = make_model();
  const auto w = weights_from_source(*m.source, [](Form) { return Form::kRows; });
  const auto all = w->matrix(rows_of("a", 0, 6, 4));
  ASSERT_TRUE(all);
  EXPECT_EQ(all->form, Form::kRows);
  EXPECT_EQ(reinterpret_cast<const float*>(all->data)[5], 2.5f);
}

TEST(Weights, pairs_of_rows_come_apart) {
  const TestModel m = make_model();
  const auto w = weights_from_source(*m.source, kSame);
  const auto x = w->matrix(rows_of("a", 2, 4, 4, 4));
  ASSERT_TRUE(x) << x.error().text();
  // Row s d/2 + i of a head is row 2i + s of the file: 0 2 1 3.
  for (const auto& [to, from] : {std::pair(0, 2), std::pair(1, 4), std::pair(2, 3), std::pair(3, 5)})
    EXPECT_EQ(row(*x, to)[0], static_cast<float>(from) * 2) << to;
  EXPECT_FALSE(w->matrix(rows_of("a", 0, 6, 4, 4)));
}

TEST(Weights, rows_come_in_groups) {
  const TestModel m = make_model();
  const auto w = weights_from_source(*m.source, kSame);
  MatrixRequest odd = rows_of("a", 1, 3, 4), pairs = rows_of("a", 0, 4, 4);
  odd.period = 2, odd.take = 1;
  pairs.period = 4, pairs.take = 2;
  const auto x = w->matrix(odd), y = w->matrix(pairs);
  ASSERT_TRUE(x && y);
  for (int64_t i = 0; i < 3; i++) EXPECT_EQ(row(*x, i)[0], static_cast<float>(1 + 2 * i) * 2) << i;
  for (int64_t i = 0; i < 4; i++) EXPECT_EQ(row(*y, i)[0], static_cast<float>(i < 2 ? i : i + 2) * 2) << i;
  EXPECT_NE(odd.id(), rows_of("a", 1, 3, 4).id());
  for (const auto& [begin, n] : {std::pair(1, 4), std::pair(2, 3), std::pair(6, 1)}) {
    odd.row_begin = begin, odd.n_rows = n;
    const auto bad = w->matrix(odd);
    ASSERT_FALSE(bad) << begin;
    EXPECT_NE(bad.error().text().find("'a' is F32 [2, 3, 4]"), std::string::npos) << bad.error().text();
  }
  for (const auto& [period, take] : {std::pair<int64_t, int64_t>(2, 3), {2, 0}, {0, 2}, {-2, -1}, {INT64_MAX, 1}, {INT64_MAX, INT64_MAX}}) {
    pairs.period = period, pairs.take = take;
    pairs.n_rows = INT64_MAX;
    EXPECT_FALSE(w->matrix(pairs)) << period << "/" << take;
  }
}

TEST(Weights, columns_become_rows) {
  const TestModel m = make_model();
  const auto w = weights_from_source(*m.source, kSame);
  // "a" is [2, 3, 4]: two matrices whose rows are its columns, [2][4][3].
  MatrixRequest r = rows_of("a", 0, 8, 3);
  r.transposed = true;
  const auto all = w->matrix(r);
  ASSERT_TRUE(all) << all.error().text();
  for (int64_t i = 0; i < 8; i++)
    for (int64_t k = 0; k < 3; k++)
      EXPECT_EQ(row(*all, i)[static_cast<size_t>(k)], static_cast<float>(i / 4 * 12 + k * 4 + i % 4) * 0.5f) << i << " " << k;
  r.row_begin = 5, r.n_rows = 2, r.period = 2, r.take = 1;
  const auto odd = w->matrix(r);
  ASSERT_TRUE(odd) << odd.error().text();
  EXPECT_EQ(row(*odd, 1), row(*all, 7));
  EXPECT_TRUE(check_lossless(*find_for(*m.source, r), r, *odd, "a"));
  r.row_begin = 6;
  EXPECT_FALSE(w->matrix(r));
  r = rows_of("a", 0, 1, 4);
  r.transposed = true;
  EXPECT_FALSE(w->matrix(r));
  r = rows_of("i32", 0, 1, 2);
  r.transposed = true;
  EXPECT_FALSE(w->matrix(r));
}

TEST(Weights, a_tensor_must_have_the_rows_that_are_said) {
  const TestModel m = make_model();
  const auto w = weights_from_source(*m.source, kSame);
  MatrixRequest r = rows_of("a", 0, 3, 4);
  r.total_rows = 6;
  EXPECT_TRUE(w->matrix(r));
  EXPECT_EQ(r.id(), rows_of("a", 0, 3, 4).id());
  r.row_begin = 3, r.total_rows = 9;
  EXPECT_FALSE(w->matrix(r));
}

TEST(Weights, vectors_and_tables) {
  const TestModel m = make_model();
  const auto w = weights_from_source(*m.source, kSame);
  const auto plain = w->vector("a", 24), plus = w->vector("a", 24, 1);
  ASSERT_TRUE(plain && plus);
  EXPECT_EQ((*plain)[3], 1.5f);
  EXPECT_EQ((*plus)[3], 2.5f);
  EXPECT_EQ(*w->vector("a", 24), *plain);
  EXPECT_EQ((*w->table("ids", 3))[1], -2);
  EXPECT_EQ((*w->table("i32", 2))[1], 8);
  EXPECT_EQ(w->shape("a"), (std::vector<int64_t>{2, 3, 4}));
  EXPECT_TRUE(w->shape("none").empty());
  EXPECT_TRUE(w->has("f8"));
  EXPECT_FALSE(w->has("none"));
}

TEST(Weights, wrong_requests_name_the_tensor) {
  const TestModel m = make_model();
  const auto w = weights_from_source(*m.source, kSame);
  const auto says = [](const auto& r, Code code, const std::string& part) {
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, code) << r.error().text();
    EXPECT_NE(r.error().text().find(part), std::string::npos) << r.error().text();
  };
  says(w->matrix(rows_of("none", 0, 1, 4)), Code::kCorrupt, "'none'");
  says(w->matrix(rows_of("a", 0, 7, 4)), Code::kCorrupt, "'a' is F32 [2, 3, 4]");
  says(w->matrix(rows_of("a", INT64_MAX, 1, 4)), Code::kCorrupt, "'a'");
  says(w->matrix(rows_of("a", 1, INT64_MAX, 4)), Code::kCorrupt, "'a'");
  says(w->matrix(rows_of("a", 0, 3, 8)), Code::kCorrupt, "'a'");
  says(w->matrix(rows_of("a", -1, 3, 4)), Code::kInternal, "a");
  says(w->matrix(rows_of("ids", 0, 1, 3)), Code::kCorrupt, "'ids'");
  says(w->matrix(rows_of("f8", 0, 1, 2)), Code::kUnsupported, "F8_E4M3");
  says(w->vector("a", 23), Code::kCorrupt, "'a'");
  says(w->vector("ids", 3), Code::kCorrupt, "'ids'");
  says(w->vector("f8", 2), Code::kUnsupported, "F8_E4M3");
  says(w->table("a", 24), Code::kCorrupt, "'a'");
  says(w->table("big", 1), Code::kCorrupt, "'big'");
}

TEST(Weights, every_golden_matrix_keeps_its_values) {
  for (const std::string file : {"gguf/deepseek_v4.gguf", "gguf/gpt_oss-mxfp4.gguf", "gguf/gemma3_text-mix.gguf",
                                 "gguf/llama256-q456_k.gguf", "gguf/llama.gguf", "models/deepseek_v4/tiny_a"}) {
    const auto source = open_source(Env::real(), "tests/golden/" + file);
    ASSERT_TRUE(source) << source.error().text();
    for (const auto& choose :
         {FormChooser(kSame), FormChooser([](Form) { return Form::kF32; }), FormChooser([](Form) { return Form::kRows; })}) {
      const auto w = weights_from_source(**source, choose);
      for (const std::string& name : (*source)->tensor_names()) {
        const TensorInfo* t = (*source)->find(name);
        if (t->shape.size() < 2 || t->dtype == DType::kI32 || t->dtype == DType::kI64) continue;
        const auto r = rows_of(name, 0, t->n_elements() / t->shape.back(), t->shape.back());
        const auto x = w->matrix(r);
        ASSERT_TRUE(x) << x.error().text();
        const Status same = check_lossless(*find_for(**source, r), r, *x, file);
        EXPECT_TRUE(same) << same.error().text();
      }
    }
  }
}

/// A request for all of a tensor whose scales are called after it, seen as [rows][cols].
MatrixRequest scaled(const std::string& tensor, const std::string& scales, int64_t n_rows, int64_t n_cols) {
  MatrixRequest r = rows_of(tensor, 0, n_rows, n_cols);
  r.scales = scales;
  return r;
}

TensorInfo tensor_of(const std::string& name, DType type, std::vector<int64_t> shape, const TensorInfo& data) {
  return {.name = name, .dtype = type, .unsupported_type = "", .shape = std::move(shape), .bytes = data.bytes};
}

/// The golden vectors of small floats as a model with the types of checkpoints.
struct SmallFloats {
  std::string file, model, config = "{}";
  std::map<std::string, TensorInfo> golden;
  std::unique_ptr<ModelSource> source;

  explicit SmallFloats(char spoil = 0) {
    file = read_file(Env::real(), "tests/golden/quant/mxfp4.safetensors").value();
    const SafetensorsFile parsed = read_safetensors(bytes_of(file), "").value();
    for (const TensorInfo& t : parsed.tensors) golden.emplace(t.name, t);
    const auto put = [&](const char* name, size_t at) {
      file[static_cast<size_t>(reinterpret_cast<const char*>(golden[name].bytes.data()) - file.data()) + at] = static_cast<char>(0xFF);
    };
    auto& scales = golden["mxfp4.scales"];
    for (size_t i = 0; i < scales.bytes.size(); i++) {  // the vectors have scales that no weight has
      char& scale = file[static_cast<size_t>(reinterpret_cast<const char*>(scales.bytes.data()) - file.data()) + i];
      if (static_cast<uint8_t>(scale) > 200) scale = static_cast<char>(static_cast<uint8_t>(scale) - 100);
    }
    if (spoil == 'x') put("mxfp4.scales", 5 * 3 + 1);
    if (spoil == 'f') put("fp8_block.weight", 140 * 130 + 9);
    const TensorInfo &x = golden["mxfp4.blocks"], &xs = golden["mxfp4.scales"], &f = golden["fp8_block.weight"],
                     &fs = golden["fp8_block.weight_scale_inv"];
    model = write_safetensors({tensor_of("blocks", DType::kU8, {2, 6, 3, 16}, x), tensor_of("scales", DType::kU8, {2, 6, 3}, xs),
                               tensor_of("rows", DType::kI8, {12, 48}, x), tensor_of("rows.scale", DType::kF8E8M0, {12, 3}, xs),
                               tensor_of("f8", DType::kF8E4M3, {150, 140}, f), tensor_of("f8.scale", DType::kF32, {2, 2}, fs),
                               tensor_of("f8.wrong", DType::kF32, {4, 1}, fs)});
    source = *open_folder_in_memory({{"config.json", bytes_of(config)}, {"model.safetensors", bytes_of(model)}});
  }
  std::vector<float> values(const std::string& name) const {
    const TensorInfo& t = golden.at(name);
    std::vector<float> out(static_cast<size_t>(t.n_elements()));
    to_f32(t.dtype, t.bytes, out);
    return out;
  }
};

TEST(Weights, small_floats_are_the_golden_values_in_every_form) {
  const SmallFloats m;
  const std::vector<float> f8 = m.values("fp8_block.values");
  std::vector<float> x4;
  for (size_t i = 0; i < size_t{12} * 96; i++) {
    constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const int code = static_cast<int>(m.golden.at("mxfp4.blocks").bytes[i / 2]) >> (i % 2 * 4) & 15;
    const int scale = static_cast<int>(m.golden.at("mxfp4.scales").bytes[i / 32]);
    x4.push_back(std::ldexp(code < 8 ? kValues[code] : -kValues[code - 8], scale - 127));
  }
  const auto same = [](const Matrix& got, int64_t row_begin, const std::vector<float>& want) {
    for (int64_t r = 0; r < got.n_rows; r++)
      for (int64_t k = 0; k < got.n_cols; k++)
        if (row(got, r)[static_cast<size_t>(k)] != want[static_cast<size_t>((row_begin + r) * got.n_cols + k)]) return false;
    return true;
  };
  for (const auto& choose :
       {FormChooser(kSame), FormChooser([](Form) { return Form::kF32; }), FormChooser([](Form) { return Form::kRows; })}) {
    const auto w = weights_from_source(*m.source, choose);
    for (const auto& r : {scaled("blocks", "scales", 12, 96), scaled("rows", "rows.scale", 12, 96)}) {
      const auto x = w->matrix(r);
      ASSERT_TRUE(x) << x.error().text();
      EXPECT_EQ(x->form, choose(Form::kX4));
      EXPECT_TRUE(same(*x, 0, x4));
      EXPECT_TRUE(check_lossless(*find_for(*m.source, r), r, *x, ""));
    }
    MatrixRequest second = scaled("blocks", "scales", 6, 96), odd = scaled("blocks", "scales", 3, 96);
    second.row_begin = 6, second.total_rows = 12;
    odd.row_begin = 7, odd.period = 2, odd.take = 1;
    const auto y = w->matrix(second), z = w->matrix(odd);
    ASSERT_TRUE(y && z);
    EXPECT_TRUE(same(*y, 6, x4));
    for (int64_t i = 0; i < 3; i++) EXPECT_EQ(row(*z, i), row(*y, 1 + 2 * i)) << i;
    const auto r = scaled("f8", "f8.scale", 150, 140);
    const auto f = w->matrix(r);
    ASSERT_TRUE(f) << f.error().text();
    EXPECT_EQ(f->form, choose(Form::kF8));
    EXPECT_TRUE(same(*f, 0, f8));
    EXPECT_TRUE(check_lossless(*find_for(*m.source, r), r, *f, ""));
    MatrixRequest part = scaled("f8", "f8.scale", 25, 140);
    part.row_begin = 120;
    EXPECT_TRUE(same(*w->matrix(part), 120, f8));
    EXPECT_EQ(w->file_bytes(), 2 * (12 * 48 + 36) + 150 * 140 + 16);  // weights and scales
  }
}

TEST(Weights, small_floats_that_do_not_fit_are_refused_by_name) {
  const SmallFloats m;
  const auto w = weights_from_source(*m.source, kSame);
  const auto says = [&](const MatrixRequest& r, Code code, const std::string& part) {
    const auto got = w->matrix(r);
    ASSERT_FALSE(got) << r.id();
    EXPECT_EQ(got.error().code, code) << got.error().text();
    EXPECT_NE(got.error().text().find(part), std::string::npos) << got.error().text();
  };
  says(scaled("f8", "", 150, 140), Code::kUnsupported, "'f8' has the type F8_E4M3");
  says(scaled("rows", "", 12, 96), Code::kUnsupported, "'rows' has the type I8");
  says(scaled("f8", "none", 150, 140), Code::kCorrupt, "'none'");
  says(scaled("f8", "f8.wrong", 150, 140), Code::kCorrupt, "'f8.wrong' is F32 [4, 1] where the configuration asks for the scales of 'f8'");
  says(scaled("f8", "scales", 150, 140), Code::kCorrupt, "'scales'");
  says(scaled("f8", "f8.scale", 151, 140), Code::kCorrupt, "'f8'");
  says(scaled("f8", "f8.scale", 150, 70), Code::kCorrupt, "'f8'");
  says(scaled("rows", "scales", 12, 96), Code::kCorrupt, "'rows'");
  says(scaled("rows", "rows.scale", 12, 48), Code::kCorrupt, "'rows'");
  says(scaled("rows", "rows.scale", 13, 96), Code::kCorrupt, "'rows'");
  says(scaled("rows", "f8.scale", 12, 96), Code::kCorrupt, "'f8.scale'");
  says(scaled("blocks", "rows.scale", 12, 96), Code::kCorrupt, "'blocks'");
  says(scaled("f8.scale", "scales", 2, 2), Code::kUnsupported, "'scales' claims to scale it");
  says(scaled("rows.scale", "", 12, 3), Code::kCorrupt, "'rows.scale'");
  MatrixRequest turned = scaled("f8", "f8.scale", 140, 150);
  turned.transposed = true;
  says(turned, Code::kUnsupported, "'f8'");
  EXPECT_FALSE(w->vector("rows.scale", 36));
  EXPECT_FALSE(w->table("blocks", 576));
  for (const char spoil : {'x', 'f'}) {
    const SmallFloats bad(spoil);
    for (const auto& choose : {FormChooser(kSame), FormChooser([](Form) { return Form::kRows; })}) {
      const auto r = spoil == 'x' ? weights_from_source(*bad.source, choose)->matrix(scaled("blocks", "scales", 12, 96))
                                  : weights_from_source(*bad.source, choose)->matrix(scaled("f8", "f8.scale", 150, 140));
      ASSERT_FALSE(r);
      EXPECT_EQ(r.error().code, Code::kCorrupt);
      const std::string place = spoil == 'x' ? "tensor 'blocks': row 5, column 32 has the scale NaN"
                                             : "tensor 'f8' (F8_E4M3 [150, 140]): row 130, column 9 has the value NaN";
      EXPECT_NE(r.error().text().find(place), std::string::npos) << r.error().text();
    }
  }
}

TEST(Weights, scales_are_part_of_the_digest) {
  SmallFloats a, b;
  b.model[b.model.size() - 17] ^= 1;  // a byte of f8.scale: f8.wrong is last, its data before
  b.source = *open_folder_in_memory({{"config.json", bytes_of(b.config)}, {"model.safetensors", bytes_of(b.model)}});
  const auto digest = [](const ModelSource& s) {
    const auto w = weights_from_source(s, kSame);
    EXPECT_TRUE(w->matrix(scaled("f8", "f8.scale", 150, 140)));
    return *w->model_digest();
  };
  EXPECT_EQ(digest(*a.source), digest(*a.source));
  EXPECT_NE(digest(*a.source), digest(*b.source));
}

TEST(Weights, digest_depends_on_what_was_asked_for_and_on_the_texts) {
  const TestModel a = make_model();
  TestModel b = make_model();
  b.config = R"({"x":1})";
  b.source = *open_folder_in_memory({{"config.json", bytes_of(b.config)}, {"model.safetensors", bytes_of(b.file)}});
  const auto digest = [](const ModelSource& s, bool more) {
    const auto w = weights_from_source(s, kSame);
    EXPECT_TRUE(w->vector("a", 24));
    if (more) {
      EXPECT_TRUE(w->table("ids", 3));
    }
    return *w->model_digest();
  };
  EXPECT_EQ(digest(*a.source, false), digest(*a.source, false));
  EXPECT_NE(digest(*a.source, false), digest(*a.source, true));
  EXPECT_NE(digest(*a.source, false), digest(*b.source, false));
}

TEST(GgufTokenizer, stored_form_reads_back) {
  const auto source = open_source(Env::real(), "tests/golden/gguf/llama.gguf");
  ASSERT_TRUE(source);
  GgufTokenizer t = *(*source)->gguf_tokenizer();
  t.add_bos = false;
  t.add_eos = true;
  t.tokens[7] = std::string("\xff\0", 2);
  const Bytes bytes = encode_gguf_tokenizer(t);
  const auto back = decode_gguf_tokenizer(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->tokens, t.tokens);
  EXPECT_EQ(back->merges, t.merges);
  EXPECT_EQ(back->types, t.types);
  EXPECT_EQ(back->add_bos, false);
  EXPECT_FALSE(back->add_space_prefix.has_value());
  EXPECT_EQ(encode_gguf_tokenizer(*back), bytes);
  for (size_t n = 0; n < bytes.size(); n += 97) EXPECT_FALSE(decode_gguf_tokenizer(std::span(bytes).first(n)));
}

}  // namespace
}  // namespace carrel
