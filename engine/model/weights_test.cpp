#include "engine/model/weights.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/model/gguf.h"
#include "engine/model/packing.h"
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
                              {.name = "f8", .dtype = {}, .unsupported_type = "F8_E4M3", .shape = {1, 2}, .bytes = bytes_of(f8)}});
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
  for (const std::string file :
       {"gguf/gemma3_text-mix.gguf", "gguf/llama256-q456_k.gguf", "gguf/llama.gguf", "models/deepseek_v4/tiny_a"}) {
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
