// The layout golden/text: tokenizers, split patterns, chat templates; see golden.h and engine/text.
#include "engine/model/golden_run.h"
#include "engine/model/source_text.h"
#include "engine/text/golden_text.h"
#include "engine/text/jinja/golden_templates.h"

namespace carrel {
namespace {

constexpr size_t kShownFailures = 20;

bool has(Env* env, const std::string& path) {
  return env->exists(path) || env->exists(path + ".xz");
}

GoldenFile file_of(const std::string& name, int64_t n_checks, int64_t n_failed, std::vector<std::string> failures) {
  GoldenFile f;
  f.name = name;
  f.n_checks = n_checks;
  if (failures.size() > kShownFailures) failures.resize(kShownFailures);
  f.failures = std::move(failures);
  if (n_failed > 0) f.failures.push_back(std::to_string(n_failed) + " of " + std::to_string(n_checks) + " differ");
  return f;
}

void add(const std::string& name, Result<GoldenTextReport> r, GoldenReport& report) {
  if (r) return report.files.push_back(file_of(name, r->n_checks, r->n_failed, std::move(r->failures)));
  report.files.push_back(file_of(name, 0, 0, {r.error().text()}));
}

/// The same vectors for the tokenizer of a GGUF file in the folder.
Result<GoldenTextReport> check_gguf_vocabulary(Env* env, const std::string& dir, const std::string& path) {
  CARREL_ASSIGN(const std::string bytes, read_packed(env, path));
  CARREL_ASSIGN(const GgufFile file, read_gguf(std::as_bytes(std::span(bytes)), path));
  if (!file.tokenizer) return fail(Code::kNotFound, "has no tokenizer", path);
  CARREL_ASSIGN(const auto tokenizer, Tokenizer::from_gguf(gguf_vocab(*file.tokenizer)));
  return check_tokenizer(env, *tokenizer, dir);
}

void check_tokenizers(Env* env, const std::string& dir, GoldenReport& report) {
  if (!has(env, dir + "/tokenizer.json")) {
    GoldenFile f;
    f.name = dir;
    f.skipped = "vectors without a vocabulary";
    return report.files.push_back(std::move(f));
  }
  add(dir, check_tokenizer_family(env, dir), report);
  if (has(env, dir + "/vocab.gguf")) add(dir + "/vocab.gguf", check_gguf_vocabulary(env, dir, dir + "/vocab.gguf"), report);
}

void check_template_folder(Env* env, const std::string& dir, GoldenReport& report) {
  auto r = env->exists(dir + "/cases.jsonl") ? check_templates(env, dir) : check_micro_templates(env, dir + "/micro.jsonl");
  if (!r) return report.files.push_back(file_of(dir, 0, 0, {r.error().text()}));
  report.files.push_back(
      file_of(dir, r->n_cases + r->n_micro + r->n_chat, r->n_cases_failed + r->n_micro_failed + r->n_chat_failed, std::move(r->failures)));
}

}  // namespace

bool check_texts(Env* env, const std::string& dir, GoldenReport& report) {
  const size_t before = report.files.size();
  if (has(env, dir + "/vectors.jsonl")) check_tokenizers(env, dir, report);
  if (has(env, dir + "/split_patterns.json")) add(dir + "/split_patterns.json", check_split_patterns(env, dir), report);
  if (env->exists(dir + "/micro.jsonl")) check_template_folder(env, dir, report);
  return report.files.size() > before;
}

}  // namespace carrel
