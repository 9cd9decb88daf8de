// Lists of measurements and their runs: what `ingot bench` does, and the short one at the start of a training run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "plan/profile.h"

namespace ingot::bench {

/// Share of the machine that other programs may use before a profile is called disturbed.
inline constexpr double kBusyShare = 0.1;

struct SuiteOptions {
  bool gemm = false, memory = false, attention = false, kernels = false;
  std::vector<std::string> dtypes;  // fp32, bf16
  bool quick = false;
  std::string device = "cpu";  // or cuda:0
};

/// One measurement, which adds its result to a profile.
struct Measurement {
  std::string label;
  std::function<void(plan::MachineProfile&)> run;
};
std::vector<Measurement> measurements_of(const SuiteOptions& options);

/// Runs them in turn into `profile` until all are done or `is_stopped` says so; what was measured stays. Sets the profile's
/// foreign load. False when it was stopped.
bool run_suite(const std::vector<Measurement>& measurements, plan::MachineProfile& profile, base::ProgressBar& bar,
               const std::function<bool()>& is_stopped);

/// A profile that knows `dtype` on this machine with torch's present number of threads: the cached one, or a quick one (some
/// seconds), which is then kept in the cache. An empty `cache_folder` keeps nothing.
plan::MachineProfile profile_for(const std::string& dtype, const std::string& device, const std::filesystem::path& cache_folder);

/// Everything measured, as tables for people.
std::string tables(const plan::MachineProfile& profile);

}  // namespace ingot::bench
