// What happened to a run besides its steps: starts, failures, hangs, restarts, stops. RUN/events.jsonl, one JSON object a line, which only
// grows; docs/run-directory.md has the fields.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ingot::base {

/// Adds {"time_s": now, "event": kind, …details}. Never throws: what cannot be written is a warning, since it must not end a run.
void record_event(const std::filesystem::path& run_directory, const std::string& kind, const nlohmann::ordered_json& details);

struct RunEvents {
  std::vector<nlohmann::ordered_json> events;  // in the order of the file
  int64_t broken_lines = 0;                    // no objects with "time_s" and "event"
};
/// Nothing where there is no file. Throws FileError.
RunEvents read_run_events(const std::filesystem::path& run_directory);

}  // namespace ingot::base
