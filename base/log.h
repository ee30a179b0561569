// The process log: one line per event on standard error, as text or JSON. Prompts and secrets are never logged.
#pragma once
#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

namespace carrel {

enum class LogFormat { kText, kJson };

/// Call once at start, before threads. level: trace, debug, info, warn, error, off.
void log_setup(std::string_view level, LogFormat format);

}  // namespace carrel
