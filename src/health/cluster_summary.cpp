#include "health/cluster_summary.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/text.h"
#include "health/host_list.h"

namespace ingot::health {
namespace {

using State = SummaryNode::State;

// Fewer have no median that says anything.
constexpr size_t kLeastFleet = 3;
// A verdict may be this much younger than now: clocks of nodes differ.
constexpr double kClockSkew_s = 600;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string short_name(const std::string& host) { return host.substr(0, host.find('.')); }

// The name that the list of expected hosts has for a node, which may know itself by its full name, or "".
std::string expected_name(const std::set<std::string>& expected, const std::string& host) {
  if (expected.contains(host)) return host;
  return expected.contains(short_name(host)) ? short_name(host) : "";
}

struct Known {
  SummaryNode node;
  std::optional<HealthCheck> verdict;  // of those that count
};

Known judge(const HealthCheckFile& file, const SummaryOptions& options) {
  Known known{.node = {.host = file.name, .state = State::pass, .reason = ""}, .verdict = {}};
  const auto say = [&](State state, std::string reason) {
    known.node.state = state;
    known.node.reason = std::move(reason);
    return known;
  };
  HealthCheck verdict;
  try {
    verdict = HealthCheck::from_json(file.text, file.name + ".json");
  } catch (const base::Error& error) {
    return say(State::broken, error.what());
  }
  if (verdict.host != file.name) return say(State::broken, fmt::format("{}.json is of host {}", file.name, verdict.host.substr(0, 100)));
  const auto date = seconds_of_date(verdict.date);
  if (!date) return say(State::broken, fmt::format("{}.json has the date '{}'", file.name, verdict.date.substr(0, 40)));
  const double age_s = options.now_s - *date;
  if (age_s > options.most_age_s) return say(State::stale, fmt::format("its verdict is {} old", base::format_duration(age_s)));
  if (age_s < -kClockSkew_s) return say(State::stale, fmt::format("its verdict is dated {}, in the future: set its clock", verdict.date));
  if (!verdict.passes()) return say(State::fail, verdict.summary());
  known.verdict = std::move(verdict);
  return known;
}

// A check of one device over nodes.
struct Sample {
  std::string unit;
  std::vector<std::pair<Known*, double>> values;
};

void flag_outliers(std::vector<Known>& known, double share, std::vector<SummaryCheck>& checks) {
  std::map<std::pair<std::string, std::string>, Sample> samples;
  std::set<std::string> devices;
  for (auto& one : known) {
    if (!one.verdict) continue;
    devices.insert(one.verdict->device);
    for (const auto& check : one.verdict->checks) {
      if (!check.value) continue;
      auto& sample = samples[{one.verdict->device, check.name}];
      sample.unit = check.unit;
      sample.values.emplace_back(&one, *check.value);
    }
  }
  for (auto& [key, sample] : samples) {
    std::vector<double> values, distances;
    for (const auto& [one, value] : sample.values) values.push_back(value);
    const double middle = median(values);
    for (const double value : values) distances.push_back(std::abs(value - middle));
    SummaryCheck check{devices.size() > 1 ? key.first + ": " + key.second : key.second,
                       sample.unit,
                       values.size(),
                       middle,
                       *std::min_element(values.begin(), values.end()),
                       1.4826 * median(distances)};
    checks.push_back(check);
    if (share <= 0 || values.size() < kLeastFleet) continue;
    for (const auto& [one, value] : sample.values) {
      if (value >= middle * (1 - share)) continue;
      auto& node = one->node;
      node.state = State::outlier;
      node.reason += fmt::format("{}{} {:.0f} % below the median of {} nodes{}", node.reason.empty() ? "" : "; ", key.second,
                                 100 * (1 - value / middle), values.size(),
                                 check.deviation > 0 ? fmt::format(" ({:.1f} robust deviations)", (middle - value) / check.deviation) : "");
    }
  }
}

}  // namespace

const char* name_of(State state) {
  static constexpr const char* kNames[] = {"pass", "fail", "outlier", "missing", "stale", "broken", "unexpected"};
  return kNames[static_cast<size_t>(state)];
}

std::optional<double> seconds_of_date(const std::string& date) {
  std::tm parts{};
  const char* end = ::strptime(date.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (!end || *end != '\0') return std::nullopt;
  return static_cast<double>(::timegm(&parts));
}

ClusterSummary gathered(const std::vector<HealthCheckFile>& files, const SummaryOptions& options) {
  const std::set<std::string> expected(options.expected.begin(), options.expected.end());
  std::set<std::string> seen;
  std::vector<Known> known;
  for (const auto& file : files) {
    known.push_back(judge(file, options));
    if (expected.empty()) continue;
    const auto name = expected_name(expected, file.name);
    auto& node = known.back().node;
    if (name.empty()) {
      known.back() = {.node = {.host = file.name, .state = State::unexpected, .reason = "not among the expected nodes"}, .verdict = {}};
    } else if (!seen.insert(name).second) {
      known.back().verdict.reset();
      node = {
          .host = name, .state = State::broken, .reason = fmt::format("there are two verdicts of it, {}.json is the second", file.name)};
    } else {
      node.host = name;
    }
  }
  ClusterSummary fleet;
  flag_outliers(known, options.outlier_share, fleet.checks);
  for (const auto& one : known) fleet.nodes.push_back(one.node);
  for (const auto& host : expected)
    if (!seen.contains(host)) fleet.nodes.push_back({host, State::missing, "wrote no verdict"});
  std::stable_sort(fleet.nodes.begin(), fleet.nodes.end(), [](const auto& a, const auto& b) { return a.host < b.host; });
  return fleet;
}

std::vector<std::string> ClusterSummary::failing() const {
  std::set<std::string> hosts;
  for (const auto& node : nodes)
    if (node.state != State::pass && node.state != State::unexpected) hosts.insert(node.host);
  return {hosts.begin(), hosts.end()};
}

std::vector<std::string> ClusterSummary::passing() const {
  const auto bad = failing();
  std::vector<std::string> hosts;
  for (const auto& node : nodes)
    if (node.state == State::pass && !std::binary_search(bad.begin(), bad.end(), node.host)) hosts.push_back(node.host);
  return hosts;
}

bool ClusterSummary::passes() const { return failing().empty() && !passing().empty(); }

std::string ClusterSummary::table() const {
  std::string out;
  if (!checks.empty()) out += fmt::format("{:<28}{:>7}{:>14}{:>14}{:>14}\n", "check", "nodes", "median", "least", "deviation");
  for (const auto& c : checks)
    out += fmt::format("{:<28}{:>7}{:>14.5g}{:>14.5g}{:>14.3g} {}\n", c.name, c.nodes, c.median, c.least, c.deviation, c.unit);
  for (const auto& node : nodes)
    if (node.state != State::pass) out += fmt::format("{:<24} {:<11} {}\n", node.host, name_of(node.state), node.reason);
  const auto good = passing(), bad = failing();
  out += fmt::format("{} node{} pass, {} fail{}\n", good.size(), good.size() == 1 ? "" : "s", bad.size(),
                     bad.empty() ? "" : ": " + compressed_hosts(bad));
  return out;
}

nlohmann::ordered_json ClusterSummary::to_json() const {
  nlohmann::ordered_json json = {{"pass", passes()},
                                 {"passing", passing()},
                                 {"failing", failing()},
                                 {"nodelist", compressed_hosts(passing())},
                                 {"exclude", compressed_hosts(failing())}};
  json["nodes"] = nlohmann::ordered_json::array();
  for (const auto& node : nodes) json["nodes"].push_back({{"host", node.host}, {"state", name_of(node.state)}, {"reason", node.reason}});
  json["checks"] = nlohmann::ordered_json::array();
  for (const auto& c : checks)
    json["checks"].push_back(
        {{"name", c.name}, {"unit", c.unit}, {"nodes", c.nodes}, {"median", c.median}, {"least", c.least}, {"deviation", c.deviation}});
  return json;
}

std::vector<HealthCheckFile> check_files(const std::filesystem::path& folder) {
  constexpr int64_t kLimitBytes = int64_t{1} << 20;
  constexpr size_t kMostFiles = 65'536;
  std::vector<HealthCheckFile> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    if (files.size() == kMostFiles)
      throw base::DataError("{} has more than {} files; a health check is one file for each node", folder.string(), kMostFiles);
    std::string text;
    try {
      text = base::read_file(entry.path(), kLimitBytes);
    } catch (const base::FileError& failure) {
      base::log_warning("{}", failure.what());
    }
    files.push_back({entry.path().stem().string(), std::move(text)});
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return files;
}

}  // namespace ingot::health
