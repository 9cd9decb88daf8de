// `ingot report`: one self-contained page.
#include "cli/verb.h"
#include "report/commands.h"

namespace ingot::cli {

void add_report(Flags& flags) {
  const auto values = std::make_shared<report::ReportOptions>();
  auto& verb = flags.verb(
      "report", "one self-contained HTML page about runs, a machine profile or two, collectives, or results of bench parallel", values);
  verb.add_option(
          "inputs", values->inputs,
          "run directories; or one or two machine profiles and files of ingot bench collectives -o; or files of ingot bench parallel -o")
      ->required();
  verb.add_option("-o,--output", values->output,
                  "the page to write (default report.html in the first run directory, or FILE.html beside the first FILE.json)");
  auto* watch =
      verb.add_flag("--watch", values->watch, "serve the page on 127.0.0.1 and keep it up to date while the runs go on, until Ctrl-C");
  verb.add_option("--port", values->port, "of --watch; 0 takes a free one")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535))
      ->needs(watch);
  verb.add_option("--timeout", values->timeout_s, "seconds that --watch waits for a request, and for its answer to be taken")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 3600.0))
      ->needs(watch);
}

int run_report(const Call& call) {
  auto options = call.options<report::ReportOptions>();
  options.json = call.json;
  return report::run_report(options);
}

}  // namespace ingot::cli
