#include "report/commands.h"

#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/text.h"
#include "report/page.h"
#include "report/summary.h"

namespace ingot::report {
namespace {

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &parts)};
}

}  // namespace

int run_report(const ReportOptions& options) {
  if (options.run_dirs.empty()) throw base::UsageError("ingot report needs a run directory, as in: ingot report runs/demo -o report.html");
  const auto runs = read_runs(options.run_dirs);
  const auto output = options.output.empty() ? options.run_dirs.front() / "report.html" : options.output;
  const auto page = make_page(runs, now());
  base::write_file_atomically(output, page);
  for (const auto& run : runs) {
    for (const auto& remark : run.remarks) base::log_warning("{}: {}", run.name, remark);
  }
  base::log_info("wrote {} ({}, {} run{})", output.string(), base::format_bytes(static_cast<int64_t>(page.size())), runs.size(),
                 runs.size() == 1 ? "" : "s");
  if (options.json) {
    const auto text = summary_json(runs).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) throw base::FileError("cannot write to standard output");
  }
  return 0;
}

}  // namespace ingot::report
