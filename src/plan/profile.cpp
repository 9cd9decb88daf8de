#include "plan/profile.h"

#include <torch/version.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/random.h"
#include "base/text.h"

namespace ingot::plan {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFileLimitBytes = int64_t{64} << 20;

}  // namespace

MachineProfile describe_machine(int64_t threads, int64_t ranks, const std::string& device) {
  MachineProfile machine;
  machine.host = base::host_name();
  machine.cpu = base::cpu_name();
  if (!base::environment().cpu_capability.empty()) machine.cpu += fmt::format(", {} at most", base::environment().cpu_capability);
  machine.device = device;
  machine.torch = TORCH_VERSION;
  machine.program = base::program_stamp();
  machine.date = base::now_utc();
  machine.cores = base::usable_cores();
  machine.threads = threads;
  machine.ranks = ranks;
  return machine;
}

fs::path profile_path(const fs::path& folder, const MachineProfile& machine) {
  std::string host = machine.host;
  std::replace_if(
      host.begin(), host.end(), [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '.'; }, '_');
  const auto hash = base::stream_key(0, machine.cpu + "|" + machine.device);
  const auto together = machine.ranks > 1 ? fmt::format("x{}", machine.ranks) : "";
  return folder / fmt::format("profile-{}-{:016x}-{}{}.json", host, hash, machine.threads, together);
}

MachineProfile read_profile(const fs::path& path) {
  return MachineProfile::from_json(base::read_file(path, kFileLimitBytes), path.string());
}

void write_profile(const fs::path& path, const MachineProfile& profile) {
  if (path.has_parent_path()) base::make_directories(path.parent_path());
  base::write_file_atomically(path, profile.to_json());
}

std::optional<MachineProfile> cached_profile(const MachineProfile& machine, const fs::path& folder) {
  const auto path = profile_path(folder, machine);
  if (folder.empty() || !fs::exists(path)) return std::nullopt;
  try {
    auto found = read_profile(path);
    const bool fits = found.program == machine.program && found.cpu == machine.cpu && found.device == machine.device &&
                      found.threads == machine.threads && found.ranks == machine.ranks;
    if (fits) return found;
    base::log_info("{} was measured by another build of ingot and is not used", path.string());
  } catch (const base::Error& broken) {
    base::log_warning("{}; it is not used", broken.what());
  }
  return std::nullopt;
}

}  // namespace ingot::plan
