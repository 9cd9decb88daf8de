// Which library a run's GEMMs should go through, by what a profile has of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plan/profile.h"

namespace ingot::plan {

/// By how much another library must be faster than the default one to be chosen.
inline constexpr double kWorthwhileGain = 0.03;

struct GemmBackendTime {
  std::string library;
  double seconds = 0;              // by the medians
  double short_s = 0, long_s = 0;  // by the ends of the middle half
  double gain = 0;                 // over the default library: its time / this one's - 1
  bool operator==(const GemmBackendTime&) const = default;
};

struct GemmBackendChoice {
  std::string library = "default";
  std::vector<GemmBackendTime> times;  // the default first; empty when fewer than two were measured
};

/// Seconds of the GEMMs that count, by a profile whose `gemm` has one library's rates alone.
using GemmSeconds = std::function<double(const MachineProfile&)>;

/// The fastest library if it is worthwhile: 3 % faster than the default one by the medians, and faster even when its rates are the low ends
/// of their middle half and the default one's the high ends.
GemmBackendChoice choose_library(const MachineProfile& profile, const std::string& dtype, const GemmSeconds& seconds);

/// Of a dtype's shapes that were measured, each once.
double measured_seconds(const MachineProfile& profile, const std::string& dtype);

}  // namespace ingot::plan
