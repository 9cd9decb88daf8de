#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "bench/node_check.h"
#include "bench/step_probe.h"
#include "bench/suite.h"
#include "cli/bench_ranks.h"
#include "cli/bench_storage.h"
#include "cli/counts.h"
#include "cli/node_verdict.h"
#include "cli/ranks.h"
#include "cli/verbs.h"
#include "device/device.h"
#include "resilience/stop_signal.h"

namespace ingot::cli {
namespace {

std::string command_line(const BenchOptions& o) {
  auto line = "ingot bench " + o.kind + (o.dtype == "all" ? "" : " --dtype " + o.dtype) + (o.quick ? " --quick" : "");
  const std::pair<const char*, const std::vector<std::string>&> lists[] = {{"--m", o.m},
                                                                           {"--n", o.n},
                                                                           {"--k", o.k},
                                                                           {"--kinds", o.kinds},
                                                                           {"--passes", o.passes},
                                                                           {"--groups", o.groups},
                                                                           {"--seq", o.seq},
                                                                           {"--heads", o.head_counts},
                                                                           {"--kv-heads", o.kv_head_counts},
                                                                           {"--head-dim", o.head_dims},
                                                                           {"--window", o.windows},
                                                                           {"--batch", o.batches},
                                                                           {"--sizes", o.sizes}};
  for (const auto& [flag, values] : lists)
    if (!values.empty()) line += fmt::format(" {} {}", flag, base::join(values, ","));
  if (o.libraries) line += " --libraries";
  return o.busiest.empty() ? line : line + fmt::format(" --busiest {:g}", fmt::join(o.busiest, ","));
}

void add_sweeps(const BenchOptions& o, bench::SuiteOptions& suite) {
  constexpr const char* kSizes = "whole numbers, such as 64,512,4K (K = 1024)";
  suite.gemm_sweep = {.m = counts_from("--m", o.m, kSizes),
                      .n = counts_from("--n", o.n, kSizes),
                      .k = counts_from("--k", o.k, kSizes),
                      .kinds = o.kinds,
                      .passes = o.passes,
                      .groups = counts_from("--groups", o.groups, kSizes),
                      .busiest = o.busiest};
  suite.attention_sweep = {.seq = counts_from("--seq", o.seq, kSizes),
                           .heads = counts_from("--heads", o.head_counts, kSizes),
                           .kv_heads = counts_from("--kv-heads", o.kv_head_counts, kSizes),
                           .head_dims = counts_from("--head-dim", o.head_dims, kSizes),
                           .windows = counts_from("--window", o.windows, kSizes, 0),
                           .batches = counts_from("--batch", o.batches, kSizes)};
  suite.libraries = o.libraries;
  const bool is_plain = o.groups.empty() && o.busiest.empty() && (o.kinds.empty() || o.kinds == std::vector<std::string>{"plain"});
  if (o.libraries && !is_plain) throw base::UsageError("--libraries is of plain products; leave out --groups, --busiest and other --kinds");
  suite.memory_bytes = counts_from("--sizes", o.sizes, "bytes of one array, such as 64K,16M (K = 1024)", 4);
}

std::vector<std::string> dtypes_of(const BenchOptions& o) {
  return o.dtype == "all" ? std::vector<std::string>{"fp32", "bf16"} : std::vector{o.dtype};
}

// Where the result goes: the file that was asked for, and the cache, which holds whole profiles only.
std::vector<std::filesystem::path> destinations(const BenchOptions& o, const plan::MachineProfile& profile, bool for_cache) {
  std::vector<std::filesystem::path> paths;
  if (!o.output.empty()) paths.emplace_back(o.output);
  const bool whole = for_cache && o.kind == "all" && o.dtype == "all";
  const auto cache = base::environment().cache_folder();
  if (whole && !cache.empty()) paths.push_back(plan::profile_path(cache, profile));
  return paths;
}

// The profile, with what follows from it.
std::string document_of(const plan::MachineProfile& profile, const std::optional<bench::Verdict>& verdict) {
  auto json = nlohmann::ordered_json::parse(profile.to_json());
  if (auto balance = bench::balance_json(profile); !balance.empty()) json["balance"] = std::move(balance);
  if (verdict) json["verdict"] = verdict->to_json();
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// Libraries join what the cache has of this machine, for runs of as many threads.
void keep_libraries(const plan::MachineProfile& measured) {
  const auto cache = base::environment().cache_folder();
  if (measured.libraries.empty()) {
    base::log_info("one library multiplies here, and none has to be chosen");
    return;
  }
  if (cache.empty()) return;
  auto kept = plan::cached_profile(measured, cache).value_or(plan::describe_machine(measured.threads, 1, measured.device));
  std::erase_if(kept.libraries, [&](const auto& old) {
    return std::any_of(measured.libraries.begin(), measured.libraries.end(), [&](const auto& e) { return e.dtype == old.dtype; });
  });
  kept.libraries.insert(kept.libraries.end(), measured.libraries.begin(), measured.libraries.end());
  const auto path = plan::profile_path(cache, kept);
  plan::write_profile(path, kept);
  base::log_info("kept for runs in {}", path.string());
}

// Steps of small models, dtype after dtype, by the ranks of `world`.
void measure_steps(const BenchOptions& o, comm::World& world, plan::MachineProfile& profile) {
  const resilience::StopSignal stop("\nstopping after this step\n");
  const auto dtypes = dtypes_of(o);
  std::optional<base::ProgressBar> bar;
  if (world.rank() == 0)
    bar.emplace("steps of models", static_cast<int64_t>(dtypes.size() * bench::step_probes()), base::ProgressUnit::count);
  base::set_log_level(base::LogLevel::warning);  // lines of runs that do not matter
  int64_t done = 0;
  for (const auto& dtype : dtypes) {
    if (stop.received() != 0) break;
    bench::measure_within_steps(dtype, world, profile, stop, [&](const char* next) {
      if (bar) bar->update(done++, fmt::format("{} {}", next, dtype));
    });
  }
  if (bar) bar->update(done);
  if (bar) bar->finish();
  base::set_log_level(base::LogLevel::info);
}

// Of a process that measures beside others: all do, and the first one's profile counts. It goes on from the one in its file, if there is
// any.
int as_rank(const Options& all, const comm::RankEnvironment& ranks) {
  const auto& o = all.bench;
  share_cores(ranks);
  const auto world = comm::World::join(ranks, false, {});
  const bench::Company company{world.get(), ranks.local_rank, ranks.local_size};
  auto profile = std::filesystem::exists(o.as_rank) ? plan::read_profile(o.as_rank)
                                                    : plan::describe_machine(at::get_num_threads(), company.side_by_side(), "cpu");
  for (const auto& dtype : dtypes_of(o)) bench::complete(profile, dtype, company);
  if (company.side_by_side() == company.size()) measure_steps(o, *world, profile);  // ranks that take turns on cores say nothing of these
  if (world->rank() == 0) base::write_file_atomically(o.as_rank, profile.to_json());
  return 0;
}

// Numbers of ranks that runs on this machine may well have. GPUs do not share their cores.
std::vector<int> side_by_side(const BenchOptions& o, const std::string& device) {
  if (!o.side_by_side.empty()) return o.side_by_side;
  std::vector<int> all;
  for (const int ranks : {2, 4, 8})
    if (device == "cpu" && base::usable_cores() % ranks == 0) all.push_back(ranks);
  return all;
}

std::vector<std::string> rank_command(const BenchOptions& o) { return {"ingot", "bench", "all", "--quick", "--dtype", o.dtype}; }

// What processes of ours measure; nothing when they were told to stop or failed, which is said.
std::optional<plan::MachineProfile> profile_of_processes(const BenchOptions& o, int ranks, const std::string& start,
                                                         const resilience::StopSignal& stop) {
  try {
    auto profile = plan::MachineProfile::from_json(results_of_processes(ranks, rank_command(o), start).dump(), "the ranks' profile");
    if (stop.received() == 0) return profile;
  } catch (const base::Error& failure) {
    if (stop.received() == 0) base::log_warning("{}; the profile does without", failure.what());
  }
  if (stop.received() != 0) base::log_warning("stopped; what was measured before is kept");
  return std::nullopt;
}

// In a process of its own: what a run changes of a process is not for measurements that follow. False when it was stopped.
bool add_steps(const BenchOptions& o, const resilience::StopSignal& stop, plan::MachineProfile& profile) {
  base::log_info("steps of small models");
  auto with_steps = profile_of_processes(o, 1, profile.to_json(), stop);
  if (with_steps) profile = std::move(*with_steps);
  return with_steps.has_value();
}

// Profiles of ranks side by side go to the cache alone, where runs and plans of as many look for them.
bool measure_side_by_side(const BenchOptions& o, int ranks, const resilience::StopSignal& stop) {
  base::log_info("{} ranks side by side", ranks);
  const auto profile = profile_of_processes(o, ranks, "", stop);
  if (!profile) return false;
  const auto path = plan::profile_path(base::environment().cache_folder(), *profile);
  plan::write_profile(path, *profile);
  base::log_info("wrote {}", path.string());
  return true;
}

}  // namespace

int run_bench(const Options& all) {
  const auto& o = all.bench;
  const auto ranks = comm::rank_environment(base::environment());
  if (!o.as_rank.empty()) return as_rank(all, ranks);
  const bool everything = o.kind == "all";
  bench::SuiteOptions suite{.gemm = everything || o.kind == "gemm",
                            .memory = everything || o.kind == "memory",
                            .attention = everything || o.kind == "attention",
                            .kernels = everything,
                            .quick = o.quick,
                            .device = device::device_named("auto").str()};
  suite.dtypes = dtypes_of(o);
  suite.groups = true;
  suite.balance = o.kind == "attention";
  add_sweeps(o, suite);
  auto profile = plan::describe_machine(at::get_num_threads(), 1, suite.device);
  profile.quick = o.quick;
  profile.commands = {command_line(o)};

  // Known before minutes are spent on measuring.
  const auto cache = base::environment().cache_folder();
  std::optional<Judge> judge;
  if (everything && (o.judge || !o.baseline.empty() || !o.floors.empty() || !o.verdicts.empty()))
    judge = judge_of(o, profile, cache.empty() ? std::filesystem::path() : plan::profile_path(cache, profile));

  const resilience::StopSignal stop("\nstopping after this measurement; what was measured is kept\n");
  const auto measurements = bench::measurements_of(suite);
  if (o.kind == "memory" && suite.device == "cpu")
    base::log_info("there is no GPU here that this build can use: copies between host and device are left out");
  base::ProgressBar bar("bench " + o.kind, static_cast<int64_t>(measurements.size()), base::ProgressUnit::count);
  const bool measured_all = bench::run_suite(measurements, profile, bar, [&] { return stop.received() != 0; });
  bool complete = measured_all;

  if (everything && complete && !judge) profile.storage = storage_rates(".");
  complete = complete && stop.received() == 0;
  if (everything && complete && !judge && suite.device == "cpu" && ranks.size == 1) complete = add_steps(o, stop, profile);

  std::optional<bench::Verdict> verdict;
  if (judge && complete) {
    const auto transfers = bench::measure_for_verdict(at::Device(suite.device), profile);
    verdict = judge->judge(profile, transfers);
  }
  const bool passes = !verdict || verdict->passes();
  std::fputs((all.json ? document_of(profile, verdict) : bench::tables(profile) + (verdict ? "\n" + verdict->table() : "")).c_str(),
             stdout);
  if (verdict && !o.verdicts.empty()) write_verdict(o.verdicts, *verdict);
  // What a check measured must not become what the next one judges by: a slow decline would lower its own floor.
  if (o.libraries && complete) keep_libraries(profile);
  if (everything && !cache.empty())
    if (const auto old = plan::cached_profile(profile, cache)) profile = bench::replaced_by(profile, *old);
  for (const auto& path : destinations(o, profile, measured_all && !judge)) {
    plan::write_profile(path, profile);
    base::log_info("wrote {}", path.string());
  }
  if (complete && everything && !judge && !cache.empty() && ranks.size == 1)
    for (const int count : side_by_side(o, suite.device))
      if (count > 1 && stop.received() == 0) complete = measure_side_by_side(o, count, stop) && complete;
  if (!measured_all)
    base::log_warning("stopped after {} of {} measurements",
                      profile.gemm.size() + profile.memory.size() + profile.attention.size() + profile.kernels.size(), measurements.size());
  return !complete ? 1 : passes ? 0 : 3;
}

}  // namespace ingot::cli
