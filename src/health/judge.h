// What a node is judged by: floors, or an earlier profile; and the files of its health check. Free of torch.
#pragma once

#include <filesystem>
#include <optional>

#include "health/floors.h"
#include "health/health_check.h"
#include "plan/profile.h"

namespace ingot::health {

/// Floors, or an earlier profile.
struct Judge {
  std::optional<FloorFile> floors;
  std::optional<plan::MachineProfile> before;
  std::string device, against;
  double tolerance = 0.1;

  /// Throws ConfigError when the earlier profile is of another device or number of threads.
  HealthCheck judge(const plan::MachineProfile& profile, const TransferRates& transfers) const;
};

/// What the user chose; empty: not said.
struct JudgeRequest {
  std::string baseline, floors;  // files, one of them at most
  std::string device_name;       // instead of what the driver or the profile calls the device
  double tolerance = 0.1;        // below an earlier profile
};

/// The request's baseline or floors, else the shipped floors of this device, else the profile at `cached`. Throws UsageError for both, and
/// ConfigError when there is none of them, before anything is measured.
Judge judge_of(const JudgeRequest& request, const plan::MachineProfile& machine, const std::filesystem::path& cached);

/// <folder>/<host>.json
void write_check(const std::filesystem::path& folder, const HealthCheck& check);

}  // namespace ingot::health
