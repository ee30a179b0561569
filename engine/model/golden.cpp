// Recognises the layouts of vectors and calls the checks; see golden.h.
#include "engine/model/golden.h"

#include <algorithm>

#include "engine/model/golden_real.h"
#include "engine/model/golden_run.h"

namespace carrel {

namespace {

constexpr int kMaxDepth = 4;  // folders below the one given

/// Model types that vectors exist of and that are no family of this version, as config.json and GGUF say them. Whatever else is refused is
/// a failure.
constexpr std::string_view kOtherFamilies[] = {"bamba",      "deepseek32",     "deepseek_v32", "falcon-h1",   "falcon_h1",
                                               "gemma4",     "gemma4_text",    "kimi-linear",  "kimi_linear", "minimax",
                                               "nemotron_h", "nemotron_h_moe", "olmo_hybrid"};

std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}
std::string name_of(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

Result<ConfigReader> read_json(Env* env, const std::string& path) {
  CARREL_ASSIGN(const std::string text, read_file(env, path));
  return ConfigReader::parse(text);
}

class Checker {
 public:
  Checker(Env* env, const GoldenOptions& options) : env_(env), options_(options) {}

  Status visit(const std::string& path, int depth) {
    if (!env_->is_dir(path)) return path.ends_with(".gguf") ? gguf_file(path) : Status{};
    if (env_->exists(path + "/config.json")) {
      if (env_->exists(path + "/golden.safetensors")) CARREL_TRY(model_folder(path, path));
      // The same model in another form: the vectors lie one folder up.
      else if (env_->exists(path + "/../golden.safetensors"))
        CARREL_TRY(model_folder(path, path + "/.."));
    }
    if (env_->exists(path + "/gguf.safetensors")) return check_formats(env_, path, report);
    if (is_real_layout(env_, path)) return real_folder(path);
    check_texts(env_, path, report);
    if (depth >= kMaxDepth) return {};
    CARREL_ASSIGN(const std::vector<std::string> names, env_->list(path));
    const bool ggufs = env_->exists(path + "/manifest.json");
    for (const std::string& name : names) {
      if (env_->is_dir(path + "/" + name) || (ggufs && name.ends_with(".gguf"))) CARREL_TRY(visit(path + "/" + name, depth + 1));
    }
    return {};
  }

  GoldenReport report;

 private:
  /// Takes the result of one check. A type that is not read is a skip, not a failure of the model.
  void take(GoldenFile out, const Status& status) {
    if (!status && status.error().code == Code::kUnsupported) {
      out.skipped = status.error().text();
    } else if (!status) {
      out.failures.push_back(status.error().text());
    }
    report.files.push_back(std::move(out));
  }

  /// Runs the check of one model.
  Status check(const std::string& name, const OpenSource& open, const GoldenVectors& vectors, const FastLimits& limits) {
    GoldenFile out;
    out.name = name;
    const Status status = check_unless_other(open, vectors, limits, out);
    if (!status) out.failures.push_back(status.error().text());
    report.files.push_back(std::move(out));
    return {};
  }

  Status check_unless_other(const OpenSource& open, const GoldenVectors& vectors, const FastLimits& limits, GoldenFile& out) {
    CARREL_ASSIGN(const std::string type, model_type(open));
    if (std::find(std::begin(kOtherFamilies), std::end(kOtherFamilies), type) != std::end(kOtherFamilies)) {
      out.skipped = "'" + type + "' is not a family of this version";
      return {};
    }
    return check_model(open, vectors, limits, options_, out);
  }

  static Result<std::string> model_type(const OpenSource& open) {
    CARREL_ASSIGN(const auto source, open());
    CARREL_ASSIGN(const ConfigReader config, ConfigReader::parse(source->config_json()));
    std::string type = config.text(source->format() == SourceFormat::kGguf ? "general.architecture" : "model_type");
    CARREL_TRY(config.status());
    return type;
  }

  Status real_folder(const std::string& dir) {
    RealLimits limits;
    if (options_.ops == OpSet::kFast && !options_.models.empty()) {
      CARREL_ASSIGN(const LimitsText text, limits_text(dir));
      CARREL_ASSIGN(limits, read_real_limits(text.json, text.where, name_of(dir)));
    }
    GoldenFile out;
    out.name = dir;
    const Status status = check_real(env_, dir, limits, options_, out);
    take(std::move(out), status);
    return {};
  }

  /// vectors: the folder with golden.safetensors and manifest.json.
  Status model_folder(const std::string& dir, const std::string& vectors) {
    const bool other_config = options_.config != "config.json";
    if (!env_->exists(dir + "/" + options_.config)) return {};
    GoldenVectors v;
    CARREL_TRY(read_manifest(vectors, v));
    CARREL_ASSIGN(v.file, VectorFile::open(env_, vectors + "/golden.safetensors"));
    CARREL_ASSIGN(const FastLimits limits, limits_of(dir, name_of(dir)));
    std::string config, weights;
    if (other_config) {
      CARREL_ASSIGN(config, read_file(env_, dir + "/" + options_.config));
      CARREL_ASSIGN(weights, read_file(env_, dir + "/model.safetensors"));
    }
    const OpenSource open = [&]() -> Result<std::unique_ptr<ModelSource>> {
      if (!other_config) return open_source(env_, dir);
      return open_folder_in_memory(
          {{"config.json", std::as_bytes(std::span(config))}, {"model.safetensors", std::as_bytes(std::span(weights))}});
    };
    return check(dir + (other_config ? " (" + options_.config + ")" : ""), open, v, limits);
  }

  static void read_inner_bounds(const ConfigReader& manifest, GoldenVectors& v) {
    v.hidden = manifest.numbers("bound_hidden_f32_per_layer");
    const ConfigReader states = manifest.section("bound_state_f32");
    for (const char* kind : {"conv", "recurrent"})
      if (states.has(kind)) v.registers[kind] = states.number(kind);
  }

  Status read_manifest(const std::string& dir, GoldenVectors& v) {
    CARREL_ASSIGN(const ConfigReader m, read_json(env_, dir + "/manifest.json"));
    v.tight = m.number(m.has("tight_logits_f32") ? "tight_logits_f32" : "bound_careful_f32");
    v.wide = m.number("bound_logits_f32");
    read_inner_bounds(m, v);
    if (env_->exists(dir + "/trace.safetensors")) {
      CARREL_ASSIGN(v.trace, VectorFile::open(env_, dir + "/trace.safetensors"));
      const ConfigReader t = m.section("trace"), bounds = t.section("bound_f32");
      v.trace_prompt = t.text("prompt");
      for (const int64_t p : t.integers("positions")) v.trace_positions.push_back(static_cast<int>(p));
      for (const int64_t p : t.integers("indexer_positions")) v.trace_indexer_positions.push_back(static_cast<int>(p));
      v.trace_mhc_position = static_cast<int>(t.integer("mhc_position", 0, 1 << 20));
      v.trace_state_after = static_cast<int>(t.integer("state_after", 0, 1 << 20));
      for (const char* kind : {"attn_hc.post", "attn_hc.comb", "attn_in", "attn_out", "ffn_hc.post", "ffn_hc.comb", "ffn_in",
                               "route_weights", "ffn_out", "out_streams", "indexer_q", "indexer_keys", "compressed_rows", "head_in"}) {
        if (bounds.has(kind)) v.trace_bounds[kind] = bounds.number(kind);
      }
    }
    return m.status();
  }

  Status gguf_file(const std::string& path) {
    const std::string dir = parent_of(path), stem = name_of(path).substr(0, name_of(path).size() - 5);
    CARREL_ASSIGN(const ConfigReader manifest, read_json(env_, dir + "/manifest.json"));
    if (!manifest.is_object(stem)) return fail(Code::kNotFound, "manifest.json does not mention this file", path);
    const ConfigReader m = manifest.section(stem);
    GoldenVectors v;
    v.tight = m.number("tight_logits_f32");
    v.wide = m.number("bound_logits_f32");
    const std::string golden = dir + "/" + m.text("golden");
    CARREL_TRY(m.status());
    CARREL_ASSIGN(v.file, VectorFile::open(env_, golden));
    if (m.text("golden").starts_with("../")) {  // of a model folder, whose manifest has the inner bounds
      CARREL_ASSIGN(const ConfigReader of_folder, read_json(env_, parent_of(golden) + "/manifest.json"));
      read_inner_bounds(of_folder, v);
      CARREL_TRY(of_folder.status());
    }
    CARREL_ASSIGN(const FastLimits limits, limits_of(dir, stem));
    return check(path, [&] { return open_source(env_, path); }, v, limits);
  }

  Result<FastLimits> limits_of(const std::string& dir, const std::string& name) {
    FastLimits out;
    if (options_.ops != OpSet::kFast) return out;
    CARREL_ASSIGN(const LimitsText text, limits_text(dir));
    CARREL_ASSIGN(const ConfigReader root, ConfigReader::parse(text.json));
    const ConfigReader fast = root.section("fast");
    const ConfigReader limits = fast.section(fast.has(name) ? name : "default");
    out.mean_kl = limits.number("mean_kl");
    out.top1 = limits.number("top1");
    CARREL_TRY(limits.status());
    return out;
  }

  struct LimitsText {
    std::string json, where;
  };
  /// The file that was named; else limits.json in the folder or one of the three above it; else the text of the caller.
  Result<LimitsText> limits_text(const std::string& dir) {
    std::string file = options_.limits_file, at = dir;
    for (int i = 0; i < 4 && file.empty(); ++i, at += "/..") {
      if (env_->exists(at + "/limits.json")) file = at + "/limits.json";
    }
    if (file.empty() && !options_.limits_json.empty()) return LimitsText{options_.limits_json, "the limits inside"};
    if (file.empty()) return fail(Code::kNotFound, "no limits.json for the fast ops here or above", dir);
    CARREL_ASSIGN(std::string json, read_file(env_, file, 1 << 20));
    return LimitsText{std::move(json), file};
  }

  Env* env_;
  const GoldenOptions& options_;
};

}  // namespace

bool GoldenReport::passed() const {
  return std::all_of(files.begin(), files.end(), [](const GoldenFile& f) { return f.passed(); });
}

Result<GoldenReport> check_golden(Env* env, const std::string& dir, const GoldenOptions& options) {
  const std::string path = without_slash(dir);
  if (!env->exists(path)) return fail(Code::kNotFound, "no such folder or file", path);
  Checker checker(env, options);
  CARREL_TRY(checker.visit(path, 0));
  if (checker.report.files.empty())
    return fail(
        Code::kNotFound,
        "no vectors here (golden.safetensors, manifest.json with .gguf files, gguf.safetensors, vectors.jsonl, micro.jsonl, prompts.json)",
        path);
  return std::move(checker.report);
}

}  // namespace carrel
