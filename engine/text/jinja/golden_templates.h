// Holds the template engine against published templates: a folder as golden/text/templates. What `carrel golden` prints and tests assert.
// Threads: none of its own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/error.h"

namespace carrel {

struct GoldenTemplateReport {
  int64_t n_cases = 0, n_cases_failed = 0;  // cases.jsonl, rendered with the variables as they are
  int64_t n_micro = 0, n_micro_failed = 0;  // micro.jsonl
  int64_t n_chat = 0, n_chat_failed = 0;    // cases.jsonl through ChatTemplate, where its preparation gives a known answer
  int64_t n_lenient = 0;                    // rendered, where the reference fails
  std::vector<std::string> failures;        // the first few
};

Result<GoldenTemplateReport> check_templates(Env* env, const std::string& dir);
/// Only small templates: the first line of the file has the variables, every other one a template and what it gives.
Result<GoldenTemplateReport> check_micro_templates(Env* env, const std::string& file);

}  // namespace carrel
