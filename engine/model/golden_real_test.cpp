// `carrel golden` over text/ and real/: layouts are found, what is wrong is named. The checkpoints themselves: tests/real.
#include "engine/model/golden_real.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace carrel {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kModel = "tests/golden/gguf/llama-q8_0.gguf";

std::string sha256_of(const std::string& path) {
  return to_hex(sha256(*read_file(Env::real(), path)));
}

double log_sum_of(std::span<const float> row) {
  double sum = 0;
  for (const float x : row) sum += std::exp(static_cast<double>(x));
  return std::log(sum);
}

/// Vectors in the form of golden/real, made by the reference ops from a small model: 70 tokens, three of them greedy.
Json vectors_of_small_model() {
  const auto model = load_golden_model([] { return open_source(Env::real(), kModel); }, OpSet::kReference, CpuPath::kAuto, 1, DType::kF32);
  EXPECT_TRUE(model) << model.error().text();
  const auto vocab = static_cast<size_t>((*model)->graph.vocab);
  std::vector<int32_t> ids = {1};
  std::vector<int32_t> rows;
  for (int i = 1; i < 70; ++i) ids.push_back(3 + i * 7 % 90);
  for (int i = 0; i < 73; ++i) rows.push_back(i);
  Json greedy = {{"ids", Json::array()}, {"margins", Json::array()}}, logprobs = Json::array(), top = Json::array(), at;
  std::vector<float> all;
  for (std::vector<int32_t> tokens = ids;; tokens.push_back(greedy["ids"].back().get<int32_t>())) {
    PlainSequence sequence(&(*model)->graph.state);
    const std::vector<int> one = {static_cast<int>(tokens.size())};
    all = run_tokens(**model, tokens, one, std::span(rows).first(tokens.size()), sequence);
    if (tokens.size() == 73) break;
    std::vector<float> last(all.end() - static_cast<ptrdiff_t>(vocab), all.end());
    const auto best = std::max_element(last.begin(), last.end());
    greedy["ids"].push_back(best - last.begin());
    const float value = std::exchange(*best, -INFINITY);
    greedy["margins"].push_back(value - *std::max_element(last.begin(), last.end()));
  }
  const auto row = [&](size_t i) { return std::span(all).subspan(i * vocab, vocab); };
  double sum = 0;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    logprobs.push_back(static_cast<double>(row(i)[static_cast<size_t>(ids[i + 1])]) - log_sum_of(row(i)));
    sum += logprobs.back().get<double>();
  }
  for (int id = 0; id < 20; ++id) top.push_back({id, row(69)[static_cast<size_t>(id)], "?"});
  at.push_back({64, {{5, row(64)[5]}, {6, row(64)[6]}}});
  const Json prompt = {{"id", "long"},
                       {"text", "?"},
                       {"ids", ids},
                       {"logprobs", logprobs},
                       {"logprob_mean", sum / 69},
                       {"top20", top},
                       {"logsumexp", log_sum_of(row(69))},
                       {"greedy", greedy},
                       {"at", at}};
  return {{"model_sha256", sha256_of(kModel)}, {"prompts", {prompt}}};
}

class GoldenReal : public testing::Test {
 protected:
  void SetUp() override {
    static const Json kMade = vectors_of_small_model();
    vectors_ = kMade;
    dir_ = testing::TempDir() + "/golden_real_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(dir_);
    fs::create_directories(dir_ + "/real/llama-q8_0");
    write("limits.json", {{"real",
                           {{"llama-q8_0",
                             {{"mean_kl_long", 1e-3},
                              {"mean_kl", 1e-3},
                              {"logprob_long", 0.01},
                              {"logprob", 0.01},
                              {"top20_mean", 0.2},
                              {"greedy_margin", 0.5},
                              {"argmax_long", 0.9}}}}}});
    write("real/llama-q8_0/tokens.json", {{"cases", Json::array()}});
  }
  void write(const std::string& name, const Json& j) const { std::ofstream(dir_ + "/" + name) << j.dump(); }
  Json& prompt() { return vectors_["prompts"][0]; }
  GoldenFile check(OpSet ops, std::vector<std::string> models = {kModel}, bool localise = false) {
    write("real/llama-q8_0/prompts.json", vectors_);
    GoldenOptions options;
    options.ops = ops;
    options.models = std::move(models);
    options.localise = localise;
    auto report = check_golden(Env::real(), dir_, options);
    EXPECT_TRUE(report) << report.error().text();
    EXPECT_EQ(report->files.size(), 1u);
    GoldenFile f = report->files.at(0);
    std::erase(f.failures, "prompt long: other token ids");  // the ids come from no text
    return f;
  }
  /// All failures in one text.
  static std::string failures(const GoldenFile& f) {
    std::string out;
    for (const std::string& s : f.failures) out += s + "\n";
    return out;
  }

  Json vectors_;
  std::string dir_;
};

TEST_F(GoldenReal, every_op_set_keeps_its_bound) {
  for (const OpSet ops : {OpSet::kReference, OpSet::kExact, OpSet::kFast}) {
    const GoldenFile f = check(ops);
    EXPECT_TRUE(f.passed()) << f.worst << " " << f.worst_at << "\n" << failures(f);
    EXPECT_EQ(f.n_prompts, 1);
    EXPECT_EQ(f.limits_used, ops == OpSet::kFast);
    if (ops == OpSet::kFast) {
      EXPECT_GT(f.mean_kl, 0);
    }
  }
}

TEST_F(GoldenReal, an_error_is_named_by_prompt_and_position) {
  const Json good = vectors_;
  prompt()["logprobs"][33] = prompt()["logprobs"][33].get<double>() + 0.002;
  EXPECT_EQ(check(OpSet::kExact).worst_at, "prompt long position 33");
  EXPECT_FALSE(check(OpSet::kExact).passed());
  vectors_ = good;
  prompt()["at"][0][1][1][1] = prompt()["at"][0][1][1][1].get<double>() - 0.003;
  const GoldenFile f = check(OpSet::kFast);  // exact is the yardstick, so it is held to its bound too
  EXPECT_EQ(f.worst_at, "prompt long position 64");
  EXPECT_NEAR(f.worst, 3, 0.2);
  vectors_ = good;
  prompt()["top20"][19][1] = 99;
  EXPECT_EQ(check(OpSet::kExact).worst_at, "prompt long position 69");
  vectors_ = good;
  prompt()["greedy"]["ids"][2] = (prompt()["greedy"]["ids"][2].get<int>() + 1) % 90;
  EXPECT_EQ(failures(check(OpSet::kExact)), "prompt long: greedy token 2 differs\n");
}

TEST_F(GoldenReal, fast_beyond_a_limit_fails) {
  const auto limits = [&](const char* key, double value) {
    Json l = {{"mean_kl_long", 1e-3}, {"mean_kl", 1e-3},      {"logprob_long", 0.01}, {"logprob", 0.01},
              {"top20_mean", 0.2},    {"greedy_margin", 0.5}, {"argmax_long", 0.9}};
    l[key] = value;
    write("limits.json", {{"real", {{"llama-q8_0", l}}}});
  };
  limits("mean_kl_long", 1e-12);
  EXPECT_EQ(check(OpSet::kFast).worst_at, "prompt long mean KL");
  limits("logprob_long", 1e-12);
  EXPECT_EQ(check(OpSet::kFast).worst_at, "prompt long mean log probability");
  limits("top20_mean", 1e-12);
  EXPECT_EQ(check(OpSet::kFast).worst_at, "prompt long mean difference of the 20 best");
  limits("argmax_long", 1.01);
  EXPECT_NE(failures(check(OpSet::kFast)).find("the best token is that of exact at"), std::string::npos);
  limits("greedy_margin", 0);
  prompt()["greedy"]["ids"][0] = (prompt()["greedy"]["ids"][0].get<int>() + 1) % 90;
  EXPECT_NE(failures(check(OpSet::kFast)).find("greedy token 0 of the fast path differs"), std::string::npos);
}

TEST_F(GoldenReal, localise_names_the_first_stage_that_is_off) {
  prompt()["trace"] = {{{"at", "embedding"}, {"rms", 1e9}, {"first8", Json::array()}},
                       {{"at", "after layer 1"}, {"rms", 0}, {"first8", {1e9}}}};
  EXPECT_EQ(check(OpSet::kExact, {kModel}, true).first_off, "embed of prompt long");
  prompt()["trace"].erase(0);
  EXPECT_EQ(check(OpSet::kExact, {kModel}, true).first_off, "layers.1.out of prompt long");
}

TEST_F(GoldenReal, a_model_that_is_missing_is_named) {
  const GoldenFile without = check(OpSet::kExact, {});
  EXPECT_TRUE(without.passed());
  EXPECT_NE(without.skipped.find(sha256_of(kModel) + "; name its file or folder with --models"), std::string::npos) << without.skipped;
  fs::create_directories(dir_ + "/models");
  EXPECT_NE(failures(check(OpSet::kExact, {dir_ + "/models"})).find("no .gguf file with SHA-256"), std::string::npos);
  EXPECT_NE(failures(check(OpSet::kExact, {dir_ + "/nothing"})).find("there is no such file"), std::string::npos);
  fs::copy_file("tests/golden/gguf/llama.gguf", dir_ + "/models/other.gguf", fs::copy_options::overwrite_existing);
  EXPECT_NE(failures(check(OpSet::kExact, {dir_ + "/models"})).find("no .gguf file"), std::string::npos);
  fs::copy_file("tests/golden/gguf/llama.gguf", dir_ + "/models/LLaMA.Q8_0.gguf", fs::copy_options::overwrite_existing);
  EXPECT_NE(failures(check(OpSet::kExact, {dir_ + "/models"})).find("but the vectors were made from"), std::string::npos);
  fs::copy_file(kModel, dir_ + "/models/LLaMA.Q8_0.gguf", fs::copy_options::overwrite_existing);
  EXPECT_TRUE(check(OpSet::kExact, {dir_ + "/models"}).passed());
}

TEST_F(GoldenReal, damaged_vectors_are_an_error_not_a_crash) {
  const Json good = vectors_;
  const auto expect = [&](const char* what) {
    EXPECT_NE(failures(check(OpSet::kExact)).find(what), std::string::npos) << what;
    vectors_ = good;
  };
  prompt()["ids"][5] = 1 << 20;
  expect("ids or lengths that the model does not have");
  prompt()["at"][0][1][0][0] = -1;
  expect("ids or lengths that the model does not have");
  prompt()["logprobs"].erase(3);
  expect("lists of other lengths");
  prompt().erase("greedy");
  expect("does not have the expected form");
}

TEST(GoldenTexts, micro_templates_and_a_changed_one) {
  const auto whole = check_golden(Env::real(), "engine/text/jinja/testdata", {});
  ASSERT_TRUE(whole) << whole.error().text();
  ASSERT_EQ(whole->files.size(), 1u);
  EXPECT_TRUE(whole->passed());
  EXPECT_GE(whole->files[0].n_checks, 150);
  const std::string dir = testing::TempDir() + "/golden_micro";
  fs::create_directories(dir);
  std::ofstream(dir + "/micro.jsonl") << R"({"vars":{}})" << "\n" << R"({"template":"{{ 1 + 1 }}","output":"3"})" << "\n";
  const auto changed = check_golden(Env::real(), dir, {});
  ASSERT_TRUE(changed);
  EXPECT_FALSE(changed->passed());
  EXPECT_EQ(changed->files[0].failures.back(), "1 of 1 differ");
}

TEST(GoldenTexts, published_texts_where_they_are) {
  const char* shared = std::getenv("CARREL_SHARED");
  const std::string dir = std::string(shared != nullptr ? shared : "../shared") + "/golden/text";
  if (!fs::is_directory(dir + "/tokenizers")) {
    EXPECT_EQ(std::getenv("CI"), nullptr) << "no golden text vectors at " << dir << "; set CARREL_SHARED";
    std::printf("skipped: no golden text vectors at %s (set CARREL_SHARED)\n", dir.c_str());
    GTEST_SKIP();
  }
  // All of them are text_test's; here it is the command's way in: packed files, the GGUF vocabulary, vectors without one.
  const auto spm = check_golden(Env::real(), dir + "/tokenizers/llama2_spm", {});
  ASSERT_TRUE(spm) << spm.error().text();
  ASSERT_EQ(spm->files.size(), 2u);
  EXPECT_TRUE(spm->passed());
  EXPECT_GE(spm->files[1].n_checks, 8 * 292 + 46);
  const auto only = check_golden(Env::real(), dir + "/tokenizers/published_only", {});
  ASSERT_TRUE(only);
  EXPECT_EQ(only->files.at(0).skipped, "vectors without a vocabulary");
}

}  // namespace
}  // namespace carrel
