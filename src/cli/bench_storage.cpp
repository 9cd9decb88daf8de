// `ingot bench storage`: the storage behind a folder, and whether it keeps up with the data of a run.
#include "cli/verb.h"

namespace ingot::cli {

struct StorageFlags {
  std::string folder = ".", size, config, output;
  std::vector<int> writers;
  std::vector<std::string> blocks, set;
  double seconds = 0, step_s = 0;
  int64_t document_tokens = 1000;
  bool quick = false;
};

#ifndef INGOT_COMPUTES
void add_bench_storage(Flags& flags) {
  const auto values = std::make_shared<StorageFlags>();
  auto& o = *values;
  auto& storage =
      flags.verb("bench", "storage", "reads, writes and small files in a folder, and whether that keeps up with a run's data", values);
  storage.add_option("folder,--folder", o.folder, "where a folder with the measurement's files is made and removed again")
      ->capture_default_str();
  storage.add_option("--size", o.size, "bytes of the files of all writers together (K = 1024; default 256M, with --quick 32M)");
  storage.add_option("--writers", o.writers, "numbers of threads at work at once (default 1,4,16; with --quick 1,4)")->delimiter(',');
  storage.add_option("--blocks", o.blocks, "bytes of random reads and writes (default 4K,64K)")->delimiter(',');
  storage.add_option("--seconds", o.seconds, "longest of a measurement, without its fsync (default 0.5, with --quick 0.1)")
      ->check(CLI::Range(0.001, 3600.0));
  storage.add_flag("--quick", o.quick, "a few seconds instead of half a minute");
  storage.add_option("--config", o.config, "configuration (TOML): can this folder feed that run?");
  storage.add_option("--set", o.set, "key=value over the configuration")->allow_extra_args(false);
  storage.add_option("--step-s", o.step_s, "seconds of an iteration (default: as this machine's profile predicts it)")->check(kPositive);
  storage.add_option("--document-tokens", o.document_tokens, "mean length of a document where the data is not available and is simulated")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  storage.add_option("-o,--output", o.output, "write the JSON here, too");
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <algorithm>
#include <csignal>
#include <optional>

#include "base/counts.h"
#include "base/process.h"
#include "bench/data_feed.h"
#include "bench/storage.h"
#include "cli/show.h"

namespace ingot::cli {
namespace {

constexpr const char* kBytes = "bytes, such as 4K, 256M or 2G";

bench::StorageOptions options_of(const StorageFlags& o) {
  bench::StorageOptions options;
  options.folder = o.folder;
  if (o.quick) options.size_bytes = int64_t{32} << 20, options.writers = {1, 4}, options.seconds = 0.1;
  if (!o.size.empty()) options.size_bytes = base::count_from("--size", o.size, kBytes);
  if (!o.writers.empty()) options.writers = o.writers;
  if (!o.blocks.empty()) options.block_bytes = base::counts_from("--blocks", o.blocks, kBytes);
  if (o.seconds > 0) options.seconds = o.seconds;
  // What data loading is judged by.
  auto& blocks = options.block_bytes;
  if (!o.config.empty() && std::find(blocks.begin(), blocks.end(), bench::kFeedPageBytes) == blocks.end())
    blocks.insert(blocks.begin(), bench::kFeedPageBytes);
  return options;
}

}  // namespace

int run_bench_storage(const Call& call) {
  const auto& o = call.options<StorageFlags>();
  const auto options = options_of(o);
  options.check();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files (ulimit -f) becomes an error that is reported
  const resilience::StopSignal stop(bench::kStorageStopNote);
  std::optional<bench::DataFeed> feed;
  if (!o.config.empty()) feed = bench::data_feed({train::read_config(o.config, o.set), o.folder, o.step_s, o.document_tokens});
  const auto report = bench::watch_storage(options, stop);
  const auto* reads = report.best_random_read(bench::kFeedPageBytes);
  auto json = bench::to_json(report);
  json["host"] = base::host_name();
  if (feed) json["data_loading"] = bench::to_json(*feed, reads);
  show(call, json, bench::to_table(report) + (feed ? bench::describe(*feed, reads) : ""), o.output);
  return report.complete ? 0 : 1;
}

}  // namespace ingot::cli
#endif
