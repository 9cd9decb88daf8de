// `ingot bench verdict`: a profile against floors, or a folder of nodes' verdicts put together. Needs no tensors.
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "bench/fleet.h"
#include "bench/host_list.h"
#include "cli/node_verdict.h"
#include "cli/verbs.h"

namespace ingot::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kVerdictLimitBytes = int64_t{1} << 20, kHostsLimitBytes = int64_t{16} << 20, kProfileLimitBytes = int64_t{64} << 20;
constexpr size_t kMostFiles = 65'536;

void print(const nlohmann::ordered_json& json) {
  std::fputs((json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n").c_str(), stdout);
}

// A file that cannot be read is that of a node which cannot be trusted: its text is empty, which is no verdict.
std::vector<bench::VerdictFile> files_in(const fs::path& folder) {
  std::vector<bench::VerdictFile> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    if (files.size() == kMostFiles)
      throw base::DataError("{} has more than {} files; a verdict is one file for each node", folder.string(), kMostFiles);
    std::string text;
    try {
      text = base::read_file(entry.path(), kVerdictLimitBytes);
    } catch (const base::FileError& failure) {
      base::log_warning("{}", failure.what());
    }
    files.push_back({entry.path().stem().string(), std::move(text)});
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return files;
}

// One host a line, or for Slurm all of them in its own form.
void write_hosts(const std::string& path, const std::vector<std::string>& hosts, bool for_slurm) {
  if (path.empty()) return;
  std::string text = for_slurm ? bench::compressed_hosts(hosts) + "\n" : "";
  if (!for_slurm)
    for (const auto& host : hosts) text += host + "\n";
  base::write_file_atomically(path, text);
  base::log_info("wrote {} ({} host{})", path, hosts.size(), hosts.size() == 1 ? "" : "s");
}

int gather(const Options& all) {
  const auto& o = all.bench;
  bench::FleetOptions options{.expected = {},
                              .now_s = static_cast<double>(std::time(nullptr)),
                              .most_age_s = o.max_age_hours * 3600,
                              .outlier_share = o.outlier / 100};
  if (!o.expect.empty()) {
    options.expected = bench::parse_host_file(base::read_file(o.expect, kHostsLimitBytes));
    if (options.expected.empty()) throw base::ConfigError("--expect {}: the file names no host", o.expect);
  }
  const auto fleet = bench::gathered(files_in(o.target), options);
  if (fleet.nodes.empty())
    throw base::DataError("{} has no verdicts; each node writes one with ingot bench all --check --verdicts {}", o.target, o.target);
  write_hosts(o.pass_list, fleet.passing(), o.slurm);
  write_hosts(o.fail_list, fleet.failing(), o.slurm);
  if (all.json) print(fleet.to_json());
  else std::fputs(fleet.table().c_str(), stdout);
  if (!all.json && o.slurm) {
    if (!fleet.passing().empty()) std::fputs(("--nodelist=" + bench::compressed_hosts(fleet.passing()) + "\n").c_str(), stdout);
    if (!fleet.failing().empty()) std::fputs(("--exclude=" + bench::compressed_hosts(fleet.failing()) + "\n").c_str(), stdout);
  }
  return fleet.passes() ? 0 : 3;
}

int judge_profile(const Options& all) {
  const auto& o = all.bench;
  const auto profile = plan::MachineProfile::from_json(base::read_file(o.target, kProfileLimitBytes), o.target);
  const auto verdict = judge_of(o, profile, "").judge(profile, {});
  if (!o.verdicts.empty()) write_verdict(o.verdicts, verdict);
  if (all.json) print({{"verdict", verdict.to_json()}});
  else std::fputs(verdict.table().c_str(), stdout);
  return verdict.passes() ? 0 : 3;
}

}  // namespace

int run_bench_verdict(const Options& all) {
  const auto& o = all.bench;
  if (fs::is_directory(o.target)) return gather(all);
  const bool has_fleet_flags = !o.expect.empty() || !o.pass_list.empty() || !o.fail_list.empty() || o.slurm;
  if (has_fleet_flags)
    throw base::UsageError("{} is no folder of verdicts, which --expect, --pass-list, --fail-list and --slurm are about", o.target);
  return judge_profile(all);
}

}  // namespace ingot::cli
