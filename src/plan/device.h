// The devices that a model is sized for: those of a cluster that is not available, whose rates are formulas, or a machine of which a
// profile was measured, as one device. Values.
#pragma once

#include <optional>
#include <string>

#include "device/virtual_device.h"
#include "plan/profile.h"
#include "schedule/cluster.h"

namespace ingot::plan {

struct Device {
  std::string name, dtype;
  MachineProfile profile;                    // of a cluster: its formulas at the sizes where a measurement would have been made
  std::optional<schedule::Cluster> cluster;  // nothing: `profile` was measured
  int64_t count = 1;
  int64_t memory_bytes = 0;   // of one
  int64_t program_bytes = 0;  // of that: what a process needs besides a run's tensors
  double memory_bytes_per_s = 0;
  double launch_s = 0;  // of a kernel; on a CPU what calling an operation costs

  bool is_measured() const { return !cluster; }
  /// Whose kernels run there.
  device::Target target() const;
  double peak_flops() const { return profile.peak_gemm(dtype); }
  /// What a run's tensors and the program may take: the rest is the allocator's.
  int64_t usable_bytes() const { return static_cast<int64_t>(0.94 * static_cast<double>(memory_bytes)); }
};

/// All its devices. Throws ProfileError when it has no rates of `dtype`.
Device device_of(const schedule::Cluster& cluster, const std::string& dtype, int64_t program_bytes);
/// Throws ProfileError when the profile lacks GEMMs, attention or memory rates of `dtype`.
Device device_of(const MachineProfile& profile, const std::string& dtype, int64_t memory_bytes, int64_t program_bytes);

}  // namespace ingot::plan
