// The plan of a run for people and for programs: what `ingot train --dry-run` prints.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "plan/communication.h"
#include "plan/memory.h"
#include "plan/profile.h"
#include "plan/run_shape.h"
#include "plan/time.h"

namespace ingot::plan {

struct Plan {
  int64_t parameters = 0, active_parameters = 0;  // trained elements; active: those one token meets, embedding and head left out
  int64_t tokens_per_step = 0;
  double flops_per_token = 0;  // forward and backward, by the convention of layers/cost.h
  double peak_flops = 0;       // measured GEMM rate of the compute dtype; 0 = unknown
  StepMemory memory;
  StepTime time;                    // all zero when the profile knows nothing about the precision
  StepCommunication communication;  // of several ranks; all zero when the profile knows nothing about collectives
  bool knows_communication = true;
  int64_t device_memory_bytes = 0;  // of the CPU's machine or the GPU

  std::string why_no_time;  // where the profile cannot say; empty in fp64, which is not predicted

  bool has_time() const { return time.total_s() > 0; }
  double step_s() const { return time.total_s() + communication.total_s(); }
  double tokens_per_s() const { return static_cast<double>(tokens_per_step) / step_s(); }
  int64_t ranks_per_sequence = 1;  // that share the work of one
  double mfu() const {
    return peak_flops > 0 ? flops_per_token * tokens_per_s() / peak_flops / static_cast<double>(ranks_per_sequence) : 0;
  }
};

/// Makes plans by one machine's profile, for steps of one precision on `world` ranks. What is traced and priced for one plan serves the
/// next. Used by one thread at a time.
class PlanMaker {
 public:
  PlanMaker(const MachineProfile& profile, const std::string& precision, int64_t world);
  /// `model`: the whole one; `part`: what one rank holds of it; neither need be allocated. `program_bytes`: memory of the program before
  /// the model is built. `device_memory_bytes`: what the device has.
  Plan make(const models::Model& model, const models::Model& part, const RunShape& run, int64_t program_bytes, int64_t device_memory_bytes);

 private:
  double peak_flops_ = 0;
  std::string why_no_time_;
  bool knows_communication_ = true;
  std::optional<CommunicationModel> communication_;
  std::optional<PassPrices> prices_;  // none where the profile cannot say
  PassTraces untimed_;
};

/// In milliseconds, or days and hours where a step on this machine would take such.
std::string format_step_time(double seconds);

/// Milliseconds of a step by kind of work and of message, and "total".
nlohmann::ordered_json to_json(const StepTime& time, const StepCommunication& communication);

/// A table of a screen's height.
std::string describe(const Plan& plan, const models::Model& model, const RunShape& run, const MachineProfile& profile);
nlohmann::ordered_json to_json(const Plan& plan, const models::Model& model, const RunShape& run, const MachineProfile& profile);

}  // namespace ingot::plan
