#include "report/commands.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/text.h"
#include "report/page/document.h"
#include "report/parallel/page.h"
#include "report/profile/page.h"
#include "report/profile/reader.h"
#include "report/profile/summary.h"
#include "report/run/page.h"
#include "report/run/summary.h"
#include "report/sweep/page.h"
#include "report/watch/watch.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;

void log_written(const fs::path& output, const std::string& page, size_t count, const char* what) {
  base::log_info("wrote {} ({}, {} {}{})", output.string(), base::format_bytes(static_cast<int64_t>(page.size())), count, what,
                 count == 1 || std::string_view(what).ends_with("sweep") ? "" : "s");
}

void print_json(const nlohmann::ordered_json& json) {
  const auto text = json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) throw base::FileError("cannot write to standard output");
}

int report_sweep(const SweepResults& sweep, const ReportOptions& options) {
  const auto folder = options.inputs.front();
  const auto output = options.output.empty() ? folder / "report.html" : options.output;
  const auto page = make_sweep_page(sweep, folder, local_time());
  base::write_file_atomically(output, page);
  log_written(output, page, sweep.trials.size(), "run of a sweep");
  return 0;
}

int report_runs(const ReportOptions& options) {
  if (options.inputs.size() == 1 && !options.json)
    if (const auto sweep = read_sweep(options.inputs.front())) return report_sweep(*sweep, options);
  const auto runs = read_runs(options.inputs);
  for (const auto& run : runs) require_run(run);
  const auto output = options.output.empty() ? options.inputs.front() / "report.html" : options.output;
  const auto page = make_page(runs, local_time());
  base::write_file_atomically(output, page);
  for (const auto& run : runs) {
    for (const auto& remark : run.remarks) base::log_warning("{}: {}", run.name, remark);
  }
  log_written(output, page, runs.size(), "run");
  if (options.json) print_json(summary_json(runs));
  return 0;
}

// Where the page goes, which no input may be.
fs::path page_of(const ReportOptions& options) {
  const auto output = options.output.empty() ? fs::path(options.inputs.front()).replace_extension(".html") : options.output;
  for (const auto& input : options.inputs) {
    std::error_code ignored;
    if (fs::equivalent(input, output, ignored))
      throw base::UsageError("the page would take the place of {}; name another file with -o PAGE.html", input.string());
  }
  return output;
}

int report_profiles(const ReportOptions& options) {
  const auto output = page_of(options);
  const auto machines = read_measured(options.inputs);
  const auto page = make_profile_page(machines, local_time());
  base::write_file_atomically(output, page);
  log_written(output, page, machines.size(), "machine");
  if (options.json) print_json(profile_summary(machines));
  return 0;
}

int report_parallel(const ReportOptions& options) {
  if (options.json)
    throw base::UsageError("ingot report --json is for run directories and profiles; {} is JSON already", options.inputs.front().string());
  const auto output = page_of(options);
  std::vector<ParallelFile> files;
  for (const auto& input : options.inputs) files.push_back(read_parallel(input));
  const auto page = make_parallel_page(files, local_time());
  base::write_file_atomically(output, page);
  log_written(output, page, files.size(), "file");
  return 0;
}

int serve_runs(const ReportOptions& options) {
  if (!options.output.empty() || options.json)
    throw base::UsageError("ingot report --watch serves its page and writes none; leave out {}", options.json ? "--json" : "-o");
  watch(options.inputs, options.port, options.timeout_s);
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
        "ingot report needs a run directory, a machine profile or another file of ingot bench, as in: ingot report runs/demo -o "
        "report.html");
  const auto file = std::find_if(options.inputs.begin(), options.inputs.end(), is_file);
  if (file == options.inputs.end()) return options.watch ? serve_runs(options) : report_runs(options);
  if (options.watch) throw base::UsageError("ingot report --watch follows run directories, and {} is a file", file->string());
  const auto folder = std::find_if_not(options.inputs.begin(), options.inputs.end(), is_file);
  if (folder != options.inputs.end())
    throw base::UsageError("{} is a file and {} a run directory; ingot report makes a page of one kind at a time", file->string(),
                           folder->string());
  const auto is_measured = [](const fs::path& input) { return kind_of_file(input) != FileKind::other; };
  const auto measured = std::count_if(options.inputs.begin(), options.inputs.end(), is_measured);
  if (measured == 0) return report_parallel(options);
  if (measured == static_cast<std::ptrdiff_t>(options.inputs.size())) return report_profiles(options);
  const auto other = std::find_if_not(options.inputs.begin(), options.inputs.end(), is_measured);
  throw base::UsageError(
      "{} is neither a machine profile nor of ingot bench collectives, as other files here are; ingot report makes a page of one kind at a "
      "time",
      other->string());
}

}  // namespace ingot::report
