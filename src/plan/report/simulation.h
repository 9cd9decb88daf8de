// A step of all ranks as events beside the formulas' step, and what failures leave of a run's time, as a document.
#pragma once

#include "plan/recovery.h"
#include "plan/report/document.h"
#include "plan/run/planner.h"
#include "plan/simulation.h"

namespace ingot::plan {

struct SimulationRequest {
  Disturbances disturbances;
  int64_t steps = 1;  // each with draws of its own
  std::string topology = "flat";
  RecoveryCosts recovery;  // of the planned devices and nodes, whose step is the simulated one; device_mtbf_h 0: none fails
  int64_t spares = 0;      // nodes
};

/// Of the layout that the configuration says. Throws ConfigError for one that is not possible.
Document simulation_of(const SimulationRequest& request, Planner& planner, int64_t devices);

}  // namespace ingot::plan
