// `ingot status` and `ingot events`: how a run is doing, and what happened to it, read from its directory alone.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace ingot::report {

enum class RunState {
  running,  // a process holds the directory
  ended,    // by itself: at its last step, by a signal, or without patience
  failed,   // its launcher has given up
  gone,     // its process ended without a word
};

struct RunStatus {
  std::filesystem::path folder;
  RunState state = RunState::gone;
  std::string why;      // what holds the directory, or how it ended
  double silent_s = 0;  // since the last sign of life; NaN without one
  int64_t restarts = 0, hangs = 0, failures = 0;
  /// From each failure until the run had done again what it had done before, as far as it has.
  double lost_s = 0;
  nlohmann::ordered_json json() const;
  std::string text() const;

  nlohmann::ordered_json numbers;  // of the last step and of medians; keys as in metrics.jsonl, null: not known
  nlohmann::ordered_json last_event;
};

/// `now_s`: Unix time. Throws DataError when `folder` is no run directory.
RunStatus status_of(const std::filesystem::path& folder, double now_s);

struct StatusOptions {
  std::filesystem::path folder;
  bool json = false;
  bool watch = false;  // anew every second until SIGINT or SIGTERM
};
int run_status(const StatusOptions& options);

struct EventsOptions {
  std::filesystem::path folder;
  bool json = false;    // one object a line
  bool follow = false;  // waits for more until SIGINT or SIGTERM
};
int run_events(const EventsOptions& options);

/// "2026-11-29 10:12:05  hang     rank 1 (process 71) hangs in step 12 …", with the last lines below, indented.
std::string event_text(const nlohmann::ordered_json& event);

}  // namespace ingot::report
