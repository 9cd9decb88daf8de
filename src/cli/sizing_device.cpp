#include "cli/sizing_device.h"

#include <ATen/Parallel.h>

#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/process.h"
#include "base/text.h"
#include "cli/planner.h"
#include "device/device.h"

namespace ingot::cli {
namespace {

using Json = nlohmann::ordered_json;

// As for plan time: what CUDA, cuBLAS and NCCL take of a device, by judgement.
constexpr int64_t kGpuProgramBytes = int64_t{2} << 30;

SizingDevice of_cluster(const PlanOptions& o) {
  const auto cluster = cluster_of(o);
  const auto dtype = o.sizing.dtype.empty() ? std::string("bf16") : o.sizing.dtype;
  SizingDevice chosen{plan::device_of(cluster, dtype, kGpuProgramBytes),
                      fmt::format("formulas of {}, each constant with its source there; no shape was measured on it", o.cluster), false};
  if (o.devices > 0) chosen.device.count = o.devices;
  return chosen;
}

bool is_this(const plan::MachineProfile& profile, const plan::MachineProfile& machine) {
  return profile.host == machine.host && profile.cpu == machine.cpu && profile.device == machine.device &&
         profile.threads == machine.threads;
}

std::string faster_dtype(const plan::MachineProfile& profile) {
  return profile.peak_gemm("bf16") > profile.peak_gemm("fp32") ? "bf16" : "fp32";
}

int64_t machine_memory_bytes() {
  const int64_t limit = base::memory_limit_bytes();
  return limit > 0 ? std::min(limit, base::total_memory_bytes()) : base::total_memory_bytes();
}

SizingDevice of_machine(const PlanOptions& o) {
  if (o.devices > 1)
    throw base::UsageError("--devices {}: a machine's profile is of one device and says nothing of links; give a --cluster file",
                           o.devices);
  const auto machine = plan::describe_machine(at::get_num_threads(), 1, device::device_named("auto").str());
  std::optional<plan::MachineProfile> profile;
  std::string file = o.sizing.profile;
  if (!file.empty()) {
    profile = plan::read_profile(file);
  } else {
    const auto cache = base::environment().cache_folder();
    profile = plan::cached_profile(machine, cache);
    file = cache.empty() ? "" : plan::profile_path(cache, machine).string();
  }
  if (!profile)
    throw base::ProfileError(
        "this machine has not been measured by this build of ingot{}. Run ingot bench all (minutes, fewer with --quick), or give --cluster "
        "FILE (configs/clusters has some) or --profile FILE",
        file.empty() ? "" : " (there is no " + file + " that it can use)");
  if (profile->ranks > 1)
    throw base::UsageError("{} is of {} ranks side by side; models are sized for one, of which ingot bench all writes another profile", file,
                           profile->ranks);
  const bool is_here = is_this(*profile, machine);
  if (o.memory_gb == 0 && (!is_here || profile->device != "cpu"))
    throw base::UsageError("{} was measured on {} of {}, whose memory is not known here; say --memory-gb", file, profile->device,
                           profile->host);
  const auto dtype = o.sizing.dtype.empty() ? faster_dtype(*profile) : o.sizing.dtype;
  const int64_t memory = o.memory_gb > 0 ? static_cast<int64_t>(o.memory_gb * 1e9) : machine_memory_bytes();
  SizingDevice chosen{
      plan::device_of(*profile, dtype, memory, profile->device == "cpu" ? base::resident_bytes() : kGpuProgramBytes), {}, is_here};
  chosen.source =
      fmt::format("measured {}{}: {} products, {} attention and {} kernel sizes ({})", profile->date, profile->quick ? ", quickly" : "",
                  profile->gemm.size(), profile->attention.size(), profile->kernels.size(), file);
  if (profile->foreign_load > 0.1)
    chosen.source += fmt::format("; other programs used {:.0f} % of the machine meanwhile", 100 * profile->foreign_load);
  return chosen;
}

}  // namespace

SizingDevice sizing_device(const PlanOptions& options) { return options.cluster.empty() ? of_machine(options) : of_cluster(options); }

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
  return fmt::format("{} of {}, {} each, {}: products {} FLOP/s, memory {} B/s, a kernel's launch {:.1f} µs\nrates: {}\n",
                     d.count == 1 ? "1 device" : fmt::format("{} devices", d.count), d.name, base::format_bytes(d.memory_bytes), d.dtype,
                     base::format_count(d.peak_flops()), base::format_count(d.memory_bytes_per_s), d.launch_s * 1e6, chosen.source);
}

double count_of(const std::string& text, const std::string& flag, double most) {
  if (text.empty()) return 0;
  static const std::string kUnits = "kMBTPE";  // 10^3 to 10^18
  auto number = text;
  double factor = 1;
  const char unit = number.back() == 'K' ? 'k' : number.back() == 'G' ? 'B' : number.back();
  if (const size_t power = kUnits.find(unit); power != std::string::npos) {
    factor = std::pow(1000.0, static_cast<double>(power + 1));
    number.pop_back();
  }
  const auto value = base::parse_number(number);
  if (!value || !(*value * factor >= 1) || !(*value * factor <= most))
    throw base::UsageError("{} {}: write a number from 1 to {:g}, such as 760M, 8B, 2T or 1e21", flag, text, most);
  return *value * factor;
}

}  // namespace ingot::cli
