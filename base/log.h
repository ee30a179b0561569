// The process log: one line per event on standard error, as text or JSON. Prompts and secrets are never logged.
#pragma once
#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

namespace carrel {

enum class LogFormat { kText, kJson };

/// Text as the inside of a JSON string: quotes, backslashes and control characters escaped.
std::string json_escape(std::string_view text);

/// Call once at start, before threads. level: trace, debug, info, warn, error, off.
void log_setup(std::string_view level, LogFormat format);

}  // namespace carrel
