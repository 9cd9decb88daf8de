// What work takes within training steps, for predictions (plan/within_steps.h): a few steps of small models of its own, dense, mixture and
// linear, watched kind by kind (bench/iteration.h) beside what the profile gives for them.
#pragma once

#include <functional>
#include <string>

#include "bench/suite.h"
#include "comm/world.h"
#include "plan/profile.h"
#include "resilience/stop_signal.h"

namespace ingot::bench {

/// Number of models.
size_t step_probes();

/// Trains them in `dtype` on all ranks of `world`, which must fit onto the machine's cores, and puts their sums into profile.within_steps,
/// in place of older ones of the dtype. The profile, which must know the dtype (and collectives of so many ranks), is the first rank's to
/// say and to keep. `on_model` hears which is next. A run that was stopped leaves the profile as it was. On a CPU; some seconds.
void measure_within_steps(const std::string& dtype, comm::World& world, plan::MachineProfile& profile, const resilience::StopSignal& stop,
                          const std::function<void(const char* next)>& on_model = {});

}  // namespace ingot::bench
