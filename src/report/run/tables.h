// The tables of a page: headline numbers, predictions beside measurements, settings, and the state of the files.
#pragma once

#include <string>
#include <vector>

#include "report/run/run_data.h"

namespace ingot::report {

/// One sentence per run that says how it went.
std::string verdicts(const std::vector<RunData>& runs);

std::string headline_tables(const std::vector<RunData>& runs);

/// Of each run of several sources what it learned of each; "" for others.
std::string source_tables(const std::vector<RunData>& runs);

/// Settings in which the runs differ, then all settings and facts of each run, folded.
std::string settings_tables(const std::vector<RunData>& runs);

/// Restarts, unreadable lines, missing files and the log's last warnings.
std::string file_remarks(const std::vector<RunData>& runs);

}  // namespace ingot::report
