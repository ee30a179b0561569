#include "engine/model/model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "engine/model/family.h"
#include "engine/model/source_text.h"
#include "engine/model/store.h"
#include "engine/model/weights.h"

namespace carrel {
namespace {

using Json = nlohmann::json;

/// End-of-generation ids of generation_config.json and config.json: a number or a list.
void add_end_ids(const Json& j, std::vector<int32_t>& ids) {
  const auto at = j.find("eos_token_id");
  if (at == j.end()) return;
  const auto add = [&](const Json& one) {
    if (one.is_number_integer() && one.get<int64_t>() >= 0 && one.get<int64_t>() <= INT32_MAX) ids.push_back(one.get<int32_t>());
  };
  if (at->is_array()) std::for_each(at->begin(), at->end(), add);
  else add(*at);
}

GenerationDefaults read_defaults(const Json& j) {
  GenerationDefaults d;
  const auto number = [&](const char* name, double fallback) { return j.contains(name) && j[name].is_number() ? j[name].get<double>() : fallback; };
  d.temperature = static_cast<float>(std::clamp(number("temperature", 1), 0.0, 100.0));
  d.top_p = static_cast<float>(std::clamp(number("top_p", 1), 0.0, 1.0));
  d.top_k = static_cast<int>(std::clamp(number("top_k", 0), 0.0, 1e6));
  if (j.contains("do_sample") && j["do_sample"] == false) d.temperature = 0;
  return d;
}

Json parse_object(const std::string& text) {
  Json j = Json::parse(text, nullptr, false);
  return j.is_object() ? j : Json::object();
}

Result<DType> kv_dtype_of(const std::string& name, const Ops& ops) {
  if (name == "auto") return ops.kv_dtype();
  if (name == "f32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  if (name == "packed") return DType::kPackedKv;
  return fail(Code::kUnsupported, "is " + name + "; this version stores auto, f32, bf16 or packed", "model.kv_dtype");
}

}  // namespace

struct Model::Impl {
  std::string name;
  const Family* family = nullptr;
  std::unique_ptr<ModelSource> source;
  std::unique_ptr<ThreadTeam> team;
  std::unique_ptr<Ops> ops;
  OpSet op_set_kind = OpSet::kFast;
  std::unique_ptr<LoadedWeights> weights;
  Graph graph;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat;
  GenerationDefaults defaults;
  Digest digest{};
  std::string numerics;
  DType kv = DType::kF32;
  std::vector<std::string> left_out;  // of the checkpoint, for the log
  int64_t mapped_bytes = 0;
  int64_t created_ms = 0;

  Status load_text(Env* env, const std::string& template_file) {
    std::vector<int32_t> end_ids;
    const Json generation = parse_object(source->generation_config_json());
    add_end_ids(generation, end_ids);
    if (source->format() == SourceFormat::kHuggingFace) add_end_ids(parse_object(source->config_json()), end_ids);
    defaults = read_defaults(generation);
    CARREL_ASSIGN(tokenizer, tokenizer_of(*source, end_ids));
    std::string text = source->chat_template();
    if (!template_file.empty()) {
      CARREL_ASSIGN(text, read_file(env, template_file, 4 << 20));
    }
    if (text.empty()) return {};
    const auto spelled = [&](std::optional<int32_t> id) { return id ? std::string(tokenizer->token_text(*id)) : std::string(); };
    CARREL_ASSIGN(chat, ChatTemplate::parse(text, spelled(tokenizer->bos_id()), spelled(tokenizer->eos_id())));
    return {};
  }

  /// Source (unless it is open) and weights.
  Status open(Env* env, const ModelLocation& from, const ModelOptions& options, LoadMatrices what) {
    const FormChooser choose = [o = ops.get()](Form stored) { return o->wanted_form(stored); };
    graph = Graph();
    if (!from.store_entry.empty()) {
      const StoreVerify verify = options.verify_full ? StoreVerify::kFull : StoreVerify::kSampled;
      CARREL_ASSIGN(StoredModel stored, open_stored_model(env, from.store_entry, choose, verify, what));
      if (!source) source = std::move(stored.source);
      weights = std::move(stored.weights);
      return {};
    }
    if (!source) {
      CARREL_ASSIGN(source, from.embedded ? open_folder_in_memory(from.files) : open_source(env, from.path));
      if (!from.embedded) mapped_bytes = tensor_bytes(*source);
    }
    weights = weights_from_source(*source, choose, what);
    return {};
  }

  Status build(const ModelOptions& options) {
    CARREL_ASSIGN(family, find_family(source->format(), source->config_json()));
    CARREL_ASSIGN(kv, kv_dtype_of(options.kv_dtype, *ops));
    if (kv == DType::kPackedKv && family->name != "deepseek_v4")
      return fail(Code::kUnsupported, "packed is the row format of deepseek_v4, this model is " + std::string(family->name) + "; use auto, f32 or bf16",
                  "model.kv_dtype");
    CARREL_ASSIGN(graph, build_graph(*family, source->format(), source->config_json(), *weights, {.kv_dtype = kv}, &left_out));
    if (options.max_sequence_length > 0)
      graph.max_positions = static_cast<int>(std::min<int64_t>(options.max_sequence_length, graph.max_positions));
    return {};
  }

  /// What state made with these kernels and formats may be shared with: measured bits, formats, back end.
  void identify() {
    const std::string facts = "carrel numerics 1\n" + std::string(op_set()) + "\n" + std::string(carrel::to_string(kv)) + "\n" + numerics_canary(*ops);
    numerics = to_hex(sha256(facts));
  }
  std::string op_set() const { return ops->name(); }
};

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::load(Env* env, const ModelLocation& from, const ModelOptions& options) {
  auto i = std::make_unique<Impl>();
  i->name = options.name;
  i->created_ms = env->wall_ms();
  const int threads = options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  i->team = std::make_unique<ThreadTeam>(threads);
  CARREL_ASSIGN(i->ops, make_ops(options.ops, i->team.get()));
  i->op_set_kind = options.ops;
  CARREL_TRY(i->open(env, from, options, options.sizes_only || options.admit ? LoadMatrices::kSizes : LoadMatrices::kAll));
  CARREL_TRY(i->build(options));
  CARREL_TRY(i->load_text(env, options.chat_template_file));
  if (options.sizes_only) return std::unique_ptr<Model>(new Model(std::move(i)));
  if (options.admit) {
    Model sizes(std::move(i));
    CARREL_TRY(options.admit(sizes));
    i = std::move(sizes.impl_);
    CARREL_TRY(i->open(env, from, options, LoadMatrices::kAll));
    CARREL_TRY(i->build(options));
  }
  for (const std::string& what : i->left_out) spdlog::info("{} does not use what the file has beside it: {}", i->name, what);
  CARREL_ASSIGN(i->digest, i->weights->model_digest());
  i->identify();
  return std::unique_ptr<Model>(new Model(std::move(i)));
}

const std::string& Model::name() const { return impl_->name; }
std::string_view Model::family() const { return impl_->family->name; }
const Graph& Model::graph() const { return impl_->graph; }
Ops& Model::ops() { return *impl_->ops; }
ThreadTeam& Model::team() { return *impl_->team; }
int Model::team_size() const { return impl_->team->size(); }
Result<std::unique_ptr<Ops>> Model::make_private_ops(ThreadTeam* team) const { return carrel::make_ops(impl_->op_set_kind, team); }
const Tokenizer& Model::tokenizer() const { return *impl_->tokenizer; }
const ChatTemplate* Model::chat_template() const { return impl_->chat ? &*impl_->chat : nullptr; }
const GenerationDefaults& Model::generation_defaults() const { return impl_->defaults; }
const Digest& Model::digest() const { return impl_->digest; }
const std::string& Model::numerics_id() const { return impl_->numerics; }
std::string Model::op_set() const { return impl_->op_set(); }
int64_t Model::weight_bytes() const { return impl_->weights->memory_bytes(); }
int64_t Model::file_bytes() const { return impl_->weights->file_bytes(); }
int64_t Model::mapped_bytes() const { return impl_->mapped_bytes; }
int64_t Model::created_ms() const { return impl_->created_ms; }

}  // namespace carrel
