#include "engine/model/store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "base/fault_env.h"
#include "engine/model/gguf.h"
#include "engine/model/packing.h"
#include "engine/model/store_manifest.h"
#include "engine/model/test_files.h"

namespace carrel {
namespace {

using testing_files::bytes_of;

constexpr auto kSame = [](Form stored) { return stored; };
const std::string kStore = "/data/models";

struct Asked {
  std::vector<MatrixRequest> matrices;
  std::vector<std::pair<std::string, int64_t>> vectors, tables;
};

/// Every tensor of a source once, as a family would.
Asked ask_all(const ModelSource& s) {
  Asked a;
  for (const std::string& name : s.tensor_names()) {
    const TensorInfo* t = s.find(name);
    if (!t->unsupported_type.empty()) continue;
    if (t->dtype == DType::kI32 || t->dtype == DType::kI64) {
      a.tables.emplace_back(name, t->n_elements());
    } else if (t->shape.size() < 2) {
      a.vectors.emplace_back(name, t->n_elements());
    } else {
      a.matrices.push_back(
          {.tensor = name, .row_begin = 0, .n_rows = t->n_elements() / t->shape.back(), .n_cols = t->shape.back(), .unpair_rows = 0});
    }
  }
  return a;
}

Status ask(const Asked& a, Weights& w) {
  for (const auto& r : a.matrices) CARREL_TRY(w.matrix(r));
  for (const auto& r : a.matrices) CARREL_TRY(w.matrix(r));  // tied embeddings ask twice
  for (const auto& [name, n] : a.vectors) CARREL_TRY(w.vector(name, n));
  for (const auto& [name, n] : a.vectors) CARREL_TRY(w.vector(name, n, 1));
  for (const auto& [name, n] : a.tables) CARREL_TRY(w.table(name, n));
  return {};
}

BuildHook hook(const Asked& a) {
  return [&a](SourceFormat, const std::string&, Weights& w) { return ask(a, w); };
}

/// A small model in memory.
struct Small {
  std::string config = R"({"model_type":"x"})", tokenizer = "{}", file;
  std::unique_ptr<ModelSource> source;
  Asked asked;
};

Small small_model(float first = 1) {
  std::vector<float> a(40 * 32), v(5, 2);
  for (size_t i = 0; i < a.size(); i++) a[i] = first + static_cast<float>(i % 17);
  const std::vector<int64_t> t = {5, 6};
  Small m;
  m.file = write_safetensors(
      {{.name = "a", .dtype = DType::kF32, .unsupported_type = "", .shape = {40, 32}, .bytes = std::as_bytes(std::span(a))},
       {.name = "v", .dtype = DType::kF32, .unsupported_type = "", .shape = {5}, .bytes = std::as_bytes(std::span(v))},
       {.name = "t", .dtype = DType::kI64, .unsupported_type = "", .shape = {2}, .bytes = std::as_bytes(std::span(t))}});
  m.source = *open_folder_in_memory(
      {{"config.json", bytes_of(m.config)}, {"tokenizer.json", bytes_of(m.tokenizer)}, {"model.safetensors", bytes_of(m.file)}});
  m.asked = ask_all(*m.source);
  return m;
}

ImportOptions named(const std::string& name) {
  ImportOptions o;
  o.name = name;
  return o;
}

TEST(Store, an_imported_model_gives_the_same_bits) {
  for (const std::string file :
       {"gguf/gemma3_text-mix.gguf", "gguf/llama256-q456_k.gguf", "models/deepseek_v4/tiny_a", "models/gemma3_text"}) {
    FaultEnv env;
    const auto source = open_source(Env::real(), "tests/golden/" + file);
    ASSERT_TRUE(source);
    const Asked asked = ask_all(**source);
    const auto entry = import_source(&env, **source, kStore, named("m"), hook(asked));
    ASSERT_TRUE(entry) << entry.error().text();
    const auto model = open_stored_model(&env, entry->path, kSame, StoreVerify::kFull);
    ASSERT_TRUE(model) << model.error().text();
    EXPECT_EQ(model->source->config_json(), (*source)->config_json());
    EXPECT_EQ(model->source->chat_template(), (*source)->chat_template());
    EXPECT_EQ(model->source->format(), (*source)->format());
    if ((*source)->gguf_tokenizer() != nullptr) {
      ASSERT_NE(model->source->gguf_tokenizer(), nullptr);
      EXPECT_EQ(encode_gguf_tokenizer(*model->source->gguf_tokenizer()), encode_gguf_tokenizer(*(*source)->gguf_tokenizer()));
    }
    for (const auto& choose :
         {FormChooser(kSame), FormChooser([](Form) { return Form::kF32; }), FormChooser([](Form) { return Form::kRows; })}) {
      const auto direct = weights_from_source(**source, choose);
      const auto stored = std::move(open_stored_model(&env, entry->path, choose, StoreVerify::kFull)->weights);
      for (const auto& r : asked.matrices) {
        const auto x = direct->matrix(r), y = stored->matrix(r);
        ASSERT_TRUE(x && y) << y.error().text();
        ASSERT_EQ(x->form, y->form);
        EXPECT_EQ(std::memcmp(x->data, y->data, packed_bytes(x->form, x->n_rows, x->n_cols)), 0) << r.tensor;
        EXPECT_EQ(stored->matrix(r)->data, y->data);
      }
      for (const auto& [name, n] : asked.vectors)
        EXPECT_EQ(std::memcmp(*direct->vector(name, n, 1), *stored->vector(name, n, 1), static_cast<size_t>(n) * 4), 0) << name;
      for (const auto& [name, n] : asked.tables)
        EXPECT_EQ(std::memcmp(*direct->table(name, n), *stored->table(name, n), static_cast<size_t>(n) * 4), 0) << name;
      EXPECT_EQ(stored->shape(asked.matrices[0].tensor), direct->shape(asked.matrices[0].tensor));
      EXPECT_EQ(direct->file_bytes(), stored->file_bytes());
      EXPECT_EQ(*stored->model_digest(), *direct->model_digest());
    }
  }
}

TEST(Store, a_flipped_byte_is_named_by_tensor) {
  FaultEnv env;
  const auto source = open_source(Env::real(), "tests/golden/gguf/gemma3_text-mix.gguf");
  ASSERT_TRUE(source);
  const Asked asked = ask_all(**source);
  const auto entry = import_source(&env, **source, kStore, named("m"), hook(asked));
  ASSERT_TRUE(entry) << entry.error().text();
  const auto manifest = decode_manifest(*read_file(&env, entry->path + "/manifest.json"), "m");
  ASSERT_TRUE(manifest);
  std::mt19937_64 rng(3);
  for (int i = 0; i < 50; i++) {
    const StoredPiece& p = manifest->pieces[rng() % manifest->pieces.size()];
    const uint64_t bit = (p.offset + rng() % p.bytes) * 8 + rng() % 8;
    const std::string path = entry->path + "/weights.bin";
    ASSERT_TRUE(env.flip_bit(path, bit));
    const auto model = open_stored_model(&env, entry->path, kSame, StoreVerify::kFull);
    ASSERT_TRUE(model);
    const Status loaded = ask(asked, *model->weights);
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error().code, Code::kCorrupt);
    EXPECT_NE(loaded.error().message.find("'" + p.tensor + "'"), std::string::npos) << loaded.error().text();
    const auto report = verify_entry(&env, entry->path);
    ASSERT_TRUE(report);
    ASSERT_EQ(report->damage.size(), 1u);
    EXPECT_EQ(report->damage[0].object, p.tensor);
    ASSERT_TRUE(env.flip_bit(path, bit));
  }
  EXPECT_TRUE(verify_entry(&env, entry->path)->damage.empty());
}

TEST(Store, a_flipped_byte_in_any_other_file_is_named_by_file) {
  FaultEnv env;
  const Small m = small_model();
  const auto entry = import_source(&env, *m.source, kStore, named("m"), hook(m.asked));
  ASSERT_TRUE(entry);
  for (const std::string file : {"config.json", "tokenizer.json", "manifest.json"}) {
    ASSERT_TRUE(env.flip_bit(entry->path + "/" + file, 8));
    const auto model = open_stored_model(&env, entry->path, kSame, StoreVerify::kFull);
    ASSERT_FALSE(model) << file;
    EXPECT_NE(model.error().text().find(file), std::string::npos) << model.error().text();
    ASSERT_TRUE(env.flip_bit(entry->path + "/" + file, 8));
  }
  ASSERT_TRUE(env.flip_bit(entry->path + "/manifest.json", 8));
  const auto list = list_entries(&env, kStore);
  ASSERT_TRUE(list && list->size() == 1);
  EXPECT_NE((*list)[0].problem.find("manifest.json"), std::string::npos);
  EXPECT_EQ((*list)[0].name, "m");
}

TEST(Store, identity_is_that_of_the_source_unless_import_rounds) {
  FaultEnv env;
  const Small m = small_model();
  ImportOptions rounded = named("r");
  rounded.quantize = true;
  const auto direct = weights_from_source(*m.source, kSame);
  ASSERT_TRUE(ask(m.asked, *direct));
  const auto as_it_is = import_source(&env, *m.source, kStore, named("m"), hook(m.asked));
  const auto quantized = import_source(&env, *m.source, kStore, rounded, hook(m.asked));
  ASSERT_TRUE(as_it_is && quantized);
  const auto digest_of = [&](const StoreEntry& e) {
    return *open_stored_model(&env, e.path, kSame, StoreVerify::kFull)->weights->model_digest();
  };
  EXPECT_EQ(digest_of(*as_it_is), *direct->model_digest());
  EXPECT_NE(digest_of(*quantized), *direct->model_digest());
  EXPECT_NE(to_hex(digest_of(*quantized)), quantized->digest);
}

TEST(Store, a_cut_weights_file_is_refused) {
  FaultEnv env;
  const Small m = small_model();
  const auto entry = import_source(&env, *m.source, kStore, named("m"), hook(m.asked));
  ASSERT_TRUE(entry);
  auto file = env.open(entry->path + "/weights.bin", Open::kReadWrite);
  ASSERT_TRUE(file && (*file)->truncate(9000));
  EXPECT_EQ(open_stored_model(&env, entry->path, kSame, StoreVerify::kFull).error().code, Code::kCorrupt);
  EXPECT_EQ(verify_entry(&env, entry->path)->damage.size(), 1u);
  const auto again = import_source(&env, *m.source, kStore, named("m"), hook(m.asked));  // repairs
  ASSERT_TRUE(again) << again.error().text();
  EXPECT_EQ(again->digest, entry->digest);
  EXPECT_TRUE(verify_entry(&env, entry->path)->damage.empty());
}

TEST(Store, sampled_loading_checks_one_piece_in_sixteen) {
  FaultEnv env;
  const auto source = open_source(Env::real(), "tests/golden/gguf/llama.gguf");
  const Asked asked = ask_all(**source);
  const auto entry = import_source(&env, **source, kStore, named("m"), hook(asked));
  ASSERT_TRUE(entry);
  const auto manifest = decode_manifest(*read_file(&env, entry->path + "/manifest.json"), "m");
  for (const StoredPiece& p : manifest->pieces) ASSERT_TRUE(env.flip_bit(entry->path + "/weights.bin", p.offset * 8));
  const auto model = open_stored_model(&env, entry->path, kSame, StoreVerify::kSampled);
  ASSERT_TRUE(model);
  int n_ok = 0, n_bad = 0;
  const auto& w = model->weights;
  for (const auto& r : asked.matrices) (w->matrix(r) ? n_ok : n_bad)++;
  EXPECT_GT(n_ok, 20);
  EXPECT_GE(n_bad, 1);
  EXPECT_LE(n_bad, 3);
}

TEST(Store, same_content_is_stored_once) {
  FaultEnv env;
  const Small m = small_model(), other = small_model(3);
  const auto one = import_source(&env, *m.source, kStore, named("one"), hook(m.asked));
  const auto two = import_source(&env, *m.source, kStore, named("two"), hook(m.asked));
  const auto three = import_source(&env, *other.source, kStore, named("three"), hook(other.asked));
  ASSERT_TRUE(one && two && three);
  EXPECT_EQ(one->digest, two->digest);
  EXPECT_NE(one->digest, three->digest);
  EXPECT_EQ(two->name, "two");
  const auto list = list_entries(&env, kStore);
  ASSERT_TRUE(list);
  ASSERT_EQ(list->size(), 2u);
  EXPECT_EQ((*list)[0].name, "three");
  EXPECT_EQ((*list)[1].name, "two");
  EXPECT_EQ(env.list(kStore)->size(), 2u);  // nothing hidden left
  EXPECT_EQ(find_entry(&env, kStore, "two")->digest, one->digest);
  EXPECT_EQ(find_entry(&env, kStore, one->digest.substr(0, 8))->digest, one->digest);
  EXPECT_EQ(find_entry(&env, kStore, "one").error().code, Code::kNotFound);
}

TEST(Store, removed_is_gone) {
  FaultEnv env;
  const Small m = small_model();
  EXPECT_TRUE(list_entries(&env, kStore)->empty());
  const auto entry = import_source(&env, *m.source, kStore, named("m"), hook(m.asked));
  ASSERT_TRUE(entry);
  EXPECT_EQ(remove_entry(&env, kStore, "../models").error().code, Code::kNotFound);
  EXPECT_TRUE(remove_entry(&env, kStore, entry->digest));
  EXPECT_TRUE(env.list(kStore)->empty());
  EXPECT_EQ(remove_entry(&env, kStore, entry->digest).error().code, Code::kNotFound);
}

TEST(Store, import_reports_and_can_be_stopped) {
  FaultEnv env;
  const Small m = small_model();
  ImportOptions o = named("m");
  std::vector<int64_t> done;
  o.progress = [&](const StoreProgress& p) {
    done.push_back(p.done_bytes);
    EXPECT_EQ(p.total_bytes, tensor_bytes(*m.source));
    return true;
  };
  ASSERT_TRUE(import_source(&env, *m.source, kStore, o, hook(m.asked)));
  EXPECT_GE(done.size(), 4u);
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_EQ(done.back(), tensor_bytes(*m.source));
  const Small other = small_model(2);
  o.progress = [](const StoreProgress&) { return false; };
  EXPECT_EQ(import_source(&env, *other.source, kStore, o, hook(other.asked)).error().code, Code::kCancelled);
  EXPECT_EQ(env.list(kStore)->size(), 1u);
}

TEST(Store, quantizing_makes_int8_and_keeps_routers) {
  FaultEnv env;
  std::vector<float> a(16 * 64);
  for (size_t i = 0; i < a.size(); i++) a[i] = static_cast<float>(i % 31) - 15;
  const std::string config = "{}", file = write_safetensors({{.name = "w",
                                                              .dtype = DType::kF32,
                                                              .unsupported_type = "",
                                                              .shape = {16, 64},
                                                              .bytes = std::as_bytes(std::span(a))},
                                                             {.name = "x.gate.weight",
                                                              .dtype = DType::kF32,
                                                              .unsupported_type = "",
                                                              .shape = {16, 64},
                                                              .bytes = std::as_bytes(std::span(a))}});
  const auto source = open_folder_in_memory({{"config.json", bytes_of(config)}, {"model.safetensors", bytes_of(file)}});
  const Asked asked = ask_all(**source);
  ImportOptions o = named("q");
  o.quantize = true;
  const auto entry = import_source(&env, **source, kStore, o, hook(asked));
  ASSERT_TRUE(entry) << entry.error().text();
  const auto weights = std::move(open_stored_model(&env, entry->path, kSame, StoreVerify::kFull)->weights);
  EXPECT_EQ(weights->matrix(asked.matrices[0])->form, Form::kI8);
  EXPECT_EQ(weights->matrix(asked.matrices[1])->form, Form::kF32);
  std::vector<float> row(64);
  dequantize_row(*weights->matrix(asked.matrices[0]), 3, row);
  for (size_t i = 0; i < 64; i++) EXPECT_NEAR(row[i], a[3 * 64 + i], 0.07);
}

TEST(Store, a_type_that_is_not_read_is_refused_at_import) {
  FaultEnv env;
  const BuildHook build = [](SourceFormat, const std::string&, Weights& w) -> Status {
    CARREL_TRY(w.matrix({.tensor = "a", .row_begin = 0, .n_rows = 1, .n_cols = 256, .unpair_rows = 0}));
    return {};
  };
  ASSERT_TRUE(env.make_dirs("/src"));
  testing_files::GgufBuilder file;
  file.head(1, 1).architecture("x").tensor("a", {256}, 10, 0).data(std::string(84, 'x'));
  ASSERT_TRUE(write_file_atomic(&env, "/src/m.gguf", file.str()));
  const auto entry = import_model(&env, "/src/m.gguf", kStore, {}, build);
  ASSERT_FALSE(entry);
  EXPECT_EQ(entry.error().code, Code::kUnsupported);
  EXPECT_NE(entry.error().message.find("'a' has the type Q2_K"), std::string::npos) << entry.error().text();
  EXPECT_TRUE(env.list(kStore)->empty());
}

TEST(Store, scales_and_groups_of_rows_come_back) {
  FaultEnv env;
  const std::string blocks(size_t{8} * 16, '\x5A'), scales(8, '\x7E'), codes(size_t{6} * 8, '\x31'), tile("\x80\x3F", 2), plain(48, '\x3C');
  const std::string config = "{}",
                    file = write_safetensors(
                        {{.name = "x4", .dtype = DType::kU8, .unsupported_type = "", .shape = {8, 1, 16}, .bytes = bytes_of(blocks)},
                         {.name = "x4s", .dtype = DType::kU8, .unsupported_type = "", .shape = {8, 1}, .bytes = bytes_of(scales)},
                         {.name = "f8", .dtype = DType::kF8E4M3, .unsupported_type = "", .shape = {6, 8}, .bytes = bytes_of(codes)},
                         {.name = "f8s", .dtype = DType::kBF16, .unsupported_type = "", .shape = {1, 1}, .bytes = bytes_of(tile)},
                         {.name = "b", .dtype = DType::kBF16, .unsupported_type = "", .shape = {2, 3, 4}, .bytes = bytes_of(plain)}});
  const auto source = *open_folder_in_memory({{"config.json", bytes_of(config)}, {"model.safetensors", bytes_of(file)}});
  MatrixRequest x4, f8, b;
  x4.tensor = "x4", x4.scales = "x4s", x4.row_begin = 1, x4.n_rows = 4, x4.n_cols = 32, x4.period = 2, x4.take = 1;
  f8.tensor = "f8", f8.scales = "f8s", f8.n_rows = 6, f8.n_cols = 8;
  b.tensor = "b", b.n_rows = 8, b.n_cols = 3, b.transposed = true;
  Asked asked;
  asked.matrices = {x4, f8, b};
  const auto entry = import_source(&env, *source, kStore, named("m"), hook(asked));
  ASSERT_TRUE(entry) << entry.error().text();
  for (const auto& choose : {FormChooser(kSame), FormChooser([](Form) { return Form::kF32; })}) {
    const auto model = open_stored_model(&env, entry->path, choose, StoreVerify::kFull);
    ASSERT_TRUE(model) << model.error().text();
    const auto direct = weights_from_source(*source, choose);
    for (const auto& r : asked.matrices) {
      const auto stored = model->weights->matrix(r), loaded = direct->matrix(r);
      ASSERT_TRUE(stored && loaded);
      ASSERT_EQ(stored->form, loaded->form);
      EXPECT_EQ(std::memcmp(stored->data, loaded->data, packed_bytes(loaded->form, r.n_rows, r.n_cols)), 0) << r.id();
    }
    EXPECT_EQ(*model->weights->model_digest(), *direct->model_digest());
    EXPECT_EQ(model->weights->file_bytes(), direct->file_bytes());
  }
  EXPECT_EQ(x4.id(), "m1+4x32u0p2/1s2:x4+x4s");
  EXPECT_EQ(b.id(), "m0+8x3u0t:b");
}

TEST(Store, a_request_that_import_did_not_see_is_refused) {
  FaultEnv env;
  const Small m = small_model();
  const auto entry = import_source(&env, *m.source, kStore, named("m"), hook(m.asked));
  const auto model = open_stored_model(&env, entry->path, kSame, StoreVerify::kFull);
  const auto& w = model->weights;
  EXPECT_EQ(w->vector("v", 5, 7).error().code, Code::kUnsupported);
  EXPECT_EQ(w->matrix({.tensor = "a", .row_begin = 1, .n_rows = 1, .n_cols = 32, .unpair_rows = 0}).error().code, Code::kUnsupported);
}

TEST(Store, a_full_disk_leaves_nothing_and_says_so) {
  const Small m = small_model();
  int n_full = 0;
  for (uint64_t i = 1; i < 60; i++) {
    FaultEnv env;
    env.fail_at(i, FaultEnv::Fault::kNoSpace);
    const auto entry = import_source(&env, *m.source, kStore, named("m"), hook(m.asked));
    if (entry) continue;
    n_full++;
    EXPECT_EQ(entry.error().code, Code::kExhausted) << entry.error().text();
    EXPECT_NE(entry.error().message.find("free space"), std::string::npos) << entry.error().text();
    EXPECT_TRUE(!env.exists(kStore) || env.list(kStore)->empty()) << i;
  }
  EXPECT_GE(n_full, 8);
}

/// Nothing, or the whole model, is visible.
void expect_nothing_or_all(Env* env, bool must_be_there, const std::string& when) {
  const auto list = list_entries(env, kStore);
  ASSERT_TRUE(list) << when;
  if (must_be_there) {
    ASSERT_EQ(list->size(), 1u) << when;
  }
  for (const StoreEntry& e : *list) {
    EXPECT_EQ(e.problem, "") << when;
    const auto report = verify_entry(env, e.path);
    ASSERT_TRUE(report) << when << report.error().text();
    EXPECT_TRUE(report->damage.empty()) << when;
  }
}

TEST(Store, import_interrupted_at_any_call_leaves_nothing_half) {
  const Small m = small_model();
  FaultEnv count;
  ASSERT_TRUE(import_source(&count, *m.source, kStore, named("m"), hook(m.asked)));
  const uint64_t n_calls = count.n_calls(), n_mutations = count.n_mutations();
  ASSERT_GT(n_mutations, 12u);
  for (uint64_t i = 1; i <= n_calls; i++) {
    FaultEnv env;
    env.fail_at(i, FaultEnv::Fault::kIo);
    const auto entry = import_source(&env, *m.source, kStore, named("m"), hook(m.asked));
    expect_nothing_or_all(&env, entry.has_value(), "error at call " + std::to_string(i));
  }
  for (const auto loss : {FaultEnv::Loss::kUnsynced, FaultEnv::Loss::kNone, FaultEnv::Loss::kRandom})
    for (uint64_t seed = 1; seed <= (loss == FaultEnv::Loss::kRandom ? 20 : 1); seed++)
      for (uint64_t i = 1; i <= n_mutations + 1; i++) {
        FaultEnv env(seed);
        env.crash_at(i);
        const auto entry = import_source(&env, *m.source, kStore, named("m"), hook(m.asked));
        env.power_loss(loss);
        const std::string when = "crash at mutation " + std::to_string(i) + ", loss " + std::to_string(static_cast<int>(loss)) + ", seed " +
                                 std::to_string(seed);
        expect_nothing_or_all(&env, entry.has_value(), when);
        const auto again = import_source(&env, *m.source, kStore, named("m"), hook(m.asked));
        ASSERT_TRUE(again) << when << ": " << again.error().text();
        expect_nothing_or_all(&env, true, "again after " + when);
      }
}

TEST(Store, removal_interrupted_at_any_call_leaves_nothing_half) {
  const Small m = small_model();
  for (const auto loss : {FaultEnv::Loss::kUnsynced, FaultEnv::Loss::kRandom})
    for (uint64_t i = 1; i <= 12; i++) {
      FaultEnv env(i);
      const auto entry = import_source(&env, *m.source, kStore, named("m"), hook(m.asked));
      ASSERT_TRUE(entry);
      env.crash_at(i);
      const bool removed = remove_entry(&env, kStore, entry->digest).has_value();
      env.power_loss(loss);
      const auto list = list_entries(&env, kStore);
      ASSERT_TRUE(list);
      EXPECT_TRUE(!removed || list->empty());
      expect_nothing_or_all(&env, false, "crash at mutation " + std::to_string(i));
    }
}

TEST(Store, what_a_crash_left_is_swept_a_day_later) {
  const Small m = small_model();
  FaultEnv env;
  env.crash_at(8);
  ASSERT_FALSE(import_source(&env, *m.source, kStore, named("m"), hook(m.asked)));
  env.power_loss(FaultEnv::Loss::kNone);
  ASSERT_EQ(env.list(kStore)->size(), 1u);
  ASSERT_TRUE(import_source(&env, *m.source, kStore, named("m"), hook(m.asked)));
  EXPECT_EQ(env.list(kStore)->size(), 2u);  // may be at work in another process
  env.advance_ms(25 * 3600 * 1000);
  ASSERT_TRUE(import_source(&env, *m.source, kStore, named("m"), hook(m.asked)));
  EXPECT_EQ(env.list(kStore)->size(), 1u);
}

TEST(StoreManifest, impossible_values_are_refused) {
  FaultEnv env;
  const Small m = small_model();
  const auto entry = import_source(&env, *m.source, kStore, named("m"), hook(m.asked));
  const std::string good = *read_file(&env, entry->path + "/manifest.json");
  ASSERT_TRUE(decode_manifest(good, "m"));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string bad = good;
    const size_t at = bad.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    bad.replace(at, from.size(), to);
    const auto r = decode_manifest(bad, "m");
    return r ? Code::kInternal : r.error().code;
  };
  EXPECT_EQ(with("\"version\": 1", "\"version\": 2"), Code::kUnsupported);
  EXPECT_EQ(with("carrel-model", "other"), Code::kCorrupt);
  EXPECT_EQ(with("\"form\": 0", "\"form\": 12"), Code::kCorrupt);
  EXPECT_EQ(with("\"form\": 0", "\"form\": -1"), Code::kCorrupt);
  EXPECT_EQ(with("\"offset\": 4096", "\"offset\": 4097"), Code::kCorrupt);
  EXPECT_EQ(with("\"offset\": 4096", "\"offset\": 0"), Code::kCorrupt);
  EXPECT_EQ(with("\"offset\": 4096", "\"offset\": 4611686018427383808"), Code::kCorrupt);
  EXPECT_EQ(with("\"rows\": 40", "\"rows\": 4000000000000"), Code::kCorrupt);
  EXPECT_EQ(with("\"rows\": 40", "\"rows\": 41000"), Code::kCorrupt);
  EXPECT_EQ(with("config.json", "../../x.json"), Code::kCorrupt);
  EXPECT_EQ(with("\"weights_bytes\"", "\"weights_byte\""), Code::kCorrupt);
  for (size_t n = 0; n + 2 < good.size(); n += good.size() / 100) EXPECT_FALSE(decode_manifest(good.substr(0, n), "m"));
}

}  // namespace
}  // namespace carrel
