// Holds the engine against golden vectors (tests/golden and whatever has its layouts): what `carrel golden DIR` prints and what tests
// assert.
//
// A model with vectors is run three ways over one path: each prompt with its greedy continuation as one forward, and again in chunks and
// single tokens, whose logits must have the same bits. Bounds: `reference` and `exact` keep the tight bound of the manifest, `fast` on
// unquantised weights the wide one (with float32 KV, which is what the bound speaks of); `fast` as it serves (KV as it stores it, quantised
// weights as they are) is held against `exact` by the limits of limits.json. Texts have no bound: all must be equal. A real checkpoint is
// held against a float32 reference: `reference` and `exact` within 0.001, `fast` within the limits of limits.json. Threads: the caller's,
// plus a team of `threads`.
#pragma once
#include <string>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "kernels/ops.h"

namespace carrel {

struct GoldenOptions {
  OpSet ops = OpSet::kExact;
  CpuPath path = CpuPath::kAuto;
  int threads = 1;
  bool localise = false;               // also compare inner values and states, and name the first that is off
  int max_length = 0;                  // longer prompts are left out; 0: none
  std::string config = "config.json";  // of a model folder; "config_legacy.json" holds the same model in older words
  std::string limits_file;             // limits of `fast`, before any other
  std::string limits_json;             // the same as text, where no file is given and no limits.json lies in the folder or the three above
  std::vector<std::string> models;     // .gguf files, or folders with such: where the checkpoints of real/ are looked for
};

struct GoldenFile {
  std::string name;                   // path of the model or file
  std::string skipped;                // why it was not checked; empty otherwise
  bool bound_used = false;            // anything was held against a bound: `worst` means something
  double worst = 0;                   // largest error over its bound
  std::string worst_at;               // "prompt 129 position 128"
  std::vector<std::string> failures;  // everything that is wrong, for a human
  std::string first_off;              // localise: first inner value beyond its bound
  int n_prompts = 0;
  int64_t n_checks = 0;      // of texts: tokenizers, templates
  bool limits_used = false;  // the two below were measured (fast)
  double mean_kl = 0;        // fast against exact
  double top1 = 1;           // share of positions with the same best token
  double mean_kl_limit = 0, top1_limit = 0;
  bool passed() const { return failures.empty() && worst <= 1; }
};

struct GoldenReport {
  std::vector<GoldenFile> files;
  bool passed() const;
};

/// dir: a model folder with golden.safetensors, a folder of .gguf files with manifest.json, one .gguf file inside such a folder, a folder
/// of number formats (quant/), of a tokenizer, split patterns or chat templates (text/, packed or not), of outputs of a real checkpoint
/// (real/), or a folder above any of these. Families that this version is known to lack (a list) and number formats are reported as
/// skipped, and so is a real checkpoint when options.models is empty. Errors: nothing to check there, unreadable vectors.
Result<GoldenReport> check_golden(Env* env, const std::string& dir, const GoldenOptions& options);

}  // namespace carrel
