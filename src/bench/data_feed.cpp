#include "bench/data_feed.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <filesystem>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "bench/scratch_folder.h"
#include "device/device.h"
#include "mesh/mesh.h"
#include "plan/run/shape.h"
#include "plan/time.h"

namespace ingot::bench {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSamplesCounted = 4096;
constexpr int64_t kSimulatedBytes = int64_t{16} << 20;

bool is_there(const data::DataConfig& config) {
  return std::all_of(config.sources.begin(), config.sources.end(), [](const auto& source) { return data::has_index(source.path); });
}

ReadPattern pattern_of(const data::Loader& loader) {
  return read_pattern(loader, 0, std::min(kSamplesCounted, loader.samples()), kFeedPageBytes);
}

void simulate(DataFeed& loading, data::DataConfig config, int64_t vocab_size, const FeedRequest& o) {
  ScratchFolder folder(o.folder, "ingot-bench-storage");
  for (const char* name : {"tokens.bin", "tokens.idx", "tokens.bin.tmp", "tokens.idx.tmp", "tokens.lengths.tmp", "tokens.documents.tmp"})
    folder.adopt(name);
  loading.shape.token_bytes = data::size_bytes(data::token_type_for(vocab_size));
  const int64_t tokens = std::max(64 * config.seq_len, kSimulatedBytes / loading.shape.token_bytes);
  write_simulated_dataset(folder.path() / "tokens", tokens, o.document_tokens, vocab_size);
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
  plan::PipelineFacts pipelines;
  return plan::predict_step_time(*models::create_model(config.model), plan::shape_of(config, phase, mesh, pipelines), *profile).total_s();
}

std::vector<double> scatters(const DataFeed& loading) { return {1, 2, 4, 8, loading.pattern.scatter}; }

}  // namespace

DataFeed data_feed(const FeedRequest& o) {
  const auto& config = o.config;
  train::check(config);
  const auto phases = train::lay_out_phases(config);
  // The phase that reads most.
  const auto& phase = *std::max_element(phases.begin(), phases.end(),
                                        [](const auto& a, const auto& b) { return a.tokens_per_step() < b.tokens_per_step(); });
  DataFeed loading;
  loading.shape = {.batch = phase.batch_size, .seq = phase.data.seq_len, .page_bytes = kFeedPageBytes};
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

std::string describe(const DataFeed& l, const StorageResult* reads) {
  const auto& s = l.shape;
  auto text = fmt::format(
      "\ndata loading: {} sequences of {} tokens of {} bytes an iteration, {} or {:.0f} pages of 4 KiB\n"
      "scatter factor {:.2f}: a sample touches {:.2f} pages in {:.2f} pieces where {:.2f} would hold it; {} samples of {}\n",
      s.batch, s.seq, s.token_bytes, base::format_bytes(s.batch * s.seq * s.token_bytes), plan::pages_per_iteration(s, 1),
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
    text += fmt::format("{:>10}{:>16.0f}{:>14}{:>14.4g} s{}\n", fmt::format("{:.4g}", scatter), plan::pages_per_iteration(s, scatter),
                        l.step_s > 0 ? fmt::format("{:.0f}", plan::required_reads_per_s(s, scatter, l.step_s)) : "-",
                        plan::break_even_s(s, scatter, rate), i + 1 == all.size() ? "  this run's" : "");
  }
  if (l.step_s <= 0) return text;
  const double limit_s = plan::break_even_s(s, l.pattern.scatter, rate);
  return text + (limit_s < l.step_s ? fmt::format("storage keeps up: reading takes {:.2g} of an iteration's time\n", limit_s / l.step_s)
                                    : fmt::format("storage is the limit: it needs {:.4g} s for what an iteration reads\n", limit_s));
}

nlohmann::ordered_json to_json(const DataFeed& l, const StorageResult* reads) {
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
    nlohmann::ordered_json entry = {{"scatter", scatter}, {"reads_per_iteration", plan::pages_per_iteration(s, scatter)}};
    entry["required_reads_per_s"] = l.step_s > 0 ? nlohmann::ordered_json(plan::required_reads_per_s(s, scatter, l.step_s)) : nullptr;
    entry["break_even_s"] = reads ? nlohmann::ordered_json(plan::break_even_s(s, scatter, reads->rate.operations_per_s)) : nullptr;
    json["by_scatter"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace ingot::bench
