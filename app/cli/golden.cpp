#include "engine/model/golden.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/cli/cli.h"

namespace carrel {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const GoldenFile& f) {
  Json j{{"name", f.name}, {"passed", f.passed()}, {"worst_over_bound", f.worst}, {"worst_at", f.worst_at}, {"prompts", f.n_prompts}, {"failures", f.failures}};
  if (!f.skipped.empty()) j["skipped"] = f.skipped;
  if (f.n_checks > 0) j["text_checks"] = f.n_checks;
  if (f.limits_used) j["mean_kl"] = f.mean_kl, j["top1"] = f.top1;
  if (!f.first_off.empty()) j["first_off"] = f.first_off;
  return j;
}

void print(const GoldenFile& f) {
  if (!f.skipped.empty()) {
    std::printf("skipped  %-44s %s\n", f.name.c_str(), f.skipped.c_str());
    return;
  }
  std::printf("%-8s %-44s", f.passed() ? "ok" : "FAILED", f.name.c_str());
  if (f.n_checks > 0) std::printf(" %lld texts", static_cast<long long>(f.n_checks));
  if (f.n_checks == 0 || f.n_prompts > 0) std::printf(" worst %.3f of its bound %s", f.worst, f.worst_at.c_str());
  if (f.limits_used) std::printf("  KL %.2e  top-1 %.3f", f.mean_kl, f.top1);
  std::printf("\n");
  for (const std::string& failure : f.failures) std::printf("         %s\n", failure.c_str());
  if (!f.first_off.empty()) std::printf("         first value that is off: %s\n", f.first_off.c_str());
}

}  // namespace

int cmd_golden(const GoldenArgs& args) {
  GoldenOptions options;
  options.ops = args.ops == "reference" ? OpSet::kReference : args.ops == "fast" ? OpSet::kFast : OpSet::kExact;
  options.threads = args.threads > 0 ? args.threads : 2;
  options.localise = args.localise;
  options.models = args.models;
  bool passed = true;
  Json all = Json::array();
  for (const std::string& dir : args.dirs) {
    const auto report_of = check_golden(Env::real(), dir, options);
    if (!report_of) return report(report_of.error(), args.common);
    passed = passed && report_of->passed();
    for (const GoldenFile& f : report_of->files) {
      if (args.common.json) all.push_back(to_json(f));
      else print(f);
    }
  }
  if (args.common.json) std::printf("%s\n", Json{{"passed", passed}, {"ops", args.ops}, {"files", std::move(all)}}.dump(2).c_str());
  return passed ? 0 : 1;
}

}  // namespace carrel
