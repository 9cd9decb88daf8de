#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "base/error.h"

namespace ingot::base {
namespace {

constexpr char kPattern[] = "%H:%M:%S %^%L%$ %v";

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("ingot", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern(kPattern);
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum native(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    default: return spdlog::level::err;
  }
}

}  // namespace

void log_message(LogLevel level, std::string_view message) { logger().log(native(level), "{}", message); }

void log_to_file(const std::string& path) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, /*truncate=*/false);
    sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
    logger().sinks().push_back(std::move(sink));
  } catch (const spdlog::spdlog_ex& failure) {
    throw FileError("cannot open the log file {}: {}; choose another --run-dir", path, failure.what());
  }
}

void set_log_level(LogLevel level) { logger().set_level(native(level)); }

}  // namespace ingot::base
