// A cluster that is not at hand as a machine profile: the rates that schedule/cluster.h gives for any size, at the sizes where a
// measurement would have been made. What such a cluster has no numbers for (norms, rotations, routing) is left out, and so takes its
// bytes over the memory's bandwidth.
#pragma once

#include "plan/profile.h"
#include "schedule/cluster.h"

namespace ingot::plan {

/// Throws ProfileError when the cluster has no rates of `dtype`.
MachineProfile profile_of(const schedule::Cluster& cluster, const std::string& dtype);

}  // namespace ingot::plan
