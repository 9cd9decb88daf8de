// `ingot plan trace`: what one rank does in a step, counted without doing it.
#include <cstdio>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "cli/config.h"
#include "cli/planner.h"
#include "cli/verbs.h"
#include "device/device.h"
#include "plan/trace/step_trace.h"
#include "plan/trace/trace_report.h"

namespace ingot::cli {
namespace {

int64_t configured_ranks(const mesh::ParallelConfig& p) {
  return std::max<int64_t>(1, p.data) * p.pipeline * p.context * p.tensor * p.tensor_sequence;
}

}  // namespace

int run_plan_trace(const Options& all) {
  const auto& o = all.plan;
  plan::TraceRequest request{.config = read_config(o.config, o.set), .phase = o.trace.phase};
  std::optional<schedule::Cluster> cluster;
  if (!o.cluster.empty()) {
    cluster = cluster_of(o);
    request.world = static_cast<int>(o.devices > 0 ? o.devices : cluster->devices());
  } else {
    if (!o.trace.chrome.empty()) throw base::UsageError("--chrome draws times: --cluster FILE says how fast a device is");
    request.world = static_cast<int>(o.devices > 0 ? o.devices : configured_ranks(request.config.parallel));
    if (device::is_cpu(device::device_named(request.config.train.device))) request.target = device::Target::cpu;
  }
  request.rank = static_cast<int>(o.trace.rank);
  request.expert_load = o.trace.expert_load;
  const auto step = plan::trace_step(request);
  if (!o.trace.chrome.empty()) {
    base::write_file_atomically(o.trace.chrome, plan::chrome_trace(step, *cluster, request.config.train.precision));
    base::log_info("wrote {}; chrome://tracing and ui.perfetto.dev open it", o.trace.chrome);
  }
  nlohmann::ordered_json json;
  if (all.json || !o.output.empty()) json = plan::trace_json(step, o.trace.operations);
  const auto written = json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  std::fputs((all.json ? written : plan::trace_text(step, o.top)).c_str(), stdout);
  if (!o.output.empty()) {
    base::write_file_atomically(o.output, written);
    base::log_info("wrote {}", o.output);
  }
  return 0;
}

}  // namespace ingot::cli
