// Which devices a model is sized for: a cluster's, or a machine's of which there is a profile.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/options.h"
#include "plan/device.h"

namespace ingot::cli {

struct SizingDevice {
  plan::Device device;
  std::string source;    // where its rates come from, for people: what was measured or that nothing was
  bool is_here = false;  // this machine, now idle or not: more can be measured
};

/// Throws ProfileError that says how to make a profile when this machine has none, UsageError, FileError.
SizingDevice sizing_device(const PlanOptions& options);

nlohmann::ordered_json to_json(const SizingDevice& chosen);
/// Two lines: the devices, and the source.
std::string describe(const SizingDevice& chosen);

/// "8B", "760M", "1e21" -> a count of 1 to `most`; "" -> 0. Throws UsageError naming the flag.
double count_of(const std::string& text, const std::string& flag, double most);

}  // namespace ingot::cli
