#include "base/run_events.h"

#include <chrono>
#include <sstream>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"

namespace ingot::base {
namespace {

constexpr const char* kFile = "events.jsonl";

}  // namespace

void record_event(const std::filesystem::path& run_directory, const std::string& kind, const nlohmann::ordered_json& details) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  nlohmann::ordered_json event{{"time_s", now}, {"event", kind}};
  event.update(details);
  try {
    append_line(run_directory / kFile, event.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } catch (const Error& failure) {
    log_warning("{}; the event '{}' is lost", failure.what(), kind);
  }
}

RunEvents read_run_events(const std::filesystem::path& run_directory) {
  RunEvents read;
  if (!std::filesystem::exists(run_directory / kFile)) return read;
  std::istringstream lines(read_file(run_directory / kFile));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    auto event = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool is_event = event.is_object() && event.contains("time_s") && event["time_s"].is_number() && event.contains("event") &&
                          event["event"].is_string();
    if (is_event) read.events.push_back(std::move(event));
    else ++read.broken_lines;
  }
  return read;
}

}  // namespace ingot::base
