#include <ATen/Parallel.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/log.h"
#include "base/text.h"
#include "bench/suite.h"
#include "cli/bench_storage.h"
#include "cli/verbs.h"
#include "layers/device.h"
#include "resilience/stop_signal.h"

namespace ingot::cli {
namespace {

std::string command_line(const BenchOptions& o) {
  return "ingot bench " + o.kind + (o.dtype == "all" ? "" : " --dtype " + o.dtype) + (o.quick ? " --quick" : "");
}

// Where the result goes: the file that was asked for, and the cache, which holds whole profiles only.
std::vector<std::filesystem::path> destinations(const BenchOptions& o, const plan::MachineProfile& profile, bool complete) {
  std::vector<std::filesystem::path> paths;
  if (!o.output.empty()) paths.emplace_back(o.output);
  const bool whole = complete && o.kind == "all" && o.dtype == "all";
  const auto cache = base::environment().cache_folder();
  if (whole && !cache.empty()) paths.push_back(plan::profile_path(cache, profile));
  return paths;
}

}  // namespace

int run_bench(const Options& all) {
  const auto& o = all.bench;
  const bool everything = o.kind == "all";
  bench::SuiteOptions suite{.gemm = everything || o.kind == "gemm",
                            .memory = everything || o.kind == "memory",
                            .attention = everything || o.kind == "attention",
                            .kernels = everything,
                            .quick = o.quick,
                            .device = layers::device_named("auto").str()};
  suite.dtypes = o.dtype == "all" ? std::vector<std::string>{"fp32", "bf16"} : std::vector{o.dtype};
  auto profile = plan::describe_machine(at::get_num_threads(), 1, suite.device);
  profile.quick = o.quick;
  profile.commands = {command_line(o)};

  const resilience::StopSignal stop;
  const auto measurements = bench::measurements_of(suite);
  base::ProgressBar bar("bench " + o.kind, static_cast<int64_t>(measurements.size()), base::ProgressUnit::count);
  const bool complete = bench::run_suite(measurements, profile, bar, [&] { return stop.received() != 0; });

  if (everything && complete) profile.storage = storage_rates(".", [&] { return stop.received() != 0; });

  std::fputs((all.json ? profile.to_json() : bench::tables(profile)).c_str(), stdout);
  for (const auto& path : destinations(o, profile, complete)) {
    plan::write_profile(path, profile);
    base::log_info("wrote {}", path.string());
  }
  if (!complete)
    base::log_warning("stopped after {} of {} measurements",
                      profile.gemm.size() + profile.memory.size() + profile.attention.size() + profile.kernels.size(), measurements.size());
  return complete ? 0 : 1;
}

}  // namespace ingot::cli
