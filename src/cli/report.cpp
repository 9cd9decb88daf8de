#include "cli/verbs.h"
#include "report/commands.h"

namespace ingot::cli {

int run_report(const Options& all) {
  report::ReportOptions options{.output = all.report.output, .json = all.json};
  options.run_dirs.assign(all.report.run_dirs.begin(), all.report.run_dirs.end());
  return report::run_report(options);
}

}  // namespace ingot::cli
