#include "engine/model/source.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/fault_env.h"
#include "engine/model/gguf.h"
#include "engine/model/json_text.h"
#include "engine/model/test_files.h"

namespace carrel {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing_files::bytes_of;
using testing_files::GgufBuilder;

constexpr const char* kGolden = "tests/golden";

std::map<std::string, std::span<const std::byte>> views(const std::map<std::string, std::string>& files) {
  std::map<std::string, std::span<const std::byte>> out;
  for (const auto& [name, text] : files) out[name] = bytes_of(text);
  return out;
}

std::string one_tensor() {
  return testing_files::safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", std::string(8, 'x'));
}

std::map<std::string, int> count_types(const ModelSource& s) {
  std::map<std::string, int> n;
  for (const auto& name : s.tensor_names()) {
    const TensorInfo* t = s.find(name);
    n[t->unsupported_type.empty() ? std::string(to_string(t->dtype)) : t->unsupported_type]++;
  }
  return n;
}

TEST(Source, every_golden_folder_opens_and_lists_what_its_header_says) {
  int n_folders = 0;
  for (const auto& e : fs::recursive_directory_iterator(std::string(kGolden) + "/models")) {
    if (e.path().filename() != "model.safetensors") continue;
    const std::string folder = e.path().parent_path();
    if (!fs::exists(folder + "/config.json")) continue;
    const auto source = open_source(Env::real(), folder);
    ASSERT_TRUE(source) << source.error().text();
    EXPECT_EQ((*source)->format(), SourceFormat::kHuggingFace);
    EXPECT_TRUE(Json::parse((*source)->config_json()).contains("model_type")) << folder;
    std::ifstream in(e.path(), std::ios::binary);
    uint64_t n = 0;
    in.read(reinterpret_cast<char*>(&n), 8);
    std::string header(n, ' ');
    in.read(header.data(), static_cast<std::streamsize>(n));
    Json j = Json::parse(header);
    j.erase("__metadata__");
    EXPECT_EQ((*source)->tensor_names().size(), j.size()) << folder;
    int64_t n_bytes = 0;
    for (const auto& [name, info] : j.items()) {
      const TensorInfo* t = (*source)->find(name);
      ASSERT_NE(t, nullptr) << name;
      EXPECT_EQ(Json(t->shape), info["shape"]) << name;
      n_bytes = std::max(n_bytes, info["data_offsets"][1].get<int64_t>());
    }
    EXPECT_EQ(tensor_bytes(**source), n_bytes) << folder;
    n_folders++;
  }
  EXPECT_GE(n_folders, 28);
}

TEST(Source, every_golden_gguf_opens_and_has_the_types_of_the_manifest) {
  std::ifstream in(std::string(kGolden) + "/gguf/manifest.json");
  const Json manifest = Json::parse(in);
  ASSERT_GE(manifest.size(), 29u);
  for (const auto& [name, entry] : manifest.items()) {
    const auto source = open_source(Env::real(), std::string(kGolden) + "/gguf/" + name + ".gguf");
    ASSERT_TRUE(source) << source.error().text();
    EXPECT_EQ(Json(count_types(**source)), entry["tensor_types"]) << name;
    const Json config = Json::parse((*source)->config_json());
    EXPECT_EQ(config["general.architecture"], entry["architecture"]);
    EXPECT_FALSE(config.contains("tokenizer.ggml.tokens"));
    const GgufTokenizer* t = (*source)->gguf_tokenizer();
    ASSERT_NE(t, nullptr);
    EXPECT_EQ(t->model, "gpt2");
    EXPECT_EQ(t->pre, "gpt-2");
    EXPECT_EQ(t->tokens.size(), 512u);
    EXPECT_EQ(t->merges.size(), 512u - 259u);
    EXPECT_EQ(t->bos, 1);
    EXPECT_EQ(t->eos, 2);
  }
}

TEST(Source, gguf_shapes_are_outermost_first) {
  const auto source = open_source(Env::real(), std::string(kGolden) + "/gguf/llama.gguf");
  ASSERT_TRUE(source) << source.error().text();
  EXPECT_EQ((*source)->find("token_embd.weight")->shape, (std::vector<int64_t>{512, 64}));
  EXPECT_EQ(Json::parse((*source)->config_json())["llama.embedding_length"], 64);
}

TEST(Source, small_floats_are_read) {
  const auto gguf = open_source(Env::real(), std::string(kGolden) + "/gguf/gpt_oss-mxfp4.gguf");
  const auto fp8 = open_source(Env::real(), std::string(kGolden) + "/models/deepseek_v4/tiny_a_native");
  ASSERT_TRUE(gguf && fp8);
  EXPECT_EQ(count_types(**gguf)["MXFP4"], 12);
  EXPECT_EQ(count_types(**fp8)["F8_E8M0"], 163);
  EXPECT_EQ(count_types(**fp8)["F8_E4M3"], 43);
  EXPECT_EQ(count_types(**fp8)["I8"], 120);
  for (const auto* source : {gguf->get(), fp8->get()})
    for (const auto& name : source->tensor_names()) EXPECT_TRUE(check_type(*source->find(name), "")) << name;
}

TEST(Cases, case_state_g5) {  // a type nobody knows is listed, so that a listing works, and refused by name when the tensor is wanted
  const std::string head = R"({"a":{"dtype":"F99","shape":[2],"data_offsets":[0,4]}})";
  const auto file = read_safetensors(testing_files::bytes_of(testing_files::safetensors(head, "xxxx")), "f.safetensors");
  ASSERT_TRUE(file) << file.error().text();
  const Status s = check_type(file->tensors[0], "f.safetensors");
  ASSERT_FALSE(s);
  EXPECT_EQ(s.error().code, Code::kUnsupported);
  for (const char* part : {"f.safetensors", "'a'", "F99"}) EXPECT_NE(s.error().text().find(part), std::string::npos) << s.error().text();
}

TEST(Source, block_sizes_are_those_of_the_quant_vectors) {
  std::ifstream in(std::string(kGolden) + "/quant/gguf.safetensors", std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  const auto file = read_safetensors(bytes_of(text), "quant");
  ASSERT_TRUE(file) << file.error().text();
  int n = 0;
  for (const TensorInfo& t : file->tensors) {
    if (!t.name.ends_with(".values")) continue;
    const std::string type = t.name.substr(0, t.name.size() - 7);
    const auto* found = std::ranges::find(gguf_types(), type, &GgufType::name).base();
    ASSERT_NE(found, gguf_types().data() + gguf_types().size()) << type;
    EXPECT_EQ(found->n_values, t.shape[1]) << type;
    const auto blocks = std::ranges::find(file->tensors, type + ".bytes", &TensorInfo::name);
    ASSERT_NE(blocks, file->tensors.end()) << type;
    EXPECT_EQ(found->n_bytes, blocks->shape[1]) << type;
    n++;
  }
  EXPECT_GE(n, 20);
}

TEST(Source, folder_in_memory_reads_like_a_folder) {
  const std::map<std::string, std::string> files = {
      {"config.json", R"({"model_type":"x","a":Infinity,"b":{"__float__":"-Infinity"},"c":"NaN \" Infinity"})"},
      {"model.safetensors", one_tensor()},
      {"tokenizer.json", "{}"},
      {"tokenizer_config.json", R"({"chat_template":[{"name":"tool","template":"T"},{"name":"default","template":"D"}]})"},
      {"generation_config.json", R"({"eos_token_id":2})"}};
  const auto source = open_folder_in_memory(views(files));
  ASSERT_TRUE(source) << source.error().text();
  const Json config = Json::parse((*source)->config_json());
  EXPECT_TRUE(config["a"].is_null());
  EXPECT_TRUE(config["b"].is_null());
  EXPECT_EQ(config["c"], "NaN \" Infinity");
  EXPECT_EQ((*source)->chat_template(), "D");
  EXPECT_EQ((*source)->tokenizer_json(), "{}");
  EXPECT_EQ((*source)->generation_config_json(), R"({"eos_token_id":2})");
  EXPECT_EQ((*source)->tensor_names(), std::vector<std::string>{"a"});
  EXPECT_EQ((*source)->find("b"), nullptr);
}

TEST(Source, template_file_wins_over_tokenizer_config) {
  std::map<std::string, std::string> files = {
      {"config.json", "{}"}, {"model.safetensors", one_tensor()}, {"tokenizer_config.json", R"({"chat_template":"C"})"}};
  EXPECT_EQ((*open_folder_in_memory(views(files)))->chat_template(), "C");
  files["chat_template.json"] = R"({"chat_template":"J"})";
  EXPECT_EQ((*open_folder_in_memory(views(files)))->chat_template(), "J");
  files["chat_template.jinja"] = "F";
  EXPECT_EQ((*open_folder_in_memory(views(files)))->chat_template(), "F");
}

TEST(Source, shards_by_index) {
  const std::string other = testing_files::safetensors(
      R"({"b":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})", "xyz");
  std::map<std::string, std::string> files = {
      {"config.json", "{}"},
      {"one.safetensors", one_tensor()},
      {"two.safetensors", other},
      {"model.safetensors.index.json", R"({"metadata":{"x":[1]},"weight_map":{"b":"two.safetensors","a":"one.safetensors"}})"}};
  const auto source = open_folder_in_memory(views(files));
  ASSERT_TRUE(source) << source.error().text();
  EXPECT_EQ((*source)->find("a")->dtype, DType::kF32);
  EXPECT_EQ((*source)->find("b")->bytes.size(), 2u);
  const auto error_with = [&](const std::string& index) {
    files["model.safetensors.index.json"] = index;
    const auto r = open_folder_in_memory(views(files));
    return r ? std::string("no error") : r.error().text();
  };
  EXPECT_NE(error_with(R"({"weight_map":{"c":"two.safetensors"}})").find("'c'"), std::string::npos);
  EXPECT_NE(error_with(R"({"weight_map":{"a":"three.safetensors"}})").find("three.safetensors"), std::string::npos);
  EXPECT_NE(error_with(R"({"weight_map":{"a":"../one.safetensors"}})").find("plain name"), std::string::npos);
  EXPECT_NE(error_with(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})").find("twice"), std::string::npos);
  EXPECT_NE(error_with(R"({"weight_map":{"a":["one.safetensors"]}})").find("one file per tensor"), std::string::npos);
  EXPECT_NE(error_with(R"({"weight_map":{}})").find("weight_map"), std::string::npos);
  EXPECT_NE(error_with("{").find("JSON"), std::string::npos);
}

TEST(Source, what_is_missing_is_said) {
  EXPECT_EQ(open_source(Env::real(), "/nonexistent/model").error().code, Code::kNotFound);
  EXPECT_NE(open_folder_in_memory({}).error().text().find("config.json"), std::string::npos);
  const std::map<std::string, std::string> files = {{"config.json", "{}"}};
  EXPECT_NE(open_folder_in_memory(views(files)).error().text().find("model.safetensors"), std::string::npos);
}

TEST(Source, an_empty_text_is_not_an_absent_one) {
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json",
                           "chat_template.json", "chat_template.jinja"}) {
    std::map<std::string, std::string> files = {{"config.json", "{}"}, {"model.safetensors", one_tensor()}};
    ASSERT_TRUE(open_folder_in_memory(views(files)));
    files[name] = "";
    const auto r = open_folder_in_memory(views(files));
    ASSERT_FALSE(r) << name;
    EXPECT_EQ(r.error().code, Code::kCorrupt) << name;
    EXPECT_EQ(r.error().where, name);
  }
}

TEST(Source, a_pipe_or_device_in_the_folder_is_refused_at_once) {
  const std::string folder = testing::TempDir() + "carrel_pipe" + std::to_string(::getpid());
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    fs::remove_all(folder);
    ASSERT_TRUE(Env::real()->make_dirs(folder));
    ASSERT_TRUE(write_file_atomic(Env::real(), folder + "/config.json", "{}"));
    ASSERT_TRUE(write_file_atomic(Env::real(), folder + "/model.safetensors", one_tensor()));
    ASSERT_TRUE(open_source(Env::real(), folder));
    const std::string path = folder + "/" + name;
    fs::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    const auto pipe = open_source(Env::real(), folder);
    ASSERT_FALSE(pipe) << name;
    EXPECT_EQ(pipe.error().code, Code::kInvalidArgument);
    EXPECT_EQ(pipe.error().where, path);
    fs::remove(path);
    fs::create_symlink("/dev/zero", path);
    const auto device = open_source(Env::real(), folder);
    ASSERT_FALSE(device) << name;
    EXPECT_EQ(device.error().where, path);
  }
  fs::remove_all(folder);
}

TEST(Source, a_read_error_of_the_disk_is_an_error) {
  FaultEnv env;
  ASSERT_TRUE(env.make_dirs("/m"));
  ASSERT_TRUE(write_file_atomic(&env, "/m/config.json", "{}"));
  ASSERT_TRUE(write_file_atomic(&env, "/m/model.safetensors", one_tensor()));
  const uint64_t before = env.n_calls();
  ASSERT_TRUE(open_source(&env, "/m"));
  const uint64_t n = env.n_calls() - before;
  int n_failed = 0;
  for (uint64_t i = 1; i <= n; i++) {
    env.fail_at(i, FaultEnv::Fault::kIo);
    n_failed += !open_source(&env, "/m").has_value();
  }
  EXPECT_GE(n_failed, 6);
}

TEST(JsonText, depth_is_bounded) {
  const auto nested = [](int n) { return std::string(static_cast<size_t>(n), '[') + std::string(static_cast<size_t>(n), ']'); };
  EXPECT_TRUE(clean_json(nested(kMaxJsonDepth), "f"));
  EXPECT_FALSE(clean_json(nested(kMaxJsonDepth + 1), "f"));
  EXPECT_FALSE(clean_json("\"\xff\"", "f"));
  EXPECT_FALSE(clean_json("{\"a", "f"));
}

TEST(JsonText, quoting_gives_valid_json_for_any_bytes) {
  std::string all;
  for (int c = 0; c < 256; c++) all += static_cast<char>(c);
  all += "ä€😀";
  EXPECT_TRUE(Json::accept(json_quote(all)));
  EXPECT_EQ(Json::parse(json_quote("a\0b\"\\ä")).get<std::string>(), std::string("a"));
  EXPECT_EQ(Json::parse(json_quote(std::string_view("a\0b\"\\\xc3\xa4", 7))).get<std::string>(), std::string("a\0b\"\\\xc3\xa4", 7));
}

}  // namespace
}  // namespace carrel
