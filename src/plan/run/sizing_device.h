// Which devices a model is sized for: a cluster's, or a machine's of which there is a profile.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "plan/device.h"

namespace ingot::plan {

struct SizingDevice {
  Device device;
  std::string source;    // where its rates come from, for people: what was measured or that nothing was
  bool is_here = false;  // this machine, now idle or not: more can be measured
};

/// What was asked for; empty and 0: not said.
struct DeviceRequest {
  std::string cluster, profile;  // files; neither: this machine as ingot bench all measured it
  std::string dtype;             // fp32 or bf16
  int64_t devices = 0;
  double memory_gb = 0;
};

/// Throws ProfileError that says how to make a profile when this machine has none, UsageError, FileError.
SizingDevice sizing_device(const DeviceRequest& request);

nlohmann::ordered_json to_json(const SizingDevice& chosen);
/// Two lines: the devices, and the source.
std::string describe(const SizingDevice& chosen);

}  // namespace ingot::plan
