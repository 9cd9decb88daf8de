// `ingot bench parallel`: its ranks are threads, or processes that it starts as `ingot launch` does and that call it again.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "base/text.h"
#include "bench/parallel.h"
#include "cli/verbs.h"
#include "kernels/cpu_memory.h"
#include "resilience/stop_signal.h"

namespace ingot::cli {
namespace {

using base::UsageError;

int64_t length_from(const std::string& text) {
  const bool is_kilo = !text.empty() && (text.back() == 'K' || text.back() == 'k'), is_mega = !text.empty() && text.back() == 'M';
  const auto number = base::parse_integer(is_kilo || is_mega ? text.substr(0, text.size() - 1) : text);
  if (!number || *number < 1) throw UsageError("--seq {}: write a number of tokens, such as 4096 or 4K", text);
  return *number * (is_kilo ? 1024 : is_mega ? 1024 * 1024 : 1);
}

void check_known(const char* flag, const std::vector<std::string>& given, const std::vector<std::string>& known) {
  for (const auto& name : given)
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw UsageError("{} {}: it is one of {}{}", flag, name, base::join(known, ", "), base::did_you_mean(name, known));
}

std::vector<bench::ParallelCase> cases_of(const BenchOptions& o, int ranks) {
  check_known("--methods", o.methods, bench::parallel_methods());
  check_known("--layers", o.layers, bench::parallel_layers());
  const auto methods = o.methods.empty() ? bench::parallel_methods() : o.methods;
  const auto layers = o.layers.empty() ? bench::parallel_layers() : o.layers;
  const auto lengths = o.lengths.empty() ? std::vector<std::string>{"1K", "2K", "4K"} : o.lengths;
  std::vector<bench::ParallelCase> cases;
  for (const auto& layer : layers)
    for (const auto& length : lengths)
      for (const auto& method : methods) {
        // They differ in attention alone.
        if (layer == "mlp" && (method == "ring" || method == "ulysses")) continue;
        if (method == "tp+sp" && ranks < 4 && o.methods.empty()) continue;
        cases.push_back({method, layer, ranks, length_from(length), o.pass});
      }
  return cases;
}

bench::BlockSizes sizes_of(const BenchOptions& o) {
  if (o.heads % o.kv_heads != 0) throw UsageError("--heads {} is not a multiple of --kv-heads {}", o.heads, o.kv_heads);
  if (o.head_dim == 0 && o.hidden % o.heads != 0)
    throw UsageError("--hidden {} is not a multiple of --heads {}; say --head-dim", o.hidden, o.heads);
  return {o.hidden, o.heads, o.kv_heads, o.head_dim, o.ffn, o.batch, o.dtype == "all" ? "fp32" : o.dtype};
}

comm::WorldOptions world_options(const BenchOptions& o) {
  comm::WorldOptions options;
  options.backend = o.backend == "threads" ? "auto" : o.backend;
  options.delay = {.latency_s = o.latency_us * 1e-6, .bytes_per_s = o.bandwidth_gb * 1e9};
  return options;
}

// All cases of one number of ranks, on each of them.
std::vector<bench::ParallelResult> measure_all(const BenchOptions& o, comm::World& world, base::ProgressBar* bar, const std::function<bool()>& is_stopped) {
  std::vector<bench::ParallelResult> results;
  const auto cases = cases_of(o, world.size());
  for (const auto& what : cases) {
    // All ranks stop at the same case.
    const auto stop = at::full({1}, is_stopped() ? 1 : 0, at::kInt);
    world.everyone().all_reduce(stop, comm::Reduction::max);
    if (stop.item<int>() != 0) break;
    results.push_back(bench::measure_parallel(what, sizes_of(o), static_cast<int>(o.repeats), world));
    if (bar) bar->update(static_cast<int64_t>(results.size()), fmt::format("{} {} {} tokens", what.method, what.layer, what.seq));
  }
  if (bar && results.size() == cases.size()) bar->finish();
  return results;
}

// The same command for `ranks` processes, whose first one leaves its results in a file.
std::vector<bench::ParallelResult> in_processes(const Options& all, int ranks) {
  const auto& o = all.bench;
  const auto file = std::filesystem::temp_directory_path() / fmt::format("ingot_bench_{}_{}.json", ::getpid(), ranks);
  Options launch;
  launch.verb = "launch";
  launch.launch.ranks = ranks;
  auto& command = launch.launch.command;
  const auto add = [&](const char* flag, const std::string& value) {
    command.emplace_back(flag);
    command.push_back(value);
  };
  command = {"ingot", "bench", "parallel"};
  add("--as-rank", file.string());
  if (!o.methods.empty()) add("--methods", base::join(o.methods, ","));
  if (!o.layers.empty()) add("--layers", base::join(o.layers, ","));
  if (!o.lengths.empty()) add("--seq", base::join(o.lengths, ","));
  add("--ranks", std::to_string(ranks));
  for (const auto& [flag, value] : {std::pair{"--hidden", o.hidden}, {"--heads", o.heads}, {"--kv-heads", o.kv_heads}, {"--head-dim", o.head_dim},
                                    {"--ffn", o.ffn}, {"--batch", o.batch}, {"--repeats", o.repeats}})
    add(flag, std::to_string(value));
  add("--dtype", sizes_of(o).dtype);
  add("--pass", o.pass);
  add("--backend", o.backend);
  add("--latency-us", fmt::format("{}", o.latency_us));
  add("--bandwidth-gb", fmt::format("{}", o.bandwidth_gb));
  const int status = run_launch(launch);
  struct Remover {
    const std::filesystem::path& file;
    ~Remover() {
      std::error_code ignored;
      std::filesystem::remove(file, ignored);
    }
  } remover{file};
  if (status != 0) throw base::Error(fmt::format("the {} ranks did not finish; what they said is above", ranks));
  return bench::parallel_results(nlohmann::json::parse(base::read_file(file)), sizes_of(o));
}

int as_rank(const BenchOptions& o) {
  const auto ranks = comm::rank_environment(base::environment());
  const auto world = comm::World::join(ranks, o.backend == "nccl", world_options(o));
  const resilience::StopSignal stop;
  std::optional<base::ProgressBar> bar;
  if (world->rank() == 0)
    bar.emplace(fmt::format("{} ranks", world->size()), static_cast<int64_t>(cases_of(o, world->size()).size()), base::ProgressUnit::count);
  const auto results = measure_all(o, *world, bar ? &*bar : nullptr, [&] { return stop.received() != 0; });
  if (world->rank() == 0) base::write_file_atomically(o.as_rank, bench::to_json(results).dump());
  return 0;
}

}  // namespace

int run_bench_parallel(const Options& all) {
  const auto& o = all.bench;
  sizes_of(o);
  kernels::use_page_pool();
  if (!o.as_rank.empty()) return as_rank(o);
  std::vector<bench::ParallelResult> results;
  size_t planned = 0;
  for (const int ranks : o.ranks) {
    planned += cases_of(o, ranks).size();
    std::vector<bench::ParallelResult> some;
    if (o.backend == "threads") {
      const resilience::StopSignal stop;
      base::ProgressBar bar(fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s"), static_cast<int64_t>(cases_of(o, ranks).size()),
                            base::ProgressUnit::count);
      comm::run_ranks(
          ranks,
          [&](comm::World& world) {
            auto own = measure_all(o, world, world.rank() == 0 ? &bar : nullptr, [&] { return stop.received() != 0; });
            if (world.rank() == 0) some = std::move(own);
          },
          world_options(o));
    } else {
      some = in_processes(all, ranks);
    }
    results.insert(results.end(), some.begin(), some.end());
  }
  const auto json = bench::to_json(results).dump(2) + "\n";
  std::fputs((all.json ? json : bench::parallel_tables(results)).c_str(), stdout);
  if (!o.output.empty()) {
    base::write_file_atomically(o.output, json);
    base::log_info("wrote {}", o.output);
  }
  if (results.size() == planned) return 0;
  base::log_warning("stopped after {} of {} cases", results.size(), planned);
  return 1;
}

}  // namespace ingot::cli
