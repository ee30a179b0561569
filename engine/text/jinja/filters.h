// The two halves of the filter table. Internal to this folder.
#pragma once
#include <string_view>

#include "engine/text/jinja/interp.h"
#include "engine/text/jinja/parser.h"

namespace carrel::jinja {

struct FilterEntry {
  std::string_view name;
  FilterFn fn;
};

/// Null for an unknown name.
FilterFn find_sequence_filter(std::string_view name);

}  // namespace carrel::jinja
