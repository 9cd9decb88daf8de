// Is this node fit? Measurements against floors: the published numbers of its device, or its own earlier profile. Node-local: nothing
// here talks to other nodes. Free of torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "health/floors.h"
#include "plan/profile.h"

namespace ingot::health {

struct Check {
  enum class Status { pass, fail, not_measured };
  std::string name;
  std::optional<double> value;
  double floor = 0;
  std::string unit;    // FLOP/s, B/s, or "" for a ratio
  std::string source;  // where the floor comes from

  /// A value at its floor passes; one that is not a number fails.
  Status status() const;
};
const char* name_of(Check::Status status);

struct HealthCheck {
  static constexpr int64_t kVersion = 1;

  std::string host, device, date;  // date: ISO 8601, UTC
  std::string against;             // "floors of NVIDIA H100 SXM", "the profile of 2026-01-02"
  std::vector<Check> checks;

  /// No check fails, and one at least was measured.
  bool passes() const;
  /// "node7 passes: 3 checks against …", with what fails or was not measured.
  std::string summary() const;
  /// Check, value, floor, source and status, a line each, then the summary.
  std::string table() const;
  nlohmann::ordered_json to_json() const;
  /// What to_json wrote. Throws ProfileError naming `origin`, the member and what it should be.
  static HealthCheck from_json(const std::string& text, const std::string& origin);
};

/// Rates between host and device, bytes/s; nothing where there is none to measure.
struct TransferRates {
  std::optional<double> host_to_device, device_to_host;
};

/// What the floors ask for, from a profile. Of what was measured several times the best counts, of triad the largest array.
std::vector<Check> checks_of(const FloorFile& floors, const plan::MachineProfile& profile, const TransferRates& transfers);

/// The best rates of `now` against `tolerance` (0.1: a tenth) below those of `before`, and of everything that both measured the median
/// ratio by kind and dtype. `source` names the earlier profile.
std::vector<Check> checks_of(const plan::MachineProfile& before, const plan::MachineProfile& now, double tolerance,
                             const std::string& source);

}  // namespace ingot::health
