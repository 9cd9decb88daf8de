// The verb `ingot report`.
#pragma once

#include <filesystem>
#include <vector>

namespace ingot::report {

struct ReportOptions {
  std::vector<std::filesystem::path> inputs;  // run directories, or else files of ingot bench parallel --json
  std::filesystem::path output;               // empty: report.html in the first run directory, or FILE.html beside the first FILE.json
  bool json = false;                          // the headline numbers of runs as one JSON document on standard output
  bool watch = false;                         // no file, but a page over HTTP that follows run directories until SIGINT or SIGTERM
  int port = 8008;                            // of that page, on 127.0.0.1; 0: one that is free
  double timeout_s = 10;                      // for a request to come, and for its answer to be taken
};

/// Writes the page, whole or not at all, or serves it, and returns the exit status: 0. Throws UsageError without inputs and for folders
/// mixed with files, DataError for a folder that is no run and a file that cannot be understood, FileError when the page cannot be written.
int run_report(const ReportOptions& options);

}  // namespace ingot::report
