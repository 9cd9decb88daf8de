#include "bench/planning.h"

#include <ATen/Parallel.h>

#include "base/environment.h"
#include "base/machine.h"
#include "comm/share_cores.h"
#include "device/device.h"
#include "layers/dtype.h"
#include "plan/cluster_profile.h"
#include "plan/run/program_memory.h"

namespace ingot::bench {
namespace {

// The emulated device has no speed of its own to measure.
bool is_predicted(const train::RunConfig& config) { return config.train.precision != "fp64" && config.train.device != "emulated"; }

std::string device_of(const train::RunConfig& config) { return device::device_named(config.train.device).str(); }

// What ingot bench all measured of as many ranks side by side.
std::optional<plan::MachineProfile> known_profile(const std::string& device, int64_t ranks) {
  const Company planned{.local_size = static_cast<int>(ranks)};
  return plan::cached_profile(plan::describe_machine(at::get_num_threads(), planned.side_by_side(), device),
                              base::environment().cache_folder());
}

}  // namespace

plan::MachineProfile profile_of_run(const train::RunConfig& config, const Company& company) {
  if (!is_predicted(config)) return {};
  return profile_for(layers::dtype_name(config.train.precision), device_of(config), base::environment().cache_folder(), company);
}

plan::MachineProfile profile_of_plan(const train::RunConfig& config, int64_t ranks) {
  if (is_predicted(config) && ranks > 1)
    if (auto known = known_profile(device_of(config), ranks)) return *known;
  return profile_of_run(config, {});
}

std::optional<plan::PlanTarget> target_here(const train::RunConfig& config, int64_t ranks) {
  const auto device = device_of(config);
  const bool is_cpu = device == "cpu";
  if (is_cpu && config.train.threads == 0) comm::share_cores({.size = static_cast<int>(ranks), .local_size = static_cast<int>(ranks)});
  plan::PlanTarget target{.devices = ranks, .program_bytes = plan::program_bytes(config), .is_here = true};
  const auto dtype = layers::dtype_name(config.train.precision);
  if (ranks == 1) {
    target.profile = profile_for(dtype, device, base::environment().cache_folder());
  } else {
    const auto known = known_profile(device, ranks);
    if (!known || !knows(*known, dtype) || !knows_collectives(*known, ranks)) return std::nullopt;
    target.profile = *known;
  }
  target.cluster = plan::cluster_of(target.profile, dtype, ranks, base::usable_memory_bytes() / ranks);
  return target;
}

}  // namespace ingot::bench
