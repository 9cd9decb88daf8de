// The verb `ingot report`.
#pragma once

#include <filesystem>
#include <vector>

namespace ingot::report {

struct ReportOptions {
  std::vector<std::filesystem::path> run_dirs;
  std::filesystem::path output;  // empty: report.html in the first run directory
  bool json = false;             // the headline numbers as one JSON document on standard output
};

/// Writes the page, whole or not at all, and returns the exit status: 0. Throws UsageError without run directories, DataError
/// for a folder that is none, FileError when the page cannot be written.
int run_report(const ReportOptions& options);

}  // namespace ingot::report
