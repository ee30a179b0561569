#include "engine/model/golden.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/assets/demo.h"
#include "app/cli/cli.h"

namespace carrel {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const GoldenFile& f) {
  Json j{{"name", f.name}, {"passed", f.passed()}, {"worst_over_bound", f.worst}, {"worst_at", f.worst_at}, {"prompts", f.n_prompts}, {"failures", f.failures}};
  if (!f.skipped.empty()) j["skipped"] = f.skipped;
  if (f.n_checks > 0) j["text_checks"] = f.n_checks;
  if (!f.bound_used) j["worst_over_bound"] = nullptr;
  if (f.limits_used) j["mean_kl"] = f.mean_kl, j["mean_kl_limit"] = f.mean_kl_limit, j["top1"] = f.top1, j["top1_limit"] = f.top1_limit;
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
  if (f.n_checks == 0 && !f.bound_used && !f.limits_used && f.passed()) std::printf(" every value equal");
  if (f.bound_used) std::printf(" worst %.3g of its bound %s", f.worst, f.worst_at.c_str());
  if (f.limits_used) std::printf("  KL %.2e of %.2e  top-1 %.3f of at least %.3f", f.mean_kl, f.mean_kl_limit, f.top1, f.top1_limit);
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
  options.limits_file = args.limits;
  options.limits_json = golden_limits();
  int n_checked = 0, n_failed = 0, n_skipped = 0;
  Json all = Json::array();
  for (const std::string& dir : args.dirs) {
    const auto report_of = check_golden(Env::real(), dir, options);
    if (!report_of) return report(report_of.error(), args.common);
    for (const GoldenFile& f : report_of->files) {
      if (!f.skipped.empty()) n_skipped++;
      else n_checked++, n_failed += f.passed() ? 0 : 1;
      if (args.common.json) all.push_back(to_json(f));
      else print(f);
    }
  }
  const bool passed = n_checked > 0 && n_failed == 0;
  if (args.common.json) {
    std::printf("%s\n", Json{{"passed", passed}, {"ops", args.ops}, {"checked", n_checked}, {"failed", n_failed}, {"skipped", n_skipped}, {"files", std::move(all)}}.dump(2).c_str());
  } else {
    std::printf("%s: %d checked, %d ok, %d failed, %d skipped\n", args.ops.c_str(), n_checked, n_checked - n_failed, n_failed, n_skipped);
  }
  if (n_checked == 0) std::fprintf(stderr, "carrel: nothing was checked: all that lies there was skipped\n");
  return passed ? 0 : 1;
}

}  // namespace carrel
