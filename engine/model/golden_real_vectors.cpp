// prompts.json and limits.json of real checkpoints; see golden_real.h. JSON stays in this file.
#include <nlohmann/json.hpp>

#include "engine/model/golden_real.h"

namespace carrel {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kEmbedding = "embedding", kLayer = "after layer ";

/// Stages are named for people: "embedding", "after layer 7", "after final norm".
std::string value_named(const std::string& stage) {
  if (stage == kEmbedding) return "embed";
  return stage.starts_with(kLayer) ? "layers." + stage.substr(kLayer.size()) + ".out" : "head_norm";
}

std::vector<RealLogit> logits_of(const Json& j) {
  std::vector<RealLogit> out;
  for (const Json& e : j) out.push_back({e.at(0).get<int32_t>(), e.at(1).get<double>()});
  return out;
}

RealPrompt prompt_of(const Json& j) {
  RealPrompt p;
  p.id = j.at("id").get<std::string>();
  p.text = j.at(j.contains("rendered") ? "rendered" : "text").get<std::string>();
  if (j.contains("messages")) p.messages_json = j.at("messages").dump();
  p.add_generation_prompt = j.value("add_generation_prompt", false);
  p.ids = j.at("ids").get<std::vector<int32_t>>();
  p.logprobs = j.at("logprobs").get<std::vector<double>>();
  p.logprob_mean = j.at("logprob_mean").get<double>();
  p.top = logits_of(j.at("top20"));
  p.log_sum = j.at("logsumexp").get<double>();
  p.greedy = j.at("greedy").at("ids").get<std::vector<int32_t>>();
  p.margins = j.at("greedy").at("margins").get<std::vector<double>>();
  for (const Json& e : j.value("at", Json::array())) p.at.emplace_back(e.at(0).get<int>(), logits_of(e.at(1)));
  for (const Json& e : j.value("trace", Json::array()))
    p.trace.push_back({value_named(e.at("at").get<std::string>()), e.at("rms").get<double>(), e.at("first8").get<std::vector<double>>()});
  return p;
}

bool fits(const RealPrompt& p) {
  return !p.ids.empty() && p.logprobs.size() + 1 == p.ids.size() && p.margins.size() == p.greedy.size() && !p.top.empty();
}

/// Parses and hands over; whatever throws is the file's fault.
template <class F>
Status read_with(const std::string& text, const std::string& path, F&& f) {
  try {
    f(Json::parse(text));
  } catch (const std::exception& e) {
    return fail(Code::kCorrupt, std::string("does not have the expected form: ") + e.what(), path);
  }
  return {};
}

}  // namespace

bool is_real_layout(Env* env, const std::string& dir) {
  return env->exists(dir + "/prompts.json") && env->exists(dir + "/tokens.json");
}

Result<RealVectors> read_real_vectors(Env* env, const std::string& dir) {
  RealVectors out;
  const std::string path = dir + "/prompts.json";
  CARREL_ASSIGN(const std::string text, read_file(env, path, 64 << 20));
  CARREL_TRY(read_with(text, path, [&](const Json& j) {
    out.model_sha256 = j.at("model_sha256").get<std::string>();
    for (const Json& p : j.at("prompts")) out.prompts.push_back(prompt_of(p));
  }));
  for (const RealPrompt& p : out.prompts)
    if (!fits(p)) return fail(Code::kCorrupt, "prompt " + p.id + " has lists of other lengths than its ids", path);
  if (out.prompts.empty()) return fail(Code::kCorrupt, "has no prompt", path);
  return out;
}

Result<RealLimits> read_real_limits(const std::string& json, const std::string& where, const std::string& name) {
  RealLimits l;
  CARREL_TRY(read_with(json, where, [&](const Json& j) {
    const Json& real = j.at("real");
    const Json& m = real.contains(name) ? real.at(name) : real.at("default");
    const auto get = [&](const char* key) { return m.at(key).get<double>(); };
    l = {.mean_kl_long = get("mean_kl_long"),
         .mean_kl = get("mean_kl"),
         .logprob_long = get("logprob_long"),
         .logprob = get("logprob"),
         .top20_mean = get("top20_mean"),
         .greedy_margin = get("greedy_margin"),
         .argmax_long = get("argmax_long")};
  }));
  return l;
}

}  // namespace carrel
