// `ingot bench parallel`: its ranks are threads, or processes that it starts as `ingot launch` does and that call it again; or there are
// none and the traces of the layers are replayed on the profile of a cluster.
#include "cli/verb.h"

namespace ingot::cli {

// Empty lists: all, or the usual ones.
struct ParallelFlags {
  std::vector<std::string> methods, layers, lengths;
  std::vector<int> ranks = {2};
  int64_t hidden = 512, heads = 8, kv_heads = 8, head_dim = 0, ffn = 2048, batch = 1, repeats = 5;
  std::string pass = "both", dtype, backend = "threads", cluster, published, output, as_rank;
  double latency_us = 0, bandwidth_gb = 0;  // of an artificially slow transport
};

#ifndef INGOT_COMPUTES
void add_bench_parallel(Flags& flags) {
  const auto values = std::make_shared<ParallelFlags>();
  auto& o = *values;
  auto& verb = flags.verb("bench", "parallel", "a layer or block under every way of spreading it over ranks, at the same sizes", values);
  verb.add_option("--methods", o.methods, "tp, megatron-sp, sp, tp+sp, tsp, fsdp+cp, ring, ulysses, lasp1, lasp2, zeco (default: all)")
      ->delimiter(',');
  verb.add_option("--layers", o.layers, "attention, mlp, linear_attention, block (default: all)")->delimiter(',');
  verb.add_option("--seq", o.lengths, "tokens of a sequence, such as 8K,16K (K = 1024; default 1K,2K,4K)")->delimiter(',');
  verb.add_option("--ranks", o.ranks, "numbers of ranks")->delimiter(',')->check(CLI::Range(1, 4096))->capture_default_str();
  verb.add_option("--hidden", o.hidden, "width of the residual stream")->check(kPositive)->capture_default_str();
  verb.add_option("--heads", o.heads, "query heads")->check(kPositive)->capture_default_str();
  verb.add_option("--kv-heads", o.kv_heads, "key and value heads")->check(kPositive)->capture_default_str();
  verb.add_option("--head-dim", o.head_dim, "width of a head; 0 = hidden / heads")->check(kNotNegative);
  verb.add_option("--ffn", o.ffn, "inner width of the gated MLP")->check(kPositive)->capture_default_str();
  verb.add_option("--batch", o.batch, "sequences at a time")->check(kPositive)->capture_default_str();
  verb.add_option("--dtype", o.dtype, "fp64, fp32 or bf16 (default fp32; bf16 with --cluster)")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16"}));
  verb.add_option("--pass", o.pass, "forward, backward or both")->check(CLI::IsMember({"forward", "backward", "both"}));
  verb.add_option("--backend", o.backend, "how ranks communicate: threads of one process, or processes over shared_memory, gloo or nccl")
      ->check(CLI::IsMember({"threads", "shared_memory", "gloo", "nccl"}));
  verb.add_option("--cluster", o.cluster, "measure nothing: replay the schedules on this profile, such as configs/clusters/h100-64.json");
  verb.add_option("--published", o.published, "what the papers publish beside the model; a folder of profiles, such as configs/clusters");
  verb.add_option("--repeats", o.repeats, "timed runs of each case")->check(CLI::Range(1, 1000))->capture_default_str();
  verb.add_option("--latency-us", o.latency_us, "a wire slower by so much per message")->check(kNotNegative);
  verb.add_option("--bandwidth-gb", o.bandwidth_gb, "a wire of so many GB/s; 0 = as it is")->check(kNotNegative);
  add_output(verb, o.output);
  verb.add_option("--as-rank", o.as_rank)->group("");  // of a process that this verb started: where rank 0 puts the results
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/counts.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "bench/parallel/layers.h"
#include "bench/parallel/measured.h"
#include "bench/parallel/model.h"
#include "bench/parallel/published.h"
#include "bench/rank_processes.h"
#include "comm/world.h"
#include "kernels/cpu_memory.h"

namespace ingot::cli {
namespace {

using base::UsageError;

schedule::Sweep sweep_of(const ParallelFlags& o) {
  schedule::Sweep sweep;
  for (const auto& name : o.methods) sweep.methods.push_back(schedule::method_from_name(name));
  if (sweep.methods.empty()) sweep.methods = schedule::all_methods();
  for (const auto& text : o.lengths.empty() ? std::vector<std::string>{"1K", "2K", "4K"} : o.lengths)
    sweep.seqs.push_back(base::count_from("--seq", text, "a number of tokens, such as 4096 or 4K"));
  std::sort(sweep.seqs.begin(), sweep.seqs.end());
  sweep.ranks = o.ranks;
  sweep.passes = {schedule::pass_from_name(o.pass)};
  if (o.head_dim == 0 && o.hidden % o.heads != 0)
    throw UsageError("--hidden {} is not a multiple of --heads {}; say --head-dim", o.hidden, o.heads);
  sweep.base.sizes = {.hidden = o.hidden,
                      .heads = o.heads,
                      .kv_heads = o.kv_heads,
                      .head_dim = o.head_dim > 0 ? o.head_dim : o.hidden / o.heads,
                      .ffn = o.ffn,
                      .batch = o.batch,
                      .seq = sweep.seqs.front(),
                      .dtype = o.dtype.empty() ? (o.cluster.empty() ? "fp32" : "bf16") : o.dtype};
  return sweep;
}

std::vector<schedule::Sweep> sweeps_of(const ParallelFlags& o) { return bench::by_layer(sweep_of(o), o.layers); }

comm::WorldOptions world_options(const ParallelFlags& o) {
  comm::WorldOptions options;
  options.backend = o.backend == "threads" ? "auto" : o.backend;
  options.delay = {.latency_s = o.latency_us * 1e-6, .bytes_per_s = o.bandwidth_gb * 1e9};
  return options;
}

// The same command for `ranks` processes.
schedule::SweepResult in_processes(const ParallelFlags& o, int ranks) {
  std::vector<std::string> command = {"ingot", "bench", "parallel"};
  const auto add = [&](const char* flag, const std::string& value) {
    command.emplace_back(flag);
    command.push_back(value);
  };
  if (!o.methods.empty()) add("--methods", base::join(o.methods, ","));
  if (!o.layers.empty()) add("--layers", base::join(o.layers, ","));
  if (!o.lengths.empty()) add("--seq", base::join(o.lengths, ","));
  add("--ranks", std::to_string(ranks));
  for (const auto& [flag, value] : {std::pair{"--hidden", o.hidden},
                                    {"--heads", o.heads},
                                    {"--kv-heads", o.kv_heads},
                                    {"--head-dim", o.head_dim},
                                    {"--ffn", o.ffn},
                                    {"--batch", o.batch},
                                    {"--repeats", o.repeats}})
    add(flag, std::to_string(value));
  if (!o.dtype.empty()) add("--dtype", o.dtype);
  add("--pass", o.pass);
  add("--backend", o.backend);
  add("--latency-us", fmt::format("{}", o.latency_us));
  add("--bandwidth-gb", fmt::format("{}", o.bandwidth_gb));
  return bench::sweep_from_json(bench::results_of_processes(ranks, std::move(command)));
}

int as_rank(const ParallelFlags& o) {
  const auto ranks = comm::rank_environment(base::environment());
  const auto device = bench::device_for_backend(o.backend, ranks.local_rank);
  const auto world = comm::World::join(ranks, o.backend == "nccl", world_options(o));
  const resilience::StopSignal stop(bench::kRanksStopNote, resilience::SecondSignal::ends_at_once);
  const auto results = bench::measure_sweeps(sweeps_of(o), static_cast<int>(o.repeats), *world, device, stop);
  if (world->rank() == 0) base::write_file_atomically(o.as_rank, schedule::to_json(results, "measured", base::host_name()));
  return 0;
}

schedule::SweepResult measure(const ParallelFlags& o) {
  schedule::SweepResult results;
  for (const int ranks : o.ranks) {
    bench::device_for_backend(o.backend, ranks - 1);
    if (o.backend != "threads") {
      bench::append(results, in_processes(o, ranks));
      continue;
    }
    const resilience::StopSignal stop(bench::kRanksStopNote, resilience::SecondSignal::ends_at_once);
    comm::run_ranks(
        ranks,
        [&](comm::World& world) {
          auto own = bench::measure_sweeps(sweeps_of(o), static_cast<int>(o.repeats), world, at::kCPU, stop);
          if (world.rank() == 0) bench::append(results, std::move(own));
        },
        world_options(o));
  }
  bench::add_crossovers(results);
  return results;
}

schedule::SweepResult replay(const ParallelFlags& o, const schedule::Cluster& cluster) {
  schedule::SweepResult results;
  for (const auto& sweep : sweeps_of(o)) bench::append(results, bench::model(sweep, cluster));
  return results;
}

}  // namespace

int run_bench_parallel(const Call& call) {
  const auto& o = call.options<ParallelFlags>();
  if (!o.published.empty()) {
    const auto rows = bench::published_rows(bench::read_published_clusters(o.published));
    std::fputs((call.json ? bench::published_json(rows) : bench::published_table(rows)).c_str(), stdout);
    return 0;
  }
  sweeps_of(o);
  if (!o.as_rank.empty()) {
    kernels::use_page_pool();
    return as_rank(o);
  }
  std::string machine = base::host_name();
  schedule::SweepResult results;
  if (o.cluster.empty()) {
    kernels::use_page_pool();
    results = measure(o);
  } else {
    const auto cluster = schedule::read_cluster(o.cluster);
    machine = cluster.name;
    results = replay(o, cluster);
  }
  const auto json = schedule::to_json(results, o.cluster.empty() ? "measured" : "modelled", machine);
  std::fputs((call.json ? json : schedule::to_table(results)).c_str(), stdout);
  if (!o.output.empty()) {
    base::write_file_atomically(o.output, json);
    base::log_info("wrote {}", o.output);
  }
  return results.results.empty() ? 1 : 0;
}

}  // namespace ingot::cli
#endif
