#include "health/judge.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "plan/disturbed.h"

namespace ingot::health {
namespace {

namespace fs = std::filesystem;
using base::ConfigError;

constexpr int64_t kProfileLimitBytes = int64_t{64} << 20, kFloorsLimitBytes = int64_t{1} << 20;

plan::MachineProfile profile_at(const fs::path& path) {
  return plan::MachineProfile::from_json(base::read_file(path, kProfileLimitBytes), path.string());
}

// A host's name becomes that of a file.
std::string file_name(std::string host) {
  std::replace_if(
      host.begin(), host.end(), [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '.' && c != '_'; }, '_');
  return host.empty() || host.front() == '.' ? "_" + host : host;
}

}  // namespace

HealthCheck Judge::judge(const plan::MachineProfile& profile, const TransferRates& transfers) const {
  HealthCheck verdict{.host = file_name(profile.host), .device = device, .date = profile.date, .against = against, .checks = {}};
  if (floors) {
    verdict.checks = checks_of(*floors, profile, transfers);
  } else {
    if (before->cpu != profile.cpu || before->device != profile.device || before->threads != profile.threads)
      throw ConfigError("{} was measured on {} ({}) with {} threads, and this profile on {} ({}) with {}; compare like with like", against,
                        before->device, before->cpu, before->threads, profile.device, profile.cpu, profile.threads);
    verdict.checks = checks_of(*before, profile, tolerance, against);
  }
  if (profile.foreign_load > plan::kBusyShare)
    base::log_warning("other programs used {:.0f} % of {} while it was measured; a check that fails may be theirs",
                      100 * profile.foreign_load, profile.host);
  return verdict;
}

Judge judge_of(const JudgeRequest& o, const plan::MachineProfile& machine, const fs::path& cached) {
  if (!o.baseline.empty() && !o.floors.empty()) throw base::UsageError("--baseline and --floors are two things to be judged by; give one");
  Judge judge{.floors = {}, .before = {}, .device = o.device_name, .against = {}, .tolerance = o.tolerance};
  if (judge.device.empty() && machine.device != "cpu") judge.device = accelerator_name();
  if (judge.device.empty()) judge.device = machine.cpu;
  const auto against_profile = [&](const fs::path& path) {
    judge.before = profile_at(path);
    judge.against = fmt::format("the profile of {} of {}", judge.before->host, judge.before->date);
  };
  if (!o.baseline.empty()) {
    against_profile(o.baseline);
  } else if (!o.floors.empty()) {
    judge.floors = parse_floors(base::read_file(o.floors, kFloorsLimitBytes), o.floors);
    if (!judge.floors->is_for(judge.device))
      throw ConfigError("{} has floors of {}, and this device is {}; say --device-name if it goes by another name", o.floors,
                        judge.floors->name, judge.device);
  } else if (auto shipped = shipped_floors(judge.device)) {
    judge.floors = std::move(shipped);
  } else if (!cached.empty() && fs::exists(cached)) {
    against_profile(cached);
  } else {
    throw ConfigError(
        "there are no floors for {} and no earlier profile of this machine. Measure it once when it is known to be good (ingot bench all "
        "-o good.json), "
        "then check against that with --baseline good.json, or write floors as in configs/floors for --floors",
        judge.device);
  }
  if (judge.floors) judge.against = "the floors of " + judge.floors->name;
  return judge;
}

void write_check(const fs::path& folder, const HealthCheck& check) {
  base::make_directories(folder);
  const auto path = folder / (file_name(check.host) + ".json");
  base::write_file_atomically(path, check.to_json().dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  base::log_info("wrote {}", path.string());
}

}  // namespace ingot::health
