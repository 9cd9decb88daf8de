#include "plan/run/sizing_device.h"

#include <ATen/Parallel.h>

#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/process.h"
#include "base/text.h"
#include "device/device.h"
#include "plan/run/planner.h"
#include "plan/run/program_memory.h"

namespace ingot::plan {
namespace {

using Json = nlohmann::ordered_json;

SizingDevice of_cluster(const DeviceRequest& o) {
  const auto cluster = cluster_with(o.cluster, o.devices, o.memory_gb);
  const auto dtype = o.dtype.empty() ? std::string("bf16") : o.dtype;
  SizingDevice chosen{device_of(cluster, dtype, kGpuProgramBytes),
                      fmt::format("formulas of {}, each constant with its source there; no shape was measured on it", o.cluster), false};
  if (o.devices > 0) chosen.device.count = o.devices;
  return chosen;
}

bool is_this(const MachineProfile& profile, const MachineProfile& machine) {
  return profile.host == machine.host && profile.cpu == machine.cpu && profile.device == machine.device &&
         profile.threads == machine.threads;
}

std::string faster_dtype(const MachineProfile& profile) { return profile.peak_gemm("bf16") > profile.peak_gemm("fp32") ? "bf16" : "fp32"; }

SizingDevice of_machine(const DeviceRequest& o) {
  if (o.devices > 1)
    throw base::UsageError("--devices {}: a machine's profile is of one device and says nothing of links; give a --cluster file",
                           o.devices);
  const auto machine = describe_machine(at::get_num_threads(), 1, device::device_named("auto").str());
  std::optional<MachineProfile> profile;
  std::string file = o.profile;
  if (!file.empty()) {
    profile = read_profile(file);
  } else {
    const auto cache = base::environment().cache_folder();
    profile = cached_profile(machine, cache);
    file = cache.empty() ? "" : profile_path(cache, machine).string();
  }
  if (!profile)
    throw base::ProfileError(
        "this machine has not been measured by this build of ingot{}. Run ingot bench all (minutes, fewer with --quick), or give --cluster "
        "FILE (configs/clusters has some) or --profile FILE",
        file.empty() ? "" : " (there is no " + file + " that it can use)");
  if (profile->ranks > 1)
    throw base::UsageError("{} is of {} ranks side by side; models are sized for one, of which ingot bench all writes another profile",
                           file, profile->ranks);
  const bool is_here = is_this(*profile, machine);
  if (o.memory_gb == 0 && (!is_here || profile->device != "cpu"))
    throw base::UsageError("{} was measured on {} of {}, whose memory is not known here; say --memory-gb", file, profile->device,
                           profile->host);
  const auto dtype = o.dtype.empty() ? faster_dtype(*profile) : o.dtype;
  const int64_t memory = o.memory_gb > 0 ? static_cast<int64_t>(o.memory_gb * 1e9) : base::usable_memory_bytes();
  SizingDevice chosen{
      device_of(*profile, dtype, memory, profile->device == "cpu" ? base::resident_bytes() : kGpuProgramBytes), {}, is_here};
  chosen.source =
      fmt::format("measured {}{}: {} GEMMs, {} attention and {} kernel sizes ({})", profile->date, profile->quick ? ", quickly" : "",
                  profile->gemm.size(), profile->attention.size(), profile->kernels.size(), file);
  if (profile->foreign_load > 0.1)
    chosen.source += fmt::format("; other programs used {:.0f} % of the machine meanwhile", 100 * profile->foreign_load);
  return chosen;
}

}  // namespace

SizingDevice sizing_device(const DeviceRequest& options) { return options.cluster.empty() ? of_machine(options) : of_cluster(options); }

Json to_json(const SizingDevice& chosen) {
  const auto& d = chosen.device;
  return {{"name", d.name},
          {"source", chosen.source},
          {"is_measured", d.is_measured()},
          {"devices", d.count},
          {"dtype", d.dtype},
          {"memory_bytes", d.memory_bytes},
          {"memory_bytes_per_s", d.memory_bytes_per_s},
          {"gemm_peak_flops_per_s", d.peak_flops()},
          {"kernel_launch_s", d.launch_s}};
}

std::string describe(const SizingDevice& chosen) {
  const auto& d = chosen.device;
  return fmt::format("{} of {}, {} each, {}: GEMMs {} FLOP/s, memory {} B/s, a kernel's launch {:.1f} µs\nrates: {}\n",
                     d.count == 1 ? "1 device" : fmt::format("{} devices", d.count), d.name, base::format_bytes(d.memory_bytes), d.dtype,
                     base::format_count(d.peak_flops()), base::format_count(d.memory_bytes_per_s), d.launch_s * 1e6, chosen.source);
}

}  // namespace ingot::plan
