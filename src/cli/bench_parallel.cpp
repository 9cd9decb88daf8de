// `ingot bench parallel`: its ranks are threads, or processes that it starts as `ingot launch` does and that call it again; or there are none
// and the traces of the layers are replayed on the profile of a cluster.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "base/text.h"
#include "bench/parallel/measured.h"
#include "bench/parallel/model.h"
#include "bench/parallel/published.h"
#include "cli/bench_ranks.h"
#include "cli/verbs.h"
#include "kernels/cpu_memory.h"
#include "resilience/stop_signal.h"

namespace ingot::cli {
namespace {

using base::UsageError;
using schedule::Layer;
using schedule::Method;

int64_t length_from(const std::string& text) {
  const bool is_kilo = !text.empty() && (text.back() == 'K' || text.back() == 'k'), is_mega = !text.empty() && text.back() == 'M';
  const auto number = base::parse_integer(is_kilo || is_mega ? text.substr(0, text.size() - 1) : text);
  if (!number || *number < 1 || *number > int64_t{1} << 32) throw UsageError("--seq {}: write a number of tokens, such as 4096 or 4K", text);
  return *number * (is_kilo ? 1024 : is_mega ? 1024 * 1024 : 1);
}

bool is_linear(Method method) { return method == Method::lasp1 || method == Method::lasp2 || method == Method::zeco; }

schedule::Sweep sweep_of(const BenchOptions& o) {
  schedule::Sweep sweep;
  for (const auto& name : o.methods) sweep.methods.push_back(schedule::method_from_name(name));
  if (sweep.methods.empty()) sweep.methods = schedule::all_methods();
  for (const auto& text : o.lengths.empty() ? std::vector<std::string>{"1K", "2K", "4K"} : o.lengths) sweep.seqs.push_back(length_from(text));
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
                      .dtype = o.dtype == "all" ? (o.cluster.empty() ? "fp32" : "bf16") : o.dtype};
  return sweep;
}

// The layers of a sweep, each with the methods that have a schedule of their own for it.
std::vector<std::pair<Layer, schedule::Sweep>> by_layer(const BenchOptions& o) {
  const auto sweep = sweep_of(o);
  std::vector<std::pair<Layer, schedule::Sweep>> all;
  const auto layers = o.layers.empty() ? std::vector<std::string>{"attention", "mlp", "linear_attention", "block"} : o.layers;
  for (const auto& name : layers) {
    const auto layer = schedule::layer_from_name(name);
    auto own = sweep;
    own.base.layer = layer;
    std::erase_if(own.methods, [&](Method method) {
      if (layer == Layer::block) return false;
      if (layer == Layer::linear_attention) return !is_linear(method);
      // They differ in attention alone.
      return is_linear(method) || (layer == Layer::mlp && (method == Method::ring || method == Method::ulysses));
    });
    if (!own.methods.empty()) all.emplace_back(layer, std::move(own));
  }
  if (all.empty()) throw UsageError("none of these methods has a schedule for these layers");
  return all;
}

comm::WorldOptions world_options(const BenchOptions& o) {
  comm::WorldOptions options;
  options.backend = o.backend == "threads" ? "auto" : o.backend;
  options.delay = {.latency_s = o.latency_us * 1e-6, .bytes_per_s = o.bandwidth_gb * 1e9};
  return options;
}

void append(schedule::SweepResult& all, schedule::SweepResult more) {
  all.results.insert(all.results.end(), more.results.begin(), more.results.end());
  all.refusals.insert(all.refusals.end(), more.refusals.begin(), more.refusals.end());
  all.crossovers.insert(all.crossovers.end(), more.crossovers.begin(), more.crossovers.end());
}

// All cases of the ranks of `world`, on each of them; `shows`: with a bar.
schedule::SweepResult measure_all(const BenchOptions& o, comm::World& world, bool shows, const resilience::StopSignal& stop) {
  schedule::SweepResult all;
  for (const auto& [layer, sweep] : by_layer(o)) {
    std::optional<base::ProgressBar> bar;
    auto part = bench::measure_sweep(sweep, {layer}, static_cast<int>(o.repeats), world, [&](size_t done, size_t count, const schedule::Layout& next) {
      if (shows && !bar)
        bar.emplace(fmt::format("{}, {} ranks", schedule::name_of(next.layer), world.size()), static_cast<int64_t>(count), base::ProgressUnit::count);
      if (bar) bar->update(static_cast<int64_t>(done), fmt::format("{} {}", next.label(), next.sizes.seq));
      return stop.received() == 0;
    });
    if (bar) bar->finish();
    append(all, std::move(part));
  }
  return all;
}

// The same command for `ranks` processes.
schedule::SweepResult in_processes(const BenchOptions& o, int ranks) {
  std::vector<std::string> command = {"ingot", "bench", "parallel"};
  const auto add = [&](const char* flag, const std::string& value) {
    command.emplace_back(flag);
    command.push_back(value);
  };
  if (!o.methods.empty()) add("--methods", base::join(o.methods, ","));
  if (!o.layers.empty()) add("--layers", base::join(o.layers, ","));
  if (!o.lengths.empty()) add("--seq", base::join(o.lengths, ","));
  add("--ranks", std::to_string(ranks));
  for (const auto& [flag, value] : {std::pair{"--hidden", o.hidden}, {"--heads", o.heads}, {"--kv-heads", o.kv_heads}, {"--head-dim", o.head_dim},
                                    {"--ffn", o.ffn}, {"--batch", o.batch}, {"--repeats", o.repeats}})
    add(flag, std::to_string(value));
  if (o.dtype != "all") add("--dtype", o.dtype);
  add("--pass", o.pass);
  add("--backend", o.backend);
  add("--latency-us", fmt::format("{}", o.latency_us));
  add("--bandwidth-gb", fmt::format("{}", o.bandwidth_gb));
  return bench::sweep_from_json(results_of_processes(ranks, std::move(command)));
}

int as_rank(const BenchOptions& o) {
  const auto ranks = comm::rank_environment(base::environment());
  const auto world = comm::World::join(ranks, o.backend == "nccl", world_options(o));
  const resilience::StopSignal stop(kRanksStopNote, resilience::SecondSignal::ends_at_once);
  const auto results = measure_all(o, *world, world->rank() == 0, stop);
  if (world->rank() == 0) base::write_file_atomically(o.as_rank, schedule::to_json(results, "measured", base::host_name()));
  return 0;
}

schedule::SweepResult measure(const BenchOptions& o) {
  schedule::SweepResult results;
  for (const int ranks : o.ranks) {
    if (o.backend != "threads") {
      append(results, in_processes(o, ranks));
      continue;
    }
    const resilience::StopSignal stop(kRanksStopNote, resilience::SecondSignal::ends_at_once);
    comm::run_ranks(
        ranks,
        [&](comm::World& world) {
          auto own = measure_all(o, world, world.rank() == 0, stop);
          if (world.rank() == 0) append(results, std::move(own));
        },
        world_options(o));
  }
  bench::add_crossovers(results);
  return results;
}

schedule::SweepResult replay(const BenchOptions& o, const schedule::Cluster& cluster) {
  schedule::SweepResult results;
  for (const auto& [layer, sweep] : by_layer(o)) append(results, bench::model(sweep, cluster));
  return results;
}

}  // namespace

int run_bench_parallel(const Options& all) {
  const auto& o = all.bench;
  if (!o.published.empty()) {
    const auto rows = bench::published_rows(bench::read_published_clusters(o.published));
    std::fputs((all.json ? bench::published_json(rows) : bench::published_table(rows)).c_str(), stdout);
    return 0;
  }
  by_layer(o);
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
  std::fputs((all.json ? json : schedule::to_table(results)).c_str(), stdout);
  if (!o.output.empty()) {
    base::write_file_atomically(o.output, json);
    base::log_info("wrote {}", o.output);
  }
  return results.results.empty() ? 1 : 0;
}

}  // namespace ingot::cli
