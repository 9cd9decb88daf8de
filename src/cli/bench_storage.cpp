// `ingot bench storage`: the storage behind a folder, and whether it keeps up with the data of a run.
#include "cli/bench_storage.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "base/text.h"
#include "bench/data_loading.h"
#include "bench/storage.h"
#include "cli/config.h"
#include "cli/counts.h"
#include "cli/forecast.h"
#include "cli/verbs.h"
#include "device/device.h"
#include "mesh/mesh.h"
#include "resilience/stop_signal.h"
#include "train/phases.h"

namespace ingot::cli {
namespace {

using base::UsageError;
namespace fs = std::filesystem;

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kSamplesCounted = 4096;
constexpr int64_t kSimulatedBytes = int64_t{16} << 20;
constexpr const char* kStopNote = "\nstopping and removing the files; what was measured is kept\n";

constexpr const char* kBytes = "bytes, such as 4K, 256M or 2G";

bench::StorageOptions options_of(const BenchOptions& o) {
  bench::StorageOptions options;
  options.folder = o.folder;
  if (o.quick) options.size_bytes = int64_t{32} << 20, options.writers = {1, 4}, options.seconds = 0.1;
  if (!o.size.empty()) options.size_bytes = count_from("--size", o.size, kBytes);
  if (!o.writers.empty()) options.writers = o.writers;
  if (!o.blocks.empty()) options.block_bytes = counts_from("--blocks", o.blocks, kBytes);
  if (o.seconds > 0) options.seconds = o.seconds;
  // What data loading is judged by.
  auto& blocks = options.block_bytes;
  if (!o.config.empty() && std::find(blocks.begin(), blocks.end(), kPageBytes) == blocks.end()) blocks.insert(blocks.begin(), kPageBytes);
  return options;
}

// What a run reads, and how far that is from contiguous.
struct Loading {
  bench::LoadingShape shape;
  bench::ReadPattern pattern;
  std::string source;  // where the pattern is from, for people
  bool is_simulated = false;
  double step_s = 0;  // 0 = unknown
  bool is_predicted = false;
};

bool is_there(const data::DataConfig& config) {
  return std::all_of(config.sources.begin(), config.sources.end(),
                     [](const auto& source) { return fs::exists(data::dataset_prefix(source.path).string() + ".idx"); });
}

bench::ReadPattern pattern_of(const data::Loader& loader) {
  return bench::read_pattern(loader, 0, std::min(kSamplesCounted, loader.samples()), kPageBytes);
}

void simulate(Loading& loading, data::DataConfig config, int64_t vocab_size, const BenchOptions& o) {
  bench::ScratchFolder folder(o.folder, "ingot-bench-storage");
  for (const char* name : {"tokens.bin", "tokens.idx", "tokens.bin.tmp", "tokens.idx.tmp", "tokens.lengths.tmp", "tokens.documents.tmp"})
    folder.adopt(name);
  loading.shape.token_bytes = data::size_bytes(data::token_type_for(vocab_size));
  const int64_t tokens = std::max(64 * config.seq_len, kSimulatedBytes / loading.shape.token_bytes);
  bench::write_simulated_dataset(folder.path() / "tokens", tokens, o.document_tokens, vocab_size);
  config.sources = {{(folder.path() / "tokens").string(), 1}};
  config.validation.clear();
  config.validation_fraction = 0;
  loading.pattern = pattern_of(data::Loader(config, data::Split::train));
  loading.is_simulated = true;
  loading.source = fmt::format("simulated documents of {} tokens on average, as the data is not there", o.document_tokens);
}

// By the profile of this machine, when there is one and the run is for one rank.
double predicted_step_s(const train::RunConfig& config, const train::Phase& phase) {
  const mesh::Mesh mesh(config.parallel, 0, 1);
  const auto machine = plan::describe_machine(at::get_num_threads(), 1, device::device_named(config.train.device).str());
  const auto profile = plan::cached_profile(machine, base::environment().cache_folder());
  if (!profile) return 0;
  PipelineFacts pipelines;
  return plan::predict_step_time(*models::create_model(config.model), shape_of(config, phase, mesh, pipelines), *profile).total_s();
}

Loading loading_of(const BenchOptions& o) {
  const auto config = read_config(o.config, o.set);
  train::check(config);
  const auto phases = train::lay_out_phases(config);
  // The phase that reads most.
  const auto& phase = *std::max_element(phases.begin(), phases.end(),
                                        [](const auto& a, const auto& b) { return a.tokens_per_step() < b.tokens_per_step(); });
  Loading loading;
  loading.shape = {.batch = phase.batch_size, .seq = phase.data.seq_len, .page_bytes = kPageBytes};
  if (is_there(phase.data)) {
    const data::Loader loader(phase.data, data::Split::train);
    loading.shape.token_bytes = loader.token_bytes();
    loading.pattern = pattern_of(loader);
    loading.source = fmt::format("the run's own data, from {}", phase.data.sources.front().path);
  } else {
    simulate(loading, phase.data, config.model.vocab_size, o);
  }
  loading.step_s = o.step_s;
  if (o.step_s > 0) return loading;
  try {
    loading.step_s = predicted_step_s(config, phase);
    loading.is_predicted = loading.step_s > 0;
  } catch (const base::Error& unknown) {
    base::log_info("the time of an iteration is not predicted: {}", unknown.what());
  }
  return loading;
}

std::vector<double> scatters(const Loading& loading) { return {1, 2, 4, 8, loading.pattern.scatter}; }

std::string describe(const Loading& l, const bench::StorageResult* reads) {
  const auto& s = l.shape;
  auto text = fmt::format(
      "\ndata loading: {} sequences of {} tokens of {} bytes an iteration, {} or {:.0f} pages of 4 KiB\n"
      "scatter factor {:.2f}: a sample touches {:.2f} pages in {:.2f} pieces where {:.2f} would hold it; {} samples of {}\n",
      s.batch, s.seq, s.token_bytes, base::format_bytes(s.batch * s.seq * s.token_bytes), bench::pages_per_iteration(s, 1),
      l.pattern.scatter, l.pattern.pages, l.pattern.pieces, s.pages_of_sample(), l.pattern.samples, l.source);
  if (!reads) return text + "random reads were not measured\n";
  const double rate = reads->rate.operations_per_s;
  text += fmt::format("sustained: {:.0f} random reads of 4 KiB a second, {} at once, {}\n", rate, reads->rate.writers,
                      reads->rate.direct ? "past the page cache" : "through the page cache");
  text += l.step_s > 0 ? fmt::format("an iteration of {:.4g} s ({})\n", l.step_s, l.is_predicted ? "predicted for this machine" : "given")
                       : std::string("how long an iteration takes is not known here; --step-s says it\n");
  text += fmt::format("\n{:>10}{:>16}{:>14}{:>16}\n", "scatter", "reads/iteration", "reads/s", "break-even");
  const auto all = scatters(l);
  for (size_t i = 0; i < all.size(); ++i) {
    const double scatter = all[i];
    text += fmt::format("{:>10}{:>16.0f}{:>14}{:>14.4g} s{}\n", fmt::format("{:.4g}", scatter), bench::pages_per_iteration(s, scatter),
                        l.step_s > 0 ? fmt::format("{:.0f}", bench::required_reads_per_s(s, scatter, l.step_s)) : "-",
                        bench::break_even_s(s, scatter, rate), i + 1 == all.size() ? "  this run's" : "");
  }
  if (l.step_s <= 0) return text;
  const double limit_s = bench::break_even_s(s, l.pattern.scatter, rate);
  return text + (limit_s < l.step_s ? fmt::format("storage keeps up: reading takes {:.2g} of an iteration's time\n", limit_s / l.step_s)
                                    : fmt::format("storage is the limit: it needs {:.4g} s for what an iteration reads\n", limit_s));
}

nlohmann::ordered_json to_json(const Loading& l, const bench::StorageResult* reads) {
  const auto& s = l.shape;
  nlohmann::ordered_json json = {{"batch_size", s.batch},
                                 {"seq_len", s.seq},
                                 {"token_bytes", s.token_bytes},
                                 {"page_bytes", s.page_bytes},
                                 {"simulated", l.is_simulated},
                                 {"samples", l.pattern.samples},
                                 {"pages_per_sample", l.pattern.pages},
                                 {"pieces_per_sample", l.pattern.pieces},
                                 {"most_pages_of_a_sample", l.pattern.most_pages},
                                 {"extra_pages_per_sample", l.pattern.extra_pages},
                                 {"scatter", l.pattern.scatter}};
  json["iteration_s"] = l.step_s > 0 ? nlohmann::ordered_json(l.step_s) : nullptr;
  json["reads_per_s"] = reads ? nlohmann::ordered_json(reads->rate.operations_per_s) : nullptr;
  json["direct"] = reads && reads->rate.direct;
  json["by_scatter"] = nlohmann::ordered_json::array();
  for (const double scatter : scatters(l)) {
    nlohmann::ordered_json entry = {{"scatter", scatter}, {"reads_per_iteration", bench::pages_per_iteration(s, scatter)}};
    entry["required_reads_per_s"] = l.step_s > 0 ? nlohmann::ordered_json(bench::required_reads_per_s(s, scatter, l.step_s)) : nullptr;
    entry["break_even_s"] = reads ? nlohmann::ordered_json(bench::break_even_s(s, scatter, reads->rate.operations_per_s)) : nullptr;
    json["by_scatter"].push_back(std::move(entry));
  }
  return json;
}

bench::StorageReport measure(const bench::StorageOptions& options, const std::function<bool()>& is_stopped) {
  std::optional<base::ProgressBar> bar;
  auto report = bench::measure_storage(
      options,
      [&](size_t done, size_t all, const std::string& next) {
        if (!bar) bar.emplace("bench storage", static_cast<int64_t>(all), base::ProgressUnit::count);
        bar->update(static_cast<int64_t>(done), next);
      },
      is_stopped);
  if (!bar) return report;
  bar->update(static_cast<int64_t>(report.results.size()));
  bar->finish(report.complete ? "" : "stopped; what was measured is kept");
  return report;
}

}  // namespace

std::vector<plan::StorageRate> storage_rates(const std::string& folder) {
  const resilience::StopSignal stop(kStopNote);
  std::vector<plan::StorageRate> rates;
  try {
    const auto report =
        measure({.folder = folder, .size_bytes = int64_t{64} << 20, .seconds = 0.1, .budget_s = 8}, [&] { return stop.received() != 0; });
    for (const auto& result : report.results) rates.push_back(result.rate);
  } catch (const base::Error& refused) {
    base::log_warning("storage is not measured: {}", refused.what());
  }
  return rates;
}

int run_bench_storage(const Options& all) {
  const auto& o = all.bench;
  const auto options = options_of(o);
  options.check();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files (ulimit -f) becomes an error that is reported
  const resilience::StopSignal stop(kStopNote);
  std::optional<Loading> loading;
  if (!o.config.empty()) loading = loading_of(o);
  const auto report = measure(options, [&] { return stop.received() != 0; });

  auto json = bench::to_json(report);
  json["host"] = base::host_name();
  const auto* reads = report.best_random_read(kPageBytes);
  if (loading) json["data_loading"] = to_json(*loading, reads);
  const auto document = json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  std::fputs((all.json ? document : bench::to_table(report) + (loading ? describe(*loading, reads) : "")).c_str(), stdout);
  if (!o.output.empty()) {
    base::write_file_atomically(o.output, document);
    base::log_info("wrote {}", o.output);
  }
  return report.complete ? 0 : 1;
}

}  // namespace ingot::cli
