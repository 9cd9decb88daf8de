// `ingot bench collectives`: under a launcher (ingot launch, torchrun, srun, mpirun) the ranks that it started; otherwise ranks of its
// own, as threads or as processes.
#include "cli/verb.h"

namespace ingot::cli {

// By nccl-tests' names.
struct CollectiveFlags {
  std::vector<std::string> operations, placements;
  std::vector<int> group_sizes, ranks = {2};
  std::string min_bytes = "8", max_bytes = "64M", step_bytes = "0", dtype = "fp32", backend = "shared_memory", output, as_rank;
  double step_factor = 2;
  int iterations = 20, warmup = 5, check = 1, root = 0, average = 1;
  bool per_iteration = false;
};

#ifndef INGOT_COMPUTES
void add_bench_collectives(Flags& flags) {
  const auto values = std::make_shared<CollectiveFlags>();
  auto& o = *values;
  auto& verb = flags.verb("bench", "collectives",
                          "all-reduce and others over sizes, groups and placements, with nccl-tests' flags and columns", values);
  verb.add_option("operations", o.operations,
                  "all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, send_receive (default: all)");
  verb.add_option("-b,--minbytes", o.min_bytes, "smallest size, such as 8, 4K, 1M (K = 1024)")->capture_default_str();
  verb.add_option("-e,--maxbytes", o.max_bytes, "largest size")->capture_default_str();
  verb.add_option("-i,--stepbytes", o.step_bytes, "added from size to size; 0 = sizes grow by -f");
  verb.add_option("-f,--stepfactor", o.step_factor, "factor from size to size")->capture_default_str();
  verb.add_option("-n,--iters", o.iterations, "timed calls of each size")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  verb.add_option("-w,--warmup_iters", o.warmup, "calls before them")->check(CLI::Range(0, 1'000'000))->capture_default_str();
  verb.add_option("-c,--check", o.check, "1: compare results with what they must be, to the bit")
      ->check(CLI::Range(0, 1))
      ->capture_default_str();
  verb.add_option("-d,--datatype,--dtype", o.dtype, "fp32 (or float), bf16 (or bfloat16), all (default fp32)");
  verb.add_option("-r,--root", o.root, "rank of a group that broadcasts and to which is reduced")->check(kNotNegative);
  verb.add_option("-a,--average", o.average, "time reported: 0 rank 0's, 1 the mean, 2 the least, 3 the largest of the ranks'")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  verb.add_flag("-I,--per-iteration", o.per_iteration, "also least, median, p99 and largest time of single calls");
  verb.add_option("--ranks", o.ranks, "how many ranks to start, where no launcher did")
      ->delimiter(',')
      ->expected(1)
      ->check(CLI::Range(2, 4096));
  verb.add_option("--group-sizes", o.group_sizes, "ranks of a group; all groups work at once (default: every size that divides the ranks)")
      ->delimiter(',');
  verb.add_option("--placements", o.placements, "where a group's ranks lie: neighbours, strided (default: both)")->delimiter(',');
  verb.add_option("--backend", o.backend,
                  "how ranks communicate: threads of one process, or processes over shared_memory, gloo or nccl (default shared_memory)")
      ->check(CLI::IsMember({"threads", "shared_memory", "gloo", "nccl"}));
  add_output(verb, o.output);
  verb.add_option("--as-rank", o.as_rank)->group("");
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <fmt/ranges.h>

#include "base/counts.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/text.h"
#include "bench/collectives.h"
#include "bench/rank_processes.h"
#include "cli/show.h"
#include "comm/share_cores.h"
#include "comm/world.h"

namespace ingot::cli {
namespace {

using base::UsageError;

int64_t bytes_from(const char* flag, const std::string& text) { return base::count_from(flag, text, "bytes, such as 8, 4K, 1M or 2G", 0); }

std::vector<std::string> dtypes_from(const std::string& text) {
  if (text == "all") return {"fp32", "bf16"};
  if (text.empty() || text == "fp32" || text == "float") return {"fp32"};
  if (text == "bf16" || text == "bfloat16") return {"bf16"};
  throw UsageError("-d {}: there are fp32 (or float), bf16 (or bfloat16) and all", text);
}

bench::CollectiveSweep sweep_of(const CollectiveFlags& o) {
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

nlohmann::ordered_json to_json(const bench::CollectivesRun& run, const CollectiveFlags& o) {
  auto json = bench::to_json(run);
  json["backend"] = o.backend;
  return json;
}

int finish(const bench::CollectivesRun& run, const Call& call) {
  const auto& o = call.options<CollectiveFlags>();
  show(call, to_json(run, o), bench::to_table(run.results, run.description, o.per_iteration), o.output);
  if (const int64_t wrong = bench::wrong_elements(run.results); wrong > 0) {
    base::log_error("{} elements are wrong; do not train on this machine before that is explained", wrong);
    return 3;
  }
  return run.results.empty() ? 1 : 0;
}

// Of a process that a launcher started.
int as_rank(const Call& call, const comm::RankEnvironment& ranks) {
  const auto& o = call.options<CollectiveFlags>();
  comm::WorldOptions options;
  options.backend = o.backend == "threads" || (o.backend == "shared_memory" && o.as_rank.empty()) ? "auto" : o.backend;
  comm::share_cores(ranks);
  const auto device = bench::device_for_backend(o.backend, ranks.local_rank);
  const auto world = comm::World::join(ranks, o.backend == "nccl", options);
  const resilience::StopSignal stop(bench::kRanksStopNote, resilience::SecondSignal::ends_at_once);
  const auto run = bench::run_collectives(sweep_of(o), *world, device, stop);
  if (world->rank() != 0) return 0;
  if (o.as_rank.empty()) return finish(run, call);
  base::write_file_atomically(o.as_rank, to_json(run, o).dump());
  return 0;
}

std::vector<std::string> command_of(const CollectiveFlags& o) {
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

int run_bench_collectives(const Call& call) {
  const auto& o = call.options<CollectiveFlags>();
  const auto sweep = sweep_of(o);
  const auto ranks = comm::rank_environment(base::environment());
  if (ranks.size > 1) {
    sweep.check(ranks.size);
    return as_rank(call, ranks);
  }
  const int count = o.ranks.front();
  sweep.check(count);
  bench::device_for_backend(o.backend, count - 1);
  const auto run = o.backend == "threads" ? bench::run_collectives_of_threads(sweep, count)
                                          : bench::collectives_run_from_json(bench::results_of_processes(count, command_of(o)));
  return finish(run, call);
}

}  // namespace ingot::cli
#endif
