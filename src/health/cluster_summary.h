// The verdicts of many nodes together: who is missing, whose verdict is old or broken, and who is slower than the others although
// it passes its floors. Free of torch.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "health/health_check.h"

namespace ingot::health {

struct HealthCheckFile {
  std::string name, text;  // name without .json: the host
};

struct SummaryOptions {
  std::vector<std::string> expected;  // hosts; empty: those that have a file
  double now_s = 0;                   // since 1970, UTC
  double most_age_s = 24 * 3600;      // older verdicts say nothing about today
  double outlier_share = 0.1;         // below the fleet's median; 0: nobody is an outlier
};

struct SummaryNode {
  enum class State { pass, fail, outlier, missing, stale, broken, unexpected };
  std::string host;
  State state = State::pass;
  std::string reason;
};
const char* name_of(SummaryNode::State state);

/// One check over all nodes that measured it.
struct SummaryCheck {
  std::string name, unit;
  size_t nodes = 0;
  double median = 0, least = 0, deviation = 0;  // deviation: 1.4826 x the median distance from the median
};

struct ClusterSummary {
  std::vector<SummaryNode> nodes;  // by host
  std::vector<SummaryCheck> checks;

  bool passes() const;
  /// Of `expected` hosts and others alike; who is unexpected is in neither list.
  std::vector<std::string> passing() const, failing() const;
  std::string table() const;
  nlohmann::ordered_json to_json() const;
};

/// An outlier is below the median by more than the share, among three nodes or more with the same device; it fails.
ClusterSummary gathered(const std::vector<HealthCheckFile>& files, const SummaryOptions& options);

/// The health checks in a folder, by name; a file that cannot be read has an empty text, which is of a node that cannot be trusted. Throws
/// DataError for more than 65,536 of them.
std::vector<HealthCheckFile> check_files(const std::filesystem::path& folder);

/// Seconds since 1970 of "2026-01-02T03:04:05Z"; nothing for other texts.
std::optional<double> seconds_of_date(const std::string& date);

}  // namespace ingot::health
