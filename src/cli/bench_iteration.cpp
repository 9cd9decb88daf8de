// `ingot bench iteration`: where the time of a training step goes. Alone, or on the ranks that a launcher started.
#include "cli/verb.h"

namespace ingot::cli {

struct IterationFlags {
  std::string config, output, chrome;
  std::vector<std::string> set;
  int64_t steps = 5;
  bool random_data = false;
};

#ifndef INGOT_COMPUTES
void add_bench_iteration(Flags& flags) {
  const auto values = std::make_shared<IterationFlags>();
  auto& o = *values;
  auto& verb =
      flags.verb("bench", "iteration", "where the time of a training step goes, by kind of work, beside what is predicted", values);
  add_config(verb, o.config, o.set);
  verb.add_option("--steps", o.steps, "steps that are watched, and as many that are not")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}))
      ->capture_default_str();
  verb.add_flag("--random-data", o.random_data, "made-up tokens instead of the configuration's data");
  verb.add_option("--chrome", o.chrome, "write a time line of the last watched step for chrome://tracing or ui.perfetto.dev");
  add_output(verb, o.output);
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "bench/iteration.h"
#include "cli/show.h"

namespace ingot::cli {

int run_bench_iteration(const Call& call) {
  const auto& o = call.options<IterationFlags>();
  const auto run = bench::run_iteration(train::read_config(o.config, o.set), o.steps, o.random_data);
  if (!run) return 0;
  auto json = bench::to_json(run->report, run->predicted_ms);
  json["config"] = o.config;
  json["threads"] = run->threads;
  json["random_data"] = o.random_data;
  json["host"] = base::host_name();
  if (!o.chrome.empty()) {
    base::write_file_atomically(o.chrome, bench::chrome_trace(run->report).dump() + "\n");
    base::log_info("wrote {}; chrome://tracing and ui.perfetto.dev open it", o.chrome);
  }
  show(call, json, fmt::format("{}: {}\n\n{}", o.config, run->heading, bench::to_table(run->report, run->predicted_ms)), o.output);
  return run->report.steps == o.steps ? 0 : 1;
}

}  // namespace ingot::cli
#endif
