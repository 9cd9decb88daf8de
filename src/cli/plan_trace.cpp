// `ingot plan trace`: what one rank does in a step, counted without doing it.
#include "cli/verb.h"

namespace ingot::cli {

struct TraceFlags {
  std::string config, cluster, output, chrome;
  std::vector<std::string> set;
  int64_t devices = 0, top = 10, rank = 0, phase = 0;
  double expert_load = 1;
  bool operations = false;
};

#ifndef INGOT_COMPUTES
void add_plan_trace(Flags& flags) {
  const auto values = std::make_shared<TraceFlags>();
  auto& o = *values;
  auto& verb = flags.verb(
      "plan", "trace",
      "of one rank's step: operations, FLOPs, bytes, communication, and what lives at the peak, counted by the program itself", values);
  add_config(verb, o.config, o.set);
  verb.add_option("--cluster", o.cluster,
                  "profile of a cluster, such as configs/clusters/h100-64.json: its kernels and rates (default: this machine's kernels)");
  verb.add_option("--devices", o.devices, "ranks (default: all of the cluster; here what the configuration says)")->check(kDevices);
  verb.add_option("--rank", o.rank, "whose step")->check(kNotNegative)->capture_default_str();
  verb.add_option("--phase", o.phase, "of the recipe, from 0")->check(kNotNegative)->capture_default_str();
  verb.add_option("--expert-load", o.expert_load, "where ranks share experts: rows that this rank's are sent over the mean")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  verb.add_option("--top", o.top, "how many kernels and names of memory to show")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str();
  verb.add_flag("--operations", o.operations, "every operation with its shapes, in the JSON");
  verb.add_option("--chrome", o.chrome, "write a time line for chrome://tracing or ui.perfetto.dev, at the cluster's rates");
  add_output(verb, o.output);
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "cli/show.h"
#include "device/device.h"
#include "layers/dtype.h"
#include "plan/run/planner.h"
#include "plan/run/ranks.h"
#include "plan/trace/step_trace.h"
#include "plan/trace/trace_report.h"

namespace ingot::cli {

int run_plan_trace(const Call& call) {
  const auto& o = call.options<TraceFlags>();
  plan::TraceRequest request{.config = train::read_config(o.config, o.set), .phase = o.phase};
  std::optional<schedule::Cluster> cluster;
  if (!o.cluster.empty()) {
    cluster = plan::cluster_with(o.cluster, o.devices, 0);
    request.world = static_cast<int>(o.devices > 0 ? o.devices : cluster->devices());
  } else {
    if (!o.chrome.empty()) throw base::UsageError("--chrome draws times: --cluster FILE says how fast a device is");
    request.world = static_cast<int>(o.devices > 0 ? o.devices : plan::configured_ranks(request.config.parallel));
    if (device::is_cpu(device::device_named(request.config.train.device))) request.target = device::Target::cpu;
  }
  request.rank = static_cast<int>(o.rank);
  request.expert_load = o.expert_load;
  const auto step = plan::trace_step(request);
  if (!o.chrome.empty()) {
    base::write_file_atomically(o.chrome, plan::chrome_trace(step, *cluster, layers::dtype_name(request.config.train.precision)));
    base::log_info("wrote {}; chrome://tracing and ui.perfetto.dev open it", o.chrome);
  }
  nlohmann::ordered_json json;
  if (call.json || !o.output.empty()) json = plan::trace_json(step, o.operations);
  show(call, json, plan::trace_text(step, o.top), o.output);
  return 0;
}

}  // namespace ingot::cli
#endif
