// The explanation of a match for people, made from the JSON document of POST /admin/v1/cache/explain. Pure.
#pragma once
#include <string>

#include "base/error.h"

namespace carrel {

/// kCorrupt: not such a document.
Result<std::string> explain_text(const std::string& document);

}  // namespace carrel
