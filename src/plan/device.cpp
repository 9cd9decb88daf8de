#include "plan/device.h"

#include "plan/cluster_profile.h"
#include "plan/rates.h"

namespace ingot::plan {

device::Target Device::target() const {
  return cluster ? target_of(*cluster) : profile.device == "cpu" ? device::Target::cpu : device::Target::gpu;
}

Device device_of(const schedule::Cluster& cluster, const std::string& dtype, int64_t program_bytes) {
  return {.name = cluster.name,
          .dtype = dtype,
          .profile = profile_of(cluster, dtype),
          .cluster = cluster,
          .count = cluster.devices(),
          .memory_bytes = static_cast<int64_t>(cluster.memory_bytes),
          .program_bytes = program_bytes,
          .memory_bytes_per_s = cluster.memory_bytes_per_s,
          .launch_s = cluster.kernel_launch_s};
}

Device device_of(const MachineProfile& profile, const std::string& dtype, int64_t memory_bytes, int64_t program_bytes) {
  const Rates rates(profile, dtype);  // throws when something is missing
  Device device{.name = fmt::format("{} ({}, {} threads)", profile.host, profile.cpu, profile.threads),
                .dtype = dtype,
                .profile = profile,
                .cluster = {},
                .memory_bytes = memory_bytes,
                .program_bytes = program_bytes,
                .launch_s = profile.operation_s / 3};  // measured: a forward operation and two backward
  int64_t largest = 0;
  for (const auto& e : profile.memory)
    if (e.operation == "triad") largest = std::max(largest, e.bytes);
  // Weights do not stay in caches between tokens.
  device.memory_bytes_per_s = 3.0 * static_cast<double>(largest) / rates.move_s(3.0 * static_cast<double>(largest));
  return device;
}

}  // namespace ingot::plan
