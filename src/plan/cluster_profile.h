// Clusters and machine profiles in terms of each other. A cluster that is not available as a machine profile: the rates that
// schedule/cluster.h gives for any size, at the sizes where a measurement would have been made. What such a cluster has no numbers for
// (norms, rotations, routing) is left out, and so takes its bytes over the memory's bandwidth.
#pragma once

#include "device/virtual_device.h"
#include "plan/profile.h"
#include "schedule/cluster.h"

namespace ingot::plan {

/// Whose kernels its devices run.
device::Target target_of(const schedule::Cluster& cluster);

/// Throws ProfileError when the cluster has no rates of `dtype`.
MachineProfile profile_of(const schedule::Cluster& cluster, const std::string& dtype);

/// The other way round: the machine that was measured as a cluster of one node with `devices` ranks on it, whose messages take what its
/// collectives took. Its compute rates are typical ones, for what ranks wait for each other; predictions of compute need the profile.
/// Throws ProfileError when the profile has no GEMMs of `dtype` or no collectives.
schedule::Cluster cluster_of(const MachineProfile& profile, const std::string& dtype, int64_t devices, int64_t memory_bytes);

}  // namespace ingot::plan
