// What happened to a run besides its steps, from events.jsonl, and what it cost, from the times of steps.
#pragma once

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/run/metrics_reader.h"

namespace ingot::report {

/// Of an event: its kind, details in words, and numbers; "" and NaN where it does not say.
std::string kind_of(const nlohmann::ordered_json& event);
std::string details_of(const nlohmann::ordered_json& event);
double number_of(const nlohmann::ordered_json& event, const char* name);

/// A failure or a hang.
struct Trouble {
  size_t event = 0;  // in Happened::events
  bool is_hang = false;
  /// From then (a hang: from its last sign of life) until the run stood again where it had stood, less what an earlier trouble has lost of
  /// that; 0 where it never did.
  double lost_s = 0;
};

struct Happened {
  std::vector<nlohmann::ordered_json> events;  // in the order of the file
  std::vector<Trouble> troubles;
  int64_t failures = 0, hangs = 0, restarts = 0, broken_lines = 0;
  double lost_s = 0;
  /// Time in steps that are kept over the time from the first start to the last step; NaN: not known.
  double goodput = std::numeric_limits<double>::quiet_NaN();
};

/// Throws FileError when there is a file that cannot be read.
Happened read_happened(const std::filesystem::path& run_directory, const Metrics& metrics);

}  // namespace ingot::report
