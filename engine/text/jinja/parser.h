// Tokens to a Program, by Jinja's grammar. Nesting is bounded; unknown tags, filters and tests are refused by name.
#pragma once
#include <memory>
#include <string_view>

#include "base/error.h"
#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/template.h"

namespace carrel::jinja {

Result<std::shared_ptr<const Program>> parse_program(std::string_view source, const ParseLimits& limits);

/// The tables of builtins; null for an unknown name.
FilterFn find_filter(std::string_view name);
TestFn find_test(std::string_view name);

}  // namespace carrel::jinja
