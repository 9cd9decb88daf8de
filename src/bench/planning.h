// What plans for this machine are made from: its profile, measured where nobody has done that before.
#pragma once

#include <optional>

#include "bench/suite.h"
#include "plan/run/planner.h"
#include "train/config.h"

namespace ingot::bench {

/// Of the ranks of a run, which call it together and measure the machine if that was not done before (some seconds, once). Empty in fp64,
/// which is for tests and is not predicted.
plan::MachineProfile profile_of_run(const train::RunConfig& config, const Company& company);

/// For ranks that are not there: what ingot bench all measured of as many, else of one. Empty in fp64.
plan::MachineProfile profile_of_plan(const train::RunConfig& config, int64_t ranks);

/// This machine with `ranks` ranks, which share its memory and, without GPUs, its cores. Of one rank it is measured when that was not done
/// before; of several, nothing comes back unless ingot bench all measured them.
std::optional<plan::PlanTarget> target_here(const train::RunConfig& config, int64_t ranks);

}  // namespace ingot::bench
