// `ingot bench verdict`: a profile against floors, or the health checks of many nodes together. Needs no tensors.
#include <ctime>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "cli/judge_flags.h"
#include "cli/show.h"
#include "cli/verb.h"
#include "health/cluster_summary.h"
#include "health/host_list.h"

namespace ingot::cli {
namespace {

constexpr int64_t kHostsLimitBytes = int64_t{16} << 20, kProfileLimitBytes = int64_t{64} << 20;

struct VerdictOptions {
  std::string target, expect, pass_list, fail_list;
  JudgeFlags judge;
  double max_age_hours = 24, outlier = 10;
  bool slurm = false;
};

int gather(const Call& call) {
  const auto& o = call.options<VerdictOptions>();
  health::SummaryOptions options{.expected = {},
                                 .now_s = static_cast<double>(std::time(nullptr)),
                                 .most_age_s = o.max_age_hours * 3600,
                                 .outlier_share = o.outlier / 100};
  if (!o.expect.empty()) {
    options.expected = health::parse_host_file(base::read_file(o.expect, kHostsLimitBytes));
    if (options.expected.empty()) throw base::ConfigError("--expect {}: the file names no host", o.expect);
  }
  const auto summary = health::gathered(health::check_files(o.target), options);
  if (summary.nodes.empty())
    throw base::DataError("{} has no verdicts; each node writes one with ingot bench all --check --verdicts {}", o.target, o.target);
  if (!o.pass_list.empty()) health::write_hosts(o.pass_list, summary.passing(), o.slurm);
  if (!o.fail_list.empty()) health::write_hosts(o.fail_list, summary.failing(), o.slurm);
  auto text = summary.table();
  if (o.slurm && !summary.passing().empty()) text += "--nodelist=" + health::compressed_hosts(summary.passing()) + "\n";
  if (o.slurm && !summary.failing().empty()) text += "--exclude=" + health::compressed_hosts(summary.failing()) + "\n";
  show(call, summary.to_json(), text);
  return summary.passes() ? 0 : 3;
}

int judge_profile(const Call& call) {
  const auto& o = call.options<VerdictOptions>();
  const auto profile = plan::MachineProfile::from_json(base::read_file(o.target, kProfileLimitBytes), o.target);
  const auto verdict = health::judge_of(o.judge.request(), profile, "").judge(profile, {});
  if (!o.judge.folder.empty()) health::write_check(o.judge.folder, verdict);
  show(call, {{"verdict", verdict.to_json()}}, verdict.table());
  return verdict.passes() ? 0 : 3;
}

}  // namespace

void add_bench_verdict(Flags& flags) {
  const auto values = std::make_shared<VerdictOptions>();
  auto& o = *values;
  auto& verb =
      flags.verb("bench", "verdict",
                 "judge a profile; or put a folder of nodes' verdicts together: who passes, fails, lags behind or is missing", values);
  verb.add_option("target", o.target, "a machine profile, or the folder of --verdicts")->required()->check(CLI::ExistingPath);
  add_judgement(verb, o.judge);
  verb.add_option("--expect", o.expect, "file of the hosts that must have a verdict, one a line or as node[001-128]");
  verb.add_option("--max-age", o.max_age_hours, "hours after which a verdict is too old")->check(kPositive)->capture_default_str();
  verb.add_option("--outlier", o.outlier, "percent below the nodes' median that make one fail although it passes its floors; 0: none")
      ->check(CLI::Range(0.0, 99.0))
      ->capture_default_str();
  verb.add_option("--pass-list", o.pass_list, "write the hosts that pass here, one a line");
  verb.add_option("--fail-list", o.fail_list, "write the others here");
  verb.add_flag("--slurm", o.slurm, "print --nodelist and --exclude for Slurm, and write the lists in its form, node[001-003,007]");
}

int run_bench_verdict(const Call& call) {
  const auto& o = call.options<VerdictOptions>();
  if (std::filesystem::is_directory(o.target)) return gather(call);
  const bool has_cluster_flags = !o.expect.empty() || !o.pass_list.empty() || !o.fail_list.empty() || o.slurm;
  if (has_cluster_flags)
    throw base::UsageError("{} is no folder of verdicts, which --expect, --pass-list, --fail-list and --slurm are about", o.target);
  return judge_profile(call);
}

}  // namespace ingot::cli
