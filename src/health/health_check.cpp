#include "health/health_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/json_members.h"
#include "plan/message_line.h"

namespace ingot::health {
namespace {

using Json = nlohmann::json;
using plan::MachineProfile;

constexpr double kMost = 1e18;

double d(int64_t x) { return static_cast<double>(x); }

std::string text_of(double value, const std::string& unit) {
  if (unit.empty()) return fmt::format("{:.3f}", value);
  static constexpr std::pair<double, const char*> kPrefixes[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& [size, prefix] : kPrefixes)
    if (value >= size) return fmt::format("{:.4g} {}{}", value / size, prefix, unit);
  return fmt::format("{:.4g} {}", value, unit);
}

void raise(std::optional<double>& best, double value) { best = std::max(best.value_or(value), value); }

std::optional<double> best_gemm(const MachineProfile& profile, const Floor& floor) {
  std::optional<double> best;
  for (const auto& e : profile.gemm)
    if (e.dtype == floor.dtype && e.kind == "plain" && 2 * d(e.m) * d(e.n) * d(e.k) >= floor.least) raise(best, e.flops_per_s);
  return best;
}

// Of the largest array, which no cache holds.
std::optional<double> memory_rate(const MachineProfile& profile, const std::string& operation, double least) {
  const plan::MemoryRate* largest = nullptr;
  for (const auto& e : profile.memory)
    if (e.operation == operation && d(e.bytes) >= least && (!largest || e.bytes > largest->bytes)) largest = &e;
  return largest ? std::optional(largest->bytes_per_s) : std::nullopt;
}

std::optional<double> best_bus_bandwidth(const MachineProfile& profile, const Floor& floor) {
  std::optional<double> best;
  for (const auto& e : profile.collectives) {
    const bool counts = e.operation == floor.operation && (floor.ranks == 0 || e.ranks == floor.ranks) && d(e.bytes) >= floor.least;
    if (counts) raise(best, d(e.bytes) / e.seconds * plan::bus_factor(e.operation, d(e.ranks)));
  }
  return best;
}

std::optional<double> value_of(const Floor& floor, const MachineProfile& profile, const TransferRates& transfers) {
  switch (floor.what) {
    case Floor::What::gemm: return best_gemm(profile, floor);
    case Floor::What::memory: return memory_rate(profile, floor.operation, floor.least);
    case Floor::What::collective: return best_bus_bandwidth(profile, floor);
    case Floor::What::transfer: return floor.operation == "host_to_device" ? transfers.host_to_device : transfers.device_to_host;
  }
  return {};
}

// Seconds of everything in a profile, by kind and what was measured.
using Key = std::tuple<std::string, std::string>;
std::map<Key, double> times_of(const MachineProfile& p) {
  std::map<Key, double> out;
  for (const auto& e : p.gemm)
    out[{e.dtype + " GEMMs", fmt::format("{} {} {} {} {} {} {}", e.kind, e.pass, e.m, e.n, e.k, e.groups, e.imbalance)}] =
        1 / e.flops_per_s;
  for (const auto& e : p.memory) out[{"memory", fmt::format("{} {}", e.operation, e.bytes)}] = 1 / e.bytes_per_s;
  for (const auto& e : p.attention) {
    const auto what = fmt::format("{} {} {} {} {} {}", e.batch, e.seq, e.heads, e.kv_heads, e.head_dim, e.window);
    out[{e.dtype + " attention", "forward " + what}] = e.forward_s;
    out[{e.dtype + " attention", "backward " + what}] = e.backward_s;
  }
  for (const auto& e : p.kernels) {
    const auto what = fmt::format("{} {} {} {}", e.name, e.rows, e.width, e.count);
    out[{e.dtype + " kernels", "forward " + what}] = e.forward_s;
    if (e.backward_s > 0) out[{e.dtype + " kernels", "backward " + what}] = e.backward_s;
  }
  for (const auto& e : p.collectives)
    out[{e.dtype + " collectives", fmt::format("{} {} {} {} {}", e.operation, e.placement, e.ranks, e.groups, e.bytes)}] = e.seconds;
  return out;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

Check::Status Check::status() const {
  if (!value) return Status::not_measured;
  return *value >= floor ? Status::pass : Status::fail;
}

const char* name_of(Check::Status status) {
  return status == Check::Status::pass ? "pass" : status == Check::Status::fail ? "FAIL" : "not measured";
}

bool HealthCheck::passes() const {
  const auto count = [&](Check::Status status) {
    return std::count_if(checks.begin(), checks.end(), [&](const auto& check) { return check.status() == status; });
  };
  return count(Check::Status::fail) == 0 && count(Check::Status::pass) > 0;
}

std::string HealthCheck::summary() const {
  std::vector<std::string> failed, unmeasured;
  size_t passed = 0;
  for (const auto& check : checks) {
    if (check.status() == Check::Status::pass) ++passed;
    else if (check.status() == Check::Status::fail)
      failed.push_back(fmt::format("{} {:.0f} % of its floor", check.name, 100 * *check.value / check.floor));
    else unmeasured.push_back(check.name);
  }
  auto text = fmt::format("{} {}: {} of {} checks against {}", host, passes() ? "passes" : "FAILS", passed, checks.size(), against);
  if (!failed.empty()) text += "; " + base::join(failed, ", ");
  if (!unmeasured.empty()) text += "; not measured: " + base::join(unmeasured, ", ");
  return text;
}

std::string HealthCheck::table() const {
  std::string out = fmt::format("{:<24}{:>16}{:>16}  {:<13} {}\n", "check", "value", "floor", "", "source of the floor");
  for (const auto& check : checks)
    out += fmt::format("{:<24}{:>16}{:>16}  {:<13} {}\n", check.name, check.value ? text_of(*check.value, check.unit) : "-",
                       text_of(check.floor, check.unit), name_of(check.status()), check.source);
  return out + summary() + "\n";
}

nlohmann::ordered_json HealthCheck::to_json() const {
  nlohmann::ordered_json json = {{"format", "ingot verdict"}, {"version", kVersion}, {"host", host},
                                 {"device", device},          {"date", date},        {"against", against},
                                 {"pass", passes()},          {"summary", summary()}};
  auto& list = json["checks"] = nlohmann::ordered_json::array();
  for (const auto& check : checks)
    list.push_back({{"name", check.name},
                    {"value", check.value ? nlohmann::ordered_json(*check.value) : nlohmann::ordered_json(nullptr)},
                    {"floor", check.floor},
                    {"unit", check.unit},
                    {"source", check.source},
                    {"status", check.status() == Check::Status::fail ? "fail" : name_of(check.status())}});
  return json;
}

HealthCheck HealthCheck::from_json(const std::string& text, const std::string& origin) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  constexpr const char* kAdvice = "check the node again with ingot bench all --verdicts";
  if (json.is_discarded()) throw base::ProfileError("{} is not JSON; {}", origin, kAdvice);
  base::JsonMembers m(json, origin, kAdvice);
  if (m.text("format") != "ingot verdict") throw base::ProfileError("{} is no verdict: its member 'format' is not 'ingot verdict'", origin);
  if (const auto version = m.whole("version", 1 << 20); version != kVersion)
    throw base::ProfileError("{} has version {}; this program reads version {}", origin, version, kVersion);
  HealthCheck v{.host = m.text("host"), .device = m.text("device"), .date = m.text("date"), .against = m.text("against"), .checks = {}};
  const bool pass = m.boolean("pass");
  m.text("summary");
  m.list("checks", 0, 1000, [&](const Json& entry, const std::string& where) {
    base::JsonMembers c(entry, where, kAdvice);
    Check check{.name = c.text("name"), .value = {}, .floor = c.positive("floor"), .unit = c.text("unit"), .source = c.text("source")};
    const auto& value = c.member("value");
    if (!value.is_null()) check.value = c.not_negative("value");
    c.text("status");
    c.finish();
    v.checks.push_back(std::move(check));
  });
  m.finish();
  if (pass != v.passes()) m.fail("pass", "is not what its checks say");
  return v;
}

std::vector<Check> checks_of(const FloorFile& floors, const MachineProfile& profile, const TransferRates& transfers) {
  std::vector<Check> checks;
  for (const auto& floor : floors.floors)
    checks.push_back({floor.name(), value_of(floor, profile, transfers), floor.value(), floor.unit(),
                      fmt::format("{:.0f} % of {}: {}", 100 * floor.fraction, text_of(floor.published, floor.unit()), floor.source)});
  return checks;
}

std::vector<Check> checks_of(const MachineProfile& before, const MachineProfile& now, double tolerance, const std::string& source) {
  const auto why = fmt::format("{:.0f} % of {}", 100 * (1 - tolerance), source);
  std::vector<Check> checks;
  for (const char* dtype : {"bf16", "fp32", "fp64"}) {
    const double peak = before.peak_gemm(dtype), own = now.peak_gemm(dtype);
    if (peak > 0)
      checks.push_back({std::string(dtype) + " GEMM", own > 0 ? std::optional(own) : std::nullopt, peak * (1 - tolerance), "FLOP/s", why});
  }
  if (const auto rate = memory_rate(before, "triad", 0))
    checks.push_back({"triad", memory_rate(now, "triad", 0), *rate * (1 - tolerance), "B/s", why});
  const auto earlier = times_of(before), later = times_of(now);
  std::map<std::string, std::vector<double>> ratios;
  for (const auto& [key, seconds] : earlier)
    if (const auto found = later.find(key); found != later.end()) ratios[std::get<0>(key)].push_back(seconds / found->second);
  for (const auto& [kind, list] : ratios)
    checks.push_back(
        {kind + ", median", median(list), 1 - tolerance, "", fmt::format("{}, {} measurements that both have", why, list.size())});
  for (auto& check : checks)
    if (check.value) check.value = std::min(*check.value, kMost);
  return checks;
}

}  // namespace ingot::health
