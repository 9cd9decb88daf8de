// The verb `ingot report`.
#pragma once

#include <filesystem>
#include <vector>

namespace ingot::report {

struct ReportOptions {
  std::vector<std::filesystem::path> inputs;  // run directories, or else files of ingot bench parallel --json
  std::filesystem::path output;               // empty: report.html in the first run directory, or FILE.html beside the first FILE.json
  bool json = false;                          // the headline numbers of runs as one JSON document on standard output
};

/// Writes the page, whole or not at all, and returns the exit status: 0. Throws UsageError without inputs and for folders mixed with
/// files, DataError for a folder that is no run and a file that cannot be understood, FileError when the page cannot be written.
int run_report(const ReportOptions& options);

}  // namespace ingot::report
