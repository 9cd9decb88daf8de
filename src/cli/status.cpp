// `ingot status` and `ingot events`: how a run is doing, and what happened to it.
#include "report/status/status.h"

#include "cli/verb.h"

namespace ingot::cli {

void add_status(Flags& flags) {
  const auto status = std::make_shared<report::StatusOptions>();
  auto& of_status = flags.verb("status", "how a run is doing: its state, step, loss, speed, last save and troubles", status);
  of_status.add_option("run", status->folder, "run directory")->required();
  of_status.add_flag("-w,--watch", status->watch, "anew every second, until Ctrl-C");
  const auto events = std::make_shared<report::EventsOptions>();
  auto& of_events = flags.verb("events", "what happened to a run besides its steps: starts, failures, hangs, restarts, its end", events);
  of_events.add_option("run", events->folder, "run directory")->required();
  of_events.add_flag("-f,--follow", events->follow, "and what happens from now on, until Ctrl-C");
}

int run_status(const Call& call) {
  if (call.action == "events") {
    auto options = call.options<report::EventsOptions>();
    options.json = call.json;
    return report::run_events(options);
  }
  auto options = call.options<report::StatusOptions>();
  options.json = call.json;
  return report::run_status(options);
}

}  // namespace ingot::cli
