// A run directory as the report sees it. Reading never fails on what a file contains: whatever is missing or broken becomes
// a remark that the page shows.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "report/checkpoints/reader.h"
#include "report/events/happened.h"
#include "report/run/metrics_reader.h"

namespace ingot::report {

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

struct RunData {
  std::string name;  // unique among the runs of a page
  std::filesystem::path folder;
  Metrics metrics;
  Checkpoints checkpoints;       // checkpoints.jsonl; empty when there is none
  Happened happened;             // events.jsonl
  NamedTexts settings;           // config.toml, dotted names
  NamedTexts facts;              // run.json, one level
  NamedTexts profile;            // profile.json, flattened
  double parameters = 0;         // 0: unknown
  double active_parameters = 0;  // 0: unknown
  std::string mfu_convention;
  std::vector<std::string> log_warnings;  // the last few warnings and errors of log.txt
  int64_t log_warning_count = 0;
  std::vector<std::string> remarks;  // what was missing or broken
};

/// Throws DataError only when `folder` is no folder at all or cannot be read. `last`: of its files of lines.
RunData read_run(const std::filesystem::path& folder, LastLine last = LastLine::counts);
/// Throws DataError where the folder has nothing of a run.
void require_run(const RunData& run);

/// Reads all and names them by their folders' names, lengthened until they differ.
std::vector<RunData> read_runs(const std::vector<std::filesystem::path>& folders, LastLine last = LastLine::counts);

}  // namespace ingot::report
