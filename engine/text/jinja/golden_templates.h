// Holds the template engine against published chat templates: a folder as golden/text/templates. Threads: none of its own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/error.h"

namespace carrel::jinja {

struct GoldenTemplateReport {
  int64_t n_cases = 0, n_cases_failed = 0, n_micro = 0, n_micro_failed = 0;
  std::vector<std::string> failures;  // the first few
};

/// cases.jsonl: every template with every conversation, its text or its own error. micro.jsonl: one feature each.
Result<GoldenTemplateReport> check_templates(Env* env, const std::string& dir);

}  // namespace carrel::jinja
