#include "plan/run_time.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>

#include "base/error.h"

namespace ingot::plan {
namespace {

// Of its largest arrays, which lie in no cache.
double stream_rate(const MachineProfile& profile, const std::string& operation) {
  int64_t largest = 0;
  double rate = 0;
  for (const auto& entry : profile.memory)
    if (entry.operation == operation && entry.bytes > largest) largest = entry.bytes, rate = entry.bytes_per_s;
  return rate;
}

}  // namespace

RunTime predict_run_time(const RunPlan& p) {
  for (const double value : {static_cast<double>(p.steps), p.step_s, p.load_s, static_cast<double>(p.validations), p.validation_s,
                             static_cast<double>(p.save_every), p.save_work_s, p.save_write_s, p.device_mtbf_h, p.restart_s})
    if (!(value >= 0)) throw base::ConfigError("no part of a run can take {} seconds or steps", value);
  RunTime t;
  const auto steps = static_cast<double>(p.steps);
  t.steps_s = steps * p.step_s;
  // Batches are read ahead: what counts is how much slower than a step reading is; before the first step nothing has been read.
  t.data_s = p.steps > 0 ? p.load_s + (steps - 1) * std::max(0.0, p.load_s - p.step_s) : 0;
  t.validation_s = static_cast<double>(p.validations) * p.validation_s;
  const double between_s = p.save_every > 0 ? static_cast<double>(p.save_every) * std::max(p.step_s, p.load_s) : 0;
  if (p.save_every > 0 && p.steps > 0) {
    t.saves = (p.steps + p.save_every - 1) / p.save_every;
    // A save that is still being written keeps the next one waiting; the run ends when the last one is durable.
    const double stall_s = p.save_work_s + std::max(0.0, p.save_write_s - between_s);
    t.saves_s = static_cast<double>(t.saves - 1) * stall_s + p.save_work_s + p.save_write_s;
  }
  if (p.device_mtbf_h > 0 && t.total_s() > 0) {
    const double stall_s = t.saves > 0 ? t.saves_s / static_cast<double>(t.saves) : 0;
    const double undisturbed_s = t.total_s();
    const Reliability reliability{p.device_mtbf_h, p.devices, p.restart_s, stall_s};
    // Without saves a failure takes all.
    const double work_s = t.saves > 0 ? (undisturbed_s - t.saves_s) / static_cast<double>(t.saves) : undisturbed_s;
    const double share = expected_goodput(reliability, work_s);
    t.failures_s = share > 0 ? (undisturbed_s - t.saves_s) / share - undisturbed_s : std::numeric_limits<double>::infinity();
    t.failures_s = std::max(0.0, t.failures_s);
  }
  return t;
}

double save_work_s(double saved_bytes, const MachineProfile& profile) {
  const double copy = stream_rate(profile, "copy"), dot = stream_rate(profile, "dot");
  return (copy > 0 ? 2 * saved_bytes / copy : 0) + (dot > 0 ? saved_bytes / dot : 0);
}

double save_write_s(double saved_bytes, const MachineProfile& profile) {
  double best = 0;
  for (const auto& entry : profile.storage)
    if (entry.operation == "checkpoint_write") best = std::max(best, entry.bytes_per_s);
  return best > 0 ? saved_bytes / best : 0;
}

double random_reads_s(double pages, const MachineProfile& profile) {
  double direct = 0, cached = 0;
  for (const auto& entry : profile.storage)
    if (entry.operation == "random_read" && entry.block_bytes == 4096) {
      double& best = entry.direct ? direct : cached;
      best = std::max(best, entry.operations_per_s);
    }
  const double rate = direct > 0 ? direct : cached;
  return rate > 0 ? pages / rate : 0;
}

}  // namespace ingot::plan
