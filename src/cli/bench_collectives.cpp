// `ingot bench collectives`: under a launcher (ingot launch, torchrun, srun, mpirun) the ranks that it started; otherwise ranks of its
// own, as threads or as processes.
#include <ATen/Parallel.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "base/text.h"
#include "bench/collectives.h"
#include "cli/bench_ranks.h"
#include "cli/ranks.h"
#include "cli/verbs.h"
#include "resilience/stop_signal.h"

namespace ingot::cli {
namespace {

using base::UsageError;

// As nccl-tests reads it: powers of 1024.
int64_t bytes_from(const char* flag, const std::string& text) {
  int64_t unit = 1;
  std::string digits = text;
  if (!text.empty()) {
    const size_t power = std::string("KMG").find(static_cast<char>(std::toupper(text.back())));
    if (power != std::string::npos) {
      unit = int64_t{1} << (10 * (power + 1));
      digits.pop_back();
    }
  }
  const auto number = base::parse_integer(digits);
  if (!number || *number < 0 || *number > (int64_t{1} << 40) / unit)
    throw UsageError("{} {}: write bytes, such as 8, 4K, 1M or 2G", flag, text);
  return *number * unit;
}

std::vector<std::string> dtypes_from(const std::string& text) {
  if (text == "all") return {"fp32", "bf16"};
  if (text.empty() || text == "fp32" || text == "float") return {"fp32"};
  if (text == "bf16" || text == "bfloat16") return {"bf16"};
  throw UsageError("-d {}: there are fp32 (or float), bf16 (or bfloat16) and all", text);
}

bench::CollectiveSweep sweep_of(const BenchOptions& o) {
  bench::CollectiveSweep sweep;
  for (const auto& name : o.operations) sweep.collectives.push_back(bench::collective_from_name(name));
  if (sweep.collectives.empty()) sweep.collectives = bench::all_collectives();
  sweep.dtypes = dtypes_from(o.dtype);
  sweep.min_bytes = bytes_from("-b", o.min_bytes);
  sweep.max_bytes = bytes_from("-e", o.max_bytes);
  sweep.step_bytes = bytes_from("-i", o.step_bytes);
  sweep.step_factor = o.step_factor;
  sweep.iterations = o.iterations;
  sweep.warmup = o.warmup;
  sweep.checks = o.check != 0;
  sweep.root = o.root;
  sweep.group_sizes = o.group_sizes;
  if (!o.placements.empty()) sweep.placements.clear();
  for (const auto& name : o.placements) sweep.placements.push_back(bench::placement_from_name(name));
  sweep.rank_time = static_cast<bench::RankTime>(o.average);
  return sweep;
}

struct Measured {
  std::vector<bench::CollectiveResult> results;
  std::string description;
};

Measured measure(const bench::CollectiveSweep& sweep, comm::World& world) {
  const resilience::StopSignal stop(kRanksStopNote, resilience::SecondSignal::ends_at_once);
  std::optional<base::ProgressBar> bar;
  Measured m;
  m.results = bench::measure_collectives(sweep, world, [&](size_t done, size_t all, const std::string& next) {
    if (world.rank() == 0 && !bar) bar.emplace("collectives", static_cast<int64_t>(all), base::ProgressUnit::count);
    if (bar) bar->update(static_cast<int64_t>(done), next);
    return stop.received() == 0;
  });
  if (bar) bar->finish(stop.received() != 0 ? "stopped; what was measured is kept" : "");
  m.description = fmt::format("{}; {}, {}", world.description(), base::host_name(), base::cpu_name());
  return m;
}

nlohmann::ordered_json to_json(const Measured& m, const BenchOptions& o) {
  auto json = bench::to_json(m.results);
  json["description"] = m.description;
  json["backend"] = o.backend;
  return json;
}

int show(const Measured& m, const Options& all) {
  const auto& o = all.bench;
  const auto json = to_json(m, o).dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  std::fputs((all.json ? json : bench::to_table(m.results, m.description, o.per_iteration)).c_str(), stdout);
  if (!o.output.empty()) {
    base::write_file_atomically(o.output, json);
    base::log_info("wrote {}", o.output);
  }
  if (const int64_t wrong = bench::wrong_elements(m.results); wrong > 0) {
    base::log_error("{} elements are wrong; do not train on this machine before that is explained", wrong);
    return 3;
  }
  return m.results.empty() ? 1 : 0;
}

// Of a process that a launcher started.
int as_rank(const Options& all, const comm::RankEnvironment& ranks) {
  const auto& o = all.bench;
  comm::WorldOptions options;
  options.backend = o.backend == "threads" || (o.backend == "shared_memory" && o.as_rank.empty()) ? "auto" : o.backend;
  share_cores(ranks);
  const auto world = comm::World::join(ranks, o.backend == "nccl", options);
  const auto m = measure(sweep_of(o), *world);
  if (world->rank() != 0) return 0;
  if (o.as_rank.empty()) return show(m, all);
  base::write_file_atomically(o.as_rank, to_json(m, o).dump());
  return 0;
}

std::vector<std::string> command_of(const BenchOptions& o) {
  std::vector<std::string> command = {"ingot", "bench", "collectives"};
  command.insert(command.end(), o.operations.begin(), o.operations.end());
  const auto add = [&](const char* flag, const std::string& value) {
    command.emplace_back(flag);
    command.push_back(value);
  };
  add("-b", o.min_bytes);
  add("-e", o.max_bytes);
  add("-i", o.step_bytes);
  add("-f", fmt::format("{}", o.step_factor));
  for (const auto& [flag, value] : {std::pair{"-n", o.iterations}, {"-w", o.warmup}, {"-c", o.check}, {"-r", o.root}, {"-a", o.average}})
    add(flag, std::to_string(value));
  add("-d", o.dtype);
  if (!o.group_sizes.empty()) add("--group-sizes", fmt::format("{}", fmt::join(o.group_sizes, ",")));
  if (!o.placements.empty()) add("--placements", base::join(o.placements, ","));
  add("--backend", o.backend);
  return command;
}

}  // namespace

int run_bench_collectives(const Options& all) {
  const auto& o = all.bench;
  const auto sweep = sweep_of(o);
  const auto ranks = comm::rank_environment(base::environment());
  if (ranks.size > 1) {
    sweep.check(ranks.size);
    return as_rank(all, ranks);
  }
  const int count = o.ranks.front();
  sweep.check(count);
  Measured m;
  if (o.backend == "threads") {
    comm::run_ranks(count, [&](comm::World& world) {
      auto own = measure(sweep, world);
      if (world.rank() == 0) m = std::move(own);
    });
  } else {
    const auto json = results_of_processes(count, command_of(o));
    m = {bench::collectives_from_json(json), json.at("description")};
  }
  return show(m, all);
}

}  // namespace ingot::cli
