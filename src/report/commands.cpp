#include "report/commands.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/text.h"
#include "report/page.h"
#include "report/parallel_page.h"
#include "report/summary.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &parts)};
}

void log_written(const fs::path& output, const std::string& page, size_t count, const char* what) {
  base::log_info("wrote {} ({}, {} {}{})", output.string(), base::format_bytes(static_cast<int64_t>(page.size())), count, what,
                 count == 1 ? "" : "s");
}

int report_runs(const ReportOptions& options) {
  const auto runs = read_runs(options.inputs);
  const auto output = options.output.empty() ? options.inputs.front() / "report.html" : options.output;
  const auto page = make_page(runs, now());
  base::write_file_atomically(output, page);
  for (const auto& run : runs) {
    for (const auto& remark : run.remarks) base::log_warning("{}: {}", run.name, remark);
  }
  log_written(output, page, runs.size(), "run");
  if (options.json) {
    const auto text = summary_json(runs).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) throw base::FileError("cannot write to standard output");
  }
  return 0;
}

int report_parallel(const ReportOptions& options) {
  if (options.json)
    throw base::UsageError("ingot report --json is for run directories; {} is JSON already", options.inputs.front().string());
  auto output = options.output;
  if (output.empty()) output = fs::path(options.inputs.front()).replace_extension(".html");
  std::vector<ParallelFile> files;
  for (const auto& input : options.inputs) {
    std::error_code ignored;
    if (fs::equivalent(input, output, ignored))
      throw base::UsageError("the page would take the place of {}; name another file with -o PAGE.html", input.string());
    files.push_back(read_parallel(input));
  }
  const auto page = make_parallel_page(files, now());
  base::write_file_atomically(output, page);
  log_written(output, page, files.size(), "file");
  return 0;
}

// What is neither a folder nor called .json is taken for a run directory that is missing.
bool is_file(const fs::path& input) {
  std::error_code ignored;
  return !fs::is_directory(input, ignored) && (fs::exists(input, ignored) || input.extension() == ".json");
}

}  // namespace

int run_report(const ReportOptions& options) {
  if (options.inputs.empty())
    throw base::UsageError(
        "ingot report needs a run directory or a file of ingot bench parallel --json, as in: ingot report runs/demo -o report.html");
  const auto file = std::find_if(options.inputs.begin(), options.inputs.end(), is_file);
  if (file == options.inputs.end()) return report_runs(options);
  const auto folder = std::find_if_not(options.inputs.begin(), options.inputs.end(), is_file);
  if (folder != options.inputs.end())
    throw base::UsageError("{} is a file and {} a run directory; ingot report makes a page of one kind at a time", file->string(),
                           folder->string());
  return report_parallel(options);
}

}  // namespace ingot::report
