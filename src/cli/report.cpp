#include "cli/verbs.h"
#include "report/commands.h"

namespace ingot::cli {

int run_report(const Options& all) {
  report::ReportOptions options{.output = all.report.output, .json = all.json};
  options.inputs.assign(all.report.inputs.begin(), all.report.inputs.end());
  return report::run_report(options);
}

}  // namespace ingot::cli
