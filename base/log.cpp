#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

namespace carrel {
namespace {

/// The message as the inside of a JSON string.
class EscapedMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text = json_escape({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<EscapedMessage>(); }
};

}  // namespace

std::string json_escape(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') out += {'\\', c};
    else if (u < 0x20) out += {'\\', 'u', '0', '0', kDigits[u >> 4], kDigits[u & 15]};
    else out += c;
  }
  return out;
}

void log_setup(std::string_view level, LogFormat format) {
  auto logger = spdlog::stderr_color_mt("carrel");
  const bool json = format == LogFormat::kJson;
  auto formatter = std::make_unique<spdlog::pattern_formatter>(json ? spdlog::pattern_time_type::utc : spdlog::pattern_time_type::local);
  formatter->add_flag<EscapedMessage>('*');
  formatter->set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","message":"%*"})" : "%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  logger->set_formatter(std::move(formatter));
  logger->set_level(spdlog::level::from_str(std::string(level)));
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace carrel
