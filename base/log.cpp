#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace carrel {

void log_setup(std::string_view level, LogFormat format) {
  auto logger = spdlog::stderr_color_mt("carrel");
  // %v is escaped by the writer of a structured line; free text holds no quotes by convention of the call sites.
  logger->set_pattern(format == LogFormat::kJson ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","message":"%v"})" : "%Y-%m-%d %H:%M:%S.%e %^%l%$ %v",
                      format == LogFormat::kJson ? spdlog::pattern_time_type::utc : spdlog::pattern_time_type::local);
  logger->set_level(spdlog::level::from_str(std::string(level)));
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace carrel
