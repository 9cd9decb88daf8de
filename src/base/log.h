// The program's log: standard error and, once a run directory exists, a file in it. Any thread may log at any time.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace ingot::base {

enum class LogLevel { debug, info, warning, error };

void log_message(LogLevel level, std::string_view message);

/// Everything from now on also goes to this file (appended, flushed line by line). Throws FileError.
void log_to_file(const std::string& path);
void set_log_level(LogLevel level);

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ingot::base
